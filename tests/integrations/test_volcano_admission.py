"""Volcano at admission: gates, values, percentages, annotations, scheduler, warnings.

Source: docs/spec/volcano.md#2 and #5.
"""

from __future__ import annotations

from typing import Any

import pytest
from admission.reviews import refusal, validate
from builders import container
from devices.fit_env import configured, pod
from refusals import has_node

from hami_webhook.config import ConfigError
from hami_webhook.device_config import load_device_config

from .schedulers_env import SchedulersEnv
from .volcanoes import (
    A40GB,
    CORES,
    MEMORY,
    MODE,
    NAMES,
    NUMBER,
    PERCENTAGE,
    a40,
    pod_with_limits,
    t4,
    vgpu,
    volcano_node,
)

JSON = dict[str, Any]
USE, NOUSE = "volcano.sh/vgpu-use-gpuuuid", "volcano.sh/vgpu-nouse-gpuuuid"
T4S = (volcano_node("n1", t4("GPU-a"), t4("GPU-b")),)


def with_section(text: str) -> SchedulersEnv:
    return SchedulersEnv(T4S, configured(f"volcano: {{{text}}}"))


# 2: configuration


def test_what_a_pod_asks_may_have_other_names() -> None:
    env = SchedulersEnv(vendors=configured("volcano: {resourceCountName: acme.com/n, resourceMemoryName: acme.com/m}"))
    assert env.admit(pod("p", container(**{"acme.com/m": 5}))).limits() == {"acme.com/m": "5", "acme.com/n": "1"}
    assert env.vendors.quota_keys.keys() == {
        "limits.acme.com/n",
        "limits.acme.com/m",
        "limits.volcano.sh/vgpu-cores",
    }


def test_a_group_that_the_wire_would_split_is_refused() -> None:
    geometry = "{models: [A30], allowedGeometries: [{group: group-1, geometries: [{name: x, memory: 1, count: 1}]}]}"
    with pytest.raises(ConfigError, match="group"):
        load_device_config(f"volcano: {{knownMigGeometries: [{geometry}]}}", "test")


# 5.1: gates


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("sidecar", [False, True])
def test_init_containers_get_no_vgpu(name: str, sidecar: bool) -> None:
    with_limits = pod("p", container("main"), init=[container("warm", sidecar=sidecar, **{name: 1})])
    assert (
        SchedulersEnv(T4S).refusal(with_limits) == "volcano.sh/vgpu resources are not supported in init container warm"
    )


def test_an_init_container_may_name_nothing() -> None:
    assert not SchedulersEnv(T4S).admit(pod("p", vgpu(1, 1000), init=[container("warm", **{NUMBER: 0})])).message


# 5.2: values


def test_requests_are_completed_where_they_name_something() -> None:
    made = vgpu(memory=5, requests={MEMORY: 5})
    admitted = SchedulersEnv(T4S).admit(pod("p", made))
    assert admitted.limits() == admitted.requests() == {MEMORY: "5", NUMBER: "1"}
    expanded = SchedulersEnv(T4S).admit(pod("p", vgpu(1, percent=50, requests={NUMBER: 1, PERCENTAGE: 50})))
    assert expanded.limits() == expanded.requests() == {NUMBER: "1", MEMORY: "8192"}
    gone = SchedulersEnv(T4S).admit(pod("p", vgpu(0, 5, requests={NUMBER: 0, MEMORY: 5})))
    assert (gone.limits(), gone.requests()) == ({}, {})


