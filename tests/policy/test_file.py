"""The policy file: what it may say, and one clear sentence for everything it gets wrong."""

import pytest
import yaml
from admission.policies import METAX
from hypothesis import example, given
from hypothesis import strategies as st
from tables import in_one_test

from hami_webhook.config import ConfigError
from hami_webhook.devices.keys import DeviceKeys
from hami_webhook.devices.registry import Vendors
from hami_webhook.devices.vendor import Vendor
from hami_webhook.devices.vendors.nvidia import Nvidia
from hami_webhook.devices.vendors.nvidia.section import NvidiaSection
from hami_webhook.kube.objects import Namespace
from hami_webhook.kube.selectors import LabelSelector, Requirement
from hami_webhook.policy.file import PolicyFile
from hami_webhook.policy.rules import DeviceBounds, PolicyRule, PolicyRules


class OddChip(Vendor):
    key = "Odd"
    keys = DeviceKeys(allocated="odd.example.com/given", use_uuid=("odd.example.com/use-uuid",))


VENDORS = Vendors([Nvidia(NvidiaSection()), METAX, OddChip()])

WHOLE = """\
policies:
- name: research-defaults
  match:
    namespaces: ["research-*", "lab-[a-f]?"]
    namespaceSelector: {matchLabels: {tier: research}, matchExpressions: []}
    podSelector: {matchLabels: {}, matchExpressions: [{key: gpu, operator: Exists}]}
  default:
    hami.io/gpu-scheduler-policy: topology-aware
  enforce:
    hami.io/node-scheduler-policy: binpack
    hami.io/device-scoring-weights: slot=1,core=0,memory=2
    metax-tech.com/sgpu-qos-policy: fixed-share
    nvidia.com/vgpu-mode: ""
  devices:
    NVIDIA: {allowUUIDs: [], denyUUIDs: [" GPU-z "], allowTypes: [A100], denyTypes: []}
    Metax-SGPU: {allowUUIDs: [GPU-1]}
  schedulerName: hami-scheduler
- name: second
"""


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as refused:
        PolicyFile.parse(text, "policy.yaml", VENDORS)
    assert str(refused.value) == "\n".join(refused.value.faults)
    return str(refused.value)


def test_a_whole_file_is_read_into_plain_rules() -> None:
    assert PolicyFile.parse(WHOLE, "policy.yaml", VENDORS) == PolicyRules(
        (
            PolicyRule(
                name="research-defaults",
                namespaces=("research-*", "lab-[a-f]?"),
                namespace_selector=LabelSelector((Requirement("tier", "In", ("research",)),)),
                pod_selector=LabelSelector((Requirement("gpu", "Exists"),)),
                default={"hami.io/gpu-scheduler-policy": "topology-aware"},
                enforce={
                    "hami.io/node-scheduler-policy": "binpack",
                    "hami.io/device-scoring-weights": "slot=1,core=0,memory=2",
                    "metax-tech.com/sgpu-qos-policy": "fixed-share",
                    "nvidia.com/vgpu-mode": "",
                },
                devices={
                    "NVIDIA": DeviceBounds(deny_uuids=("GPU-z",), allow_types=("A100",)),
                    "Metax-SGPU": DeviceBounds(allow_uuids=("GPU-1",)),
                },
                scheduler_name="hami-scheduler",
            ),
            PolicyRule(name="second"),
        )
    )


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "null", "{}", "policies:", "policies: []"])
def test_a_file_with_nothing_in_it_has_no_rules(text: str) -> None:
    assert PolicyFile.parse(text, "policy.yaml", VENDORS) == PolicyRules.EMPTY


@pytest.mark.parametrize(
    ("glob", "matching", "others"),
    [
        ("research-*", ["research-a", "research-"], ["research", "a-research-a"]),
        ("team-?", ["team-a"], ["team-", "team-ab"]),
        ("team-[a-c]", ["team-a", "team-c"], ["team-d", "team--"]),
        ("team-[!a-c]", ["team-d"], ["team-a"]),
        ("t[x-]m", ["txm", "t-m"], ["tam"]),
        ("*", ["anything"], []),
        ("default", ["default"], ["defaults"]),
    ],
)
def test_namespaces_are_shell_style_globs(glob: str, matching: list[str], others: list[str]) -> None:
    policies = PolicyFile.parse(f"policies: [{{name: a, match: {{namespaces: ['{glob}']}}}}]", "p", VENDORS)
    found = [name for name in (*matching, *others) if policies.matching(Namespace(name, {}, {}), {})]
    assert found == matching


