"""Dynamic MIG: which instance of a card serves a request (docs/spec/volcano.md#2 and #7.5).

Memory is MiB. A position counts the instances of a group in the order of the configuration, which is the wire's too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from msgspec import Struct

from hami_webhook.integrations.sections import MigGeometries, MigGroup


class InstanceKind(Struct, frozen=True):
    """Instances of one size in a group: they have the positions `first` to `first + count - 1`."""

    name: str
    memory: int
    first: int
    count: int

    @property
    def positions(self) -> range:
        return range(self.first, self.first + self.count)


class Group(Struct, frozen=True):
    """One way to cut a card; `kinds` from small to large."""

    name: str
    kinds: tuple[InstanceKind, ...]

    @classmethod
    def read(cls, configured: MigGroup) -> Group:
        kinds, first = [], 0
        for each in configured.geometries:
            kinds.append(InstanceKind(each.name, each.memory, first, each.count))
            first += each.count
        return cls(configured.group, tuple(sorted(kinds, key=lambda kind: kind.memory)))


class InstancePlace(Struct, frozen=True):
    """An instance as the wire names it: `<uuid>[<group>-<position>]`."""

    group: str
    position: int

    def __str__(self) -> str:
        return f"[{self.group}-{self.position}]"


class GeometryInstance(Struct, frozen=True):
    """A place, with what the instance there is."""

    place: InstancePlace
    kind: InstanceKind


class Geometry:
    """The ways to cut the cards of one model."""

    def __init__(self, groups: Sequence[Group]) -> None:
        self.groups = tuple(groups)

    def instance(self, place: InstancePlace) -> GeometryInstance | None:
        """What is at a place; None if there is no such place."""
        kinds = (kind for group in self.groups if group.name == place.group for kind in group.kinds)
        return next((GeometryInstance(place, kind) for kind in kinds if place.position in kind.positions), None)

    def smallest(self, least: int) -> int | None:
        """The memory of the smallest instance of at least `least` MiB in any group."""
        return min((memory for memory in self.sizes() if memory >= least), default=None)

    def sizes(self) -> Iterator[int]:
        """The memory of every kind of instance."""
        return (kind.memory for group in self.groups for kind in group.kinds)

    def choose(self, least: int, taken: Collection[InstancePlace]) -> GeometryInstance | None:
        """The instance that a request of `least` MiB gets on a card whose `taken` places are in use.

        An idle card takes the first group that can serve it; a group is kept while any instance of it is in use.
        """
        active = {place.group for place in taken}
        if len(active) > 1:
            return None
        for group in self.groups:
            if not active or group.name in active:
                found = next(_free(group, least, taken), None)
                if found is not None:
                    return found
        return None


def _free(group: Group, least: int, taken: Collection[InstancePlace]) -> Iterator[GeometryInstance]:
    for kind in group.kinds:
        if kind.memory >= least:
            places = (InstancePlace(group.name, position) for position in kind.positions)
            yield from (GeometryInstance(place, kind) for place in places if place not in taken)


class Geometries:
    """What the configuration says of all models; the first entry that a registered type contains counts."""

    def __init__(self, tables: Iterable[MigGeometries]) -> None:
        self._tables = [
            (table.models, Geometry([Group.read(group) for group in table.allowed_geometries])) for table in tables
        ]
        self._known: dict[str, Geometry | None] = {}

    def of(self, card_type: str) -> Geometry | None:
        """The geometry of a registered type; None if no entry matches."""
        if card_type not in self._known:
            found = (geometry for models, geometry in self._tables if any(model in card_type for model in models))
            self._known[card_type] = next(found, None)
        return self._known[card_type]