@pytest.mark.parametrize("where", ["limits", "requests"])
@pytest.mark.parametrize(
    ("name", "values"),
    [
        (NUMBER, ["-1", "1.5", "2147483648", "x", "1500m"]),
        (PERCENTAGE, ["-1", "101", "0.5", "x"]),  # example 10
        (CORES, ["-1", "101", "150", "99.5", "x"]),
        (MEMORY, ["-1", "16777217", "4Gi", "1.5", "x"]),
    ],
)
def test_amounts_that_cannot_be_meant_are_refused(name: str, values: list[str], where: str) -> None:
    for value in values:
        amounts = {NUMBER: 1, name: value}
        made = container(**amounts) if where == "limits" else container(requests=amounts)
        assert f"invalid {name} value {value} in container main" in SchedulersEnv(T4S).refusal(pod("p", made)), value


def test_the_largest_amounts_are_taken() -> None:
    admitted = SchedulersEnv().admit(pod_with_limits(2147483647, 16777216, 100))
    assert admitted.limits() == {NUMBER: "2147483647", MEMORY: "16777216", CORES: "100"}


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ("", "blocks of 1 MiB (4 GiB is 4096, not 4Gi)"),
        ("gpuMemoryFactor: 10", "blocks of 10 MiB (4 GiB is 410, not 4Gi)"),
    ],
)
def test_memory_is_explained_in_the_unit_of_the_configuration(section: str, words: str) -> None:
    assert words in with_section(section).refusal(pod_with_limits(1, "4Gi"))


@pytest.mark.parametrize(
    ("section", "limits", "after"),
    [
        ("", {NUMBER: 0, MEMORY: 5, PERCENTAGE: 5, CORES: 5}, {}),
        ("", {NUMBER: 1, MEMORY: 0}, {NUMBER: "1"}),
        ("", {NUMBER: 1, PERCENTAGE: 0, CORES: 0}, {NUMBER: "1", CORES: "0"}),
        ("", {MEMORY: 7}, {MEMORY: "7", NUMBER: "1"}),  # example 3
        ("", {CORES: 7}, {CORES: "7", NUMBER: "1"}),
        ("", {CORES: 0}, {CORES: "0"}),
        ("", {MEMORY: 0}, {}),
        ("", {PERCENTAGE: 50}, {MEMORY: "8192", NUMBER: "1"}),
        ("", {NUMBER: "2", MEMORY: "2k"}, {NUMBER: "2", MEMORY: "2k"}),
        ("defaultMemory: 100", {NUMBER: 1}, {NUMBER: "1", MEMORY: "100"}),
        ("defaultMemory: 100", {NUMBER: 1, MEMORY: 0}, {NUMBER: "1", MEMORY: "100"}),
        ("defaultMemory: 100, expandPercentage: false", {NUMBER: 1, PERCENTAGE: 5}, {NUMBER: "1", PERCENTAGE: "5"}),
        ("defaultCores: 30", {NUMBER: 1, MEMORY: 1}, {NUMBER: "1", MEMORY: "1", CORES: "30"}),
        ("defaultCores: 30", {NUMBER: 1, CORES: 0}, {NUMBER: "1", CORES: "0"}),
        ("defaultGPUNum: 2", {MEMORY: 1}, {MEMORY: "1", NUMBER: "2"}),
        ("defaultGPUNum: 0, defaultCores: 30", {MEMORY: 1}, {MEMORY: "1"}),
        ("defaultMemory: 100", {NUMBER: 0}, {}),
    ],
)
def test_zeros_go_and_counts_and_defaults_come(section: str, limits: JSON, after: JSON) -> None:
    assert with_section(section).admit(pod("p", container(**limits))).limits() == after


# 5.3: percentages


def test_a_percentage_wins_over_memory_and_says_so() -> None:
    admitted = SchedulersEnv(T4S).admit(pod_with_limits(1, 100, percent=50))
    assert admitted.limits() == {NUMBER: "1", MEMORY: "8192"}
    assert admitted.codes == ["volcano/both"]


def test_a_percentage_is_never_expanded_to_nothing() -> None:
    """0 blocks would mean the whole card."""
    env = SchedulersEnv([volcano_node("n1", "GPU-a,10,40,NVIDIA-X,true,hami-core")])
    assert env.admit(pod_with_limits(1, percent=1)).limits() == {NUMBER: "1", MEMORY: "1"}


