"""What was measured of cards, containers and pods: memory in MiB, cores in percent of a card, times in Unix seconds."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from msgspec import Struct


class MeasuredCard(Struct, frozen=True):
    """A card of a node. None is what isn't known of it; temperature is in degrees Celsius, power in watts."""

    uuid: str
    model: str = ""
    memory: int | None = None
    cores: int | None = None
    temperature: float | None = None
    power: float | None = None


class MeasuredDevice(Struct, frozen=True):
    """What a container uses of a card. `limit` is the memory that it may use, 0 if there is no limit."""

    uuid: str
    memory: int = 0
    limit: int = 0
    cores: int = 0


class MeasuredContainer(Struct, frozen=True):
    """A container that has used its cards. `last_used`: when it last computed, None if that isn't known."""

    name: str
    devices: Sequence[MeasuredDevice] = ()
    last_used: float | None = None


class MeasuredPod(Struct, frozen=True):
    """A pod; without containers if none of its own has used a card so far."""

    namespace: str
    name: str
    containers: Sequence[MeasuredContainer] = ()

    @property
    def devices(self) -> list[MeasuredDevice]:
        return [device for container in self.containers for device in container.devices]

    @property
    def memory(self) -> int:
        return sum(device.memory for device in self.devices)

    @property
    def cores(self) -> int:
        return sum(device.cores for device in self.devices)

    def idle_since(self, placed: float | None) -> float | None:
        """When it last used a card, or got its cards (`placed`) if it never did; None if that isn't known."""
        if not self.containers:
            return placed
        known = [each.last_used for each in self.containers if each.last_used is not None]
        return max(known) if len(known) == len(self.containers) else None


class Measured(Struct, frozen=True):
    """What is known. `pods` are by namespace and name, `cards` by node and UUID.

    `exported`: what vendors' exporters say of cards, by UUID: model, temperature and power alone. `unused`: cards that
    don't compute, and whose memory is that of `pods`. `why` says why there is nothing, in a sentence with the remedy;
    `absent`: as nobody serves it to who asks.
    """

    pods: Mapping[tuple[str, str], MeasuredPod] = {}
    cards: Mapping[tuple[str, str], MeasuredCard] = {}
    unused: frozenset[tuple[str, str]] = frozenset()
    why: str = ""
    absent: bool = False
    exported: Mapping[str, MeasuredCard] = {}

    def pod(self, namespace: str, name: str, node: str, uuids: Collection[str]) -> MeasuredPod | None:
        """What a pod uses that has these cards of a node; None if it isn't known.

        A pod that nothing is said of used nothing if its cards are all unused. Else it may do without HAMi-core.
        """
        found = self.pods.get((namespace, name))
        if found is None and uuids and all((node, uuid) in self.unused for uuid in uuids):
            return MeasuredPod(namespace, name)
        return found

    def state(self, node: str, uuid: str) -> MeasuredCard:
        """A card's model, temperature and power, as its node's monitor has them, else as an exporter does."""
        nothing = MeasuredCard(uuid)
        own, other = self.cards.get((node, uuid), nothing), self.exported.get(uuid, nothing)
        return MeasuredCard(
            uuid,
            own.model or other.model,
            temperature=other.temperature if own.temperature is None else own.temperature,
            power=other.power if own.power is None else own.power,
        )


NOT_ASKED = Measured()
"""Nothing is known, as nobody asked."""
