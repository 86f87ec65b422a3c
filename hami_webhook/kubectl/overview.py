"""Quotas, nodes, cards and pods of a cluster that was read, as the verbs of `kubectl hami` show them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from msgspec import Struct
from msgspec.structs import replace

from hami_webhook.devices.keys import MEBIBYTE, Dimension
from hami_webhook.devices.model import Device, NodeView, PodUsage, Usage
from hami_webhook.devices.placement_annotations import TIME
from hami_webhook.doctor.node_faults import mixed_managers, silent_plugins, unreadable_registrations
from hami_webhook.dra.holders import BareClaim
from hami_webhook.explain.explain import taken_cards
from hami_webhook.kube.objects import Pod
from hami_webhook.kubectl.capacity import Capacity, capacities
from hami_webhook.kubectl.lending import with_lending
from hami_webhook.kubectl.report import (
    ALLOCATED,
    GATED,
    WAITING,
    CardUse,
    IdleTeam,
    InUse,
    KeyUse,
    ModelUse,
    NodeDetails,
    NodeUse,
    PodCost,
    PodUse,
    QuotaUse,
    Room,
)
from hami_webhook.kubectl.subjects import TeamSubjects, team_subjects
from hami_webhook.queueing.pod_queue import demand_of
from hami_webhook.quota.account import QuotaAccount
from hami_webhook.quota.card_selection import CardSelection
from hami_webhook.quota.limits import described, limited_at
from hami_webhook.quota.pricing import Charge, charge_of, selects
from hami_webhook.quota.queue_order import Demand
from hami_webhook.scheduling.node_locks import LOCK
from hami_webhook.state.cluster_view import ClusterView
from hami_webhook.terminal import natural
from hami_webhook.usage.figures import NOT_ASKED, Measured, MeasuredPod


class Overview(Struct, frozen=True):
    """A cluster at `now` (Unix seconds), as `cluster` was filled with it; `measured` is what is really used then."""

    cluster: ClusterView
    now: float
    measured: Measured = NOT_ASKED

    def quotas(self, namespace: str = "", name: str = "") -> list[QuotaUse]:
        """The quotas with managed keys that cover pods of a namespace, or of any, and have a name, or any."""
        cards = _ClusterCards(self.cluster.state.views())
        return [self._quota(each, cards) for each in self.accounts(namespace, name)]

    def accounts(self, namespace: str = "", name: str = "") -> list[QuotaAccount]:
        """The accounts of the same quotas."""
        caches = self.cluster.caches
        accelerator_quotas = (
            caches.accelerator_quotas.covering(namespace) if namespace else caches.accelerator_quotas.all()
        )
        own = [quota for quota in caches.all_quotas() if namespace in ("", quota.namespace)]
        found = (QuotaAccount.read(quota, self.cluster.vendors) for quota in (*own, *accelerator_quotas))
        chosen = [
            limited_at(account, self.now)
            for account in found
            if account.hard and name in ("", account.name, account.label)
        ]
        chosen.sort(key=lambda each: (natural(each.quota.namespace), natural(each.name)))
        return chosen

    def team_subjects(self, namespace: str) -> list[TeamSubjects]:
        """What the subjects of a namespace's pods use of quotas that give subjects limits."""
        accounts = [each for each in self.accounts(namespace) if each.subjects is not None]
        pods = [pod for pod in self._live(namespace) if self._charge(pod).amounts] if accounts else []
        return list(team_subjects(accounts, pods))

    def _quota(self, account: QuotaAccount, cards: _ClusterCards) -> QuotaUse:
        waiting: dict[str, int] = defaultdict(int)
        queued: dict[str, int] = defaultdict(int)
        placed: dict[str, int] = defaultdict(int)
        pods, notes = [], []
        in_scope: dict[str, Pod] = {}
        spans_namespaces = account.quota.namespaces is not None
        namespaces = sorted(account.quota.covered_namespaces)
        live = [pod for namespace in namespaces for pod in self._live(namespace)]
        claims = [claim for namespace in namespaces for claim in self.cluster.claims_in(namespace)]
        for pod in live:
            for _, wanted in self._queued_for(pod, account):
                for key, amount in wanted:
                    queued[key] += amount
        for pod in (*live, *claims):
            charge = self._charge(pod, account.cards)
            amounts = account.counted(charge.exact)
            if not amounts or not account.covers(pod):
                continue
            in_scope[pod.uid] = pod
            for key, amount in amounts.items():
                (placed if charge.placed else waiting)[key] += amount
            models = sorted({device.type for device in self._cards_of(pod)} | self._claimed_models(pod))
            name = pod.key if spans_namespaces else pod.key.replace(f"{pod.namespace}/", "", 1)
            in_use = self._in_use(pod, charge)
            pods.append(PodCost(name, self._state(pod, charge), pod.node_name, amounts, models, in_use))
            notes += [f"{_subject(pod, name)}: {problem}" for problem in charge.problems]
        keys = [
            KeyUse(
                key,
                account.used.get(key),
                hard,
                waiting[key],
                placed[key],
                account.unit_bytes(key),
            )
            for key, hard in sorted(account.hard.items())
        ]
        keys = [replace(key, measured=self._measured_of(key, pods), queued=queued[key.key]) for key in keys]
        keys = [self._with_lending(key, account) for key in keys]
        notes += [_difference(key) for key in keys if key.used is not None and key.used != key.waiting + key.placed]
        if account.cards is not None:
            notes.append(f"counts some cards only: {account.cards}")
        if not account.enforced:
            notes.append(f"is observed, not enforced; charges that passed without room: {account.observed}")
        windows = described(account, self.now)
        held, room = list(self._models(in_scope, account.cards, cards)), list(self._room(account, cards))
        return QuotaUse(account.quota.namespace, account.label, keys, pods, held, room, notes, account.queues, windows)

    def _queued_for(self, pod: Pod, account: QuotaAccount) -> Demand:
        """What a pod would cost a quota that stands in a queue and isn't charged yet."""
        if not pod.queued:
            return ()
        return demand_of(pod, [account], self.cluster.vendors, self.cluster.capacity)

    def _with_lending(self, key: KeyUse, account: QuotaAccount) -> KeyUse:
        if not account.nominal:
            return key
        quotas = self.cluster.caches.accelerator_quotas.all()
        return with_lending(key, account, [QuotaAccount.read(each, self.cluster.vendors) for each in quotas])

    def _measured_of(self, key: KeyUse, pods: Sequence[PodCost]) -> int | None:
        """What the pods that the quota counts under a key really use, as far as they are measured, in its unit."""
        known = [pod.in_use for pod in pods if pod.in_use is not None and key.key in pod.amounts]
        dimensions = {each.dimension for _, each in self.cluster.vendors.quota_keys.get(key.key, ())}
        if known and key.unit_bytes:
            return sum(each.memory for each in known) * MEBIBYTE // key.unit_bytes
        return sum(each.cores for each in known) if known and dimensions == {Dimension.CORES} else None

    def unit_bytes(self, key: str) -> int:
        """The bytes of memory of one unit that pods' costs have, 0 for what isn't memory."""
        return self.cluster.vendors.memory_units.get(key, 0)

    def _models(
        self, wanted: Mapping[str, Pod], selected: CardSelection | None, cards: _ClusterCards
    ) -> Iterator[ModelUse]:
        """What pods, by UID, and claims hold, by model; of the cards of a selection."""
        sums: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
        holders: dict[str, set[str]] = defaultdict(set)
        for uid in wanted:
            for view, device, held in cards.held.get(uid, ()):
                if selected is None or selected.admits(device.type, view.node.labels):
                    total = sums[device.type]
                    total[0] += held.slots
                    total[1] += held.memory
                    total[2] += held.cores
                    holders[device.type].add(uid)
        for uid, pod in wanted.items():
            for claimed in self.cluster.holder(pod).devices:
                if selected is None or selects(selected, claimed, self.cluster.capacity):
                    total = sums[claimed.model]
                    total[0] += claimed.debit.slots
                    total[1] += claimed.debit.memory
                    total[2] += claimed.debit.cores
                    holders[claimed.model].add(uid)
        return (ModelUse(model, len(holders[model]), *sums[model]) for model in sorted(sums))

    def _room(self, account: QuotaAccount, cards: _ClusterCards) -> Iterator[Room]:
        """What still fits on the cards of each model that the quota limits."""
        for (vendor, model), (count, memory, cores) in cards.free(account.cards).items():
            left = self._left(account, vendor)
            if left:
                yield Room(
                    vendor,
                    model,
                    count,
                    memory,
                    cores,
                    left.get(Dimension.COUNT),
                    left.get(Dimension.MEMORY),
                    left.get(Dimension.CORES),
                )

    def _left(self, account: QuotaAccount, vendor: str) -> Mapping[Dimension, int]:
        """What the quota leaves of a vendor's slots, memory in MiB and cores, where it limits them."""
        found = {}
        for key in self.cluster.vendors.keys_of[vendor]:
            if key.name in account.hard:
                left = max(0, account.hard[key.name] - account.used.get(key.name, 0))
                if key.dimension is Dimension.MEMORY:
                    left = left // MEBIBYTE if key.name in account.in_bytes else left * key.factor
                found[key.dimension] = left
        return found

    def nodes(self, name: str = "") -> list[NodeUse]:
        """The nodes with cards, one row for each vendor."""
        rows = []
        for view in self._views():
            if name not in ("", view.name):
                continue
            for vendor, found in groupby(self._cards_on(view), key=lambda card: card.vendor):
                cards = list(found)
                rows.append(
                    NodeUse(
                        view.name,
                        vendor,
                        sorted({card.model for card in cards}),
                        len(cards),
                        sum(card.healthy for card in cards),
                        sum(card.used_slots for card in cards),
                        sum(card.slots for card in cards),
                        sum(card.used_memory for card in cards),
                        sum(card.memory for card in cards),
                        sum(card.used_cores for card in cards),
                        sum(card.cores for card in cards),
                        len({pod for card in cards for pod in card.pods}),
                        _together([card.in_use for card in cards if card.pods or card.in_use is not None]),
                    )
                )
        return rows

    def cards(self, node: str = "") -> list[CardUse]:
        """Every card, or those of one node."""
        return [card for view in self._views() if node in ("", view.name) for card in self._cards_on(view)]

    def _views(self) -> list[NodeView]:
        return sorted(self.cluster.state.views(), key=lambda view: natural(view.name))

    def _cards_on(self, view: NodeView) -> Iterator[CardUse]:
        """The cards of a node by vendor, then those that other schedulers give out."""
        for _, inventory in sorted(view.inventories.items()):
            for device in inventory.devices:
                yield self._card(view, device, view.used(device.vendor, device.uuid))
        for scheduler in self.cluster.vendors.foreign:
            for device, usage in scheduler.cards(view.node, self.cluster.state):
                yield self._card(view, device, usage)

    def capacities(self, pool: str = "", closed: Collection[str] = ()) -> list[Capacity]:
        """Each model's cards and what still fits on them, by the nodes' label `pool` if it is given.

        Nothing fits on the nodes of the names `closed`.
        """
        return capacities(self.cluster.state.views(), self.cluster.vendors, pool, closed)

    def link_groups(self, node: str) -> list[Sequence[str]]:
        """The UUIDs of the cards of a node that fast links join, group by group, as far as it registers them."""
        view = self.cluster.state.view(node)
        inventories = view.inventories.items() if view is not None else ()
        vendors = self.cluster.vendors
        return [group for vendor, found in sorted(inventories) for group in vendors[vendor].link_groups(found)]

    def pods(self, namespace: str = "", name: str = "") -> list[PodUse]:
        """The live pods that request managed resources, or hold cards, also by claims of their own."""
        found = []
        for pod in self._live(namespace):
            charge = self._charge(pod)
            cards = self._cards_of(pod)
            claimed = self.cluster.holder(pod)
            vendors = self.cluster.vendors
            requests = claimed.waits or charge.amounts or not vendors.resource_names.isdisjoint(pod.named)
            if name not in ("", pod.name) or not (requests or cards or claimed.devices):
                continue
            written = self._written(pod) if charge.placed else []
            found.append(
                PodUse(
                    pod.namespace,
                    pod.name,
                    self._state(pod, charge),
                    pod.node_name,
                    pod.scheduler_name,
                    [device.uuid for device in cards] or list(dict.fromkeys(written)),
                    sorted({device.type for device in cards} | self._claimed_models(pod)),
                    dict(sorted(charge.amounts.items())),
                    pod.created,
                    charge.problems,
                    self._in_use(pod, charge),
                )
            )
        return found

    def idle(self, namespace: str, seconds: float) -> list[IdleTeam]:
        """The namespaces whose bound pods hold cards that they haven't used for so long, who holds the most first."""
        teams = []
        held = [pod for pod in self.pods(namespace) if pod.node and not pod.waits and pod.cards]
        for team, found in groupby(held, key=lambda pod: pod.namespace):
            pods = list(found)
            idle = [pod for pod in pods if pod.idle_for(self.now) >= seconds]
            frees: dict[str, int] = defaultdict(int)
            for pod in idle:
                for key, amount in pod.amounts.items():
                    frees[key] += amount
            unknown = sum(pod.in_use is None or pod.in_use.idle_since is None for pod in pods)
            teams.append(IdleTeam(team, len(pods), idle, sum(len(pod.cards) for pod in idle), dict(frees), unknown))
        return sorted(teams, key=lambda each: (-each.cards, each.namespace))

    def node(self, name: str) -> NodeDetails | None:
        """A node with what is wrong with what it registers; None if it isn't known."""
        view = self.cluster.state.view(name)
        if view is None:
            return None
        node = view.node
        notes = [
            *unreadable_registrations(self.cluster, node),
            *silent_plugins(self.cluster, node, self.now),
            *mixed_managers(self.cluster, node),
        ]
        cards = self.cards(name)
        if not cards:
            notes.append("it registers no cards of an enabled vendor")
        handshakes = {
            vendor.key: node.annotations[vendor.registration.handshake]
            for vendor in self.cluster.vendors.values()
            if vendor.registration.handshake in node.annotations
        }
        return NodeDetails(name, cards, handshakes, node.annotations.get(LOCK, ""), notes)

    def _cards_of(self, pod: Pod) -> Sequence[Device]:
        """The registered cards that a pod holds."""
        view = self.cluster.state.view(pod.node_name) if pod.node_name else None
        if view is None or not self.cluster.state.holds_devices(pod.uid):
            return ()
        return [
            device
            for inventory in view.inventories.values()
            for device in inventory.devices
            if any(holder.pod.uid == pod.uid for holder in view.used(device.vendor, device.uuid).holders)
        ]

    def _live(self, namespace: str) -> list[Pod]:
        state = self.cluster.state
        pods = state.pods_in(namespace) if namespace else state.pods()
        return sorted(
            (pod for pod in pods if not pod.ended(self.now)), key=lambda pod: (pod.namespace, natural(pod.name))
        )

    def _charge(self, pod: Pod, cards: CardSelection | None = None) -> Charge:
        return charge_of(pod, self.cluster.vendors, self.cluster.capacity, self.now, self.cluster.placement_ttl, cards)

    def _card(self, view: NodeView, device: Device, usage: Usage) -> CardUse:
        """A card with what its holders were promised, and what is really used of it."""
        found = self.measured.cards.get((view.name, device.uuid))
        state = self.measured.state(view.name, device.uuid)
        holders = [(holder.pod, self._measured_pod(holder.pod)) for holder in usage.holders]
        uses = [use for pod, use in holders if use is not None]
        in_use = None
        if found is not None or (holders and len(uses) == len(holders)):
            own = [each for use in uses for each in use.devices if each.uuid == device.uuid]
            since = [use.idle_since(_placed_at(pod)) for pod, use in holders if use is not None]
            known = [each for each in since if each is not None]
            memory = sum(each.memory for each in own) if found is None or found.memory is None else found.memory
            cores = sum(each.cores for each in own) if found is None or found.cores is None else found.cores
            in_use = InUse(memory, cores, max(known) if known and len(known) == len(holders) else None)
        return CardUse(
            view.name,
            device.vendor,
            device.uuid,
            device.type,
            view.is_healthy(device),
            usage.slots,
            device.slots,
            usage.memory,
            device.memory,
            usage.cores,
            device.cores,
            sorted({holder.pod.key for holder in usage.holders}),
            in_use,
            state.temperature,
            state.power,
            view.unhealthy.get(device.uuid, ""),
            state.model,
        )

    def _measured_pod(self, pod: Pod) -> MeasuredPod | None:
        if not (self.measured.pods or self.measured.unused):
            return None  # without a monitor no annotation is decoded for it
        return self.measured.pod(pod.namespace, pod.name, pod.node_name, self._written(pod))

    def _written(self, pod: Pod) -> list[str]:
        """The cards that a pod has by its annotations and its claims."""
        claimed = self.cluster.holder(pod).devices
        return [
            *(taken.uuid for taken in taken_cards(pod, self.cluster.vendors, None)),
            *(device.uuid or device.id.name for device in claimed),
        ]

    def _claimed_models(self, pod: Pod) -> set[str]:
        return {device.model for device in self.cluster.holder(pod).devices if device.model}

    def _in_use(self, pod: Pod, charge: Charge) -> InUse | None:
        """What a pod really uses; None if it isn't measured, or holds no cards."""
        found = self._measured_pod(pod) if charge.placed and pod.node_name else None
        return None if found is None else InUse(found.memory, found.cores, found.idle_since(_placed_at(pod)))

    @staticmethod
    def _state(pod: Pod, charge: Charge) -> str:
        if isinstance(pod, BareClaim) and charge.placed:
            return ALLOCATED
        if pod.node_name:
            return "Bound" if pod.phase in ("", "Pending") else pod.phase
        return "Placed" if charge.placed else GATED if pod.gated else WAITING


