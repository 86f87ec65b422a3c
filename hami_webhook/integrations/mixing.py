"""One GPU manager per node: what pods and nodes say of several.

Source: docs/spec/volcano.md#5.7, docs/spec/koordinator.md#5.4.

Each manager counts the cards by itself, so two on one node give the same memory away twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import Enum
from itertools import combinations
from typing import Any

from hami_webhook.config import DeviceConfig
from hami_webhook.devices.codecs import CardRecord, decode_cards
from hami_webhook.devices.foreign_scheduler import Coexistence, NodeLister
from hami_webhook.devices.model import BadRequest, RegistrationError
from hami_webhook.integrations.sections import KoordinatorSection, SchedulerSection, VolcanoSection
from hami_webhook.integrations.volcano import annotation_keys as volcano
from hami_webhook.integrations.volcano.registration import decode_cards as decode_volcano
from hami_webhook.kube.derived import DerivedValues
from hami_webhook.kube.draft import PodDraft
from hami_webhook.kube.names import HOSTNAME
from hami_webhook.kube.objects import Node
from hami_webhook.kube.quantity import parse_whole
from hami_webhook.kube.wire import ReviewedPod

HAMI_REGISTER = "hami.io/node-nvidia-register"
KOORDINATOR_CORE = "koordinator.sh/gpu-core"
NVIDIA_COUNT = "nvidia.com/gpu"
_KOORDINATOR_ALIASES = tuple(f"kubernetes.io/gpu{rest}" for rest in ("", "-core", "-memory", "-memory-ratio"))
_WITH_NAMES = ("nvidia", "volcano", "koordinator")
"""Sections whose names have a rule of their own."""
_PREFIXES = ("volcano.sh/vgpu-", "koordinator.sh/gpu", "nvidia.com/mig-")
_registered: DerivedValues[Node, Sequence[CardRecord]] = DerivedValues()
"""The cards of HAMi's registration on a node."""


class Manager(Enum):
    """Who hands out a node's GPUs; the value is its name for people."""

    HAMI = "HAMi's plugin"
    NVIDIA = "NVIDIA's plugin"
    VOLCANO = "Volcano's plugin"
    KOORDINATOR = "Koordinator"
    __hash__ = object.__hash__  # Enum's own is a call in Python


_ADVICE = {
    frozenset((Manager.HAMI, Manager.NVIDIA)): f"conflict, both serve {NVIDIA_COUNT}",
    frozenset((Manager.HAMI, Manager.VOLCANO)): "can coexist in theory, use one",
    frozenset((Manager.NVIDIA, Manager.VOLCANO)): "can coexist in theory, mixing not advised",
}
_OF_KOORDINATOR = "each counts the same card separately"


def advice(pair: Iterable[Manager]) -> str:
    """What is to be said of two managers on one node."""
    return _ADVICE.get(frozenset(pair), _OF_KOORDINATOR)


