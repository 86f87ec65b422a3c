"""Policy on pods: what is written, what is said, what is refused; and that nothing ever gets looser."""

from collections.abc import Mapping

import pytest
from tables import in_one_test

from hami_webhook.admission.policy import AdmissionContext, PolicyOutcome, check
from hami_webhook.devices.pod_preferences import GPU_POLICY, NODE_POLICY, WEIGHTS
from hami_webhook.devices.vendor import Vendor
from hami_webhook.kube.objects import Pod
from hami_webhook.kube.selectors import LabelSelector, Requirement
from hami_webhook.policy.rules import DeviceBounds, PolicyRule, PolicyRules

from .policies import (
    A_TO_C,
    CHOOSER,
    FIRST,
    KUNLUN,
    LAST,
    METAX,
    MODE,
    MUST,
    NO_OLD_XPU,
    NO_XPU,
    NOT_B,
    NOUSE,
    NOUSE_TYPE,
    NVIDIA,
    OLD_XPU,
    QOS,
    SECOND,
    USE,
    USE_TYPE,
    XPU,
    XPU_CARD,
    Applied,
    bounds,
    pod_object,
    refusal,
    team,
)

# the examples of docs/spec/policy.md#5


def test_example_1_devices_are_cut_down_to_the_namespaces() -> None:
    namespace = team({USE: "GPU-a,GPU-b"})
    without = Applied({}, namespace)
    assert without.annotations == {USE: "GPU-a,GPU-b"}
    assert without.warnings == [f"{USE} set to GPU-a, GPU-b by namespace team-a"]
    cut = Applied({USE: " GPU-b , GPU-c "}, namespace)
    assert cut.annotations == {USE: "GPU-b"}
    assert cut.warnings == [f"{USE} cut down to GPU-b by namespace team-a"]
    assert cut.outcome.rules == ("namespace",)
    assert (
        refusal({USE: "GPU-c"}, namespace)
        == "use-gpuuuid: none of GPU-c is allowed in namespace team-a (allowed: GPU-a, GPU-b)"
    )


def test_example_2_denied_devices_add_up_the_pods_first() -> None:
    applied = Applied({NOUSE: "GPU-y"}, team({NOUSE: "GPU-z"}))
    assert applied.annotations == {NOUSE: "GPU-y,GPU-z"}
    assert applied.warnings == [f"{NOUSE} extended with GPU-z by namespace team-a"]


def test_example_3_types_are_bounded_by_substring() -> None:
    namespace = team({USE_TYPE: "A100"})
    assert Applied({USE_TYPE: "a100-sxm4,V100"}, namespace).annotations == {USE_TYPE: "a100-sxm4"}
    assert refusal({USE_TYPE: "A"}, namespace) == (
        "use-gputype: none of A is allowed in namespace team-a (allowed: A100)"
    )
    assert Applied({}, namespace).annotations == {USE_TYPE: "A100"}


def test_example_4_a_choice_is_the_pods_unless_enforced() -> None:
    namespace = team({GPU_POLICY: "topology-aware"})
    kept = Applied({GPU_POLICY: "binpack"}, namespace)
    assert (kept.annotations, kept.warnings, kept.outcome.rules) == ({GPU_POLICY: "binpack"}, [], ())
    forced = Applied({GPU_POLICY: "binpack"}, namespace, PolicyRule("strict", enforce={GPU_POLICY: "spread"}))
    assert forced.annotations == {GPU_POLICY: "spread"}
    assert forced.warnings == [f"{GPU_POLICY} set to spread by policy strict"]
    assert forced.outcome.rules == ("strict",)


def test_example_5_a_vendors_choice_is_for_pods_that_ask_for_its_cards() -> None:
    namespace = team({QOS: "fixed-share"})
    assert Applied({}, namespace, asked=[METAX]).annotations == {QOS: "fixed-share"}
    assert Applied({QOS: "best-effort"}, namespace, asked=[METAX]).annotations == {QOS: "best-effort"}
    assert Applied({}, namespace, asked=[NVIDIA]).operations == []


