"""`volcano.sh/vgpu-ids-new`: what Volcano gave a pod, on the wire (docs/spec/volcano.md#9)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

from hami_webhook.integrations.volcano.annotation_keys import ALLOCATED, BIND_PHASE, BIND_TIME, NODE
from hami_webhook.integrations.volcano.geometry import InstancePlace
from hami_webhook.kube.objects import Pod


class AllocationEntry(Struct, frozen=True):
    """A card of one container: memory in blocks as requested, cores in percent, and the MIG instance if it is one."""

    uuid: str
    memory: int
    cores: int
    place: InstancePlace | None = None

    def __str__(self) -> str:
        return f"{self.uuid}{self.place or ''},NVIDIA,{self.memory},{self.cores}:"


Rows = Sequence[Sequence[AllocationEntry]]
"""The cards of the requesting containers, in their order."""


def encode(rows: Rows) -> str:
    """The annotation's text."""
    return ";".join("".join(map(str, row)) for row in rows)


def decode(text: str) -> list[list[AllocationEntry]]:
    """The rows of the annotation; entries that can't be read are left out."""
    return [[entry for part in row.split(":") if (entry := _entry(part)) is not None] for row in text.split(";")]


_NUMBER = re.compile(r"\+?[0-9]{1,18}", re.ASCII)
_CARD = re.compile(r"(?P<uuid>[^\[]*)(?:\[(?P<group>.*)-(?P<position>[0-9]{1,9})\])?.*", re.ASCII | re.DOTALL)


def _entry(text: str) -> AllocationEntry | None:
    fields = text.split(",")
    if len(fields) < 4 or not (_NUMBER.fullmatch(fields[2]) and _NUMBER.fullmatch(fields[3])):
        return None
    found = _CARD.fullmatch(fields[0])
    assert found is not None
    place = InstancePlace(found["group"], int(found["position"])) if found["position"] else None
    return AllocationEntry(found["uuid"], int(fields[2]), int(fields[3]), place)


EXPIRES_AFTER = 300.0
"""Seconds for which an allocation counts that wasn't bound."""


def rows_of(pod: Pod, now: float) -> list[list[AllocationEntry]] | None:
    """What the pod holds at `now` (Unix seconds); None while nothing readable counts (section 10.2)."""
    if pod.terminal or pod.annotations.get(BIND_PHASE) == "failed" or ALLOCATED not in pod.annotations:
        return None
    expires = assumption_expires_at(pod)
    if expires is not None and now >= expires:
        return None
    rows = decode(pod.annotations[ALLOCATED])
    return rows if any(rows) else None


def assumption_expires_at(pod: Pod) -> float | None:
    """When the pod's allocation stops counting unless it is bound (Unix seconds); None if it is bound."""
    if pod.node_name:
        return None
    written = pod.annotations.get(BIND_TIME, "")
    if pod.annotations.get(BIND_PHASE) != "allocating" or not _NUMBER.fullmatch(written):
        return 0.0
    return int(written) + EXPIRES_AFTER


def node_of(pod: Pod) -> str:
    """The node of the pod's allocation, empty if it is for none."""
    return pod.node_name or pod.annotations.get(NODE, "")