@pytest.mark.parametrize("data", ["data", "data-with-other-fields"])
def test_a_config_map_with_one_data_key_is_read_as_the_file_in_it(data: str) -> None:
    indented = "".join(f"    {line}\n" for line in WHOLE.splitlines())
    text = f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: policy}}\ndata:\n  any.yaml: |\n{indented}"
    if data != "data":
        text += "binaryData: {}\n"
    assert PolicyFile.parse(text, "p", VENDORS) == PolicyFile.parse(WHOLE, "p", VENDORS)


def test_faults_inside_a_config_map_have_the_lines_of_the_outer_file() -> None:
    head = "kind: ConfigMap\ndata:\n  policy.yaml: "
    assert refusal(head + "|\n    policies:\n    - nam: a\n").splitlines() == [
        "policy.yaml:5: policies[0].nam: is an unknown key (did you mean name?); known are name, match, default, "
        "enforce, devices, schedulerName, denyEnv",
        "policy.yaml:5: policies[0].name: is required, but missing",
    ]
    assert refusal(head + "'policies: 1'\n") == "policy.yaml:3: policies: must be a list, found 1"
    assert PolicyFile.parse(head + "''\n", "p", VENDORS) == PolicyRules.EMPTY


def rule(rest: str) -> str:
    return f"policies:\n- name: a\n  {rest}\n"


