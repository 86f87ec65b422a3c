"""A core on an embedded cluster with one namespace and one quota, and clusters that fail."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

from builders import GPU, MEM

from hami_webhook.assembly import Core
from hami_webhook.cluster.api import Kind, Unavailable
from hami_webhook.cluster.memory import MemoryCluster
from hami_webhook.core_options import Options
from hami_webhook.kube.objects import ResourceQuota
from hami_webhook.quota.account import QuotaAccount

from .reviews import JSON, RULES, VENDORS

NOW = 1_763_692_800.0


class Recorder:
    """A cluster that notes which calls reach it."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self.cluster = cluster
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.cluster, name)

        def noted(*arguments: Any, **more: Any) -> Any:
            kind = next((a.value for a in arguments if isinstance(a, Kind)), "")
            self.calls.append(f"{name} {kind}".strip())
            return found(*arguments, **more)

        return noted


class Broken:
    """A cluster that answers nothing but errors."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        async def fail(*arguments: Any, **more: Any) -> Any:
            self.calls.append(name)
            raise Unavailable("connection refused")

        return fail


class Hung:
    """A cluster that never answers."""

    def __getattr__(self, name: str) -> Any:
        async def hang(*arguments: Any, **more: Any) -> Any:
            await asyncio.Event().wait()

        return hang


async def quota_cluster(hard: dict[str, int] | None = None, used: dict[str, int] | None = None) -> MemoryCluster:
    """A cluster with the namespace team-a and, if `hard` is given (short names), its quota gpu-quota."""
    cluster = MemoryCluster(lambda: NOW)
    await cluster.ensure_namespace("team-a")
    if hard is not None:
        amounts = {f"limits.{key}": str(value) for key, value in hard.items()}
        spent = dict.fromkeys(amounts, "0") | {f"limits.{k}": str(v) for k, v in (used or {}).items()}
        await cluster.create(
            Kind.RESOURCE_QUOTAS,
            {
                "metadata": {"name": "gpu-quota", "namespace": "team-a"},
                "spec": {"hard": amounts},
                "status": {"hard": amounts, "used": spent},
            },
        )
    return cluster


def core_on(cluster: Any, **more: Any) -> Core:
    numbers = itertools.count(1)
    options = Options(rules=RULES)
    more = {"clock": lambda: NOW, "new_id": lambda: f"secret-{next(numbers)}", **more}
    return Core(cluster, more.pop("vendors", VENDORS), options, **more)


def account_of(cluster: MemoryCluster) -> QuotaAccount:
    written = cluster.peek(Kind.RESOURCE_QUOTAS, "gpu-quota", "team-a")
    assert written is not None
    return QuotaAccount.read(ResourceQuota.from_object(written), VENDORS)


def spent(cluster: MemoryCluster) -> dict[str, int]:
    """Used, by short names."""
    return {key.removeprefix("limits."): value for key, value in account_of(cluster).used.items()}


def ledger(cluster: MemoryCluster) -> dict[str, dict[str, int]]:
    return {
        key: {name.removeprefix("limits."): amount for name, amount in entry.amounts.items()}
        for key, entry in account_of(cluster).ledger.items()
    }


def version(cluster: MemoryCluster) -> str:
    return account_of(cluster).quota.resource_version


FULL: JSON = {GPU: 10, MEM: 10_000}
