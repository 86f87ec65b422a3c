"""What makes a device-config.yaml unusable: one clear sentence each, and never anything but ConfigError."""

import pytest
from tables import in_one_test

from hami_webhook.config import ConfigError
from hami_webhook.config.yaml_source import LARGEST_FILE
from hami_webhook.device_config import load_device_config

COUNT = "nvidia: {resourceCountName: nvidia.com/gpu}\n"
CONFIG_MAP = """\
kind: ConfigMap
data:
  device-config.yaml: |-
    nvidia:
      resourceCountName: x
"""
CHIP = "vnpus:\n- commonWord: X\n  resourceName: a.b/c\n  memoryAllocatable: 100\n"
VOLCANO_GEOMETRY = "volcano:\n  knownMigGeometries:\n  - models: [A30]\n    allowedGeometries:\n    - group: "

BAD = [
    # the file as a whole
    ("", "f.yaml: is empty: all configurations are empty"),
    ("just text", 'f.yaml:1: must be a mapping of vendor sections, found the text "just text"'),
    ("- nvidia", "f.yaml:1: must be a mapping of vendor sections, found a list"),
    ("nvidia:\n  a: b: c", "f.yaml:2: is not valid YAML: mapping values are not allowed in this context"),
    ("a: 1\n---\nb: 2", "f.yaml:2: is not valid YAML: but found another document"),
    ("a: *b", "f.yaml:1: is not valid YAML: found undefined alias"),
    ("a: !x b", "f.yaml:1: is not valid YAML: the tag !x isn't one of Kubernetes' YAML"),
    ("a: \x00", "f.yaml: is not valid YAML: unacceptable character #x0000"),
    ("a: \ud800", "f.yaml: is not valid YAML: 'utf-8' codec can't encode"),
    (
        "nvidia:\n  resourceCountName: {{ .Values.resourceName }}",
        "f.yaml:2: a key must be text, not a list or mapping (it looks like a Helm template: render it first)",
    ),
    ("nvidia: {}\nnvidia: {}", 'f.yaml:2: the key "nvidia" is there twice in one mapping'),
    ("[" * 50_000, "f.yaml:1: is nested more than 40 levels deep"),
    ("a: " + "[" * 30 + "]" * 30 + "\nb: &b [*b]", "f.yaml:2: contains itself through an alias"),
    (
        "a: &a [1,2,3,4,5,6,7,8,9]\n"
        + "".join(f"{n}: &{n} [{','.join([f'*{p}'] * 9)}]\n" for p, n in zip("abcde", "bcdef", strict=True)),
        "f.yaml:5: expands to more than 50000 values",
    ),
    ("#" * (LARGEST_FILE + 1), "f.yaml: is larger than 1048576 bytes, which no ConfigMap can hold"),
    ("nvidia: {<<: 3}", "f.yaml:1: << must be followed by a mapping or a list of mappings"),
    ("kind: Deployment", 'f.yaml:1: must be a device-config.yaml or a ConfigMap with one, found kind the text "Deplo'),
    ("kind: ConfigMap\ndata: {config: x}", 'f.yaml:2: the ConfigMap has no text under data["device-config.yaml"]'),
    ("kind: ConfigMap\ndata: 3", 'f.yaml:2: the ConfigMap has no text under data["device-config.yaml"]'),
    (CONFIG_MAP, "f.yaml:5: nvidia.resourceCountName: must be a resource name of the"),
    ("kind: ConfigMap\ndata:\n  device-config.yaml: |\n    a: b: c\n", "f.yaml:4: is not valid YAML: mapping values"),
    (
        "nvidia: {resourceCountName: nvidia.com/mig-2g.20gb}",
        "f.yaml:1: nvidia.resourceCountName: nvidia.com/mig-2g.20gb is a MIG slice of NVIDIA's plugin, and would be "
        "charged as a whole card; use the count of cards, nvidia.com/gpu",
    ),
    ("nvidia: {}\nvnpus: []", "f.yaml:1: all configurations are empty: no section names a resource"),
    # sections and lists
    ("nvidia: []", "f.yaml:1: nvidia: must be a mapping, found a list"),
    ("iluvatars: {}", "f.yaml:1: iluvatars: must be a list, found a mapping"),
    ("iluvatars: [3]", "f.yaml:1: iluvatars[0]: must be a mapping, found 3"),
    ("vnpus:\n- x", 'f.yaml:2: vnpus[0]: must be a mapping, found the text "x"'),
    # names
    ("nvidia: {resourceCountName: gpu}", "must be a resource name of the form domain/name, or empty"),
    ("nvidia: {resourceCountName: 'nvidia.com/gpu '}", 'found the text "nvidia.com/gpu "'),
    ("nvidia: {resourceCountName: limits.nvidia.com/gpu}", "must be the resource itself, without limits. in front"),
    ("nvidia: {resourceCountName: 7}", "must be a resource name such as nvidia.com/gpu, or empty, found 7"),
    (
        "nvidia: {resourceCountName: {a: b}}",
        "must be a resource name such as nvidia.com/gpu, or empty, found a mapping",
    ),
    (
        "nvidia:\n  resourceCountName: a.b/c\n  resourceCoreName: a.b/c",
        "f.yaml:3: nvidia.resourceCoreName: a.b/c is already the resourceCountName; give each its own name",
    ),
    (f"amd: {{resourceCountName: a.b/{'x' * 64}}}", "must be a resource name of the form domain/name, or empty"),
    (COUNT + "hygon: {runtimeClassName: 1}\nkunlun: 1", "f.yaml:3: kunlun: must be a mapping, found 1"),
    ("nvidia: {runtimeClassName: Nvidia_X}", "must be the name of a RuntimeClass"),
    # numbers and booleans
    ("nvidia: {memoryFactor: -1}", "nvidia.memoryFactor: must be a whole number from 0 to 2147483647, found -1"),
    ("nvidia: {memoryFactor: 2147483648}", "must be a whole number from 0 to 2147483647, found 2147483648"),
    ("nvidia: {memoryFactor: 1.5}", "must be a whole number from 0 to 2147483647, found 1.5"),
    ("nvidia: {memoryFactor: true}", "must be a whole number from 0 to 2147483647, found true"),
    ("nvidia: {memoryFactor: '10'}", 'found the text "10"; remove the quotes'),
    (f"nvidia: {{memoryFactor: {'9' * 5000}}}", "must be a whole number from 0 to 2147483647"),
    ("nvidia: {defaultCores: 101}", "nvidia.defaultCores: must be a whole number from 0 to 100, found 101"),
    ("nvidia: {deviceMemoryScaling: 0}", "must be a number above 0 and at most 100, found 0"),
    ("nvidia: {deviceMemoryScaling: .nan}", 'must be a number above 0 and at most 100, found the text ".nan"'),
    ("nvidia: {overwriteEnv: 'true'}", 'must be true or false without quotes, found the text "true"'),
    ("nvidia: {overwriteEnv: 1}", "nvidia.overwriteEnv: must be true or false, found 1"),
    ("metax: {sgpuTopologyAware: maybe}", 'must be true or false, or one of the texts "true" and "false", found the'),
    ("nvidia: {gpuCorePolicy: never}", 'must be "", default, force or disable, found the text "never"'),
    ("nvidia: {libCudaLogLevel: 11}", "must be a whole number from 0 to 10, found 11"),
    # MIG
    ("nvidia: {migProfileAllowlist: [{models: [], profiles: [1g.5gb]}]}", "must name at least one model, found an"),
    ("nvidia: {migProfileAllowlist: [{models: [A30]}]}", "nvidia.migProfileAllowlist[0].profiles: is required"),
    ("nvidia: {migProfileAllowlist: [{models: [A30], profiles: [g.5gb]}]}", "must be a MIG profile such as 1g.10gb"),
    ("nvidia: {migProfileAllowlist: [{models: [A30], profiles: [1g]}]}", 'such as 1g.10gb, found the text "1g"'),
    ("nvidia: {migProfileAllowlist: [{models: [' '], profiles: [1g.5gb]}]}", "must be text that isn't blank"),
    # Enflame
    (
        "enflame: {resourceCountName: a.b/c, resourceNameVGCU: a.b/d}",
        "enflame: resourceCountName is the old spelling of resourceNameVGCU, and they differ; keep only",
    ),
    ("enflame:\n  resourcePercentageName: x", "f.yaml:2: enflame.resourcePercentageName: must be a resource name of"),
    # Iluvatar
    ("iluvatars:\n- {resourceCountName: a.b/c}", "f.yaml:2: iluvatars[0].commonWord: is required"),
    ("iluvatars: [{commonWord: 'a,b'}]", "iluvatars[0].commonWord: must be 1 to 43 letters, digits, -, _ or ."),
    (f"iluvatars: [{{commonWord: {'x' * 44}}}]", "must be 1 to 43 letters, digits"),
    (
        "iluvatars:\n- {commonWord: A, resourceCountName: a.b/c}\n- {commonWord: A, resourceCountName: a.b/d}",
        'f.yaml:3: iluvatars[1].commonWord: "A" is already the commonWord of iluvatars[0]; it must be unique',
    ),
    (
        "iluvatars: [{commonWord: NVIDIA, resourceCountName: a.b/c}]",
        '"NVIDIA" is the name of another vendor\'s annotations; choose another word',
    ),
    (
        "iluvatars: [{commonWord: A, resourceCountName: a.b/c}]\niluvatar: {resourceCountName: a.b/c}",
        "iluvatar.resourceCountName: a.b/c is already used by iluvatars[0]; a name can't be used by both sections",
    ),
    ("iluvatars: [{commonWord: A, chipName: 910}]", "must be text, found 910; put it in quotes"),
    # Ascend
    ("vnpus: [{commonWord: X}]", "vnpus[0].memoryAllocatable: is required"),
    (CHIP + "  memoryCapacity: 99", "f.yaml:5: vnpus[0].memoryCapacity: must be at least memoryAllocatable, 100 MiB"),
    (CHIP + "  templates: [{name: t, memory: 101}]", 'template "t" has 101 MiB, more than memoryAllocatable, 100 MiB'),
    (CHIP + "  templates: [{name: t, memory: 1}, {name: t, memory: 2}]", 'two templates are called "t"'),
    (CHIP + "  templates: [{name: t}]", "vnpus[0].templates[0].memory: is required"),
    (CHIP + "  templates: [{name: '', memory: 3}]", "vnpus[0].templates[0].name: must be text that isn't blank"),
    (CHIP + CHIP.removeprefix("vnpus:\n"), 'vnpus[1].commonWord: "X" is already the commonWord of vnpus[0]'),
    ("vnpus: {hamiVnpuMode: soft}", "vnpus.hamiVnpuMode: must be template, hami-core (or hamiCore) or enpu, found the"),
    ("mthreads: {memoryPerCard: [1]}", "mthreads.memoryPerCard[0]: must be a whole number from 2 to 4194303, found 1"),
    # Volcano and Koordinator
    (VOLCANO_GEOMETRY + "a-b\n      geometries: [{name: a, memory: 1, count: 1}]", "must not contain - , : ; [ or ]"),
    (VOLCANO_GEOMETRY + "a\n      geometries: []", "must name at least one kind of instance, found an empty list"),
    ("volcano: {schedulerNames: []}", "volcano.schedulerNames: must name at least one scheduler, found an empty list"),
    ("volcano: {schedulerNames: [A b]}", "volcano.schedulerNames[0]: must be the name of a scheduler"),
    ("volcano: {migDebit: both}", 'volcano.migDebit: must be instance or request, found the text "both"'),
    ("koordinator: {mixedNameSets: no}", "koordinator.mixedNameSets: must be warn or deny, found false"),
    ("koordinator: {isolationProvider: ''}", "koordinator.isolationProvider: must be a label value"),
    ("koordinator: {scoring: most}", "must be LeastAllocated or MostAllocated"),
    # claims
    (
        f"{COUNT}dra: {{devices: [{{driver: A_b, deviceClasses: [x], vendor: NVIDIA, memory: m}}]}}",
        "must be a DNS subdomain",
    ),
    (
        f"{COUNT}dra: {{devices: [{{driver: d, deviceClasses: [], vendor: NVIDIA, memory: m}}]}}",
        "at least one DeviceClass",
    ),
    (
        f"{COUNT}dra: {{devices: [{{driver: d, deviceClasses: [x], vendor: NVIDIA}}]}}",
        "names no capacity, so its devices",
    ),
    (
        f"{COUNT}dra: {{devices: [{{driver: d, deviceClasses: [x], vendor: NVIDIA, memory: 1a}}]}}",
        "must be a name of the form",
    ),
    (
        f"{COUNT}dra: {{devices: [{{driver: d, deviceClasses: [x], vendor: NVIDEA, memory: m}}]}}",
        'f.yaml:2: dra.devices[0].vendor: must be the key of a vendor, found "NVIDEA" (did you mean NVIDIA?)',
    ),
    (
        f"{COUNT}dra:\n  devices:\n" + "  - {driver: d, deviceClasses: [x], type: t, vendor: NVIDIA, memory: m}\n" * 2,
        "has two rows for the devices of type t of d; keep one",
    ),
    # exporters
    (
        f"{COUNT}exporters: {{cards: [{{exporter: e, uuid: u, temperature: a-b}}]}}",
        "exporters.cards[0].temperature: must be the name of a metric such as",
    ),
    (
        f"{COUNT}exporters: {{cards: [{{exporter: e, uuid: u, power: hami_power}}]}}",
        "names a metric of ours, which is read anyway",
    ),
    (f"{COUNT}exporters: {{cards: [{{exporter: e, uuid: 1a, power: p}}]}}", "must be the name of a label such as uuid"),
    (f"{COUNT}exporters: {{cards: [{{exporter: e, uuid: '', power: p}}]}}", "the label that has the card's UUID"),
    (f"{COUNT}exporters: {{cards: [{{exporter: e, uuid: u}}]}}", "names no metric, so nothing is read of it"),
    (f"{COUNT}exporters: {{cards: [{{exporter: e, uuid: u, power: p, powerUnit: kW}}]}}", "must be W or mW, found"),
    (
        f"{COUNT}exporters:\n  cards:\n" + "  - {exporter: e, uuid: u, power: p}\n" * 2,
        "names the metric p twice; keep one",
    ),
    (
        f"{COUNT}exporters:\n  cards:\n" + "".join(f"  - {{exporter: e, uuid: u, power: p{n}}}\n" for n in range(33)),
        "cards has 33 rows, and at most 32 are read",
    ),
]


@in_one_test(("text", "words"), BAD)
def test_a_bad_file_is_refused_with_one_sentence(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        load_device_config(text, "f.yaml")
    (fault,) = refusal.value.faults
    assert words in fault
    assert fault.startswith("f.yaml:")
    assert "\n" not in fault
    assert str(refusal.value) == fault


def test_all_faults_are_told_at_once_in_the_order_of_the_file() -> None:
    text = "metax: [1]\nnvidia:\n  memoryFactr: 3\n  memoryFactor: x\nvnpus:\n- templates: {}\n"
    with pytest.raises(ConfigError) as refusal:
        load_device_config(text, "f.yaml")
    assert [fault.partition(" must")[0] for fault in refusal.value.faults] == [
        "f.yaml:1: metax:",
        "f.yaml:4: nvidia.memoryFactor:",
        "f.yaml:6: vnpus[0].commonWord: is required",
        "f.yaml:6: vnpus[0].memoryAllocatable: is required",
        "f.yaml:6: vnpus[0].templates:",
    ]
    assert refusal.value.warnings == (
        "f.yaml:3: nvidia.memoryFactr: unknown key, ignored (did you mean memoryFactor?)",
    )
