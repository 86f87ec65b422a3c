"""NVIDIA GPUs: vGPU (hami-core), MIG, the MPS label. Source: docs/spec/nvidia.md.

One card serves several containers by memory (MiB) and compute (percent); on a card in mode `mig` a container gets a
hardware instance instead, and is charged with that instance's size.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence, Set
from datetime import tzinfo
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import replace

from hami_webhook.devices import reasons
from hami_webhook.devices.amounts import MAX_INT32, MEBIBYTE, warn_of_bytes
from hami_webhook.devices.codecs import CardRecord, decode_pair_scores, parse_bool
from hami_webhook.devices.device_lister import DeviceLister
from hami_webhook.devices.fit_request import (
    AMOUNT_CHECKS,
    FIRST_FIT,
    FIRST_OF_ALL,
    FREE_SLOT,
    HEALTHY,
    MUTEX,
    NUMA_GROUP,
    UUID_LISTS,
    WITHIN_QUOTA,
    Candidate,
    Check,
    Choice,
    FitRequest,
    Selection,
)
from hami_webhook.devices.handshake import Health
from hami_webhook.devices.keys import DeviceKeys
from hami_webhook.devices.model import (
    BadRequest,
    Device,
    DeviceShare,
    FixedMemory,
    Inventory,
    MemoryRequest,
    NodeView,
    RegistrationError,
    Request,
    Rows,
    ShareOfCard,
    Usage,
)
from hami_webhook.devices.newer_annotations import MIG_PREFERENCE, overwrites_env
from hami_webhook.devices.pod_preferences import NUMA_BIND, split_list
from hami_webhook.devices.reasons import Rejection
from hami_webhook.devices.registration import NodeRegistration
from hami_webhook.devices.topology import NvLinks, best_combination, pair_sum
from hami_webhook.devices.vendor import Vendor
from hami_webhook.devices.vendors.nvidia import mig
from hami_webhook.devices.vendors.nvidia.section import NvidiaSection
from hami_webhook.kube.draft import ContainerDraft, PodDraft
from hami_webhook.kube.message_text import cut, first_of, shown
from hami_webhook.kube.objects import Container, Node, Pod
from hami_webhook.kube.quantity import parse_whole

MODE = "nvidia.com/vgpu-mode"
REQUIRE_NVLINK = "nvidia.com/require-nvlink"
DISABLE_CONTROL = "CUDA_DISABLE_CONTROL"
"""The environment variable with which a container does without HAMi-core, as the device plugin reads it."""
SCORES = "hami.io/node-nvidia-score"
CORDON = "hami.io/device-cordon"
_ALL_CORES = 100
"""Percent of a card."""


class NvidiaNode(Struct, frozen=True):
    """What else of a node NVIDIA's rules read: pair scores by UUID, cordoned cards, whether any card is in MIG mode."""

    scores: Mapping[str, Mapping[str, int]] = {}
    cordoned: frozenset[str] = frozenset()
    has_mig: bool = False


def _facts(fit_request: FitRequest) -> NvidiaNode:
    facts = fit_request.inventory.facts
    assert isinstance(facts, NvidiaNode)
    return facts


def _type_and_mode(candidate: Candidate) -> bool:
    fit_request, device = candidate.fit_request, candidate.device
    wanted = fit_request.pod.annotations.get(MODE)
    return fit_request.terms.types.admits_type(device.type) and (wanted is None or device.mode in wanted)


def _requires_nvlink(pod: Pod) -> bool:
    return parse_bool(pod.annotations.get(REQUIRE_NVLINK, "")) is True


def _cost_the_same(fit_request: FitRequest, passed: Sequence[Candidate]) -> bool:
    """Whether quota counts the same for every choice among these cards: all different, new, and of one reservation."""
    first = passed[0].claim
    equal = all(replace(card.claim, uuid=first.uuid) == first for card in passed)
    return not fit_request.claims and equal and len({card.device.uuid for card in passed}) == len(passed)


