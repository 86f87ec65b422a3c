"""Charges of placements that wait for the same quotas, in one write (docs/spec/quota.md#8).

kube-scheduler allocates many claims of a namespace at once, and each is charged before it is stored: if each were a
write of its own, it would meet those of all others. A charge is refused by itself, and taken back by itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from msgspec import Struct

from hami_webhook.cluster.api import ClusterError
from hami_webhook.quota.account import QuotaAccount, Rejected
from hami_webhook.quota.store import Accounts, QuotaStore, Retries, Snapshot, Swap, Writes

logger = logging.getLogger(__name__)

ChargedAccount = Callable[[QuotaAccount, Snapshot], QuotaAccount]
"""From an account, and the snapshot that it is of, the account with a placement charged; may raise `Rejected`."""
Revert = Callable[[QuotaAccount, Swap], QuotaAccount]
"""From an account, and what a charge did to it, the account without the charge, as far as that stands there."""


class _Waiting(Struct, eq=False):
    charged: ChargedAccount
    revert: Revert
    writes: Writes
    done: asyncio.Future[None]


class JoinedCharges:
    """Charges that come while others of their scope are written wait for these, and are written together then."""

    def __init__(self, retries: Retries) -> None:
        self._retries = retries
        self._waiting: dict[tuple[QuotaStore, str], list[_Waiting]] = {}
        self._workers: dict[tuple[QuotaStore, str], asyncio.Task[None]] = {}

    async def charge(
        self, store: QuotaStore, scope: str, charged: ChargedAccount, revert: Revert, writes: Writes
    ) -> None:
        """Charge the quotas of a scope. Raises what `charged` raises, and `ClusterError`.

        `writes` gets what was written of it, or may have been, also if this raises. If it is cancelled, what was
        written until then or is written afterwards is taken back.
        """
        key = store, scope
        each = _Waiting(charged, revert, writes, asyncio.get_running_loop().create_future())
        self._waiting.setdefault(key, []).append(each)
        if key not in self._workers:
            self._workers[key] = asyncio.create_task(self._work(store, scope))
        await each.done

    async def _work(self, store: QuotaStore, scope: str) -> None:
        """Charge batch after batch until nobody waits. Who gave up before his batch began isn't charged."""
        try:
            while (store, scope) in self._waiting:
                async with store.turn(scope):
                    await self._charge_waiting(store, scope)
        finally:
            del self._workers[store, scope]

    async def _charge_waiting(self, store: QuotaStore, scope: str) -> None:
        """Charge those that wait, and after a conflict also those that came meanwhile."""
        batch = _Batch(lambda: self._waiting.pop((store, scope), []))
        fault = await batch.charge(store, scope, self._retries)
        given_up = [each for each in batch.members if each.done.done()]
        for each in batch.members:
            error = batch.refused.get(each, fault)
            if each in given_up:
                continue
            if error is not None:
                each.done.set_exception(error)
            else:
                each.done.set_result(None)
        for each in given_up:
            await store.undo(scope, each.writes, each.revert, self._retries)


class _Batch:
    """Charges that are written together. `joining` gives those that wait; `refused` are those that don't fit."""

    def __init__(self, joining: Callable[[], list[_Waiting]]) -> None:
        self._joining = joining
        self._parts: list[tuple[QuotaAccount, list[tuple[_Waiting, Swap]]]] = []
        """Of each account that may have been written what its members did to it, one after the other."""
        self.members: list[_Waiting] = []
        self.refused: dict[_Waiting, Exception] = {}

    async def charge(self, store: QuotaStore, scope: str, retries: Retries) -> Exception | None:
        """Write the charges, and note for each what was written of it; why none was made, if so."""
        written = Writes()
        fault: Exception | None = None
        try:
            await store.update(scope, self._change, retries=retries, writes=written)
        except ClusterError as error:
            fault = error
        except Exception:
            logger.exception("charging a batch of placements failed", extra={"namespace": scope})
            fault = ClusterError("an internal error")
        for swap in written.swaps:
            for each, part in next(parts for account, parts in self._parts if account is swap.after):
                each.writes.swaps.append(part)
        return fault

    def _change(self, snapshot: Snapshot) -> tuple[Accounts, None]:
        """The accounts with all charges that fit; raises `Rejected` where one may fit by a live read."""
        self.members += [each for each in self._joining() if not each.done.done()]
        self.refused.clear()
        accounts: Accounts = snapshot.accounts
        parts: dict[str, list[tuple[_Waiting, Swap]]] = {name: [] for name in accounts}
        for each in self.members:
            try:
                after = {name: each.charged(account, snapshot) for name, account in sorted(accounts.items())}
            except Rejected as error:
                if not snapshot.live:
                    raise
                self.refused[each] = error
                continue
            for name, account in after.items():
                if account is not accounts[name]:
                    parts[name].append((each, Swap(accounts[name], account)))
            accounts = after
        self._parts += [(account, parts[name]) for name, account in accounts.items()]
        return accounts, None