@pytest.mark.parametrize("own", [None, {}, {USE: "GPU-c"}, {USE_TYPE: "A"}, {GPU_POLICY: "binpack"}, {NOUSE: "GPU-y"}])
def test_example_6_a_pod_that_asks_for_no_card_is_never_touched(own: Mapping[str, str] | None) -> None:
    namespace = team(
        {USE: "GPU-a", NOUSE: "GPU-z", USE_TYPE: "A100", GPU_POLICY: "x", QOS: "fixed-share", "hami.io/vgpu-node": "n"}
    )
    rule = PolicyRule("strict", enforce={GPU_POLICY: "spread"}, scheduler_name="mine")
    applied = Applied(own, namespace, rule, asked=[])
    assert (applied.operations, applied.warnings, applied.outcome) == ([], [], PolicyOutcome())
    check(Pod.from_object(pod_object(own)), AdmissionContext(namespace, PolicyRules((rule,))), [])


# choices


@in_one_test(
    ("own", "of_namespace", "rules", "value", "source"),
    [
        (None, None, [], None, None),
        (None, None, [FIRST, SECOND], "first-default", "policy first"),
        (None, "ns", [FIRST], "ns", "namespace team-a"),
        ("own", "ns", [FIRST], "own", None),
        ("own", "ns", [MUST, FIRST], "must", "policy must"),
        ("own", "ns", [MUST, LAST], "last", "policy last"),
        (None, "ns", [LAST, MUST], "must", "policy must"),
        ("must", "ns", [MUST], "must", None),
        ("", "ns", [FIRST], "", None),
        (None, "", [FIRST], "", "namespace team-a"),
    ],
)
def test_precedence_of_choices(
    own: str | None, of_namespace: str | None, rules: list[PolicyRule], value: str | None, source: str | None
) -> None:
    namespace = team({} if of_namespace is None else {GPU_POLICY: of_namespace})
    applied = Applied({} if own is None else {GPU_POLICY: own}, namespace, *rules)
    assert applied.annotations.get(GPU_POLICY) == value
    said = value or '""'
    assert applied.warnings == ([] if source is None else [f"{GPU_POLICY} set to {said} by {source}"])


@pytest.mark.parametrize("key", [GPU_POLICY, NODE_POLICY, WEIGHTS])
@pytest.mark.parametrize("vendor", [NVIDIA, METAX, KUNLUN], ids=lambda vendor: vendor.key)
def test_general_choices_are_for_every_vendor(key: str, vendor: Vendor) -> None:
    assert Applied(None, team({key: "x"}), asked=[vendor]).annotations == {key: "x"}


def test_a_present_but_empty_choice_is_the_pods_own() -> None:
    rule = PolicyRule("modes", default={MODE: "mig"})
    assert Applied({MODE: ""}, team(), rule).operations == []
    assert Applied({}, team(), rule).annotations == {MODE: "mig"}


def test_a_vendors_choice_is_not_enforced_on_other_vendors_pods() -> None:
    rule = PolicyRule("qos", enforce={QOS: "fixed-share"}, default={MODE: "mig"})
    assert Applied({}, team(), rule, asked=[METAX]).annotations == {QOS: "fixed-share"}
    assert Applied({}, team(), rule, asked=[KUNLUN]).operations == []
    assert Applied({}, team(), rule, asked=[METAX, NVIDIA]).annotations == {QOS: "fixed-share", MODE: "mig"}


# lists of devices