class BestLinked(Struct, Selection, frozen=True):
    """For one card that which breaks no link group, for several the set with the best mutual links (7.6).

    With `only_linked` several cards must all be linked by NVLink to each other.
    """

    only_linked: bool = False

    def choose(self, fit_request: FitRequest, passed: Sequence[Candidate]) -> Choice | Rejection | None:
        containers = len(fit_request.pod.containers) - fit_request.row
        with fit_request.limit.at_most(1 / (2 * containers - 1)):  # the containers after this one need theirs
            return self._best(fit_request, passed)
        return self._refused(fit_request, passed) if self.only_linked else FIRST_OF_ALL.choose(fit_request, passed)

    def _refused(self, fit_request: FitRequest, passed: Sequence[Candidate]) -> Rejection:
        return Rejection({reasons.NVLINK_NOT_FIT: len(passed)}, len(fit_request.inventory.devices))

    def _best(self, fit_request: FitRequest, passed: Sequence[Candidate]) -> Choice | Rejection | None:
        """The choice by links; raises `OutOfSteps` if there are too many cards to compare."""
        fit_request.limit.take(NvLinks.STEPS_OF_A_PAIR * len(passed) ** 2)
        table = _facts(fit_request).scores
        uuids = [candidate.device.uuid for candidate in passed]
        scores = [[table.get(x, {}).get(y, 0) if x != y else 0 for y in uuids] for x in uuids]
        links = NvLinks(scores)
        count = fit_request.request.count
        if count == 1:
            card = links.single()
            return Choice([passed[card]], len(passed), -sum(scores[card]), True, links.left_in_groups([card]))
        unlimited = fit_request.budget is None
        if not unlimited and _cost_the_same(fit_request, passed):
            if not fit_request.admits(passed[:count]):
                return None
            unlimited = True
        weights = links.weights(count, only_linked=self.only_linked)
        positions = best_combination(
            weights,
            count,
            None if unlimited else lambda chosen: fit_request.admits([passed[p] for p in chosen]),
            fit_request.limit,
        )
        linked = links.fully_linked(positions)
        if self.only_linked and not (positions and linked):
            best = positions if unlimited else best_combination(weights, count, limit=fit_request.limit)
            if not links.fully_linked(best):
                return self._refused(fit_request, passed)
            return None
        if not positions:
            return None
        quality = pair_sum(scores, positions)
        return Choice([passed[p] for p in positions], len(passed), quality, linked, links.left_in_groups(positions))


BEST_LINKED = BestLinked()
ONLY_LINKED = BestLinked(only_linked=True)