AT = "policy.yaml:3: policies[0]."
BAD = [
    # the file as a whole
    ("- name: a", "policy.yaml:1: must be a mapping, found a list"),
    ("just text", 'policy.yaml:1: must be a mapping, found the text "just text"'),
    ("policies: {a: 1}", "policy.yaml:1: policies: must be a list, found a mapping"),
    ("policies: [a]", 'policy.yaml:1: policies[0]: must be a mapping, found the text "a"'),
    ("policies: [null]", "policy.yaml:1: policies[0]: must be a mapping, found nothing"),
    ("policy: []", "policy.yaml:1: policy: is an unknown key (did you mean policies?); known are policies"),
    ("rules: []", "policy.yaml:1: rules: is an unknown key; known are policies"),
    ("a: b: c", "policy.yaml:1: is not valid YAML: mapping values are not allowed in this context"),
    ("policies: [", "policy.yaml:2: is not valid YAML: "),
    ("policies: []\npolicies: []", 'policy.yaml:2: the key "policies" is there twice in one mapping'),
    ("a: 1\n---\nb: 2", "policy.yaml:2: is not valid YAML: but found another document"),
    ("[" * 100 + "]" * 100, "policy.yaml:1: is nested more than 40 levels deep"),
    (
        "a: &a [x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b]\n"
        "d: &d [*c,*c,*c,*c,*c,*c,*c,*c]\ne: [*d,*d,*d,*d,*d,*d,*d,*d]\nf: [*d,*d,*d,*d,*d,*d,*d,*d]",
        "expands to more than 50000 values",
    ),
    ("a: &a [*a]", "contains itself through an alias"),
    ("#" + "x" * (1 << 20), "policy.yaml: is larger than 1048576 bytes, which no ConfigMap can hold"),
    # a ConfigMap
    ("kind: Secret", 'policy.yaml:1: kind: must be ConfigMap, or not be there, found the text "Secret"'),
    ("kind: ConfigMap", "policy.yaml:1: data: must hold exactly one key, the policy file, found nothing"),
    ("kind: ConfigMap\ndata: {}", "policy.yaml:2: data: must hold exactly one key, the policy file, found nothing"),
    ("kind: ConfigMap\ndata: 7", "policy.yaml:2: data: must hold exactly one key, the policy file, found 7"),
    (
        "kind: ConfigMap\ndata: {a: '', b: ''}",
        "policy.yaml:2: data: must hold exactly one key, the policy file, found 2: a",
    ),
    (
        "kind: ConfigMap\ndata:\n  policy.yaml: {policies: []}",
        'policy.yaml:3: data["policy.yaml"]: must be text, found a mapping; begin it with |',
    ),
    # a rule
    ("policies:\n- match: {}", "policy.yaml:2: policies[0].name: is required, but missing"),
    (
        "policies: [{name: ''}]",
        "policies[0].name: must be a name of 1 to 63 letters, digits, -, _ or ., found the text",
    ),
    ("policies: [{name: 7}]", "policies[0].name: must be a name of 1 to 63 letters, digits, -, _ or ., found 7"),
    ("policies: [{name: 'a, b'}]", 'must be a name of 1 to 63 letters, digits, -, _ or ., found the text "a, b"'),
    ("policies: [{name: namespace}]", 'must not be "namespace", which stands for the Namespace\'s own annotations'),
    ("policies:\n- name: a\n- name: a", 'policy.yaml:3: policies[1].name: "a" is already the name of policies[0]'),
    (rule("defaults: {}"), AT + "defaults: is an unknown key (did you mean default?); known are name, match, default"),
    (rule("SchedulerName: x"), AT + "SchedulerName: is an unknown key (did you mean schedulerName?)"),
    (rule("name: b"), 'policy.yaml:3: the key "name" is there twice in one mapping'),
    (rule("schedulerName: Hami_Scheduler"), AT + "schedulerName: must be a scheduler's name, a DNS-1123 subdomain"),
    (rule("schedulerName: ''"), AT + "schedulerName: must be a scheduler's name, a DNS-1123 subdomain"),
    (rule("schedulerName:"), AT + "schedulerName: must be a scheduler's name, a DNS-1123 subdomain"),
    # match
    (rule("match:"), AT + "match: must be a mapping, found nothing"),
    (rule("match: []"), AT + "match: must be a mapping, found an empty list"),
    (rule("match: {namespace: [a]}"), AT + "match.namespace: is an unknown key (did you mean namespaces?); known are"),
    (
        rule("match: {namespaces: []}"),
        AT
        + "match.namespaces: must name at least one namespace (leave the key out for all of them), found an empty list",
    ),
    (rule("match: {namespaces: }"), AT + "match.namespaces: must name at least one namespace"),
    (rule("match: {namespaces: a}"), AT + 'match.namespaces: must be a list, found the text "a"'),
    (rule("match: {namespaces: [a, 7]}"), AT + "match.namespaces[1]: must be a namespace's name or a pattern such as"),
    (rule("match: {namespaces: [a, '']}"), AT + "match.namespaces[1]: must be a namespace's name or a pattern such as"),
    (
        rule("match:\n    namespaces:\n    - a\n    - 'team-['"),
        "policy.yaml:6: policies[0].match.namespaces[1]: must be a namespace's name or a pattern of a-z, 0-9, -, *, ? "
        'and sets such as [a-f] or [!a-f], found the text "team-[" with a [ that doesn\'t start a set at position 6',
    ),
    (rule("match: {namespaces: ['a[]']}"), "a [ that doesn't start a set at position 2"),
    (rule("match: {namespaces: ['a[^b]']}"), "a [ that doesn't start a set at position 2"),
    (rule("match: {namespaces: ['Team']}"), 'with "T" at position 1'),
    (rule("match: {namespaces: ['{a,b}']}"), 'with "{" at position 1'),
    (rule("match: {namespaces: ['a[z-b]']}"), "must be a pattern whose sets run upwards, found the text"),
    (rule("match: {podSelector: {tier: a}}"), AT + "match.podSelector.tier: is an unknown key; known are matchLabels"),
    (
        rule("match: {podSelector: {matchLabels: [a]}}"),
        AT + "match.podSelector.matchLabels: must be a mapping, found a list",
    ),
    (
        rule("match: {podSelector: {matchLabels: {a b: c}}}"),
        AT + 'match.podSelector.matchLabels["a b"]: must be a label\'s key such as tier or example.com/tier, found',
    ),
    (
        rule("match: {podSelector: {matchLabels: {gpu: yes}}}"),
        AT + "match.podSelector.matchLabels.gpu: must be text, found true; put it in quotes",
    ),
    (
        rule("match: {namespaceSelector: {matchExpressions: [{key: a, operator: in, values: [b]}]}}"),
        AT + "match.namespaceSelector.matchExpressions[0].operator: must be In, NotIn, Exists or DoesNotExist, found",
    ),
    (
        rule("match: {namespaceSelector: {matchExpressions: [{key: a, operator: In}]}}"),
        AT + "match.namespaceSelector.matchExpressions[0]: In must have at least one item in values, found none",
    ),
    (
        rule("match: {namespaceSelector: {matchExpressions: [{keys: a, operator: Exists}]}}"),
        AT
        + "match.namespaceSelector.matchExpressions[0].keys: is an unknown key (did you mean key?); known are key, ope",
    ),
    # choices
    (rule("default: [a]"), AT + "default: must be a mapping, found a list"),
    (
        rule("default: {nvidia.com/vgpu-mod: mig}"),
        AT + 'default["nvidia.com/vgpu-mod"]: is no choice of an enabled vendor (did you mean nvidia.com/vgpu-mode?); '
        "choices are hami.io/gpu-scheduler-policy, hami.io/node-scheduler-policy, hami.io/device-scoring-weights, ",
    ),
    (rule("enforce: {volcano.sh/vgpu-mode: mig}"), AT + 'enforce["volcano.sh/vgpu-mode"]: is no choice of an enabled'),
    (
        rule("enforce: {nvidia.com/use-gpuuuid: GPU-a}"),
        AT
        + 'enforce["nvidia.com/use-gpuuuid"]: is a list, not a choice: write its items under devices.NVIDIA.allowUUIDs',
    ),
    (rule("default: {nvidia.com/nouse-gputype: A}"), "write its items under devices.NVIDIA.denyTypes"),
    (
        rule("default: {hami.io/vgpu-node: n1}"),
        AT + 'default["hami.io/vgpu-node"]: is written by the scheduler alone: no policy can set it',
    ),
    (rule("enforce: {hami.io/dcu-devices-allocated: x}"), "is written by the scheduler alone: no policy can set it"),
    (rule("enforce: {odd.example.com/given: x}"), "is written by the scheduler alone: no policy can set it"),
    (
        rule("default: {nvidia.com/numa-bind: true}"),
        AT + 'default["nvidia.com/numa-bind"]: must be text, found true; put it in quotes',
    ),
    (rule("enforce: {hami.io/gpu-scheduler-policy: [a]}"), "must be text, found a list; put it in quotes"),
    (
        rule("default: {hami.io/device-scoring-weights: 'slot=1,core=1'}"),
        AT
        + 'default["hami.io/device-scoring-weights"]: must be weights such as slot=1,core=1,memory=2, found the text '
        '"slot=1,core=1": expected slot, core, and memory weights',
    ),
    (
        rule("enforce: {hami.io/device-scoring-weights: 'slot=0,core=0,memory=0'}"),
        "at least one weight must be positive",
    ),
    (
        rule("enforce: {hami.io/gpu-scheduler-policy: topolgy-aware}"),
        AT + 'enforce["hami.io/gpu-scheduler-policy"]: "topolgy-aware" is no scheduling policy '
        "(did you mean topology-aware?); known are binpack, spread, mutex, numa, numa-first, topology-aware",
    ),
    (
        rule("default: {hami.io/gpu-scheduler-policy: 'numa, bin-pack'}"),
        '"bin-pack" is no scheduling policy (did you mean binpack?)',
    ),
    (
        rule("default: {hami.io/node-scheduler-policy: best}"),
        AT + 'default["hami.io/node-scheduler-policy"]: "best" is no scheduling policy; known are binpack, spread',
    ),
    # devices
    (
        rule("devices: {nvidia: {}}"),
        AT + "devices.nvidia: is no enabled backend key (did you mean NVIDIA?); known are Meta",
    ),
    (rule("devices: {DCU: {}}"), AT + "devices.DCU: is no enabled backend key; known are Metax-SGPU, NVIDIA, Odd"),
    (rule("devices: {NVIDIA: [GPU-a]}"), AT + "devices.NVIDIA: must be a mapping, found a list"),
    (
        rule("devices: {NVIDIA: {allowUuids: [GPU-a]}}"),
        AT
        + "devices.NVIDIA.allowUuids: is an unknown key (did you mean allowUUIDs?); known are allowUUIDs, denyUUIDs, ",
    ),
    (rule("devices: {NVIDIA: {allowUUIDs: GPU-a}}"), AT + "devices.NVIDIA.allowUUIDs: must be a list, found the text"),
    (
        rule("devices: {NVIDIA: {allowUUIDs: ['']}}"),
        AT + "devices.NVIDIA.allowUUIDs[0]: must not be blank, found the text",
    ),
    (
        rule("devices: {NVIDIA: {allowTypes: [100]}}"),
        AT + "devices.NVIDIA.allowTypes[0]: must be text, found 100; put it",
    ),
    (rule("devices: {NVIDIA: {denyUUIDs: ['a,b']}}"), "must be one item without commas (write one list item for each)"),
    (
        rule("devices: {Metax-SGPU: {allowTypes: [C500]}}"),
        AT + 'devices["Metax-SGPU"].allowTypes: can\'t be held to: Metax-SGPU has no such list',
    ),
    (rule("devices: {Odd: {denyUUIDs: [x]}}"), AT + "devices.Odd.denyUUIDs: can't be held to: Odd has no such list"),
]


