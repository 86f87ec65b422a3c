"""A mutex whose waiters take turns by namespace, so that one tenant's many pods hold nobody up by more than one."""

from __future__ import annotations

import asyncio
from collections import deque


class FairLock:
    """Goes to the namespace that had it least recently, and within one to who came first.

    The order is forgotten with the object: who keeps one drops it when nobody waits.
    """

    def __init__(self) -> None:
        self._held = False
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._turns = 0
        self._last_turn: dict[str, int] = {}

    async def acquire(self, namespace: str) -> None:
        """Wait for this namespace's turn; `release` ends it."""
        if self._held:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(namespace, deque()).append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():  # it came at the same time
                    self.release()
                raise
            finally:
                self._leave(namespace, turn)
        self._held = True
        self._turns += 1
        self._last_turn[namespace] = self._turns

    def release(self) -> None:
        """End the turn; the next one's begins."""
        self._held = False
        while self._waiting:
            namespace = min(self._waiting, key=lambda each: self._last_turn.get(each, 0))
            turn = self._waiting[namespace][0]
            self._leave(namespace, turn)
            if not turn.done():  # else it was cancelled
                self._held = True  # nobody comes between
                turn.set_result(None)
                return

    def _leave(self, namespace: str, turn: asyncio.Future[None]) -> None:
        turns = self._waiting.get(namespace)
        if turns is not None and turn in turns:
            turns.remove(turn)
            if not turns:
                del self._waiting[namespace]