@in_one_test(
    ("own", "of_namespace", "rules", "result"),
    [
        ({}, {}, [], {}),
        ({USE: "GPU-x"}, {}, [], {USE: "GPU-x"}),
        ({}, {USE: "  "}, [], {}),
        ({USE: "  "}, {USE: "GPU-a"}, [], {USE: "GPU-a"}),
        ({USE: " , "}, {}, [], {USE: " , "}),
        ({USE: " , "}, {NOUSE: ","}, [NOT_B], {USE: " , ", NOUSE: "GPU-b"}),
        ({USE: "GPU-b,GPU-a,GPU-x"}, {USE: "GPU-a,GPU-b"}, [], {USE: "GPU-b,GPU-a"}),
        ({USE: " GPU-a ,GPU-a,"}, {USE: "GPU-a,GPU-b"}, [], {USE: " GPU-a ,GPU-a,"}),
        ({}, {USE: "GPU-c,GPU-b,GPU-b,GPU-d"}, [A_TO_C], {USE: "GPU-c,GPU-b"}),
        ({}, {}, [A_TO_C], {USE: "GPU-a,GPU-b,GPU-c"}),
        ({USE: "GPU-d,GPU-c"}, {USE: "GPU-c,GPU-d"}, [A_TO_C], {USE: "GPU-c"}),
        ({USE: "GPU-a,GPU-b"}, {}, [NOT_B], {USE: "GPU-a,GPU-b", NOUSE: "GPU-b"}),
        ({NOUSE: "GPU-b"}, {}, [NOT_B], {NOUSE: "GPU-b"}),
        ({NOUSE: " GPU-b,"}, {NOUSE: "GPU-b, GPU-q"}, [NOT_B], {NOUSE: "GPU-b,GPU-q"}),
        ({NOUSE: "GPU-a"}, {USE: "GPU-a"}, [], {NOUSE: "GPU-a", USE: "GPU-a"}),
        ({USE: "gpu-a"}, {NOUSE: "GPU-A"}, [], {USE: "gpu-a", NOUSE: "GPU-A"}),
    ],
)
def test_lists_of_devices(
    own: dict[str, str], of_namespace: dict[str, str], rules: list[PolicyRule], result: dict[str, str]
) -> None:
    assert Applied(own, team(of_namespace), *rules).annotations == result


@pytest.mark.parametrize(
    ("own", "of_namespace", "rules", "sentence"),
    [
        (
            {USE: "GPU-x, GPU-y"},
            {USE: "GPU-a,GPU-b"},
            [],
            "use-gpuuuid: none of GPU-x, GPU-y is allowed in namespace team-a (allowed: GPU-a, GPU-b)",
        ),
        (
            {USE: "gpu-a"},
            {USE: "GPU-a"},
            [],
            "use-gpuuuid: none of gpu-a is allowed in namespace team-a (allowed: GPU-a)",
        ),
        (
            {USE: "GPU-b"},
            {},
            [A_TO_C, NOT_B],
            "use-gpuuuid: none of GPU-b is allowed in namespace team-a (allowed: GPU-a, GPU-c; denied: GPU-b)",
        ),
        ({USE: "GPU-b"}, {}, [NOT_B], "use-gpuuuid: none of GPU-b is allowed in namespace team-a (denied: GPU-b)"),
        (
            {},
            {USE: "GPU-d"},
            [A_TO_C],
            "use-gpuuuid: nothing is allowed in namespace team-a "
            "(namespace team-a allows only GPU-d; policy abc allows only GPU-a, GPU-b, GPU-c)",
        ),
        (
            {},
            {USE: "GPU-b"},
            [NOT_B],
            "use-gpuuuid: nothing is allowed in namespace team-a (namespace team-a allows only GPU-b; denied: GPU-b)",
        ),
        (
            {},
            {USE: " , "},
            [],
            "use-gpuuuid: nothing is allowed in namespace team-a (namespace team-a allows nothing)",
        ),
        ({USE: ","}, {USE: "GPU-a"}, [], "use-gpuuuid: it names nothing; in namespace team-a allowed: GPU-a"),
        (
            {USE: ",".join(f"x{i}" for i in range(12))},
            {USE: ",".join(f"y{i}" for i in range(11))},
            [],
            "use-gpuuuid: none of x0, x1, x2, x3, x4, x5, x6, x7, x8, x9 … and 2 more is allowed in namespace team-a "
            "(allowed: y0, y1, y2, y3, y4, y5, y6, y7, y8, y9 … and 1 more)",
        ),
    ],
)
def test_a_pod_left_with_nothing_is_denied(
    own: dict[str, str], of_namespace: dict[str, str], rules: list[PolicyRule], sentence: str
) -> None:
    assert refusal(own, team(of_namespace), *rules) == sentence


