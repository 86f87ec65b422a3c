"""The vendors that a device configuration enables, in one fixed order (by backend key), and the faults of
their rules.
"""

from __future__ import annotations

import logging
import re
import typing
from collections import Counter, OrderedDict
from collections.abc import ItemsView, Iterable, Iterator, Mapping, Sequence, Set, ValuesView
from functools import lru_cache

from hami_webhook.config import DeviceConfig
from hami_webhook.config.devices import DeviceSection
from hami_webhook.config.drivers import DriverDevices
from hami_webhook.devices import vendors as _vendors  # noqa: F401  # registers the vendors of this package
from hami_webhook.devices.foreign_scheduler import Coexistence, ForeignScheduler
from hami_webhook.devices.keys import MEBIBYTE, Dimension, PolicyTarget, QuotaKey
from hami_webhook.devices.reasons import NODE_INTERNAL_ERROR, Rejection
from hami_webhook.devices.reserved_annotations import ReservedAnnotations
from hami_webhook.devices.vendor import Vendor
from hami_webhook.kube.draft import ContainerDraft
from hami_webhook.kube.objects import Container, Node, Pod

T = typing.TypeVar("T")

_DEVICES = re.compile(r"hami\.io/(.+)-devices-allocated")
_REGISTER = re.compile(r"hami\.io/node-(?:register-(.+)|(.+)-register)")


def section_types() -> dict[str, typing.Any]:
    """The sections of device-config.yaml that registered vendors read, by name: models, or tuples of models."""
    return {cls.section_name: cls.section_type for cls in Vendor.classes}


def declared() -> Sequence[Vendor]:
    """Return the vendors that need no list of chips, with the default settings of an empty section.

    Those of one section come in the order of their counts' names in it.
    """
    return _declared(Vendor.classes)


@lru_cache(maxsize=1)
def _declared(classes: tuple[type[Vendor], ...]) -> Sequence[Vendor]:
    described = [cls for cls in classes if not typing.get_args(cls.section_type)]
    described.sort(key=_place_of_count)
    return tuple([vendor for cls in described for vendor in cls.of(cls.section_type())])


def _place_of_count(cls: type[Vendor]) -> int:
    fields, name = list(cls.section_type.model_fields), cls.section_fields[0]
    return fields.index(name) if name in fields else 0  # a list of chips has none


def reserved_words() -> frozenset[str]:
    """Return the names that a chip must not have, because vendors, sections or annotations use them."""
    found = set()
    for vendor in declared():
        found |= {vendor.key, vendor.known_as, vendor.section_name}
        for pattern, key in ((_DEVICES, vendor.keys.allocated), (_REGISTER, vendor.registration.annotation)):
            match = pattern.fullmatch(key)
            found |= set(filter(None, match.groups())) if match else set()
    return frozenset(found)


def registration_faults() -> Iterator[str]:
    """Yield a sentence for each faulty declaration in registered vendor classes."""
    sound = True
    types: dict[str, type[Vendor]] = {}
    for cls in Vendor.classes:
        first = types.setdefault(cls.section_name, cls)
        for fault in _faults_of(cls, first):
            sound = False
            yield f"vendor {cls.__module__}.{cls.__qualname__}: {fault}"
    keys = Counter(vendor.key for vendor in declared()) if sound else Counter[str]()
    yield from (f"{count} vendors have the key {key}; it must be unique" for key, count in keys.items() if count > 1)


def _faults_of(cls: type[Vendor], first: type[Vendor]) -> Iterator[str]:
    models = [each for each in typing.get_args(cls.section_type) or (cls.section_type,) if each is not Ellipsis]
    if not re.fullmatch(r"[a-z][A-Za-z0-9]*", cls.section_name):
        yield f"section_name must be a key of device-config.yaml in camel case, found {cls.section_name!r}"
    if not all(isinstance(model, type) and issubclass(model, DeviceSection) for model in models):
        yield f"section_type must be a DeviceSection, or a tuple of them, found {cls.section_type!r}"
        return
    if cls.section_type != first.section_type:
        yield f"section {cls.section_name} is that of {first.__qualname__} already, with another section_type"
    for model in models:
        for field in model.unexplained():
            yield f"{model.__qualname__}.{field} must have a Meaning: the resource's description and unit"
    model = models[0]
    if model is not cls.section_type or model.parts is not DeviceSection.parts:
        return  # what else there is to know comes with the chips
    for name in ("key", "keys"):
        if not getattr(cls, name, None):
            yield f"{name} is missing"
    must_be = cls.section_fields[: 1 if cls.section_fields is Vendor.section_fields else None]
    yield from (f"{model.__qualname__} has no field {name}" for name in must_be if name not in model.model_fields)
    if not cls.registration.annotation and cls.inventory is Vendor.inventory:
        yield "no node can have its cards: set registration, or override inventory"


