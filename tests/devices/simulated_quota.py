"""Pods of any vendor through the whole pipeline, admission's charge included; `FitEnv(hard=…)` is Fit's part alone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from hami_webhook.admission.identities import AdmissionRules
from hami_webhook.cluster.loading import Bundle, LoadedObject
from hami_webhook.core_options import Options
from hami_webhook.devices.registry import Vendors
from hami_webhook.policy.rules import PolicyRules
from hami_webhook.simulate.results import Pods, Result
from hami_webhook.simulate.simulation import Simulation

from .fit_env import CHART, JSON, NOW


def run(
    nodes: Iterable[JSON], hard: JSON, pods: Sequence[JSON], *, vendors: Vendors = CHART, also: Iterable[JSON] = ()
) -> Result:
    """What becomes of the pods, in order, on nodes (`node_object`) under a quota of namespace `default`.

    `hard` by resource name, without `limits.`; `also` are pods that are there before.
    """
    quota = {
        "kind": "ResourceQuota",
        "metadata": {"name": "quota", "namespace": "default"},
        "spec": {"hard": {f"limits.{name}": str(amount) for name, amount in hard.items()}},
    }
    bundle = Bundle(nodes=_loaded(nodes), quotas=_loaded([quota] if hard else []), pods=_loaded(also))
    options = Options(rules=AdmissionRules(scheduler_name="hami-scheduler"))
    simulation = Simulation(vendors, options, PolicyRules.EMPTY, NOW)

    async def reported() -> Result:
        await simulation.fill(bundle)
        return await simulation.run(Pods(pods))

    return asyncio.run(reported())


def amounts(result: Result) -> list[dict[str, int] | str]:
    """Of each pod its debits by resource name, or why it got nothing: the message, or the only node's refusal."""
    return [
        {name.removeprefix("limits."): amount for name, amount in outcome.debits.items()}
        or outcome.message
        or next(iter(outcome.failed.values()))
        for outcome in result.pods
    ]


def _loaded(objects: Iterable[JSON]) -> list[LoadedObject]:
    return [LoadedObject(obj, "test", 1) for obj in objects]
