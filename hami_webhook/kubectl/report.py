"""What the verbs of `kubectl hami` show: plain values, memory in MiB, cores in the vendor's unit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

ALLOCATED = "Allocated"
"""The state of a claim that is charged by itself and has its devices."""
WAITING, GATED = "Waiting", "Gated"
"""States of pods that hold no cards yet: not placed, and not to be placed before their scheduling gates are gone."""


_ACTIVE = 60.0
"""Seconds since the last use in which something counts as in use: monitors are asked twice a minute."""


class InUse(Struct, frozen=True):
    """What is really used: memory in MiB, cores in percent of a card.

    `idle_since`: Unix seconds at which it was last used, None if that isn't known, or nobody holds it.
    """

    memory: int
    cores: int
    idle_since: float | None = None

    def is_idle(self, now: float) -> bool:
        """Whether it is known that it hasn't been used within the last minute."""
        return self.idle_since is not None and now - self.idle_since >= _ACTIVE


class KeyUse(Struct, frozen=True):
    """One managed key of a quota, in the units in which the quota counts it.

    `waiting` and `placed` are what pods cost that aren't placed, and that are; `used` is None until it is computed.
    `unit_bytes` is how many bytes of memory one of the unit is, 0 for what isn't memory. `measured`: what its pods
    really use, None for what isn't measured. `queued` is what pods request that stand in its queue, uncharged.

    `nominal` is what is the quota's own, `borrowed` what it uses beyond that, `lent` what others use of it; None
    without a nominal.
    """

    key: str
    used: int | None
    hard: int
    waiting: int
    placed: int
    unit_bytes: int = 0
    measured: int | None = None
    queued: int = 0
    nominal: int | None = None
    borrowed: int | None = None
    lent: int | None = None

    @property
    def left(self) -> int:
        return max(0, self.hard - (self.used or 0))


class PodCost(Struct, frozen=True):
    """What a pod costs a quota. `models` are those of its cards; empty while it waits, or where nodes aren't known."""

    name: str
    state: str
    node: str
    amounts: Mapping[str, int]
    models: Sequence[str] = ()
    in_use: InUse | None = None


class ModelUse(Struct, frozen=True):
    """What placed pods hold of the cards of a model."""

    model: str
    pods: int
    slots: int
    memory: int
    cores: int


class Room(Struct, frozen=True):
    """What still fits on the cards of a model: by the cards, and by the quota.

    `cards` have a free slot; of one of them at most `memory` and `cores` are free; `quota_…` is what the quota leaves,
    None if it doesn't limit that.
    """

    vendor: str
    model: str
    cards: int
    memory: int
    cores: int
    quota_cards: int | None = None
    quota_memory: int | None = None
    quota_cores: int | None = None


class QuotaUse(Struct, frozen=True):
    """A quota with managed keys; an AcceleratorQuota has no namespace, and its kind before its name.

    `queues`: pods wait for it in their order. `windows` says until when its limits hold, if they change.
    """

    namespace: str
    name: str
    keys: Sequence[KeyUse]
    pods: Sequence[PodCost]
    models: Sequence[ModelUse]
    room: Sequence[Room]
    notes: Sequence[str] = ()
    queues: bool = False
    windows: str = ""


class CardUse(Struct, frozen=True):
    """A card of a node and the pods that hold it. Temperature in degrees Celsius, power in watts, if they are known.

    `fault` is what the node's monitor found, if that is unhealthy; `measured_model` is what it, or an exporter, calls
    the model, if they say.
    """

    node: str
    vendor: str
    uuid: str
    model: str
    healthy: bool
    used_slots: int
    slots: int
    used_memory: int
    memory: int
    used_cores: int
    cores: int
    pods: Sequence[str] = ()
    in_use: InUse | None = None
    temperature: float | None = None
    power: float | None = None
    fault: str = ""
    measured_model: str = ""


class NodeUse(Struct, frozen=True):
    """The cards of one vendor on a node, summed up; `pods` is how many hold some of them."""

    node: str
    vendor: str
    models: Sequence[str]
    cards: int
    healthy: int
    used_slots: int
    slots: int
    used_memory: int
    memory: int
    used_cores: int
    cores: int
    pods: int
    in_use: InUse | None = None


class PodUse(Struct, frozen=True):
    """A pod that requests managed resources: where it is, its cards, and what it costs a quota.

    `created` is in Unix seconds; None if the pod doesn't say. `reason` is why it waits, as its status says.
    """

    namespace: str
    name: str
    state: str
    node: str
    scheduler: str
    cards: Sequence[str]
    models: Sequence[str]
    amounts: Mapping[str, int]
    created: float | None = None
    problems: Sequence[str] = ()
    in_use: InUse | None = None
    reason: str = ""

    @property
    def waits(self) -> bool:
        return self.state in (WAITING, GATED)

    def idle_for(self, now: float) -> float:
        """The seconds for which it hasn't used its cards; negative if that isn't known."""
        since = self.in_use.idle_since if self.in_use is not None else None
        return -1.0 if since is None else max(0.0, now - since)


class IdleTeam(Struct, frozen=True):
    """A namespace: `holding` pods have cards, `idle` don't use them; these have so many cards, and cost so much quota.

    `unknown`: of how many that hold cards it isn't known.
    """

    namespace: str
    holding: int
    idle: Sequence[PodUse]
    cards: int
    frees: Mapping[str, int]
    unknown: int


class NodeDetails(Struct, frozen=True):
    """A node: its cards, and what is wrong with what it registers."""

    name: str
    cards: Sequence[CardUse]
    handshakes: Mapping[str, str]
    lock: str = ""
    notes: Sequence[str] = ()