class Vendors(Mapping[str, Vendor]):
    """The enabled vendors by backend key, sorted, and the other projects' schedulers.

    `resource_names` are all managed names, `own_names` those of the vendors, whose pods we place.
    `ignored_by_scheduler`: those of `own_names` that no device plugin advertises in the pods' units; kube-scheduler
    ignores them. `uncounted_names` are these and the names that other schedulers check themselves: no scheduler counts
    them against a node's allocatable. `governed` are the ones that policy can speak of. `reserved`: annotations that
    only our scheduler and device plugins write; `foreign_annotations`: those that only other schedulers and their
    device plugins write. `mixing` is the rule about several GPU managers on a node. `touching_every_container`: keys of
    vendors whose admission also changes containers without their resources. `drivers` are the devices of ResourceClaims
    that count for them, none where claims aren't charged; `converting` are those that limits may become claims for.
    `faults` are the unexpected exceptions of the vendors' rules. `asked_by_annotation`: other schedulers that read
    requests from annotations, by scheduler name. `reserving`: those that create pods to hold cards for other pods, by
    namespace.
    """

    def __init__(
        self,
        vendors: Iterable[Vendor],
        foreign: Sequence[ForeignScheduler] = (),
        mixing: Coexistence | None = None,
        drivers: Sequence[DriverDevices] = (),
    ) -> None:
        vendors = list(vendors)
        self.mixing = mixing or Coexistence()
        self.faults = VendorFaults()
        self._by_key = {vendor.key: vendor for vendor in sorted(vendors, key=lambda vendor: vendor.key)}
        self._on_nodes = _by_name((name, vendor.key) for vendor in vendors for name in _names_on_nodes(vendor))
        self._by_allocated = _by_name((vendor.keys.allocated, vendor) for vendor in self._by_key.values())
        self.foreign = foreign = tuple([each for each in foreign if not each.vendor or each.vendor in self._by_key])
        self.asked_by_annotation: Mapping[str, ForeignScheduler] = {
            name: scheduler for scheduler in foreign if scheduler.asks_by for name in scheduler.scheduler_names
        }
        self.reserving: Mapping[str, ForeignScheduler] = {
            scheduler.reserves_in: scheduler for scheduler in foreign if scheduler.reserves_in
        }
        self.drivers = tuple([row for row in drivers if row.vendor in self._by_key])
        self.converting = tuple([row for row in self.drivers if row.convert and row.memory])
        self.governed: Mapping[str, PolicyTarget] = {
            **self._by_key,
            **{scheduler.key: scheduler for scheduler in foreign if scheduler.governable},
        }
        self.own_names = frozenset(name for vendor in vendors for name in vendor.resource_names)
        self.ignored_by_scheduler = self.own_names.difference(*(vendor.kubelet_counted for vendor in vendors))
        self.resource_names = self.own_names.union(*(scheduler.resource_names for scheduler in foreign))
        self.uncounted_names = self.ignored_by_scheduler | (self.resource_names - self.own_names)
        self.reserved = ReservedAnnotations(vendors)
        self.foreign_annotations = frozenset(key for scheduler in foreign for key in scheduler.owned)
        self.byte_keys = frozenset(key for scheduler in foreign for key in scheduler.byte_keys)
        self._foreign_names = frozenset[str]().union(*(each.resource_names for each in foreign))
        self.touching_every_container = frozenset(
            v.key for v in vendors if v.touches_every_container or (v.is_2_11 and v.hides_cards)
        )
        self._names = _by_name((name, vendor.key) for vendor in vendors for name in vendor.resource_names)
        self.keys_of = {vendor.key: vendor.quota_keys() for vendor in vendors}
        self.quota_keys: Mapping[str, tuple[tuple[str, QuotaKey], ...]] = self._quota_keys()
        self.bytes_per_unit = self._bytes_per_unit()
        self.memory_units = self._memory_units()

    @classmethod
    def from_config(
        cls, config: DeviceConfig, foreign: Sequence[ForeignScheduler] = (), mixing: Coexistence | None = None
    ) -> Vendors:
        """The vendors of a configuration: a section that is present enables its vendor, if that can be requested."""
        sections = [(each, config.section(each.section_name)) for each in Vendor.classes]
        hami, dra = config.section("hami"), config.section("dra")
        is_2_11 = hami is not None and hami.is_2_11
        found = [
            vendor for each, section in sections if section is not None for vendor in each.of(section, is_2_11=is_2_11)
        ]
        drivers = dra.devices if dra is not None and dra.enabled else ()
        return cls([vendor for vendor in found if vendor.count_name], foreign, mixing, drivers)

    def named_by(self, container: Container | ContainerDraft) -> frozenset[str]:
        """The keys of the vendors of which the container names a resource: those it is `named_by`."""
        return self.named_among((*container.limits, *container.requests))

    def named_among(self, names: Iterable[str]) -> frozenset[str]:
        """The keys of the vendors that have one of these resources."""
        return frozenset([key for name in names for key in self._names.get(name, ())])

    def named_on(self, node: Node) -> set[str]:
        """Return the keys of the vendors that may have cards on the node: its annotations or resources name them."""
        written = (node.annotations, node.allocatable, node.capacity)
        return {key for names in written for name in names for key in self._on_nodes.get(name, ())}

    def allocated_in(self, annotations: Mapping[str, str]) -> list[Vendor]:
        """The vendors whose annotation of a placement a pod has, by key."""
        found = [vendor for key in annotations for vendor in self._by_allocated.get(key, ())]
        return sorted(found, key=lambda vendor: vendor.key) if len(found) > 1 else found

    def foreign_to(self, pod: Pod, named: Set[str]) -> Sequence[ForeignScheduler]:
        """Return the other schedulers that a pod with these resources concerns."""
        if (
            self._foreign_names.isdisjoint(named)
            and self.foreign_annotations.isdisjoint(pod.annotations)
            and pod.scheduler_name not in self.asked_by_annotation
        ):
            return ()
        return [scheduler for scheduler in self.foreign if scheduler.concerns(pod)]

    def foreign_node_of(self, pod: Pod) -> str:
        """The node on which a pod concerns another project's scheduler; empty for none."""
        return next((node for each in self.foreign_to(pod, pod.named) if (node := each.node_of(pod))), "")

    def foreign_among(self, pod: Pod, named: Set[str]) -> Sequence[ForeignScheduler]:
        """The other projects' schedulers that a pod asks for cards, which names these resources."""
        asked = self.asked_by_annotation.get(pod.scheduler_name)
        if asked is None and self._foreign_names.isdisjoint(named):
            return ()
        return [
            scheduler
            for scheduler in self.foreign
            if not scheduler.resource_names.isdisjoint(named) or (scheduler is asked and scheduler.named_by(pod))
        ]

    def __getitem__(self, key: str) -> Vendor:
        return self._by_key[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_key)

    def __len__(self) -> int:
        return len(self._by_key)

    def items(self) -> ItemsView[str, Vendor]:
        return self._by_key.items()

    def values(self) -> ValuesView[Vendor]:
        return self._by_key.values()

    def _quota_keys(self) -> dict[str, tuple[tuple[str, QuotaKey], ...]]:
        found: dict[str, tuple[tuple[str, QuotaKey], ...]] = {}
        for key in self._by_key:
            for quota_key in self.keys_of[key]:
                found[quota_key.name] = (*found.get(quota_key.name, ()), (key, quota_key))
        for scheduler in self.foreign:
            found |= dict.fromkeys(scheduler.quota_keys, ())
        return found

    def _memory_units(self) -> dict[str, int]:
        """The bytes of one unit of each quota key that counts memory, and in which all vendors agree that share it."""
        found = dict.fromkeys(self.byte_keys, 1)
        for name, shared in self.quota_keys.items():
            memory = [key for _, key in shared if key.dimension is Dimension.MEMORY and not key.memory_is_percentage]
            factors = {key.factor for key in memory} if len(memory) == len(shared) else {0}
            if len(factors) == 1 and (factor := factors.pop()):
                found[name] = factor * MEBIBYTE
        return found

    def _bytes_per_unit(self) -> dict[str, int]:
        """The quota keys a hard may count in bytes, with the bytes of a unit; vendors that share one must agree."""
        found: dict[str, int] = {}
        for name, shared in self.quota_keys.items():
            if not shared:
                continue  # another scheduler's, with units of its own
            factors = {key.factor for _, key in shared if key.binary_is_bytes and key.dimension is Dimension.MEMORY}
            if len(factors) == 1 and all(key.binary_is_bytes for _, key in shared):
                found[name] = factors.pop() * MEBIBYTE
        return found


