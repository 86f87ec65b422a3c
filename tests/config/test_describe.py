"""What `config check` prints about a configuration."""

from hami_webhook.config import ResourceMeaning, describe
from hami_webhook.device_config import builtin_device_config, load_device_config


def test_every_section_and_chip_of_the_built_in_file_is_described() -> None:
    builtin = builtin_device_config()
    described = {entry.path: entry for entry in describe(builtin)}
    assert len(described) == len(builtin.config.parts()) >= 13 + 4 + 7
    backends = [backend for entry in described.values() for backend in entry.backends]
    assert len(backends) == len(set(backends))
    assert described["nvidia"].resources[1] == ResourceMeaning(
        "nvidia.com/gpumem", "memory of each card", "1 MiB", "limits.nvidia.com/gpumem"
    )
    assert {
        resource.name: resource.quota_key for resource in described["nvidia"].resources if not resource.quota_key
    } == {"nvidia.com/gpumem-percentage": "", "nvidia.com/priority": ""}
    assert described["vnpus.configs[5]"].backends == ("Ascend310P",)
    assert described["vnpus.configs[5]"].needs_flag == "--enable-ascend"
    assert "a whole card gives 21527 of its 24576 MiB" in described["vnpus.configs[5]"].notes
    assert "the two dies of a module are bound together" in described["vnpus.configs[6]"].notes
    assert described["iluvatars[0]"].needs_flag == "--enable-iluvatar"
    assert any("A300" in note for note in described["volcano"].notes)
    assert "pods without a scheduler get koord-scheduler" in described["koordinator"].notes


def test_every_resource_name_is_described() -> None:
    builtin = builtin_device_config()
    named = {name for part in builtin.config.parts().values() for name in part.resource_names().values()}
    assert {resource.name for entry in describe(builtin) for resource in entry.resources} == named


def test_settings_that_change_what_pods_get_are_noted() -> None:
    text = """\
nvidia:
  resourceCountName: a.b/c
  resourceMemoryName: a.b/m
  memoryFactor: 1024
  defaultMemory: 512
  overwriteEnv: true
  runtimeClassName: nvidia
metax: {resourceCountName: m.b/c, sgpuTopologyAware: "true"}
amd: {resourceCountName: d.b/c}
vnpus:
  hamiVnpuCore: true
  configs:
  - {commonWord: X, resourceName: x.b/c, memoryAllocatable: 5, overwriteEnv: true, runtimeClassName: ascend}
volcano:
  enabled: false
  injectSchedulerName: false
  knownMigGeometries: [{models: [H1], allowedGeometries: [{group: g, geometries: [{name: a, memory: 1, count: 1}]}]}]
"""
    described = {entry.path: entry for entry in describe(load_device_config(text, "f.yaml"))}
    assert described["nvidia"].resources[1].unit == "1024 MiB"
    assert described["nvidia"].notes == (
        "a container that names no memory gets 512 MiB of each card",
        "a container that names no cores gets 0 percent of each card",
        "a container that names memory or cores only gets no card",
        "containers that request no card see none",
        "pods without a runtime class get nvidia",
    )
    assert described["metax"].notes == ("topology counts in the choice of node unless the pod says otherwise",)
    assert described["amd"].notes == ("without a memory name every card is given whole",)
    assert described["vnpus.configs[0]"].notes == (
        "a whole card gives 5 of its 5 MiB",
        "containers that request no card see none",
        "pods without a runtime class get ascend",
        "nodes offer soft mode unless they say otherwise",
    )
    assert described["volcano"].notes[0] == "switched off"
    assert all(resource.quota_key == "" for resource in described["volcano"].resources)
