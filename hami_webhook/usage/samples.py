"""Figures from samples of the metrics that a node's monitor serves (docs/metrics.md#metrics-of-a-node).

A sample is what a node or Prometheus said, which may be anything: values are bounded, and what makes no sense is left
out.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from hami_webhook.usage.figures import Measured, MeasuredCard, MeasuredContainer, MeasuredDevice, MeasuredPod

CARD_MEMORY = "hami_host_gpu_memory_used_bytes"
CARD_CORES = "hami_host_gpu_utilization_ratio"
CARD_TEMPERATURE = "hami_host_gpu_temperature_celsius"
CARD_POWER = "hami_host_gpu_power_usage_watts"
MEMORY = "hami_vgpu_memory_used_bytes"
MEMORY_LIMIT = "hami_vgpu_memory_limit_bytes"
CORES = "hami_container_device_utilization_ratio"
LAST_KERNEL = "hami_container_last_kernel_elapsed_seconds"
IDLE = "hami_webhook_container_idle_seconds"
NAMES = (CARD_MEMORY, CARD_CORES, CARD_TEMPERATURE, CARD_POWER, MEMORY, MEMORY_LIMIT, CORES, LAST_KERNEL, IDLE)
"""The metrics that figures are made of; the last is ours, HAMi's own monitor has the one before."""

_MEBIBYTE = 1 << 20
_OF_NOBODY = 1024
"""MiB of a card that the driver keeps for itself, as NVML counts."""
_LARGEST = float(2**63)
_LINE = re.compile(
    r"(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(?P<labels>.*)\})? (?P<value>[^ ]+)(?: -?[0-9]+)?", re.ASCII
)
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)",?', re.ASCII)
_LONGEST_LINE = 4096
"""Characters: names of Kubernetes have 253 at most."""
_ESCAPE = re.compile(r"\\(.)")
_UNESCAPED = {"n": "\n"}


class Sample(NamedTuple):
    """A metric's name, its labels and its value."""

    name: str
    labels: Mapping[str, str]
    value: float

    def label(self, name: str) -> str:
        """A label of the metric: Prometheus renames those that it has itself for the target."""
        return self.labels.get(f"exported_{name}") or self.labels.get(name, "")


def read_text(text: str) -> Iterator[Sample]:
    """The samples of `NAMES` in Prometheus' text format; lines that aren't of it are left out."""
    # prometheus_client's parser ends at the first line that isn't of the format. Given line by line, it takes 1.3 s of
    # processor time for the 3 MiB of a large node, and 8 s for 8 MiB meant to be hard; this takes 0.2 s and 2 s
    for line in text.split("\n"):
        if not line.startswith("hami_") or len(line) > _LONGEST_LINE:
            continue
        match = _LINE.fullmatch(line)
        if match is None or match["name"] not in NAMES:
            continue
        try:
            value = float(match["value"])
        except ValueError:
            continue
        yield Sample(match["name"], dict(_labels(match["labels"] or "")), value)


def _labels(text: str) -> Iterator[tuple[str, str]]:
    """Labels up to the first that is none: to look for others behind it would take time with the square of the text."""
    at = 0
    while (match := _LABEL.match(text, at)) is not None:
        yield match[1], _unescaped(match[2])
        at = match.end()


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda match: _UNESCAPED.get(match[1], match[1]), text) if "\\" in text else text


def makes_sense(value: float) -> bool:
    """Whether a value can be an amount: not negative, and a number."""
    return 0 <= value <= _LARGEST


def measured(samples: Iterable[Sample], now: float) -> Measured:
    """What samples of `now` (Unix seconds) say."""
    cards: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    models: dict[tuple[str, str], str] = {}
    devices: dict[tuple[str, str, str], dict[str, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    idle: dict[tuple[str, str, str], dict[str, float]] = defaultdict(dict)
    for sample in samples:
        if not makes_sense(sample.value):
            continue
        if sample.name.startswith("hami_host_"):
            card = sample.label("node"), sample.label("device_uuid")
            cards[card][sample.name] = sample.value
            models[card] = sample.label("device_type")
            continue
        container = sample.label("namespace"), sample.label("pod"), sample.label("container")
        if not all(container):
            continue
        if sample.name in (IDLE, LAST_KERNEL):
            idle[container][sample.name] = min(sample.value, idle[container].get(sample.name, math.inf))
        else:
            devices[container][sample.label("device_uuid")][sample.name] = sample.value
    pods: dict[tuple[str, str], list[MeasuredContainer]] = defaultdict(list)
    for container, of_device in sorted(devices.items()):
        elapsed = idle.get(container, {})
        seconds = elapsed.get(IDLE, elapsed.get(LAST_KERNEL))
        found = MeasuredContainer(
            container[2],
            [_device(uuid, values) for uuid, values in sorted(of_device.items())],
            None if seconds is None else max(0.0, now - seconds),
        )
        pods[container[:2]].append(found)
    found_cards = {key: _card(key[1], models[key], values) for key, values in cards.items()}
    known: dict[str, int] = defaultdict(int)
    for device in (device for containers in pods.values() for each in containers for device in each.devices):
        known[device.uuid] += device.memory
    return Measured(
        {key: MeasuredPod(*key, containers) for key, containers in pods.items()},
        found_cards,
        frozenset(
            key
            for key, card in found_cards.items()
            if card.cores == 0 and card.memory is not None and card.memory - known[card.uuid] <= _OF_NOBODY
        ),
    )


def _device(uuid: str, values: Mapping[str, float]) -> MeasuredDevice:
    return MeasuredDevice(
        uuid,
        int(values.get(MEMORY, 0)) // _MEBIBYTE,
        int(values.get(MEMORY_LIMIT, 0)) // _MEBIBYTE,
        round(values.get(CORES, 0)),
    )


def _card(uuid: str, model: str, values: Mapping[str, float]) -> MeasuredCard:
    memory, cores = values.get(CARD_MEMORY), values.get(CARD_CORES)
    return MeasuredCard(
        uuid,
        model,
        None if memory is None else int(memory) // _MEBIBYTE,
        None if cores is None else round(cores),
        values.get(CARD_TEMPERATURE),
        values.get(CARD_POWER),
    )
