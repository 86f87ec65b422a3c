"""Nodes with Neuron devices, some of their cores taken, and pods that ask for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from builders import container, read_node

from hami_webhook.kube.objects import Node, Pod

from .fit_env import CHART, JSON, NOW, FitEnv, Placed

VENDOR = CHART["AWSNeuron"]
DEVICES, CORES = "aws.amazon.com/neuron", "aws.amazon.com/neuroncore"
DEVICES_KEY, CORES_KEY = "limits.aws.amazon.com/neuron", "limits.aws.amazon.com/neuroncore"
RECORD = "hami.io/aws-neuron-devices-allocated"
TYPE = "node.kubernetes.io/instance-type"
USE, NOUSE = "aws.amazon.com/use-neuron-uuid", "aws.amazon.com/nouse-neuron-uuid"
MUTEX = {"hami.io/gpu-scheduler-policy": "mutex"}


def instance(kind: str | None, devices: int, cores: int = 2, name: str = "n1") -> Node:
    """A node of an instance type (None: unlabelled) with so many devices of so many cores each."""
    return read_node(
        name, labels={} if kind is None else {TYPE: kind}, capacity={DEVICES: devices, CORES: devices * cores}
    )


def trainium(name: str = "n1") -> Node:
    return instance("trn1.32xlarge", 16, name=name)


def inferentia(devices: int, name: str = "n1") -> Node:
    return instance("inf2.48xlarge", devices, name=name)


INF1 = instance("inf1.24xlarge", 16, cores=4, name="inf1")


def with_limits(devices: Any = None, cores: Any = None, name: str = "main", **more: Any) -> JSON:
    """A container that asks for devices, cores, both or neither."""
    limits = {DEVICES: devices, CORES: cores}
    return container(name, **{key: value for key, value in limits.items() if value is not None}, **more)


def entry(index: int, mask: int, on: str = "n1") -> str:
    return f"{on}-AWSNeuron-{index},AWSNeuron,0,{mask}:"


def occupy(env: FitEnv, *taken: Mapping[int, int], on: str = "n1") -> None:
    """A pod for each map from device index to mask of cores."""
    for number, masks in enumerate(taken):
        text = "".join(entry(index, mask, on) for index, mask in masks.items()) + ";"
        meta = {"name": f"busy-{number}", "uid": f"busy-{on}-{number}", "namespace": "default"}
        notes = {RECORD: text, "hami.io/vgpu-node": on}
        spec = {"nodeName": on, "containers": [{"name": "main"}]}
        env.state.set_pod(Pod.from_object({"metadata": {**meta, "annotations": notes}, "spec": spec}), NOW)


def busy(*indices: int) -> dict[int, int]:
    """Core 0 of each of these devices."""
    return dict.fromkeys(indices, 1)


def masks(placed: Placed | dict[str, str]) -> dict[int, int] | str:
    """What one container got, in the order written: mask by device index; or the only node's reason."""
    if isinstance(placed, dict):
        (why,) = placed.values()
        return why
    (row,) = [row for row in placed.annotations[RECORD].split(";") if row]
    fields = [item.split(",") for item in row.split(":") if item]
    assert {(f[1], f[2]) for f in fields} == {("AWSNeuron", "0")}
    return {int(f[0].rpartition("-")[2]): int(f[3]) for f in fields}


def whole(*indices: int) -> dict[int, int]:
    """All of these two-core devices."""
    return dict.fromkeys(indices, 3)