def test_what_users_write_stays_on_one_line_and_short() -> None:
    message = refusal({USE: "GPU\n\x1b[1m" + "x" * 1000}, team({USE: "GPU-a"}))
    assert message.isprintable()
    assert len(message) < 200


def test_everyone_who_cut_or_added_is_named() -> None:
    applied = Applied(
        {USE: "GPU-a,GPU-b,GPU-d", NOUSE: "GPU-y"},
        team({USE: "GPU-a,GPU-b,GPU-c,GPU-d", NOUSE: "GPU-z"}),
        PolicyRule("idle", devices=bounds(allow_uuids=("GPU-a", "GPU-b", "GPU-d"), deny_uuids=("GPU-y",))),
        PolicyRule("late", devices=bounds(allow_uuids=("GPU-a", "GPU-b"), deny_uuids=("GPU-b", "GPU-z"))),
        A_TO_C,
    )
    assert applied.annotations == {USE: "GPU-a,GPU-b", NOUSE: "GPU-y,GPU-z,GPU-b"}
    assert applied.warnings == [
        f"{USE} cut down to GPU-a, GPU-b by policy late, policy abc",
        f"{NOUSE} extended with GPU-z, GPU-b by namespace team-a, policy late",
    ]
    assert applied.outcome.rules == ("namespace", "late", "abc")


def test_a_denied_list_the_pod_lacks_is_set() -> None:
    assert Applied({}, team(), NOT_B).warnings == [f"{NOUSE} set to GPU-b by policy no-b"]


def test_only_lists_of_asked_vendors_are_touched() -> None:
    namespace = team({USE: "GPU-a", "metax-tech.com/use-gpuuuid": "GPU-m", XPU: "K1"})
    assert Applied({}, namespace, A_TO_C, asked=[METAX]).annotations == {"metax-tech.com/use-gpuuuid": "GPU-m"}


# alias keys


@pytest.mark.parametrize(
    ("own", "of_namespace", "result"),
    [
        ({}, {OLD_XPU: "K1,K2"}, {XPU: "K1,K2"}),
        ({}, {XPU: "K1,K2", OLD_XPU: "K2,K3"}, {XPU: "K2"}),
        ({OLD_XPU: "K1,K3"}, {XPU: "K1,K2"}, {OLD_XPU: "K1,K3", XPU: "K1"}),
        ({OLD_XPU: "K1"}, {XPU: "K1,K2"}, {OLD_XPU: "K1"}),
        ({XPU: "K1,K2", OLD_XPU: "K2,K3"}, {XPU: "K2"}, {XPU: "K1,K2", OLD_XPU: "K2,K3"}),
        ({XPU: "K1,K2", OLD_XPU: "K2,K1"}, {XPU: "K1"}, {XPU: "K1", OLD_XPU: "K2,K1"}),
        ({NO_OLD_XPU: "K1"}, {NO_XPU: "K2"}, {NO_OLD_XPU: "K1", NO_XPU: "K1,K2"}),
        ({NO_XPU: "K1", NO_OLD_XPU: "K2"}, {NO_OLD_XPU: "K3"}, {NO_XPU: "K1,K2,K3", NO_OLD_XPU: "K2"}),
        ({XPU: "K1", OLD_XPU: "K2"}, {NO_XPU: "K3"}, {XPU: "K1", OLD_XPU: "K2", NO_XPU: "K3"}),
    ],
)
def test_all_alias_keys_are_read_and_the_first_is_written(
    own: dict[str, str], of_namespace: dict[str, str], result: dict[str, str]
) -> None:
    assert Applied(own, team(of_namespace), asked=[KUNLUN]).annotations == result


