"""What mutation added by itself, and what a later pass makes of it (docs/spec/core.md#5)."""

from __future__ import annotations

import copy
from itertools import permutations

import pytest
from builders import CORES, GPU, JSON, MEM, PERCENT, container
from hypothesis import given
from hypothesis import strategies as st

from hami_webhook.admission.defaults import DEFAULTED
from hami_webhook.device_config import builtin_vendors

from .reviews import cpu, mutate, patched, pod

VGPU, GROUPS, UNITS = "mthreads.com/vgpu", "mthreads.com/sgpu-core", "mthreads.com/sgpu-memory"
KNOWN = builtin_vendors()
OURS = f"main:{CORES}"
MOORE = f"main:{GROUPS},main:{UNITS}"
NAMES = [f"main:{name}" for name in (GPU, MEM, CORES, VGPU, UNITS, GROUPS)]


def stored(obj: JSON) -> JSON:
    """What an API server makes of a pod: requests that are missing are as their limits."""
    obj = copy.deepcopy(obj)
    for each in (*obj["spec"].get("initContainers", ()), *obj["spec"]["containers"]):
        resources = each.get("resources", {})
        if "limits" in resources:
            resources["requests"] = {**resources["limits"], **resources.get("requests", {})}
    return obj


def ours(obj: JSON) -> JSON:
    """A pod after a pass of our webhook."""
    return stored(patched(obj, mutate(obj, known=KNOWN)))


def adding(obj: JSON, **amounts: object) -> JSON:
    """A pod after another mutator's pass, which writes limits of its first container."""
    obj = copy.deepcopy(obj)
    obj["spec"]["containers"][0]["resources"]["limits"].update(amounts)
    obj["spec"]["containers"][0]["resources"].get("requests", {}).update(amounts)
    return stored(obj)


def wanting(**limits: object) -> JSON:
    return stored(pod("p", container(limits=limits)))


def limits_of(obj: JSON) -> JSON:
    found: JSON = obj["spec"]["containers"][0]["resources"]["limits"]
    return found


def listed(obj: JSON, text: str) -> JSON:
    """The pod with a list of defaults that its creator wrote."""
    obj = copy.deepcopy(obj)
    obj["metadata"]["annotations"] = {DEFAULTED: text}
    return obj


def list_of(obj: JSON) -> str | None:
    found: str | None = obj["metadata"].get("annotations", {}).get(DEFAULTED)
    return found


def test_all_cores_that_a_later_mutator_adds_to_a_share_stay_if_it_takes_the_list_away() -> None:
    obj = adding(ours(wanting(**{GPU: "1"})), **{MEM: "4000", CORES: "100"})
    assert limits_of(ours(obj)) == {GPU: "1", MEM: "4000"}
    del obj["metadata"]["annotations"][DEFAULTED]
    assert limits_of(ours(obj)) == {GPU: "1", MEM: "4000", CORES: "100"}


@pytest.mark.parametrize(
    ("asked", "added", "meant"),
    [
        ({GPU: "1"}, {MEM: "4000"}, {GPU: "1", MEM: "4000"}),
        ({GPU: "1"}, {PERCENT: "50"}, {GPU: "1", PERCENT: "50"}),
        ({GPU: "1"}, {MEM: "4000", CORES: "30"}, {GPU: "1", MEM: "4000", CORES: "30"}),
        ({GPU: "1"}, {"cpu": "1"}, {GPU: "1", "cpu": "1", CORES: "100"}),
        ({GPU: "1", CORES: "100"}, {MEM: "4000"}, {GPU: "1", CORES: "100", MEM: "4000"}),
        ({VGPU: "1"}, {UNITS: "4"}, {VGPU: "1", UNITS: "4"}),
        ({VGPU: "1"}, {VGPU: "2"}, {VGPU: "2", UNITS: "192", GROUPS: "32"}),
    ],
)
def test_a_later_pass_decides_again_what_was_a_default(asked: JSON, added: JSON, meant: JSON) -> None:
    after = ours(adding(ours(wanting(**asked)), **added))
    assert limits_of(after) == meant
    assert after["spec"]["containers"][0]["resources"]["requests"] == meant
    assert ours(after) == after


@given(st.dictionaries(st.sampled_from((MEM, CORES, PERCENT, "cpu")), st.sampled_from(("1", "50", "99"))))
def test_the_order_of_mutators_matters_to_no_amount(added: JSON) -> None:
    """But for `gpucores: 100`, which looks as our default does."""
    for name in (GPU, VGPU):
        late = ours(adding(ours(wanting(**{name: "1"})), **added))
        early = ours(adding(wanting(**{name: "1"}), **added))
        assert late["spec"] == early["spec"]
        assert list_of(late) == list_of(early)