@dataclass(frozen=True, slots=True)
class Mixing(Coexistence):
    """The rule, for the names and the sections of one configuration; a section that is off refuses nothing.

    `hami_count` and `hami_shares` are HAMi's names for NVIDIA cards: the count, and memory, percentage and cores;
    `hami_names` are both, less what is another manager's name too.
    `hami_others` are its names for other vendors' cards, which Koordinator gives out as well.
    `managers` are those of resource names; NVIDIA's count is HAMi's where it is configured and a share is named too.
    """

    hami_count: str = ""
    hami_shares: frozenset[str] = frozenset()
    hami_names: frozenset[str] = frozenset()
    hami_others: frozenset[str] = frozenset()
    managers: Mapping[str, Manager] = field(default_factory=dict)
    volcano: VolcanoSection | None = None
    koordinator: KoordinatorSection | None = None

    @classmethod
    def from_config(cls, config: DeviceConfig) -> Mixing:
        nvidia, volcano_, koordinator = (config.section(name) for name in ("nvidia", "volcano", "koordinator"))
        shares = (
            ()
            if nvidia is None
            else (nvidia.resource_memory_name, nvidia.resource_memory_percentage_name, nvidia.resource_core_name)
        )
        count = "" if nvidia is None else nvidia.resource_count_name
        volcano_names = () if volcano_ is None else volcano_.resource_names().values()
        others = [part.resource_names() for path, part in config.parts().items() if path[0] not in _WITH_NAMES]
        managers = {
            **dict.fromkeys(filter(None, (*shares, count)), Manager.HAMI),
            **dict.fromkeys((NVIDIA_COUNT, "nvidia.com/gpu.shared"), Manager.NVIDIA),
            **dict.fromkeys(_KOORDINATOR_ALIASES, Manager.KOORDINATOR),
            **dict.fromkeys(volcano_names, Manager.VOLCANO),
        }
        return cls(
            count,
            frozenset(filter(None, shares)),
            frozenset([count, *(name for name in shares if managers.get(name) is Manager.HAMI)]),
            frozenset(name for names in others for name in names.values()),
            managers,
            volcano_ if volcano_ is not None and volcano_.enabled else None,
            koordinator if koordinator is not None and koordinator.enabled else None,
        )

    # pods

    def admit(self, draft: PodDraft, named: Set[str], node_lister: NodeLister, *, pinned_matters: bool) -> None:
        """Warn of a new pod that names several managers' resources, or is pinned to a node that has several.

        Raises `BadRequest` where the configuration says so. `pinned_matters`: the pod is another scheduler's.
        """
        if found := self.managing(named):
            self._refuse(found)
            for pair in combinations(found, 2):
                draft.warn(f"[mixed-names] {_line(pair, found)}")
        for name in pinned_nodes(draft.object) if pinned_matters else ():
            node = _hosting(name, node_lister)
            on = self.on_node(node) if node is not None else []
            if node is not None and len(on) > 1:
                draft.warn(f"[mixed-node] the pod is pinned to node {node.name}: {_between(on)}")

    def check(self, named: Set[str]) -> None:
        """Raises `BadRequest` where a pod that names these resources must not be stored for what it mixes."""
        if found := self.managing(named):
            self._refuse(found)

    def managing(self, names: Set[str]) -> dict[Manager, list[str]]:
        """The managers whose resources a pod's names are, each with these names; none where there is but one."""
        of_hami = frozenset[str]() if names.isdisjoint(self.hami_shares) else names & self.hami_names
        found: dict[Manager, list[str]] = {}
        for name in names - of_hami:
            manager = self.managers.get(name) or _by_prefix(name)
            if manager is not None:
                found.setdefault(manager, []).append(name)
        if not found:
            return {}
        if of_hami:
            found.setdefault(Manager.HAMI, []).extend(of_hami)
        if Manager.KOORDINATOR in found and (more := self.hami_others & names):
            found.setdefault(Manager.HAMI, []).extend(more)
        return {manager: sorted(found[manager]) for manager in Manager if manager in found} if len(found) > 1 else {}

    def _refuse(self, found: Mapping[Manager, Sequence[str]]) -> None:
        for pair in combinations(found, 2):
            if Manager.KOORDINATOR not in pair:
                denied = Manager.VOLCANO in pair and _denies(self.volcano)
            elif Manager.VOLCANO in pair:
                denied = any(each is not None and each.denies_mixed_names_explicitly for each in self._sections())
            elif _denies(self.koordinator):
                names = ", ".join(name for manager in pair for name in found[manager])
                raise BadRequest(f"invalid resource device requests: {names}: {_line(pair, found)}")
            else:
                denied = False
            if denied:
                raise BadRequest(f"[mixed-names] {_line(pair, found)}")

    def _sections(self) -> tuple[SchedulerSection | None, ...]:
        return (self.volcano, self.koordinator)

    # nodes

    def on_node(self, node: Node) -> list[Manager]:
        """The managers that a node carries."""
        registered = bool(node.annotations.get(HAMI_REGISTER))
        count = self.volcano.resource_count_name if self.volcano is not None else "volcano.sh/vgpu-number"
        present = {
            Manager.HAMI: registered,
            Manager.NVIDIA: not registered and _offers(node, NVIDIA_COUNT) > 0,
            Manager.VOLCANO: bool(node.annotations.get(volcano.REGISTER)) or _offers(node, count) > 0,
            Manager.KOORDINATOR: _offers(node, KOORDINATOR_CORE) > 0,
        }
        return [manager for manager, found in present.items() if found]

    def remark(self, node: Node, device: Mapping[str, Any] | None = None) -> str:
        """What a `MixedGPUManagers` event says of the node, empty if all is well; `device` is Koordinator's object."""
        on = self.on_node(node)
        remarks = [_between(on)] if len(on) > 1 else []
        twice = _registered_twice(node, device) if remarks else []
        if twice:
            remarks.append(f"registered twice: {', '.join(twice)}")
        offered = _offers(node, self.hami_count or NVIDIA_COUNT)
        if Manager.HAMI in on and offered > 0:
            cards = _hami_cards(node)
            sums = {sum(card.count for card in cards), sum(card.count for card in cards if card.health)}
            if cards and offered not in sums:
                remarks.append(
                    f"the kubelet offers {offered} of {self.hami_count or NVIDIA_COUNT}, but HAMi's plugin registered "
                    f"{max(sums)} slots: another plugin may serve it too"
                )
        return "; ".join(remarks)