def test_alias_lists_with_nothing_in_common_are_denied_under_a_boundary() -> None:
    assert refusal({XPU: "K1", OLD_XPU: "K2"}, team({XPU: "K1"}), asked=[KUNLUN]) == (
        "use-xpu-uuid: none of K1, K2 is allowed in namespace team-a (allowed: K1)"
    )


def test_vendors_that_share_their_keys_share_the_boundaries_on_them() -> None:
    rule = PolicyRule(
        "both",
        devices={"kunlun": DeviceBounds(allow_uuids=("K1", "K2")), "XPU": DeviceBounds(allow_uuids=("K2", "K3"))},
    )
    assert Applied({}, team(), rule, asked=[KUNLUN]).annotations == {XPU: "K1,K2"}
    both = Applied({}, team(), rule, asked=[KUNLUN, XPU_CARD])
    assert both.annotations == {XPU: "K2"}
    assert both.warnings == [f"{XPU} set to K2 by policy both"]


# types


@pytest.mark.parametrize(
    ("own", "of_namespace", "of_rule", "result"),
    [
        ("A100-SXM4", "a100", (), "A100-SXM4"),
        ("a100,A100,A100-PCIE", "A100", (), "a100,A100,A100-PCIE"),
        ("V100,a100,A100,A100-PCIE", "A100", (), "a100,A100-PCIE"),
        ("A100-SXM4-80GB,A100-SXM4", "A100", ("80gb", "H100"), "A100-SXM4-80GB"),
        (None, "A100", ("a100-sxm4", "V100"), "a100-sxm4"),
        (None, "A100-PCIE,H", ("a100", "H100"), "A100-PCIE,H100"),
        (None, "A100,a100", (), "A100"),
        (None, "A100", ("a100",), "A100"),
        ("A100-SXM4", "", ("A100", "V100"), "A100-SXM4"),
    ],
)
def test_types_within_boundaries(own: str | None, of_namespace: str, of_rule: tuple[str, ...], result: str) -> None:
    rule = PolicyRule("types", devices=bounds(allow_types=of_rule))
    applied = Applied({} if own is None else {USE_TYPE: own}, team({USE_TYPE: of_namespace}), rule)
    assert applied.annotations == {USE_TYPE: result}


@pytest.mark.parametrize(
    ("own", "of_namespace", "of_rule", "sentence"),
    [
        (
            {USE_TYPE: "V100,H100"},
            {USE_TYPE: "A100,A800"},
            DeviceBounds(),
            "use-gputype: none of V100, H100 is allowed in namespace team-a (allowed: A100, A800)",
        ),
        (
            {},
            {USE_TYPE: "A100"},
            DeviceBounds(allow_types=("SXM4",)),
            "use-gputype: nothing is allowed in namespace team-a "
            "(namespace team-a allows only A100; policy types allows only SXM4)",
        ),
        (
            {USE_TYPE: "A100-SXM4"},
            {},
            DeviceBounds(deny_types=("a100", "V")),
            "use-gputype: none of A100-SXM4 is allowed in namespace team-a (denied: a100)",
        ),
        (
            {},
            {USE_TYPE: "A100-SXM4"},
            DeviceBounds(deny_types=("sxm",)),
            "use-gputype: nothing is allowed in namespace team-a (namespace team-a allows only A100-SXM4; denied: sxm)",
        ),
    ],
)
def test_no_type_left_is_denied(
    own: dict[str, str], of_namespace: dict[str, str], of_rule: DeviceBounds, sentence: str
) -> None:
    assert refusal(own, team(of_namespace), PolicyRule("types", devices={"NVIDIA": of_rule})) == sentence


def test_denied_types_add_up_regardless_of_case() -> None:
    applied = Applied({NOUSE_TYPE: "v100,T4"}, team({NOUSE_TYPE: "V100,P4,p4"}))
    assert applied.annotations == {NOUSE_TYPE: "v100,T4,P4"}


# which rules act, and what is said of it


