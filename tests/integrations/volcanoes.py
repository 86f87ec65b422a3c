"""Nodes with Volcano's device plugin, and pods that ask for its vGPUs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from builders import container, read_node
from devices.fit_env import pod

from hami_webhook.kube.objects import Node

JSON = dict[str, Any]
NUMBER, MEMORY = "volcano.sh/vgpu-number", "volcano.sh/vgpu-memory"
PERCENTAGE, CORES = "volcano.sh/vgpu-memory-percentage", "volcano.sh/vgpu-cores"
NAMES = (NUMBER, MEMORY, PERCENTAGE, CORES)
MODE = "volcano.sh/vgpu-mode"
IDS = "volcano.sh/vgpu-ids-new"
REGISTER, HANDSHAKE = "volcano.sh/node-vgpu-register", "volcano.sh/node-vgpu-handshake"
A40GB, T4 = "NVIDIA-NVIDIA A100-PCIE-40GB", "NVIDIA-Tesla T4"


def a40(uuid: str, mode: str = "mig", health: str = "true") -> str:
    return f"{uuid},10,40960,{A40GB},{health},{mode}"


def t4(uuid: str, health: str = "true") -> str:
    return f"{uuid},10,16384,{T4},{health},hami-core"


def registered(*cards: str) -> str:
    return "".join(f"{card}:" for card in cards)


def volcano_node(
    name: str = "n1", *cards: str, offered: Mapping[str, object] | None = None, handshake: str | None = None
) -> Node:
    """A node whose kubelet offers the plugin's three resources, unless told otherwise."""
    memory = sum(int(card.split(",")[2]) for card in cards)
    amounts = {NUMBER: 10 * len(cards), MEMORY: memory, CORES: 100 * len(cards)}
    given = {key: value for key, value in {**amounts, **(offered or {})}.items() if value is not None}
    notes = {} if handshake is None else {HANDSHAKE: handshake}
    return read_node(name, capacity=given, **{REGISTER: registered(*cards), **notes})


def pod_with_limits(
    number: object = None,
    memory: object = None,
    cores: object = None,
    percent: object = None,
    *,
    name: str = "p",
    mode: str | None = None,
    notes: Mapping[str, str] | None = None,
    **spec: object,
) -> JSON:
    """A pod of one container."""
    annotations = {**({} if mode is None else {MODE: mode}), **(notes or {})}
    made = pod(name, vgpu(number, memory, cores, percent), annotations=annotations)
    made["spec"].update(spec)
    return made


def vgpu(
    number: object = None,
    memory: object = None,
    cores: object = None,
    percent: object = None,
    *,
    name: str = "main",
    requests: JSON | None = None,
) -> JSON:
    """A container with these limits."""
    named = {NUMBER: number, MEMORY: memory, CORES: cores, PERCENTAGE: percent}
    return container(name, requests=requests, **{key: value for key, value in named.items() if value is not None})


def debits(number: int = 0, memory: int = 0, cores: int = 0) -> dict[str, int]:
    """Amounts by quota key, zeros left out."""
    named = {f"limits.{NUMBER}": number, f"limits.{MEMORY}": memory, f"limits.{CORES}": cores}
    return {key: amount for key, amount in named.items() if amount}