def test_several_mutators_may_add_in_any_order() -> None:
    results = []
    for order in permutations([{MEM: "4000"}, {CORES: "30"}, {"cpu": "1"}]):
        obj = ours(wanting(**{GPU: "1"}))
        for added in order:
            obj = ours(adding(obj, **added))
        results.append((obj["spec"], list_of(obj)))
    assert all(each == results[0] for each in results)


def test_each_containers_defaults_are_its_own() -> None:
    first, second = container(limits={GPU: "1"}), container("side", limits={GPU: "1"})
    obj = ours(stored(pod("p", first, second)))
    assert list_of(obj) == f"{OURS},side:{CORES}"
    after = ours(adding(obj, **{MEM: "4000"}))
    assert [each["resources"]["limits"] for each in after["spec"]["containers"]] == [
        {GPU: "1", MEM: "4000"},
        {GPU: "1", CORES: "100"},
    ]
    assert list_of(after) == f"side:{CORES}"


# attack: anybody may write the list


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        ({GPU: "1", MEM: "4000"}, f"main:{MEM},main:{GPU}"),  # what no pass of ours adds
        ({GPU: "1", MEM: "4000", CORES: "30"}, OURS),  # an amount that none adds
        ({GPU: "1", "cpu": "1", MEM: "4000", CORES: "1"}, "main:cpu"),
        ({VGPU: "1", UNITS: "4", GROUPS: "4"}, MOORE),
    ],
)
def test_a_list_takes_nothing_out_that_is_not_a_default(limits: JSON, text: str) -> None:
    """Else a tenant could undo what a platform's webhook or a LimitRange wrote before ours."""
    after = ours(listed(wanting(**limits), text))
    assert limits_of(after) == limits
    assert list_of(after) is None


@given(
    st.fixed_dictionaries(
        {GPU: st.just("1")}, optional={MEM: st.sampled_from(("1", "100")), CORES: st.sampled_from(("1", "100"))}
    ),
    st.fixed_dictionaries(
        {VGPU: st.just("1")}, optional={UNITS: st.sampled_from(("2", "96")), GROUPS: st.sampled_from(("1", "16"))}
    ),
    st.lists(st.sampled_from((*NAMES, f"x:{CORES}", ":", "", "main")), max_size=4),
)
def test_a_list_of_a_tenants_gives_what_leaving_out_gives(gpu: JSON, vgpu: JSON, items: list[str]) -> None:
    limits = {**gpu, **vgpu}
    choices = [
        limits_of(ours(wanting(**{name: amount for name, amount in limits.items() if name not in gone})))
        for gone in (
            (),
            (CORES,),
            (GROUPS,),
            (UNITS,),
            (UNITS, GROUPS),
            (CORES, UNITS),
            (CORES, GROUPS, UNITS),
            (CORES, GROUPS),
        )
    ]
    assert limits_of(ours(listed(wanting(**limits), ",".join(items)))) in choices


@pytest.mark.parametrize(
    "text", ["", ",", ":", "main", f"main:{CORES}:", f" main:{CORES}", "\x00", "{}", OURS + "," * 20_000]
)
def test_a_list_that_is_none_or_too_long_is_as_none(text: str) -> None:
    limits = {GPU: "1", MEM: "4000", CORES: "100"}
    after = ours(listed(wanting(**limits), text))
    assert limits_of(after) == limits
    assert list_of(after) is None


def test_a_list_that_would_be_too_long_is_not_written() -> None:
    names = [f"c{number:060}" for number in range(300)]
    obj = ours(pod("p", *(container(name, limits={GPU: "1"}) for name in names)))
    assert list_of(obj) is None
    assert limits_of(obj) == {GPU: "1", CORES: "100"}


# an ordinary day


@pytest.mark.parametrize("limits", [{GPU: "1", MEM: "4000"}, {GPU: "1", CORES: "100"}, {GPU: "1", CORES: "0"}])
def test_no_list_where_nothing_is_a_default(limits: JSON) -> None:
    assert list_of(ours(wanting(**limits))) is None


def test_a_pod_without_cards_keeps_what_it_has() -> None:
    assert list(mutate(listed(pod("p", cpu()), OURS)).patch) == []