def _denies(section: SchedulerSection | None) -> bool:
    return section is not None and section.mixed_name_sets == "deny"


def _by_prefix(name: str) -> Manager | None:
    if not name.startswith(_PREFIXES):
        return None
    owner = name.partition("/")[0]
    return {"volcano.sh": Manager.VOLCANO, "koordinator.sh": Manager.KOORDINATOR}.get(owner, Manager.NVIDIA)


def _line(pair: Sequence[Manager], found: Mapping[Manager, Sequence[str]]) -> str:
    each = " and ".join(f"{manager.value} ({', '.join(found[manager])})" for manager in pair)
    return f"{each} in one pod: {advice(pair)}"


def _between(on: Sequence[Manager]) -> str:
    """Every pair of several managers, with what is to be said of it."""
    pairs = (f"{one.value} and {other.value}: {advice((one, other))}" for one, other in combinations(on, 2))
    return "more than one GPU manager is present: " + "; ".join(pairs)


def _offers(node: Node, resource: str) -> int:
    return parse_whole(node.allocatable.get(resource)) or 0


def _hami_cards(node: Node) -> Sequence[CardRecord]:
    """The cards of HAMi's registration, decoded once; none where it can't be read, which is reported elsewhere."""
    known = _registered.get(node)
    if known is not None:
        return known
    try:
        return _registered.keep(node, decode_cards(node.annotations.get(HAMI_REGISTER, "")))
    except RegistrationError:
        return _registered.keep(node, ())


def _registered_twice(node: Node, device: Mapping[str, Any] | None) -> list[str]:
    """The UUIDs that appear in more than one of the node's registrations, sorted."""
    by_volcano = {card.uuid for card in decode_volcano(node.annotations.get(volcano.REGISTER, ""))}
    by_hami = {card.id for card in _hami_cards(node)}
    by_koordinator = set(_device_ids(device))
    pairs = combinations((by_hami, by_volcano, by_koordinator), 2)
    return sorted(uuid for one, other in pairs for uuid in one & other)


def _device_ids(device: Mapping[str, Any] | None) -> Iterator[str]:
    spec = device.get("spec") if device is not None else None
    items = spec.get("devices") if isinstance(spec, Mapping) else None
    for item in items if isinstance(items, list) else ():
        if isinstance(item, Mapping) and item.get("type") == "gpu" and isinstance(item.get("id"), str):
            yield item["id"]


def pinned_nodes(pod: ReviewedPod) -> list[str]:
    """The host names that a pod's nodeSelector or required affinity names."""
    spec = pod.spec
    if spec is None:
        return []
    found = [name for key, name in (spec.node_selector or {}).items() if key == HOSTNAME]
    affinity = spec.affinity and spec.affinity.node_affinity
    required = affinity and affinity.required_during_scheduling_ignored_during_execution
    for term in (required and required.node_selector_terms) or ():
        for expression in term.match_expressions or ():
            if expression.key == HOSTNAME and expression.operator == "In":
                found += expression.values or ()
    return list(dict.fromkeys(found))


def _hosting(hostname: str, node_lister: NodeLister) -> Node | None:
    """The node with a host name: nearly always the one of that name."""
    node = node_lister.node(hostname)
    if node is not None and node.labels.get(HOSTNAME, hostname) == hostname:
        return node
    return next((each for each in node_lister.nodes() if each.labels.get(HOSTNAME) == hostname), None)