class _ClusterCards:
    """The cards of a cluster, which are looked through once for all of its quotas."""

    def __init__(self, views: Iterable[NodeView]) -> None:
        self._devices = [
            (view, device)
            for view in views
            for _, inventory in sorted(view.inventories.items())
            for device in inventory.devices
        ]
        self._free: dict[CardSelection | None, Mapping[tuple[str, str], tuple[int, int, int]]] = {}
        self.held: dict[str, list[tuple[NodeView, Device, PodUsage]]] = {}
        """What each pod holds, by its UID."""
        for view, device in self._devices:
            for holder in view.used(device.vendor, device.uuid).holders:
                self.held.setdefault(holder.pod.uid, []).append((view, device, holder))

    def free(self, selected: CardSelection | None) -> Mapping[tuple[str, str], tuple[int, int, int]]:
        """By vendor and model the selected cards with a free slot: how many, the most MiB and cores free on one."""
        if selected not in self._free:
            found: dict[tuple[str, str], tuple[int, int, int]] = {}
            for view, device in self._devices:
                if selected is not None and not selected.admits(device.type, view.node.labels):
                    continue
                if view.has_free_slot(device):
                    usage = view.used(device.vendor, device.uuid)
                    count, memory, cores = found.get((device.vendor, device.type), (0, 0, 0))
                    memory, cores = max(memory, device.memory - usage.memory), max(cores, device.cores - usage.cores)
                    found[device.vendor, device.type] = count + 1, memory, cores
            self._free[selected] = dict(sorted(found.items()))
        return self._free[selected]


def _subject(pod: Pod, name: str) -> str:
    """What a note is about."""
    return name if isinstance(pod, BareClaim) else f"pod {name}"


def _together(parts: Sequence[InUse | None]) -> InUse | None:
    """The sum of what is used, and when any of it was used last; None if a part isn't known."""
    known = [each for each in parts if each is not None]
    if not known or len(known) < len(parts):
        return None
    since = [each.idle_since for each in known if each.idle_since is not None]
    return InUse(sum(each.memory for each in known), sum(each.cores for each in known), max(since) if since else None)


def _placed_at(pod: Pod) -> float | None:
    """When a pod got its cards, by its own annotation; else when it was created."""
    written = pod.annotations.get(TIME, "")
    return float(int(written[:18])) if written.isascii() and written.isdigit() else pod.created


def _difference(key: KeyUse) -> str:
    return f"{key.key}: used is {key.used}, and the pods that can be seen cost {key.waiting + key.placed}"