def _by_name(pairs: Iterable[tuple[str, T]]) -> dict[str, list[T]]:
    """What each name stands for."""
    found: dict[str, list[T]] = {}
    for name, each in pairs:
        found.setdefault(name, []).append(each)
    return found


def _names_on_nodes(vendor: Vendor) -> list[str]:
    """The annotations and resources of a node, without any of which it has none of the vendor's cards."""
    how = vendor.registration
    return [name for name in (how.annotation, *how.others, *vendor.resource_names) if name]


logger = logging.getLogger(__name__)

_MOST_LOGGED = 4096
"""As many pairs of a node and a line of code are remembered as logged."""


class VendorFaults:
    """`counts` has the faults so far, by the step they were met in: `registration`, `usage`, `fit` or `score`.

    The program logs a traceback once per node and line of code, however often pods meet the same fault.
    Registrations and annotations are untrusted: if a rule fails on them, that node alone refuses the pod
    (docs/spec/core.md#7.5).
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._logged: OrderedDict[tuple[str, str, str, int], None] = OrderedDict()

    def record(self, step: str, node: str, error: Exception) -> Rejection:
        """Count a fault and log it; the node's refusal."""
        self.counts[step] += 1
        key = (step, node, *_place(error))
        if key not in self._logged:
            logger.error("the rules of a vendor failed on a node (%s)", step, extra={"node": node}, exc_info=error)
        self._logged[key] = None
        self._logged.move_to_end(key)
        if len(self._logged) > _MOST_LOGGED:
            self._logged.popitem(last=False)
        return Rejection(bare=NODE_INTERNAL_ERROR)


def _place(error: Exception) -> tuple[str, int]:
    """The file and the line that raised."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return ("", 0) if traceback is None else (traceback.tb_frame.f_code.co_filename, traceback.tb_lineno)
