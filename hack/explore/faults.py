"""Faults to plant in the charging code, and the scenarios that find them: whether the explorer would notice any.

A fault replaces text of a module, and keeps its lines where they are; functions that exist by then get the new code.
`scenario` is the one that finds it, with these `accidents`. A fault without one isn't found, as `why` says.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

from msgspec import Struct

_ROOT = Path(__file__).parents[2] / "hami_webhook"


class Planted(Struct, frozen=True):
    """A fault: in `module` of `hami_webhook` the first text of each pair of `changes` is replaced by the second."""

    name: str
    module: str
    changes: Sequence[tuple[str, str]]
    scenario: str = ""
    accidents: Mapping[str, int] = {}
    why: str = ""


@contextmanager
def planted(fault: Planted) -> Iterator[None]:
    """The code with a fault. Raises `LookupError` where the text isn't there exactly once."""
    path = _ROOT / fault.module
    text = path.read_text()
    for before, after in fault.changes:
        if text.count(before) != 1 or before.count("\n") != after.count("\n"):
            raise LookupError(f"{fault.name}: {before!r} is {text.count(before)} times in {fault.module}")
        text = text.replace(before, after)
    codes = {
        (code.co_qualname, code.co_firstlineno): code
        for code in _codes(compile(text, str(path), "exec", dont_inherit=True))
    }
    former: list[tuple[types.FunctionType, types.CodeType]] = []
    module = import_module(f"hami_webhook.{fault.module.removesuffix('.py').replace('/', '.')}")
    for each in _functions(vars(module).values(), module.__name__):
        new = codes.get((each.__code__.co_qualname, each.__code__.co_firstlineno))
        if new is not None and new != each.__code__:
            former.append((each, each.__code__))
            each.__code__ = new
    if not former:
        raise LookupError(f"{fault.name}: no function of {fault.module} has another code")
    try:
        yield
    finally:
        for function, code in former:
            function.__code__ = code


def _functions(values: Iterable[object], module: str) -> Iterator[types.FunctionType]:
    """The functions of a module, those of its classes included; what is inside of them is of their code."""
    for value in values:
        found = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        found = getattr(found, "__wrapped__", found)
        if getattr(found, "__module__", "") != module:
            continue
        if isinstance(found, types.FunctionType):
            yield found
        elif isinstance(found, type):
            yield from _functions(vars(found).values(), module)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


_STORE, _QUEUE, _QUEUES, _PODS = "charging/store.py", "charging/queue.py", "charging/queues.py", "charging/pods.py"
_ACCOUNT, _BATCH, _FLOORS = "quota/account.py", "quota/batch.py", "quota/floors.py"
_PLACING, _RECOMPUTE, _IN_FLIGHT = "quota/placing.py", "quota/recompute.py", "quota/in_flight.py"
_RELEASER, _PLACER, _CLAIMS = "queueing/releaser.py", "scheduling/placer.py", "charging/claims.py"