@pytest.mark.parametrize(
    ("notes", "after"),
    [
        ({}, {PERCENTAGE: "50"}),
        ({MODE: "mig"}, {MEMORY: "20480"}),
        ({MODE: " Hami-Core"}, {MEMORY: "8192"}),
        ({"nvidia.com/use-gputype": "tesla"}, {MEMORY: "8192"}),
        ({"nvidia.com/nouse-gputype": "tesla"}, {MEMORY: "20480"}),
        ({USE: "GPU-m, GPU-x"}, {MEMORY: "20480"}),
        ({NOUSE: "GPU-m"}, {MEMORY: "8192"}),
        ({USE: " , "}, {PERCENTAGE: "50"}),
    ],
)
def test_only_cards_that_the_pod_may_get_must_be_equal(notes: dict[str, str], after: JSON) -> None:
    env = SchedulersEnv([*T4S, volcano_node("n2", a40("GPU-m"))])
    assert env.admit(pod_with_limits(1, percent=50, notes=notes)).limits() == {NUMBER: "1", **after}


@pytest.mark.parametrize(
    "node",
    [
        volcano_node("n2", f"GPU-x,10,40960,{A40GB},false,hami-core"),
        volcano_node("n2", a40("GPU-x"), offered={MEMORY: 0}),
        volcano_node("n2", a40("GPU-x"), offered={CORES: None}),
        volcano_node("n2", a40("GPU-x"), handshake="Deleted_2026.01.01 00:00:00"),
        volcano_node("n2", a40("GPU-x"), handshake="Requesting_2025.12.30 00:00:00"),
    ],
)
def test_cards_that_nobody_gets_do_not_count(node: Any) -> None:
    assert SchedulersEnv([*T4S, node]).admit(pod_with_limits(1, percent=50)).limits() == {NUMBER: "1", MEMORY: "8192"}


def test_without_cards_a_percentage_stays() -> None:
    admitted = SchedulersEnv().admit(pod_with_limits(1, percent=50))
    assert (admitted.limits(), admitted.codes) == ({NUMBER: "1", PERCENTAGE: "50"}, ["volcano/percentage"])


def test_percentages_can_be_left_to_volcano() -> None:
    admitted = with_section("expandPercentage: false").admit(pod_with_limits(1, percent=50))
    assert (admitted.limits(), admitted.codes) == ({NUMBER: "1", PERCENTAGE: "50"}, [])


# 5.4: annotations


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({MODE: "  "}, {}),
        ({MODE: " HAMI-CORE "}, {MODE: "hami-core"}),  # example 6
        ({USE: " GPU-a,,GPU-b , GPU-a"}, {USE: "GPU-a,GPU-b"}),
        ({NOUSE: ","}, {}),
        ({"volcano.sh/vgpu-podgroup-policy": "spread"}, {"volcano.sh/vgpu-podgroup-policy": "spread"}),
    ],
)
def test_annotations_are_tidied(before: dict[str, str], after: dict[str, str]) -> None:
    assert SchedulersEnv(T4S).admit(pod_with_limits(1, 1000, notes=before)).notes == after


@pytest.mark.parametrize("mode", ["time-slicing", "MIGS", "x" * 200])
def test_other_modes_are_refused(mode: str) -> None:
    message = SchedulersEnv(T4S).refusal(pod_with_limits(1, 1000, mode=mode))
    assert message.startswith("invalid volcano.sh/vgpu-mode annotation")
    assert len(message) < 150


def test_mps_is_a_name_that_no_node_has() -> None:
    assert SchedulersEnv(T4S).admit(pod_with_limits(1, 1000, mode="mps")).codes == ["volcano/mps"]


# 5.5: scheduler


