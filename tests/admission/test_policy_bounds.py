"""Policy as the validating step sees it, and for any pod and any boundaries: never looser than any of them."""

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tables import in_one_test

from hami_webhook.admission.denial import Denied
from hami_webhook.admission.policy import AdmissionContext, check
from hami_webhook.devices.pod_preferences import GPU_POLICY, NODE_POLICY, ListRule
from hami_webhook.devices.vendor import Vendor
from hami_webhook.kube.objects import Pod
from hami_webhook.policy.rules import DeviceBounds, PolicyRule, PolicyRules

from .policies import (
    A_TO_C,
    KUNLUN,
    MODE,
    MUST,
    NO_OLD_XPU,
    NO_XPU,
    NOT_B,
    NOUSE,
    NOUSE_TYPE,
    NVIDIA,
    OLD_XPU,
    USE,
    USE_TYPE,
    XPU,
    Applied,
    pod_object,
    team,
)

# checking


@in_one_test(
    ("own", "of_namespace", "rule", "sentence"),
    [
        ({}, {USE: "GPU-a"}, PolicyRule("r"), f"{USE}: must be set: namespace team-a allows only GPU-a"),
        ({USE: " ,"}, {}, A_TO_C, f"{USE}: must be set: policy abc allows only GPU-a, GPU-b, GPU-c"),
        (
            {USE: "GPU-a,GPU-x"},
            {USE: "GPU-a"},
            PolicyRule("r"),
            f"{USE}: must not name GPU-x: namespace team-a allows only GPU-a",
        ),
        (
            {USE: "GPU-d"},
            {USE: "GPU-d"},
            A_TO_C,
            f"{USE}: must not name GPU-d: policy abc allows only GPU-a, GPU-b, GPU-c",
        ),
        ({}, {NOUSE: "GPU-z"}, PolicyRule("r"), f"{NOUSE}: must name GPU-z, denied by namespace team-a"),
        ({NOUSE: "GPU-z"}, {NOUSE: "GPU-z"}, NOT_B, f"{NOUSE}: must name GPU-b, denied by policy no-b"),
        ({}, {USE_TYPE: "A100"}, PolicyRule("r"), f"{USE_TYPE}: must be set: namespace team-a allows only A100"),
        (
            {USE_TYPE: "A"},
            {USE_TYPE: "A100"},
            PolicyRule("r"),
            f"{USE_TYPE}: must not name A: namespace team-a allows only A100",
        ),
        (
            {NOUSE_TYPE: "A100"},
            {NOUSE_TYPE: "A"},
            PolicyRule("r"),
            f"{NOUSE_TYPE}: must name A, denied by namespace team-a",
        ),
        ({}, {}, MUST, f"{GPU_POLICY}: must be must by policy must: it isn't set"),
        ({GPU_POLICY: "own"}, {}, MUST, f"{GPU_POLICY}: must be must by policy must: found own"),
        ({GPU_POLICY: ""}, {}, MUST, f'{GPU_POLICY}: must be must by policy must: found ""'),
    ],
)
def test_a_pod_looser_than_policy_is_denied(
    own: dict[str, str], of_namespace: dict[str, str], rule: PolicyRule, sentence: str
) -> None:
    with pytest.raises(Denied) as denied:
        check(Pod.from_object(pod_object(own)), AdmissionContext(team(of_namespace), PolicyRules((rule,))), [NVIDIA])
    assert (denied.value.code, denied.value.message) == (403, sentence)


@pytest.mark.parametrize(
    ("own", "passes"), [({OLD_XPU: "K1"}, True), ({OLD_XPU: "K1,K9", XPU: "K1"}, True), ({OLD_XPU: "K1,K9"}, False)]
)
def test_checking_reads_alias_keys_as_placement_does(own: dict[str, str], passes: bool) -> None:
    pod = Pod.from_object(pod_object(own))
    if passes:
        check(pod, AdmissionContext(team({XPU: "K1"}), PolicyRules.EMPTY), [KUNLUN])
    else:
        with pytest.raises(Denied):
            check(pod, AdmissionContext(team({XPU: "K1"}), PolicyRules.EMPTY), [KUNLUN])


# for any pod and any boundaries

UUIDS = ("GPU-a", "GPU-b", "GPU-c", "GPU-d")
PARTS = ("A", "a100", "A100", "A100-SXM4", "sxm", "V100", "v", "80GB")
MODELS = ("A100-SXM4-80GB", "A100-PCIE-40GB", "a100", "V100-SXM2", "NVIDIA-Tesla V100", "A800-SXM4", "H20", "")
UUID_LISTS = st.lists(st.sampled_from(UUIDS), max_size=4).map(tuple)
TYPE_LISTS = st.lists(st.sampled_from(PARTS), max_size=4).map(tuple)
BOUNDS = st.builds(DeviceBounds, UUID_LISTS, UUID_LISTS, TYPE_LISTS, TYPE_LISTS)
CHOICES = st.dictionaries(st.sampled_from((GPU_POLICY, NODE_POLICY, MODE)), st.sampled_from(("", "x", "y")), max_size=2)
RULES = st.lists(
    st.builds(
        PolicyRule,
        name=st.sampled_from(("one", "two", "three")),
        default=CHOICES,
        enforce=CHOICES,
        devices=st.fixed_dictionaries({"NVIDIA": BOUNDS, "kunlun": BOUNDS}),
    ),
    max_size=3,
    unique_by=lambda rule: rule.name,
)