FAULTS = (
    Planted(
        "writes are undone forwards",
        _STORE,
        [("for swap, revert in reversed(undone):", "for swap, revert in undone:")],
        why="no scenario has two unequal writes of one attempt to a quota; tests/charging/test_store.py has the order",
    ),
    Planted(
        "writes carry no resourceVersion",
        _ACCOUNT,
        [('{"resourceVersion": self.quota.resource_version}', "{}")],
        "two-replicas",
    ),
    Planted(
        "what may have been written isn't remembered",
        _STORE,
        [("writes.swaps.append(Swap(before, after))  #", "pass  #"), ("writes.swaps.pop()  #", "pass  #")],
        "two-quotas",
    ),
    Planted(
        "a refusal is given from a cache",
        _STORE,
        [("if snapshot.live:", "if snapshot.accounts:")],
        "late-cache",
        {"stale": 1},
    ),
    Planted(
        "nothing is read again after a conflict",
        _STORE,
        [("accounts = await self._reread(scope, accounts, {name}, live, names)", "pass")],
        "two-replicas",
    ),
    Planted(
        "a conflict is taken for a success",
        _STORE,
        [("nothing was written\n            raise", "nothing was written\n            return None")],
        "two-replicas",
    ),
    Planted(
        "what a refused batch wrote stays",
        _QUEUE,
        [
            (
                "for member, outcome in answered if isinstance(outcome, Refusal) and member.swaps]",
                "for member, _ in answered if not member]",
            )
        ],
        "two-quotas",
    ),
    Planted(
        "an undo takes out who is charged, too",
        _QUEUE,
        [
            (
                "for member, outcome in answered if isinstance(outcome, Refusal) and member.swaps]",
                "for member, _ in answered if any(isinstance(each, Refusal) for each in outcomes)]",
            )
        ],
        "batch",
    ),
    Planted(
        "who finds an entry relies on it, and doesn't say so",
        _BATCH,
        [("or known.attempt == request.attempt:", "or known:")],
        "repeated",
        {"lost": 1},
    ),
    Planted(
        "an attempt takes back whatever entry stands there",
        _ACCOUNT,
        [("entry.state in IN_ADMISSION and entry.attempt == self.attempt", "entry.state in IN_ADMISSION")],
        "repeated",
        {"lost": 1},
    ),
    Planted(
        "an entry that a cache shows needs no read",
        _QUEUE,
        [("(result.refusals or _rely_on_entries(pods, before, after))", "result.refusals")],
        why="only a second review of the same pod meets such an entry, and of those no answer is lost here",
    ),
    Planted(
        "entries are dropped before their pods are seen",
        _QUEUE,
        [("key not in requested and self._shows(account, key, entry)", "key not in requested")],
        "room",
    ),
    Planted(
        "a recompute drops entries in flight",
        _IN_FLIGHT,
        [("yield identity, entry, Event.UNSEEN\n", "yield identity, entry, Event.GONE\n")],
        "recount",
    ),
    Planted(
        "a recompute goes by a list older than the quota",
        _STORE,
        [
            (
                "writes = writes if writes is not None else Writes()",
                "writes = writes or Writes(); early = await list_pods({}) if list_pods else ()",
            ),
            ("pods = () if list_pods is None else await list_pods(accounts)", "pods = early"),
        ],
        "two-leaders",
    ),
    Planted(
        "a recompute counts only pods without an entry",
        _RECOMPUTE,
        [("        used.update(costs)\n", "        used.update(costs if entry is None else {})\n")],
        "recount",
    ),
    Planted(
        "pods behind the gate are charged when they are created",
        _BATCH,
        [
            (
                "        if request.gate is Gate.CLOSED:\n            return",
                "        if not request:\n            return",
            )
        ],
        "queue",
    ),
    Planted(
        "the gate goes though the charge was refused",
        _RELEASER,
        [
            (
                "                    self._again |= charge.code == 503\n",
                "                    work += map(self._open, pods)\n",
            )
        ],
        "turn",
    ),
    Planted(
        "the gate goes before the charge",
        _RELEASER,
        [
            (
                "        return await self._charger.charge(",
                "        await self._open(first.pod); return await self._charger.charge(",
            )
        ],
        "queue",
    ),
    Planted(
        "who waits is never released",
        _RELEASER,
        [("        turns = _first(decision.released, _MOST_AT_ONCE)\n", "        turns = ()\n")],
        "queue",
    ),
    Planted(
        "a floor entry stays for ever",
        _FLOORS,
        [("if key in self._used else Event.UNSEEN", "if key in self._used else Event.NEEDED")],
        "floor",
    ),
    Planted(
        "used isn't raised with an entry",
        _ACCOUNT,
        [("(identity, entry, increase, more)", "(identity, entry, {}, more)")],
        "two-replicas",
    ),
    Planted(
        "a pod that fills a quota is refused",
        _ACCOUNT,
        [("self.used.get(key, 0) + more > self.hard[key]", "self.used.get(key, 0) + more >= self.hard[key]")],
        "batch",
    ),
    Planted(
        "the pods of a batch don't see each other",
        _BATCH,
        [("found = _charge_pods(running, request,", "found = _charge_pods(accounts, request,")],
        "batch",
    ),
    Planted(
        "a pod that is charged already is charged again",
        _BATCH,
        [("known = found[1] if found else None\n", "known = None\n")],
        "repeated",
    ),
    Planted(
        "a placement isn't charged",
        _PLACING,
        [("increase = raised(account, before, placing.cost)\n", "increase = dict[str, int]()\n")],
        "placement",
    ),
    Planted(
        "a placement takes room that isn't there",
        _PLACING,
        [("if over and account.enforced:", "if not account.enforced:")],
        "placement",
    ),
    Planted(
        "a placement that is refused stays charged",
        _QUEUES,
        [("            if len(charged) < len(queues):\n", "            if not queues:\n")],
        "above",
    ),
    Planted(
        "a placement is taken back though it may be bound",
        _PLACER,
        [
            (
                "        except Unavailable:\n            raise\n        except",
                "        except Unavailable:\n            await charge.release(); raise\n        except",
            )
        ],
        "placement",
        {"lost": 2},
    ),
    Planted(
        "a placement that can't be bound stays charged",
        _PLACER,
        [
            (
                "        except ClusterError:\n            await charge.release()\n            raise\n",
                "        except ClusterError:\n            raise\n\n",
            )
        ],
        "unbound",
    ),
    Planted(
        "of a placement whatever entry stands there is taken back",
        _PLACING,
        [("        if account.ledger.get(uid) != after.ledger[uid]:\n", "        if uid not in account.ledger:\n")],
        "placed-twice",
        {"second": 1},
    ),
    Planted(
        "of two attempts within a second one takes back the other's charge",
        _PLACING,
        [("placing.claim, self.attempt, subject", 'placing.claim, "", subject')],
        "placed-twice",
    ),
    Planted(
        "a quota above namespaces isn't charged",
        _PODS,
        [("if not shared.none and shared.concern(request):", "if not shared.none and not request:")],
        "above",
    ),
    Planted(
        "a quota that is made anew forgets what was in flight",
        "quota/deleted_ledgers.py",
        [("                if amounts:\n", "                if amounts and not entry:\n")],
        "remade",
        {"time": 1},
    ),
    Planted(
        "who gave up stays charged",
        _QUEUE,
        [("                given_up.append(member)\n", "                pass\n")],
        "two-replicas",
        {"gone": 1},
    ),
    Planted(
        "an allocation isn't charged",
        _PLACING,
        [
            (
                "return account.with_increase(pod.uid, entry, increase, bool(over))",
                "return account.with_increase(pod.uid, entry, {})",
            )
        ],
        "allocated",
    ),
    Planted(
        "an allocation takes room that isn't there",
        _PLACING,
        [("if over and account.enforced:", "if not account.enforced:")],
        "allocated",
    ),
    Planted(
        "that the pod of an allocation is there is seen before the charge alone",
        _CLAIMS,
        [("or await self._pod_of(claim) is not None", "or bool(claim)")],
        "generated",
    ),
    Planted(
        "of two claims of a name the first is expected alone",
        _BATCH,
        [("known = replace(known, claim=SEVERAL)", "known = replace(known)")],
        "one-name",
    ),
    Planted(
        "an allocation counts once it is stored",
        _IN_FLIGHT,
        [("if entry.claim in self._claims else", "if entry.claim not in self._claims else")],
        "generated",
    ),
    Planted(
        "claims that wait aren't counted",
        "quota/claims.py",
        [("(holder.allocated or holder.waits)", "holder.allocated")],
        "given-back",
    ),
    Planted(
        "what an update adds isn't charged",
        _BATCH,
        [("        if not more:\n", "        if more or not more:\n")],
        "two-updates",
    ),
    Planted(
        "a recompute drops the charge of an update that is on its way",
        _RECOMPUTE,
        [("return Event.SHOWN if pod.node_name or", "return Event.SHOWN if not pod.node_name or")],
        "update-repeated",
    ),
    Planted(
        "what an update adds is charged once for each review",
        _BATCH,
        [("known.floor_id == target and known.covers(more):", "known.floor_id == target and not known:")],
        "update-repeated",
    ),
    Planted(
        "limits are those of the status",
        _ACCOUNT,
        [
            (
                "hard = rounded(quota.hard, [key for key in quota.hard if",
                "hard = rounded(quota.status_hard, [key for key in quota.status_hard if",
            )
        ],
        "lowered",
    ),
    Planted(
        "who writes waits for nobody of its process",
        _STORE,
        [("await turn.lock.acquire()", "await asyncio.sleep(0)")],
        why="the lock only saves conflicts: compare-and-swap keeps what is charged right",
    ),
    Planted(
        "an answer without the ledger is believed",
        _STORE,
        [("        verify(answer, patch)\n", "        pass\n")],
        why="the simulated API server keeps what it is given",
    ),
)