class Nvidia(Vendor):
    section_name = "nvidia"
    section_type = NvidiaSection
    key = "NVIDIA"
    registration = NodeRegistration(
        "hami.io/node-nvidia-register", "hami.io/node-handshake", unterminated=True, gone_with_allocatable=True
    )
    keys = DeviceKeys.usual(
        "vgpu",
        uuid="nvidia.com/[no]use-gpuuuid",
        model="nvidia.com/[no]use-gputype",
        extra=(mig.ALLOCATIONS,),
        choices=(MODE, NUMA_BIND, REQUIRE_NVLINK, MIG_PREFERENCE),
    )
    checks = (
        HEALTHY,
        Check(reasons.CARD_CORDONED, lambda c: c.device.uuid not in _facts(c.fit_request).cordoned),
        Check(reasons.CARD_TYPE_MISMATCH, _type_and_mode),
        NUMA_GROUP,
        UUID_LISTS,
        FREE_SLOT,
        MUTEX,
        WITHIN_QUOTA,
        *AMOUNT_CHECKS,
    )
    unresolvable = reasons.CARD_MIG_TOPOLOGY_INFEASIBLE
    linked_annotations = MappingProxyType({REQUIRE_NVLINK: "true"})
    shared_mode = MappingProxyType({MODE: "hami-core"})
    hides_cards = True

    def __init__(self, section: NvidiaSection, *, is_2_11: bool = False) -> None:
        super().__init__(section, is_2_11=is_2_11)
        self.section = section
        self.percentage_name = section.resource_memory_percentage_name
        self.priority_name = section.resource_priority_name
        self._doubted = frozenset((self.percentage_name, self.core_name, self.priority_name))
        self.default_cores = section.default_cores
        self.touches_every_container = section.overwrite_env
        self.occupancy = mig.MigOccupancy(self.decode)

    @property
    def resource_names(self) -> tuple[str, ...]:
        return tuple(n for n in (*super().resource_names, self.percentage_name, self.priority_name) if n)

    # admission (docs/spec/nvidia.md#5)

    def admit(self, container: ContainerDraft, pod: PodDraft, device_lister: DeviceLister) -> bool:
        if container.listed:
            container.forget_default(self.core_name, _ALL_CORES)
        section, written = self.section, container.container
        named = written.named
        self.check_amounts(written)
        if self.priority_name and self.priority_name in named:
            self._set_priority(container)
        if self.count_name not in written.limits:
            self._limit_count(container)
        count = parse_whole(container.amount(self.count_name)) or 0
        if not count:
            self._hide_cards(container, pod)
            return False
        if self._wants_whole_card(written, named):
            container.default_limit(self.core_name, _ALL_CORES)
            pod.note(f"container {container.name}: {self.core_name} set to 100, because it requests whole cards")
        if section.runtime_class_name and not pod.runtime_class_name:
            pod.runtime_class_name = section.runtime_class_name
        if section.gpu_core_policy not in ("", "default"):
            container.set_env("GPU_CORE_UTILIZATION_POLICY", section.gpu_core_policy)
        switched = container.written_env and container.env_value(DISABLE_CONTROL)
        if switched or not named.isdisjoint(self._doubted) or str(written.amount(self.memory_name)).endswith("i"):
            for warning in self.warnings_of(container):
                pod.warn(f"container {container.name}: {warning}")
        return True

    def _set_priority(self, container: ContainerDraft) -> None:
        priority = parse_whole(container.limits.get(self.priority_name))
        if priority is not None:
            container.set_env("CUDA_TASK_PRIORITY", str(priority))

    def _hide_cards(self, container: ContainerDraft, pod: PodDraft) -> None:
        """Hide the cards from a container that requests none, unless that is switched off."""
        hides = self.section.overwrite_env
        if self.is_2_11:
            hides = overwrites_env(pod.annotations, container.name, usual=hides)
        if hides:
            container.set_env("NVIDIA_VISIBLE_DEVICES", "none")

    def warnings_of(self, container: ContainerDraft) -> Iterator[str]:
        memory, percent, cores, priority = (
            self.amount(container, name)
            for name in (self.memory_name, self.percentage_name, self.core_name, self.priority_name)
        )
        if memory and memory >= MEBIBYTE and (meant := warn_of_bytes(container, self)):
            yield meant
        if memory and percent:
            yield f"{self.percentage_name} is ignored, because {self.memory_name} is given too"
        if cores is not None and cores > 100:
            yield f"{self.core_name} {cores} counts as 100, all of a card"
        if priority is not None and priority > 1:
            yield f"{self.priority_name} knows only 0 (high) and 1 (low)"
        limited = memory is not None or percent is not None or (cores or 100) < 100  # whole cards have 100
        if limited and container.written_env and parse_bool(container.env_value(DISABLE_CONTROL) or ""):
            yield f"{DISABLE_CONTROL} switches the limits of memory and cores in it off; remove it, or the limits"

    def _limit_count(self, container: ContainerDraft) -> None:
        """Limit the cards to those that are requested; where only a share of cards is limited, to the usual number."""
        others = (self.core_name, self.memory_name, self.percentage_name)
        count = self.amount(container, self.count_name)
        if count is None and any(name and name in container.limits for name in others):
            count = self.section.default_gpu_num
        if count:
            container.set_limit(self.count_name, count)

    def _wants_whole_card(self, container: Container, named: Set[str]) -> bool:
        """Cores are open and the memory is all of a card's, so the container gets the card to itself."""
        if not self.core_name or self.core_name in named:
            return False
        if self.percentage_name and self.percentage_name in named:
            return parse_whole(container.amount(self.percentage_name)) == 100
        unnamed = not self.memory_name or self.memory_name not in named
        return unnamed and self.section.default_memory == 0

    def check_pod(self, pod: Pod) -> None:
        text = pod.annotations.get(REQUIRE_NVLINK)
        if text is not None and parse_bool(text) is None:
            raise BadRequest(f"invalid {REQUIRE_NVLINK} annotation {shown(text)}: must be true or false")
        wanted = pod.annotations.get(MIG_PREFERENCE)
        if wanted is not None and self.is_2_11:
            mig.check_preference(wanted, self.section.mig_profile_allowlist)

    def bounds(self) -> Iterator[tuple[str, int, int, str]]:
        """A percentage must be exact too: docs/spec/security.md outranks this one, whose rounding extraction undoes."""
        yield self.percentage_name, 0, 100, "an integer"
        for name, least, most, what in super().bounds():
            yield name, least, _ALL_CORES if self.is_2_11 and name == self.core_name else most, what
        yield self.priority_name, 0, MAX_INT32, "an integer"

    # request extraction (6)

    def request_in_pod(self, container: Container, pod: Pod) -> Request | None:
        """With the MIG profiles that the pod prefers, as HAMi 2.11 reads them."""
        request = self.request(container)
        if request is None or not self.is_2_11 or MIG_PREFERENCE not in pod.annotations:
            return request
        return replace(request, profile=mig.prefer(pod.annotations[MIG_PREFERENCE]))

    def floor(self, request: Request, device: Device) -> int | None:
        """Also a smaller profile than those preferred may be all that is free."""
        return super().floor(replace(request, profile=None) if request.profile else request, device)

    def memory(self, container: Container, mebibytes: int) -> MemoryRequest:
        if mebibytes:
            return FixedMemory(mebibytes)
        percent = self.amount(container, self.percentage_name)
        if percent is not None and percent > 0:
            return ShareOfCard(min(percent, 100))
        default = self.section.default_memory
        return FixedMemory(default) if default else ShareOfCard(100)

    def unplaced_request(self, container: Container, inventory: Inventory) -> Request | None:
        """Nobody keeps such a container to the default memory."""
        request = super().unplaced_request(container, inventory)
        of_card = request is not None and not self.mebibytes(container) and isinstance(request.memory, FixedMemory)
        return replace(request, memory=ShareOfCard(100)) if request is not None and of_card else request

    # node side (3)

    def device(self, record: CardRecord, position: int) -> Device:
        card = super().device(record, position)
        return replace(card, extra=mig.read_profiles(record)) if record.mode == "mig" else card

    def inventory(self, node: Node) -> Inventory | None:
        devices = self.registered(node)
        warnings = []
        scores: Mapping[str, Mapping[str, int]] = {}
        if SCORES in node.annotations:
            try:
                scores = decode_pair_scores(node.annotations[SCORES])
            except RegistrationError as error:
                warnings.append(f"{SCORES} is ignored: {error}")
        without = [device.uuid for device in devices if device.mode == "mig" and not device.extra]
        if without:
            warnings.append(f"cards in MIG mode without profiles can't be used: {first_of([*map(cut, without)])}")
        facts = NvidiaNode(
            scores,
            frozenset(split_list(node.annotations.get(CORDON, ""))),
            any(device.mode == "mig" for device in devices),
        )
        return Inventory(devices, facts, tuple(warnings), len(devices) > 1 and not scores) if devices else None

    def health(self, node: Node, now: float, zone: tzinfo | None = None) -> Health:
        """Cards that kubelet offers need no handshake: newer plugins no longer answer it."""
        return Health(healthy=True) if self.allocatable(node) > 0 else super().health(node, now, zone)

    # Fit (7)

    def traits(self, inventory: Inventory, places: Mapping[str, int]) -> Hashable:
        facts = inventory.facts
        assert isinstance(facts, NvidiaNode)
        scores = frozenset(
            (places[card], places[peer], score)
            for card, scores in facts.scores.items()
            if card in places
            for peer, score in scores.items()
            if peer in places
        )
        cordoned = frozenset(places[card] for card in facts.cordoned if card in places)
        return bool(facts.scores), scores, cordoned, tuple(device.extra for device in inventory.devices)

    def refuses_node(self, fit_request: FitRequest) -> Rejection | None:
        wanted = fit_request.pod.annotations.get(MODE)
        if _facts(fit_request).has_mig and (wanted is None or "mig" in wanted):
            return None
        return super().refuses_node(fit_request)

    def needed(self, request: Request, device: Device) -> tuple[int, int]:
        """At least 1 MiB: the plugin would take 0 for no limit."""
        if device.mode == "mig" and request.memory == ShareOfCard(100):
            return min(device.memory, mig.largest_profile(device)), request.cores
        return max(1, request.memory.on(device.memory)), request.cores

    def resolve_share(self, request: Request, device: Device, usage: Usage) -> DeviceShare | None:
        memory, cores = self.needed(request, device)
        if device.mode != "mig":
            return DeviceShare(memory, cores)
        return mig.resolve_share(device, usage, memory, request.profile or "", by_region=self.is_2_11)

    def link_groups(self, inventory: Inventory) -> Sequence[Sequence[str]]:
        """Those that NVLink joins."""
        assert isinstance(inventory.facts, NvidiaNode)
        table, uuids = inventory.facts.scores, [device.uuid for device in inventory.devices]
        scores = [[table.get(x, {}).get(y, 0) for y in uuids] for x in uuids]
        return [[uuids[position] for position in group] for group in NvLinks(scores).groups()]

    def selection(self, fit_request: FitRequest) -> Selection:
        if fit_request.request.count > 1 and _requires_nvlink(fit_request.pod):
            return ONLY_LINKED
        return BEST_LINKED if fit_request.terms.policy.topology_aware else FIRST_FIT

    def hint(self, label: str, views: Sequence[NodeView]) -> str:
        blind = sorted(view.name for view in views if view.inventories[self.key].links_unknown)
        if label != reasons.NVLINK_NOT_FIT or not blind:
            return ""
        return f"{REQUIRE_NVLINK} needs {SCORES}, which isn't on {', '.join(blind)}"

    # outputs (9)

    def encode(self, pod: Pod, rows: Rows, node: Node, now: float) -> dict[str, str]:
        written = super().encode(pod, rows, node, now)
        instances = mig.encode_allocations(self.key, rows)
        return written | ({mig.ALLOCATIONS: instances} if instances else {})
