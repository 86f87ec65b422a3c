"""A small cluster with the whole core on it: replicas with informers, a controller on the first, a clock to advance."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any

import jsonpatch
import pytest
from replicas import reconciling

from hami_webhook.admission.denial import Denied
from hami_webhook.admission.identities import AdmissionRules
from hami_webhook.admission.review import Answer, Review
from hami_webhook.assembly import Core
from hami_webhook.cluster.api import JSON, Kind
from hami_webhook.cluster.memory import MemoryCluster
from hami_webhook.cluster.object_events import ObjectEvents
from hami_webhook.controller.accelerator_quotas import AcceleratorQuotaReconciler
from hami_webhook.controller.informers import SharedInformers, watched_kinds
from hami_webhook.controller.quotas import QuotaReconciler, ReconcileIntervals
from hami_webhook.core_options import Options
from hami_webhook.devices.registry import Vendors
from hami_webhook.kube.objects import Pod
from hami_webhook.queueing.reclaim import Reclaimer
from hami_webhook.queueing.releaser import QueueReleaser
from hami_webhook.quota.accelerator_quota import read_accelerator_quota
from hami_webhook.quota.account import QuotaAccount
from hami_webhook.quota.ledger import LEDGER, Entry, State, decode
from hami_webhook.quota.recompute import LedgerBounds
from hami_webhook.scheduling.placer import Placement, Unschedulable
from hami_webhook.state.caches import Subscriber

from .lagging_cluster import Lagging
from .objects import KEYS, NOON, TEAM, account_of, change, creation, vendors

SCHEDULER = "hami-scheduler"


async def no_sleep(_: float) -> None:
    await asyncio.sleep(0)


class QuotaEnv:
    """`async with QuotaEnv(...) as env`: objects are created first, then the caches sync."""

    def __init__(
        self,
        *objects: JSON,
        replicas: int = 1,
        factor: int = 1,
        pace: ReconcileIntervals | None = None,
        of: Vendors | None = None,
        max_ledger: int = 1000,
        own_namespace: str = "",
    ) -> None:
        self.now = NOON
        self._objects = objects
        self.vendors = of or vendors(factor)
        self.cluster = MemoryCluster(lambda: self.now)
        self._watched = [Lagging(self.cluster) for _ in range(replicas)]
        for watched in self._watched:
            watched.open.set()
        self._informers = [
            SharedInformers(watched, watched_kinds(self.vendors), clock=lambda: self.now, sleep=self._never)
            for watched in self._watched
        ]
        self.cores = [
            Core(
                self.cluster,
                self.vendors,
                Options(
                    rules=AdmissionRules(scheduler_name=SCHEDULER),
                    bounds=LedgerBounds(most=max_ledger),
                    own_namespace=own_namespace,
                ),
                clock=lambda: self.now,
                watches=informers,
                sleep=no_sleep,
            )
            for informers in self._informers
        ]
        self.core = self.cores[0]
        self.reconciler = QuotaReconciler(*reconciling(self.core), pace or ReconcileIntervals(), jitter=lambda: 0.5)
        accelerator_quotas = AcceleratorQuotaReconciler(
            *reconciling(self.core, self.core.accelerator_recomputer), pace or ReconcileIntervals(), jitter=lambda: 0.5
        )
        self.reconcilers = [self.reconciler, accelerator_quotas]
        core = self.core
        self.releaser = QueueReleaser(
            self.cluster, core.view, core.charger, core.capacity, core.failures, sleep=no_sleep
        )
        events = ObjectEvents(self.cluster, core.problems)
        self.reclaimer = Reclaimer(
            *(
                self.cluster,
                core.view,
                self.releaser,
                core.charger,
                core.nominations,
                core.limits,
                events,
                core.failures,
            ),
            sleep=no_sleep,
        )
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> QuotaEnv:
        await self.cluster.ensure_namespace(TEAM)
        for obj in self._objects:
            await self.add(obj)
        for index, (core, informers) in enumerate(zip(self.cores, self._informers, strict=True)):
            subscribers: list[Subscriber] = [] if index else [*self.reconcilers, self.releaser]
            self._tasks.append(asyncio.create_task(informers.run(core.caches, core.failures, subscribers)))
            await informers.wait_synced()
        await self.run(0)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, _: object, __: TracebackType | None) -> None:
        for task in self._tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def silence(self, seconds: float) -> None:
        """The watches say nothing from now on, and so many seconds go by."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.now += seconds

    def let_watches(self, replica: int, *, open: bool) -> None:
        """Let a replica's watches show what happens, or not until they are let again."""
        event = self._watched[replica].open
        (event.set if open else event.clear)()

    def api_calls(self) -> Counter[str]:
        """How often the API server is asked for what from now on, such as `list` and `patch_status`."""
        calls: Counter[str] = Counter()

        async def pause(step: str) -> None:
            call, _, when = step.partition(":")
            if when == "before":
                calls[call] += 1

        self.cluster.pause = pause
        return calls

    async def _never(self, _: float) -> None:
        await asyncio.Event().wait()

    async def add(self, obj: JSON) -> JSON:
        if "namespaceSelector" in obj.get("spec", {}):
            return await self.cluster.create(Kind.ACCELERATOR_QUOTAS, obj)
        await self.cluster.ensure_namespace(obj["metadata"].get("namespace", TEAM))
        if "hard" in obj.get("spec", {}):
            return await self.cluster.create(Kind.RESOURCE_QUOTAS, obj)
        return await self.cluster.create(Kind.PODS if "containers" in obj.get("spec", {}) else Kind.NODES, obj)

    async def drain(self) -> None:
        """Let the informers catch up."""
        for _ in range(30):
            await asyncio.sleep(0)

    async def run(self, seconds: float) -> None:
        """Let time pass; the controller does what falls due meanwhile."""
        until = self.now + seconds
        while True:
            await self.drain()
            due = min(each.next_due() for each in self.reconcilers)
            self.now = max(self.now, min(until, due))
            looked = [await each.step() for each in self.reconcilers]
            if not any(looked) and self.now >= until and all(each.next_due() > until for each in self.reconcilers):
                return

    async def release(self) -> None:
        """Let the controller release the pods whose turn has come."""
        await self.drain()
        while await self.releaser.step():
            await self.drain()
        await self.drain()

    # what a user and the API server do

    async def admit(
        self, manifest: JSON, *, replica: int = 0, uid: str = "", dry_run: bool = False, path: str = "/validate"
    ) -> tuple[JSON, Answer]:
        """Take a pod through the webhooks as the API server would; the pod to store. Raises `Denied`."""
        handler = self.cores[replica].admission
        if path == "/webhook":
            answer = await handler.webhook(self.review(manifest, dry_run))
        else:
            answer = await handler.mutate(self.review(manifest, dry_run))
        stored = jsonpatch.apply_patch(manifest, [dict(operation) for operation in answer.patch])
        if uid or path != "/webhook":
            uid = uid or f"uid-{manifest['metadata']['name']}"
            stored = {**stored, "metadata": {**stored["metadata"], "uid": uid}}
        if path == "/validate":
            answer = await handler.validate(self.review(stored, dry_run))
        return stored, answer

    def review(self, manifest: JSON, dry_run: bool = False) -> Review:
        meta = manifest["metadata"]
        return creation(meta.get("name", ""), manifest, namespace=meta["namespace"], dry_run=dry_run)

    async def annotate(self, name: str, *, namespace: str = TEAM, replica: int = 0, **annotations: str | None) -> None:
        """Change annotations of a pod, `use_gputype` for `nvidia.com/use-gputype`. Raises `Denied`."""
        written = {f"nvidia.com/{key.replace('_', '-')}": value for key, value in annotations.items()}
        before = self.cluster.peek(Kind.PODS, name, namespace)
        assert before is not None
        known = {**(before["metadata"].get("annotations") or {}), **written}
        kept = {key: value for key, value in known.items() if value is not None}
        after = {**before, "metadata": {**before["metadata"], "annotations": kept}}
        await self.cores[replica].admission.validate(change(before, after, namespace=namespace))
        await self.cluster.patch(Kind.PODS, name, {"metadata": {"annotations": written}}, namespace)
        await self.drain()

    async def create(self, manifest: JSON, **how: Any) -> Pod:
        stored, _ = await self.admit(manifest, **how)
        created = await self.cluster.create(Kind.PODS, stored)
        await self.drain()
        return Pod.from_object(created)

    async def refused(self, manifest: JSON, **how: Any) -> Denied:
        with pytest.raises(Denied) as caught:
            await self.admit(manifest, **how)
        return caught.value

    async def place(self, name: str, namespace: str = TEAM) -> Placement | Unschedulable:
        found = self.pod(name, namespace)
        placed = await self.core.placer.place(found)
        assert placed is not None
        await self.drain()
        return placed

    async def node_of(self, name: str, namespace: str = TEAM) -> str:
        placed = await self.place(name, namespace)
        assert isinstance(placed, Placement), {n: str(why) for n, why in placed.failed.items()}
        return placed.node

    async def reasons(self, name: str, namespace: str = TEAM) -> dict[str, str]:
        placed = await self.place(name, namespace)
        assert isinstance(placed, Unschedulable)
        return {node: str(why) for node, why in placed.failed.items()}

    async def finish(self, name: str) -> None:
        await self.cluster.set_phase(TEAM, name, "Succeeded")

    async def delete(self, name: str, grace: int | None = None, namespace: str = TEAM) -> None:
        await self.cluster.delete(Kind.PODS, name, namespace, grace)

    async def edit_hard(self, name: str = "gpu-quota", **hard: object) -> None:
        spec = {"hard": {KEYS[key]: str(amount) for key, amount in hard.items()}}
        await self.cluster.patch(Kind.RESOURCE_QUOTAS, name, {"spec": spec}, TEAM)

    # what is seen

    def pod(self, name: str, namespace: str = TEAM) -> Pod:
        return Pod.from_object(self.cluster.peek(Kind.PODS, name, namespace))

    def quota(self, name: str = "gpu-quota") -> JSON:
        found = self.cluster.peek(Kind.RESOURCE_QUOTAS, name, TEAM)
        assert found is not None
        return found

    def above(self, name: str = "all") -> JSON:
        """An AcceleratorQuota, as it is stored."""
        found = self.cluster.peek(Kind.ACCELERATOR_QUOTAS, name)
        assert found is not None
        return found

    def account_above(self, name: str = "all") -> QuotaAccount:
        return QuotaAccount.read(read_accelerator_quota(self.above(name), {TEAM: {}}), self.vendors)

    def used(self, name: str = "gpu-quota") -> dict[str, int]:
        read = account_of(self.quota(name), self.vendors)
        return {short: read.used[key] for short, key in KEYS.items() if key in read.used}

    def mem(self, name: str = "gpu-quota") -> int:
        return self.used(name)["mem"]

    def ledger(self, name: str = "gpu-quota") -> Mapping[str, Entry]:
        return decode(self.quota(name)["metadata"].get("annotations", {}).get(LEDGER))

    def in_flight(self, name: str = "gpu-quota") -> dict[str, Entry]:
        """The entries of single pods."""
        return {key: entry for key, entry in self.ledger(name).items() if entry.state is not State.FLOOR}

    def states(self, name: str = "gpu-quota") -> dict[str, str]:
        return {identity: entry.state.value for identity, entry in self.ledger(name).items()}

    def events(self, reason: str) -> list[str]:
        return [event.note.message for event in self.cluster.events if event.note.reason == reason]