@in_one_test(("text", "sentence"), BAD)
def test_a_bad_file_is_refused_with_a_sentence(text: str, sentence: str) -> None:
    assert sentence in refusal(text)


def test_every_fault_is_said_in_the_order_of_the_lines() -> None:
    text = "policies:\n- name: a\n  default: {x: 1}\n- nme: b\n"
    assert [fault.partition(" ")[2].partition(": ")[0] for fault in refusal(text).splitlines()] == [
        "policies[0].default.x",
        "policies[0].default.x",
        "policies[1].name",
        "policies[1].nme",
    ]


def test_many_choices_are_not_all_said() -> None:
    class Rich(Vendor):
        key = "Rich"
        keys = DeviceKeys(allocated="r.io/a", choices=tuple(f"r.io/choice-{letter}" for letter in "abcdefghij"))

    with pytest.raises(ConfigError, match=r"r\.io/choice-g … and 3 more$"):
        PolicyFile.parse(rule("default: {zzz: z}"), "p", Vendors([Rich()]))


def test_no_vendor_at_all_is_said() -> None:
    with pytest.raises(ConfigError, match=r"known are none$"):
        PolicyFile.parse(rule("devices: {NVIDIA: {}}"), "p", {})


def parsed_or_refused(text: str) -> None:
    """Reading either gives rules or is refused; anything else raised fails the test."""
    faults: tuple[str, ...] = ()
    try:
        PolicyFile.parse(text, "p", VENDORS)
    except ConfigError as error:
        faults = error.faults or ("refused without a word",)
    assert all(fault.startswith("p:") and "\n" not in fault for fault in faults)