def test_a_pod_that_asks_for_nothing_in_the_end_gets_no_scheduler() -> None:
    assert "schedulerName" not in SchedulersEnv(T4S).admit(pod_with_limits(0)).manifest["spec"]


# 5.7: warnings


@pytest.mark.parametrize(
    ("manifest", "codes"),
    [
        (pod_with_limits(2, 1000), []),
        (pod_with_limits(3, 1000), ["volcano/count"]),
        (pod_with_limits(2, 1000, mode="mig"), ["volcano/count"]),
        (pod_with_limits(1, 40960), []),
        (pod_with_limits(1, 40961), ["volcano/memory"]),
        (pod_with_limits(1, 16385, mode="hami-core"), ["volcano/memory"]),
        (pod_with_limits(1, 16385, notes={"nvidia.com/use-gputype": "T4"}), ["volcano/memory"]),
        (pod_with_limits(1, 40960, mode="mig"), []),
        (pod_with_limits(1, 40961, mode="mig"), ["volcano/memory"]),
        (pod_with_limits(1, 1000, 10, mode="mig"), ["volcano/mig-cores"]),
        (pod_with_limits(1, 1000, notes={USE: "GPU-a", NOUSE: "GPU-b,GPU-a"}), ["volcano/uuid"]),
        (pod_with_limits(1, 1000, notes={"nvidia.com/use-gpuuuid": "GPU-a"}), ["volcano/uuid"]),
        (pod_with_limits(1, 1000, notes={"nvidia.com/nouse-gpuuuid": "GPU-a"}), ["volcano/uuid"]),
        (pod("p", container(**{NUMBER: 1, "volcano.sh/gpu-memory": 5})), ["volcano/gpu-share"]),
        (pod("p", vgpu(1), container("old", **{"volcano.sh/gpu-number": 1})), ["volcano/gpu-share"]),
        (pod("p", {**vgpu(1), "securityContext": {"privileged": True}}), ["volcano/privileged"]),
    ],
)
def test_what_is_hardly_meant_is_said(manifest: JSON, codes: list[str]) -> None:
    nodes = [volcano_node("n1", t4("GPU-a"), t4("GPU-b"), t4("GPU-c", "false")), volcano_node("n2", a40("GPU-m"))]
    admitted = SchedulersEnv(nodes).admit(manifest)
    assert admitted.codes == codes
    assert all("\n" not in warning for warning in admitted.warnings)


def test_an_eighty_gib_card_never_serves_a_whole_card_request() -> None:
    """Its largest instance has 80896 MiB, less than it registers (section 11)."""
    node = volcano_node("n1", "GPU-m,10,81920,NVIDIA-NVIDIA A100-SXM4-80GB,true,mig")
    env = SchedulersEnv([node])
    assert env.failed(pod_with_limits(1, mode="mig")) == {"n1": "1/1 CardMigTopologyInfeasible"}
    assert env.admit(pod_with_limits(1, 80897, mode="mig")).codes == ["volcano/memory"]
    assert env.admit(pod_with_limits(1, 80896, mode="mig")).codes == []


# what is stored


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        (pod_with_limits(1, "4Gi"), "invalid volcano.sh/vgpu-memory value 4Gi"),
        (pod_with_limits(1, nodeName="n1"), has_node("n1")),
        (pod_with_limits(1, notes={"volcano.sh/vgpu-ids-new": "GPU-a,NVIDIA,1,0:"}), "written by the scheduler only"),
        (pod("p", container(), init=[container("warm", **{CORES: 1})]), "not supported in init container warm"),
    ],
)
def test_a_pod_that_was_not_mutated_is_refused_all_the_same(manifest: JSON, message: str) -> None:
    """The opt-out labels skip the mutating webhook, never the validating one."""
    env = SchedulersEnv(T4S)
    code, text = refusal(
        validate, {**manifest, "metadata": {**manifest["metadata"], "namespace": "team-a"}}, known=env.vendors
    )
    assert (code, message in text) == (422, True)
