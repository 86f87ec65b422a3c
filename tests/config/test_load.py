"""Reading device-config.yaml: layouts, warnings, and one clear sentence for everything that isn't right."""

from pathlib import Path

import pytest
from tables import in_one_test

from hami_webhook.config import ConfigError, DeviceConfig
from hami_webhook.config.yaml_source import LARGEST_FILE
from hami_webhook.device_config import (
    builtin_device_config,
    device_config_model,
    load_device_config,
    read_device_config,
)

COUNT = "nvidia: {resourceCountName: nvidia.com/gpu}\n"


def loaded(text: str) -> DeviceConfig:
    return load_device_config(text, "f.yaml").config


def test_the_built_in_file_loads_without_a_warning_and_names_every_vendor() -> None:
    builtin = builtin_device_config()
    assert builtin.warnings == ()
    assert all(getattr(builtin.config, name) for name in device_config_model().model_fields if name != "iluvatar")
    iluvatars = builtin.config.section("iluvatars")
    assert [chip.common_word for chip in iluvatars] == ["MR-V100", "MR-V50", "BI-V150", "BI-V100"]
    vnpus = builtin.config.section("vnpus")
    assert not vnpus.hami_vnpu_core
    assert [chip.common_word for chip in vnpus.configs] == [
        "Ascend910A",
        "Ascend910B2",
        "Ascend910B3",
        "Ascend910B4-1",
        "Ascend910B4",
        "Ascend310P",
        "Ascend910C",
    ]
    assert [chip.super_pod for chip in vnpus.configs] == [False] * 6 + [True]
    koordinator = builtin.config.section("koordinator")
    assert koordinator.mixed_name_sets == "deny"
    assert not koordinator.denies_mixed_names_explicitly


def test_older_and_newer_layouts_of_a_section_are_read() -> None:
    """tests/config/test_charts.py reads the files that HAMi's charts render, of 2.7, 2.10 and 2.11."""
    chip = "commonWord: X, resourceName: a.b/x, memoryAllocatable: 21527, memoryCapacity: 24576"
    older = loaded(
        f"vnpus: [{{{chip}, templates: [{{name: large, memory: 17476}}, {{name: small, memory: 2184}}]}}]\n"
        "enflame: {resourceCountName: enflame.com/vgcu, resourcePercentageName: enflame.com/vgcu-percentage}\n"
    )
    vnpus, enflame = older.section("vnpus"), older.section("enflame")
    assert not vnpus.hami_vnpu_core
    assert [template.name for template in vnpus.configs[0].templates] == ["small", "large"]
    assert (vnpus.configs[0].memory_capacity, vnpus.configs[0].factor) == (24576, 1)
    assert (enflame.resource_name_vgcu, enflame.resource_name_drs_gcu) == ("enflame.com/vgcu", "enflame.com/drs-gcu")
    newer = loaded(
        f"vnpus: {{hamiVnpuCore: true, configs: [{{{chip}, superPod: true, runtimeClassName: ascend}}]}}\n"
        "nvidia: {resourceCountName: a.b/c, memoryFactor: 1024}\n"
        "metax: {resourceVCountName: metax-tech.com/sgpu, sgpuTopologyAware: true}\n"
        "enflame: {resourceNameGCU: enflame.com/gcu}\n"
    )
    vnpus = newer.section("vnpus")
    assert (vnpus.hami_vnpu_core, vnpus.configs[0].super_pod, vnpus.configs[0].runtime_class_name) == (
        True,
        True,
        "ascend",
    )
    assert newer.section("hygon") is None
    assert newer.section("nvidia").factor == 1024
    assert newer.section("metax").sgpu_topology_aware
    assert newer.section("enflame").resource_name_vgcu_percentage == "enflame.com/vgcu-percentage"


def test_absent_keys_have_the_values_of_the_pages() -> None:
    config = loaded(
        "nvidia: {resourceCountName: a.b/n}\nhygon: {resourceCountName: a.b/h, memoryFactor: 0}\nmetax: {}\n"
        "vnpus: [{commonWord: X, resourceName: a.b/x, memoryAllocatable: 5}]\nvolcano: {gpuMemoryFactor: 0}\n"
    )
    nvidia, volcano = config.section("nvidia"), config.section("volcano")
    assert (nvidia.resource_memory_name, nvidia.default_gpu_num, nvidia.factor) == ("", 0, 1)
    assert config.section("hygon").factor == 1
    assert config.section("vnpus").configs[0].memory_capacity == 5
    assert volcano.factor == 1
    assert volcano.mig_geometries[0].models == ("A30",)
    assert not volcano.denies_mixed_names_explicitly
    assert config.section("iluvatars") == ()
    assert config.section("koordinator") is None


def test_a_null_key_says_as_much_as_no_key() -> None:
    config = loaded("enflame: {resourceNameGCU: , resourceNameVGCU: ''}\n")
    enflame = config.section("enflame")
    assert (enflame.resource_name_gcu, enflame.resource_name_vgcu) == ("enflame.com/gcu", "")


def test_both_layouts_of_vnpus_mean_the_same() -> None:
    chip = "{commonWord: Ascend910A, resourceName: huawei.com/Ascend910A, memoryAllocatable: 32768}"
    assert loaded(f"vnpus: [{chip}]") == loaded(f"vnpus: {{configs: [{chip}]}}")


def test_models_can_be_made_in_code_and_refuse_misspelt_fields() -> None:
    model = device_config_model()
    assert model.model_validate({"vnpus": [{"commonWord": "X", "memoryAllocatable": 5}]}).section("vnpus") is not None
    with pytest.raises(ValueError, match="Extra inputs"):
        model.model_validate({"nvida": {}})