@pytest.mark.parametrize(
    ("rule", "acts"),
    [
        (PolicyRule("r"), True),
        (PolicyRule("r", namespaces=("dev-*", "team-*")), True),
        (PolicyRule("r", namespaces=("dev-*",)), False),
        (PolicyRule("r", namespaces=("TEAM-A",)), False),
        (PolicyRule("r", namespace_selector=LabelSelector((Requirement("tier", "In", ("research",)),))), True),
        (PolicyRule("r", namespace_selector=LabelSelector((Requirement("tier", "DoesNotExist"),))), False),
        (PolicyRule("r", pod_selector=LabelSelector((Requirement("app", "In", ("train",)),))), True),
        (PolicyRule("r", pod_selector=LabelSelector((Requirement("tier", "Exists"),))), False),
        (PolicyRule("r", namespaces=("*",), pod_selector=LabelSelector((Requirement("app", "DoesNotExist"),))), False),
    ],
)
def test_all_parts_of_a_match_must_match(rule: PolicyRule, acts: bool) -> None:
    assert rule.matches(team(labels={"tier": "research"}), {"app": "train"}) is acts
    rules = PolicyRules((PolicyRule("other", namespaces=("x",)), rule))
    assert rules.matching(team(labels={"tier": "research"}), {"app": "train"}) == ((rule,) if acts else ())


def test_the_pod_selector_sees_the_pods_labels() -> None:
    rule = PolicyRule("r", pod_selector=LabelSelector((Requirement("app", "Exists"),)), enforce={MODE: "mig"})
    assert Applied({}, team(), rule, labels={"app": "x"}).annotations == {MODE: "mig"}
    assert Applied({}, team(), rule).operations == []


def test_rules_that_changed_something_are_named_in_order_after_the_namespace() -> None:
    rules = [
        PolicyRule("a", enforce={GPU_POLICY: "spread"}),
        PolicyRule("idle", default={GPU_POLICY: "binpack"}),
        PolicyRule("b", devices=bounds(deny_uuids=("GPU-z",))),
    ]
    assert Applied({}, team({NODE_POLICY: "spread"}), *rules).outcome.rules == ("namespace", "a", "b")


def test_a_rule_without_a_word_on_annotations_changes_nothing() -> None:
    assert Applied({}, team(), PolicyRule("a", scheduler_name="one"), PolicyRule("c")).outcome == PolicyOutcome()


def test_scheduler_owned_keys_on_the_namespace_are_ignored_and_told() -> None:
    namespace = team(
        {
            "predicate-time": "1",
            "hami.io/vgpu-node": "n1",
            "chooser.io/allocated": "x",
            "other": "y",
            NODE_POLICY: "spread",
        }
    )
    applied = Applied({}, namespace, asked=[CHOOSER])
    assert applied.annotations == {NODE_POLICY: "spread"}
    assert applied.outcome.ignored_namespace_keys == ("chooser.io/allocated", "hami.io/vgpu-node")


@pytest.mark.parametrize(
    ("letters", "lines"), [("abcdefghij", 10), ("abcdefghijk", 10), ("abcdefghijkl", 10), ("ab", 2)]
)
def test_at_most_ten_warnings(letters: str, lines: int) -> None:
    applied = Applied({}, team({f"chooser.io/{letter}": "x" for letter in letters}), asked=[CHOOSER])
    assert len(applied.annotations) == len(letters)
    assert len(applied.warnings) == lines
    assert applied.warnings[0] == "chooser.io/a set to x by namespace team-a"
    if len(letters) > 10:
        assert applied.warnings[-1] == f"… and {len(letters) - 9} more annotations set by policy"


def test_a_huge_list_from_a_user_is_quick() -> None:
    own = ",".join(f"{number:x}" for number in range(40_000))
    namespace = team({USE: ",".join(f"GPU-{i}" for i in range(100)), USE_TYPE: ",".join(f"T{i}" for i in range(20))})
    assert refusal({USE: own, NOUSE: own}, namespace).startswith("use-gpuuuid: none of 0, 1, 2")
    assert refusal({USE_TYPE: own, NOUSE_TYPE: own, USE: "GPU-1"}, namespace).startswith("use-gputype: none of")