def written(items: st.SearchStrategy[tuple[str, ...]]) -> st.SearchStrategy[str]:
    """A list as people write it: with blanks, empties and repeats."""
    return st.builds(lambda parts, comma: comma.join(parts), items, st.sampled_from((",", " , ", ",,")))


ANNOTATIONS = st.builds(
    lambda lists, choices: {**lists, **choices},
    st.fixed_dictionaries(
        {},
        optional={
            **{key: written(UUID_LISTS) for key in (USE, NOUSE, XPU, NO_XPU, OLD_XPU, NO_OLD_XPU)},
            **{key: written(TYPE_LISTS) for key in (USE_TYPE, NOUSE_TYPE)},
        },
    ),
    CHOICES,
)
ASKED = st.sampled_from(([NVIDIA], [KUNLUN], [NVIDIA, KUNLUN]))


@given(ANNOTATIONS, ANNOTATIONS, RULES, ASKED)
def test_applying_twice_is_applying_once_and_what_is_applied_passes(
    own: dict[str, str], of_namespace: dict[str, str], rules: list[PolicyRule], asked: list[Vendor]
) -> None:
    try:
        once = Applied(own, team(of_namespace), *rules, asked=asked)
    except Denied:
        return
    again = Applied(once.annotations, team(of_namespace), *rules, asked=asked)
    assert (again.operations, again.warnings, again.outcome.rules) == ([], [], ())
    assert bool(once.operations) == bool(once.warnings) == bool(once.outcome.rules)
    check(
        Pod.from_object(pod_object(once.annotations)),
        AdmissionContext(team(of_namespace), PolicyRules(tuple(rules))),
        asked,
    )


def admitted(rule: ListRule, universe: tuple[str, ...]) -> set[str]:
    if universe is MODELS:
        return {model for model in universe if rule.admits_type(model)}
    return {uuid for uuid in universe if rule.admits(uuid)}


def folded(items: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(item.lower() for item in items)


def cards(annotations: Mapping[str, str], vendor: Vendor) -> tuple[set[str], set[str]]:
    """The cards and the models that a vendor's lists let through, read as placement reads them."""
    keys = vendor.keys
    return (
        admitted(ListRule.read(annotations, keys.use_uuid, keys.nouse_uuid), UUIDS),
        admitted(ListRule.read(annotations, keys.use_type, keys.nouse_type, fold=True), MODELS),
    )


def within(bounds: DeviceBounds) -> tuple[set[str], set[str]]:
    return (
        admitted(ListRule(bounds.allow_uuids, bounds.deny_uuids), UUIDS),
        admitted(ListRule(folded(bounds.allow_types), folded(bounds.deny_types)), MODELS),
    )


def limits_on(
    vendor: Vendor, own: Mapping[str, str], of_namespace: Mapping[str, str], rules: Sequence[PolicyRule]
) -> list[tuple[set[str], set[str]]]:
    return [cards(own, vendor), cards(of_namespace, vendor), *(within(rule.devices[vendor.key]) for rule in rules)]


@given(ANNOTATIONS, ANNOTATIONS, RULES, ASKED)
def test_exactly_the_cards_get_through_that_the_pod_and_every_boundary_admit(
    own: dict[str, str], of_namespace: dict[str, str], rules: list[PolicyRule], asked: list[Vendor]
) -> None:
    try:
        applied = Applied(own, team(of_namespace), *rules, asked=asked)
    except Denied as denied:
        key = denied.message.partition(":")[0]
        for vendor in asked:
            if vendor.keys.use_uuid[0].endswith(key):
                limits = limits_on(vendor, own, of_namespace, rules)
                assert not set(UUIDS).intersection(*(uuids for uuids, _ in limits))
        return
    for vendor in asked:
        uuids, models = cards(applied.annotations, vendor)
        limits = limits_on(vendor, own, of_namespace, rules)
        assert uuids == set(UUIDS).intersection(*(limit for limit, _ in limits))
        # types: a pod's item that a boundary's isn't a part of is dropped, though some model may have both; and kunlun
        # has no keys for types, so nothing can be held to them
        assert vendor is KUNLUN or all(models <= limit for _, limit in limits)


@given(ANNOTATIONS, ANNOTATIONS, RULES, ASKED)
def test_a_pod_that_passes_is_not_looser_than_any_boundary(
    stored: dict[str, str], of_namespace: dict[str, str], rules: list[PolicyRule], asked: list[Vendor]
) -> None:
    try:
        check(
            Pod.from_object(pod_object(stored)), AdmissionContext(team(of_namespace), PolicyRules(tuple(rules))), asked
        )
    except Denied:
        return
    for vendor in asked:
        uuids, models = cards(stored, vendor)
        for allowed_uuids, allowed_models in limits_on(vendor, stored, of_namespace, rules):
            assert uuids <= allowed_uuids
            assert models <= allowed_models or vendor is KUNLUN
