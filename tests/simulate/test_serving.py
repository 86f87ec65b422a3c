"""The example values for charts that serve models, as the pods that these charts make of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import yaml

from .files import CORES, GPU, JSON, MEM, Simulate
from .test_examples import EXAMPLES, uuids

SERVING = EXAMPLES / "serving"
HAMI = {
    "GPUMem": "nvidia.com/gpumem",
    "GPUMemPercentage": "nvidia.com/gpumem-percentage",
    "GPUCores": "nvidia.com/gpucores",
}


def deployment(name: str, replicas: int, resources: JSON, annotations: JSON | None = None) -> JSON:
    pod = {"containers": [{"name": "main", "image": "serving", "resources": resources}]}
    template = {"metadata": {"labels": {"app": name}, "annotations": annotations or {}}, "spec": pod}
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}


def of_vllm(values: JSON) -> Iterator[JSON]:
    """As the chart's helper `chart.resources` and its Deployment do."""
    for model in values["servingEngineSpec"]["modelSpec"]:
        gpus = {"nvidia.com/gpu": str(model["requestGPU"])}
        requests, limits = (
            gpus | {name: model[f"{field}{key}"] for key, name in HAMI.items() if f"{field}{key}" in model}
            for field in ("request", "limit")
        )
        requests |= {"cpu": str(model["requestCPU"]), "memory": model["requestMemory"]}
        resources = {"requests": requests, "limits": limits}
        yield deployment(model["name"], model["replicaCount"], resources, model.get("podAnnotations"))


CHART = {
    "requests": {"cpu": "1", "memory": "4Gi", "nvidia.com/gpu": "1"},
    "limits": {"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "50"},
}
"""What a chart may ask for if the values say nothing."""


def merged(own: JSON, given: JSON) -> JSON:
    """A chart's own values with those that are given, as helm merges them: null takes a key away."""
    found = own | {
        key: merged(own.get(key) or {}, each) if isinstance(each, dict) else each for key, each in given.items()
    }
    return {key: each for key, each in found.items() if each is not None}


def of_xinference(values: JSON) -> Iterator[JSON]:
    """As the chart's Deployments do."""
    yield deployment("supervisor", 1, merged(CHART, values["xinferenceSupervisor"]["supervisor"]["resources"]))
    resources = values["xinferenceWorker"]["worker"]["resources"]
    yield deployment("worker", values["config"]["worker_num"], resources)


def node(name: str, count: int, memory: int, pair_score: int) -> JSON:
    uuids = [f"{name}-{index}" for index in range(count)]
    card = {"count": 10, "devmem": memory, "devcore": 100, "type": "NVIDIA A100", "mode": "hami-core", "health": True}
    scores = [{"uuid": uuid, "score": {peer: pair_score for peer in uuids if peer != uuid}} for uuid in uuids]
    notes = {
        "hami.io/node-nvidia-register": json.dumps([{"id": uuid, "index": i, **card} for i, uuid in enumerate(uuids)]),
        "hami.io/node-nvidia-score": json.dumps(scores),
    }
    status = {"allocatable": {"nvidia.com/gpu": str(10 * count)}}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "annotations": notes}, "status": status}


def simulated(simulate: Simulate, folder: Path, workloads: Iterator[JSON]) -> list[JSON]:
    """The outcomes on a node with PCIe alone and one with an NVSwitch."""
    cluster, pods = folder / "cluster.yaml", folder / "pods.yaml"
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q", "namespace": "default"}}
    hard = {"spec": {"hard": {GPU: "100", MEM: "10000000", CORES: "10000"}}}
    nodes = [node("pcie", 4, 40960, 10), node("nvlink", 8, 81920, 1820)]
    cluster.write_text(yaml.safe_dump_all([*nodes, quota | hard]))
    pods.write_text(yaml.safe_dump_all(list(workloads)))
    run = simulate.main("simulate", "--strict", "-o", "json", "--cluster", str(cluster), str(pods))
    assert run.status == 0, run.err
    return run.pods


def test_vllm_gets_shares_and_four_linked_gpus(simulate: Simulate, tmp_path: Path) -> None:
    values = yaml.safe_load((SERVING / "vllm-values.yaml").read_text())
    small, other, half, large = simulated(simulate, tmp_path, of_vllm(values))
    assert small["debits"] == other["debits"] == {GPU: 1, MEM: 10000, CORES: 30}
    assert half["debits"][MEM] in (20480, 40960)
    assert large["placement"]["node"] == "nvlink"
    assert len(set(uuids(large))) == 4
    assert large["debits"] == {GPU: 4, MEM: 4 * 81920, CORES: 400}


def test_three_workers_of_xinference_share_gpus_and_the_supervisor_has_none(simulate: Simulate, tmp_path: Path) -> None:
    values = yaml.safe_load((SERVING / "xinference-values.yaml").read_text())
    supervisor, *workers = simulated(simulate, tmp_path, of_xinference(values))
    assert supervisor["debits"] in (None, {})
    assert len(workers) == 3
    for worker in workers:
        assert worker["debits"] in ({GPU: 1, MEM: 10240, CORES: 20}, {GPU: 1, MEM: 20480, CORES: 20})