@given(st.text())
@example("policies: [{name: a, match: {namespaces: !!binary aGk=}}]")
@example("? [a]\n: b")
@example("policies: !!set {a}")
@example("policies: [{name: a, default: {? 1 : 2}}]")
@example("\ufeffpolicies: []")
@example("a: \ud800")
@example("<<: *x")
def test_any_text_is_read_or_refused(text: str) -> None:
    parsed_or_refused(text)


WORDS = [
    *("policies", "name", "match", "namespaces", "namespaceSelector", "podSelector", "matchLabels", "matchExpressions"),
    *(
        "key",
        "operator",
        "values",
        "default",
        "enforce",
        "devices",
        "NVIDIA",
        "allowUUIDs",
        "denyTypes",
        "schedulerName",
    ),
    *("kind", "ConfigMap", "data", "hami.io/device-scoring-weights", "nvidia.com/vgpu-mode", "In", "Exists", "a", "*"),
]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(WORDS) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=4),
    max_leaves=12,
)


@given(VALUES)
def test_any_shape_is_read_or_refused(value: object) -> None:
    parsed_or_refused(yaml.safe_dump({"policies": [{"name": "a", "match": value, "devices": {"NVIDIA": value}}]}))
    parsed_or_refused(yaml.safe_dump({"policies": value}))
    parsed_or_refused(yaml.safe_dump(value, allow_unicode=True))