def test_merge_keys_and_aliases_work() -> None:
    config = loaded(
        "nvidia: &n {resourceCountName: a.b/c, memoryFactor: 2}\n"
        "hygon: {<<: *n, resourceCountName: a.b/d}\n"
        "amd: {<<: [{resourceCountName: a.b/e}, {resourceCountName: a.b/f}]}\n"
    )
    hygon = config.section("hygon")
    assert (hygon.resource_count_name, hygon.factor) == ("a.b/d", 2)
    assert config.section("amd").resource_count_name == "a.b/e"


CONFIG_MAP = """\
apiVersion: v1
kind: ConfigMap
metadata: {name: hami-scheduler-device}
data:
  device-config.yaml: |-
    nvidia:
      resourceCountName: nvidia.com/gpu
      fooBar: 1
"""


def test_a_config_map_is_read_with_its_own_lines() -> None:
    assert load_device_config(CONFIG_MAP, "cm.yaml").warnings == ("cm.yaml:8: nvidia.fooBar: unknown key, ignored",)


def test_a_config_map_as_json_is_read_too() -> None:
    text = '{"kind": "ConfigMap",\n "data": {"device-config.yaml": "nvidia:\\n  x: 1\\n  resourceCountName: a.b/c"}}'
    assert load_device_config(text, "cm.json").warnings == ("cm.json:2: nvidia.x: unknown key, ignored",)


@in_one_test(
    ("text", "warning"),
    [
        (COUNT + "nvidai: {}", "f.yaml:2: nvidai: unknown key, ignored (did you mean nvidia?)"),
        (
            COUNT + "remotegpu: {resourceCountName: a.b/remote, libImage: x}",
            "f.yaml:2: remotegpu: ignored: GPUs of other nodes aren't supported, and pods that request them wait",
        ),
        (COUNT + "metax: {resourceVCountName: a.b/m, remotegpu: 1}", "f.yaml:2: metax.remotegpu: unknown key, ignored"),
        (
            "vnpus:\n  hamiVnpuMode: enpu\n  configs: [{commonWord: X, resourceName: a.b/c, memoryAllocatable: 5}]\n",
            "f.yaml:2: vnpus.hamiVnpuMode: enpu isn't served: nodes do templates, unless their annotation "
            "hami-vnpu-core is true",
        ),
        (COUNT + "hygon:", "f.yaml:2: hygon: the section is empty, so its vendor is disabled"),
        (COUNT + "hygon: {}", "f.yaml:2: hygon: names no resource, so it has no effect"),
        (
            COUNT + "hygon: {resourceCountName: nvidia.com/gpu}",
            "f.yaml:2: hygon.resourceCountName: nvidia.com/gpu is also a resource of nvidia: a pod's request for it is "
            "charged to both",
        ),
        (
            "metax: {resourceVMemoryName: a.b/m}",
            "f.yaml:1: metax.resourceVCountName: is empty, so no pod can request these devices by count",
        ),
        (
            "kunlun:\n  resourceVMemoryName: a.b/m",
            "f.yaml:1: kunlun.resourceVCountName: is empty, so no pod can request these devices by count",
        ),
        (
            "vnpus:\n- commonWord: X\n  resourceName: a.b/c\n  memoryAllocatable: 5\n  topologyPairs: 0,1\n",
            "f.yaml:5: vnpus[0].topologyPairs: ignored: topology comes from the nodes' registration",
        ),
        (
            "vnpus:\n  configs:\n  - commonWord: X\n    resourceName: a.b/c\n    memoryAllocatable: 5\n    zzz: []\n",
            "f.yaml:6: vnpus.configs[0].zzz: unknown key, ignored",
        ),
        (
            "enflame: {resourceNameVGCU: ''}",
            "f.yaml:1: enflame.resourceNameVGCU: is empty, so no pod can request these devices by count",
        ),
        (
            "iluvatars:\n- commonWord: X\n  resourceCountName: a.b/c\n  resourceMemName: a.b/d\n",
            "f.yaml:4: iluvatars[0].resourceMemName: unknown key, ignored (did you mean resourceMemoryName?)",
        ),
    ],
)
def test_what_is_hardly_meant_earns_a_warning(text: str, warning: str) -> None:
    assert load_device_config(text, "f.yaml").warnings == (warning,)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    missing, latin, large = tmp_path / "missing.yaml", tmp_path / "latin.yaml", tmp_path / "large.yaml"
    latin.write_bytes(b"nvidia:\n  # caf\xe9\n")
    large.write_bytes(b"#" * (LARGEST_FILE + 1))
    for path, words in (
        (missing, "can't be read: No such file or directory"),
        (tmp_path, "can't be read: Is a directory"),
        (latin, "latin.yaml:2: is not UTF-8 text (byte 0xe9)"),
        (large, "is larger than 1048576 bytes"),
        ("a\0b", "can't be read: embedded null byte"),
    ):
        with pytest.raises(ConfigError) as refusal:
            read_device_config(path)
        assert words in str(refusal.value)


def test_a_file_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    path = tmp_path / "bom.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + COUNT.encode())
    assert read_device_config(str(path)).config.section("nvidia") is not None


def test_a_key_that_breaks_lines_does_not_break_its_warning() -> None:
    (warning,) = load_device_config(COUNT + '"a\\nb": 1', "f.yaml").warnings
    assert warning == "f.yaml:2: a\N{REPLACEMENT CHARACTER}b: unknown key, ignored"
