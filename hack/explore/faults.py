"""Faults to plant in the charging code, and the scenarios that find them: whether the explorer would notice any."""

from __future__ import annotations

from hack.explore.planting import Change, Planted

_STORE, _QUEUE, _QUEUES, _PODS = "charging/store.py", "charging/queue.py", "charging/queues.py", "charging/pods.py"
_ACCOUNT, _BATCH, _FLOORS = "quota/account.py", "quota/batch.py", "quota/floors.py"
_PLACING, _RECOMPUTE = "quota/placing.py", "quota/recompute.py"
_RELEASER, _PLACER, _CLAIMS = "queueing/releaser.py", "scheduling/placer.py", "charging/claims.py"

FAULTS = (
    Planted(
        "writes are undone forwards",
        _STORE,
        [Change("QuotaStore.undo.reverted", "reversed(undone)", "undone")],
        why="no scenario has two unequal writes of one attempt to a quota; tests/charging/test_store.py has the order",
    ),
    Planted(
        "writes carry no resourceVersion",
        _ACCOUNT,
        [Change("QuotaAccount.patch", '{"resourceVersion": self.quota.resource_version}', "{}")],
        "two-replicas",
    ),
    Planted(
        "what may have been written isn't remembered",
        _STORE,
        [
            Change("QuotaStore._swap", "writes.swaps.append(Swap(before, after))", "pass"),
            Change("QuotaStore._swap", "writes.swaps.pop()", "pass"),
        ],
        "two-quotas",
    ),
    Planted(
        "a refusal is given from a cache",
        _STORE,
        [Change("QuotaStore.update", "snapshot.live", "snapshot.accounts")],
        "late-cache",
        {"stale": 1},
    ),
    Planted(
        "nothing is read again after a conflict",
        _STORE,
        [Change("QuotaStore.update", "accounts = await self._reread(scope, accounts, {name}, live, names)", "pass")],
        "two-replicas",
    ),
    Planted(
        "a conflict is taken for a success",
        _STORE,
        [Change("QuotaStore._swap", "raise", "return None")],
        "two-replicas",
    ),
    Planted(
        "what a refused batch wrote stays",
        _QUEUE,
        [
            Change(
                "ChargeQueue._charge_waiting",
                "[member for member, outcome in answered if isinstance(outcome, Refusal) and member.swaps]",
                "[member for member, _ in answered if not member]",
            )
        ],
        "two-quotas",
    ),
    Planted(
        "an undo takes out who is charged, too",
        _QUEUE,
        [
            Change(
                "ChargeQueue._charge_waiting",
                "[member for member, outcome in answered if isinstance(outcome, Refusal) and member.swaps]",
                "[member for member, _ in answered if any(isinstance(each, Refusal) for each in outcomes)]",
            )
        ],
        "batch",
    ),
    Planted(
        "who finds an entry relies on it, and doesn't say so",
        _BATCH,
        [Change("_Charging._adopted", "known.attempt == request.attempt", "known")],
        "repeated",
        {"lost": 1},
    ),
    Planted(
        "an attempt takes back whatever entry stands there",
        _ACCOUNT,
        [
            Change(
                "ChargeRequest.taken_back",
                "entry is not None and entry.state in IN_ADMISSION and entry.attempt == self.attempt",
                "entry is not None and entry.state in IN_ADMISSION",
            )
        ],
        "repeated",
        {"lost": 1},
    ),
    Planted(
        "an entry that a cache shows needs no read",
        _QUEUE,
        [
            Change(
                "ChargeQueue._evaluated", "result.refusals or _rely_on_entries(pods, before, after)", "result.refusals"
            )
        ],
        why="only a second review of the same pod meets such an entry, and of those no answer is lost here",
    ),
    Planted(
        "entries are dropped before their pods are seen",
        _QUEUE,
        [
            Change(
                "ChargeQueue._without_shown",
                "entry.state in IN_ADMISSION and key not in requested and self._shows(account, key, entry)",
                "entry.state in IN_ADMISSION and key not in requested",
            )
        ],
        "room",
    ),
    Planted(
        "a recompute drops entries in flight",
        _RECOMPUTE,
        [Change("EntriesInFlight.events", "Event.UNSEEN", "Event.GONE")],
        "recount",
    ),
    Planted(
        "a recompute goes by a list older than the quota",
        _STORE,
        [
            Change(
                "QuotaStore.update",
                "writes = writes if writes is not None else Writes()",
                "writes = writes or Writes()\nearly = await list_pods({}) if list_pods else ()",
            ),
            Change("QuotaStore.update", "() if list_pods is None else await list_pods(accounts)", "early"),
        ],
        "two-leaders",
    ),
    Planted(
        "a recompute counts only pods without an entry",
        _RECOMPUTE,
        [Change("recompute", "used.update(costs)", "used.update(costs if entry is None else {})")],
        "recount",
    ),
    Planted(
        "pods behind the gate are charged when they are created",
        _BATCH,
        [Change("_Charging.evaluate", "request.gate is Gate.CLOSED", "not request")],
        "queue",
    ),
    Planted(
        "the gate goes though the charge was refused",
        _RELEASER,
        [Change("QueueReleaser.step", "self._again |= charge.code == 503", "work += map(self._open, pods)")],
        "turn",
    ),
    Planted(
        "the gate goes before the charge",
        _RELEASER,
        [
            Change(
                "QueueReleaser._charge",
                "return await self._charger.charge(structs.replace(first, others=tuple(others)))",
                "await self._open(first.pod)\n...",
            )
        ],
        "queue",
    ),
    Planted(
        "who waits is never released",
        _RELEASER,
        [Change("QueueReleaser.step", "_first(decision.released, _MOST_AT_ONCE)", "()")],
        "queue",
    ),
    Planted(
        "a floor entry stays for ever",
        _FLOORS,
        [Change("FloorEntries.events", "Event.UNSEEN", "Event.NEEDED")],
        "floor",
    ),
    Planted(
        "used isn't raised with an entry",
        _ACCOUNT,
        [Change("QuotaAccount.with_entry", "increase", "{}")],
        "two-replicas",
    ),
    Planted(
        "a pod that fills a quota is refused",
        _ACCOUNT,
        [
            Change(
                "QuotaAccount.overrun",
                "self.used.get(key, 0) + more > self.hard[key]",
                "self.used.get(key, 0) + more >= self.hard[key]",
            )
        ],
        "batch",
    ),
    Planted(
        "the pods of a batch don't see each other",
        _BATCH,
        [
            Change(
                "evaluate_batch",
                "_charge_pods(running, request, int(now), max_ledger, recomputed, passed_over)",
                "_charge_pods(accounts, request, int(now), max_ledger, recomputed, passed_over)",
            )
        ],
        "batch",
    ),
    Planted(
        "a pod that is charged already is charged again",
        _BATCH,
        [Change("_Charging._creation", "found[1] if found else None", "None")],
        "repeated",
    ),
    Planted(
        "a placement isn't charged",
        _PLACING,
        [Change("PlacementRequest.charged", "raised(account, before, placing.cost)", "dict[str, int]()")],
        "placement",
    ),
    Planted(
        "a placement takes room that isn't there",
        _PLACING,
        [Change("PlacementRequest.charged", "over and account.enforced", "not account.enforced")],
        "placement",
    ),
    Planted(
        "a placement that is refused stays charged",
        _QUEUES,
        [Change("ChargeQueues.charge", "len(charged) < len(queues)", "not queues")],
        "above",
    ),
    Planted(
        "a placement is taken back though it may be bound",
        _PLACER,
        [Change("Placer._write", "Unavailable", "()")],
        "placement",
        {"lost": 2},
    ),
    Planted(
        "a placement that can't be bound stays charged",
        _PLACER,
        [Change("Placer._write", "await charge.release()", "pass")],
        "unbound",
    ),
    Planted(
        "of a placement whatever entry stands there is taken back",
        _PLACING,
        [
            Change(
                "PlacementRequest.taken_back",
                "account.ledger.get(uid) != after.ledger[uid]",
                "uid not in account.ledger",
            )
        ],
        "placed-twice",
        {"second": 1},
    ),
    Planted(
        "of two attempts within a second one takes back the other's charge",
        _PLACING,
        [Change("PlacementRequest.charged", "self.attempt", '""')],
        "placed-twice",
    ),
    Planted(
        "a quota above namespaces isn't charged",
        _PODS,
        [Change("PodCharger.charge", "shared.concern(request)", "not request")],
        "above",
    ),
    Planted(
        "a quota that is made anew forgets what was in flight",
        "quota/deleted_ledgers.py",
        [Change("DeletedLedgers.entries", "entry.only(account.hard)", "()")],
        "remade",
        {"time": 1},
    ),
    Planted(
        "who gave up stays charged",
        _QUEUE,
        [Change("ChargeQueue._charge_waiting", "given_up.append(member)", "pass")],
        "two-replicas",
        {"gone": 1},
    ),
    Planted(
        "an allocation isn't charged",
        _PLACING,
        [
            Change(
                "PlacementRequest.charged",
                "account.with_increase(pod.uid, entry, increase, bool(over))",
                "account.with_increase(pod.uid, entry, {})",
            )
        ],
        "allocated",
    ),
    Planted(
        "an allocation takes room that isn't there",
        _PLACING,
        [Change("PlacementRequest.charged", "over and account.enforced", "not account.enforced")],
        "allocated",
    ),
    Planted(
        "that the pod of an allocation is there is seen before the charge alone",
        _CLAIMS,
        [Change("ClaimCharger._charge", "await self._pod_of(claim) is not None", "bool(claim)")],
        "generated",
    ),
    Planted(
        "of two claims of a name the first is expected alone",
        _BATCH,
        [Change("_Charging._creation", "replace(known, claim=SEVERAL)", "replace(known)")],
        "one-name",
    ),
    Planted(
        "an allocation counts once it is stored",
        _RECOMPUTE,
        [Change("EntriesInFlight._of_allocation", "entry.claim in self._claims", "entry.claim not in self._claims")],
        "generated",
    ),
    Planted(
        "claims that wait aren't counted",
        "quota/claims.py",
        [Change("ClaimReader.held_by", "holder.allocated or holder.waits", "holder.allocated")],
        "given-back",
    ),
    Planted(
        "what an update adds isn't charged",
        _BATCH,
        [Change("_Charging._update", "not more", "more or not more")],
        "two-updates",
    ),
    Planted(
        "a recompute drops the charge of an update that is on its way",
        _RECOMPUTE,
        [Change("_KeptEntries._seen", "pod.node_name", "not pod.node_name")],
        "update-repeated",
    ),
    Planted(
        "what an update adds is charged once for each review",
        _BATCH,
        [Change("_Charging._update", "known.covers(more)", "not known")],
        "update-repeated",
    ),
    Planted(
        "limits are those of the status",
        _ACCOUNT,
        [
            Change(
                "QuotaAccount.read",
                "rounded(quota.hard, [key for key in quota.hard if key in vendors.quota_keys], up=False)",
                "rounded(quota.status_hard, [key for key in quota.status_hard if key in vendors.quota_keys], up=False)",
            )
        ],
        "lowered",
    ),
    Planted(
        "who writes waits for nobody of its process",
        _STORE,
        [Change("QuotaStore.turn", "turn.lock.acquire()", "asyncio.sleep(0)")],
        why="the lock only saves conflicts: compare-and-swap keeps what is charged right",
    ),
    Planted(
        "an answer without the ledger is believed",
        _STORE,
        [Change("QuotaStore._swap", "verify(answer, patch)", "pass")],
        why="the simulated API server keeps what it is given",
    ),
)
