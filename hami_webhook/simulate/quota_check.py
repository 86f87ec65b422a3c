"""`quota check`: what of the quotas in files is misread (docs/spec/cli.md)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct

from hami_webhook.cluster.loading import Bundle, LoadError
from hami_webhook.core_options import Options
from hami_webhook.devices.registry import Vendors
from hami_webhook.kube.objects import MalformedObject, ResourceQuota
from hami_webhook.policy.rules import PolicyRules
from hami_webhook.quota.accelerator_quota import KIND, read_accelerator_quota
from hami_webhook.quota.quota_lint import Misreading
from hami_webhook.simulate.simulation import Simulation, start_of


class CheckedQuota(Struct, frozen=True):
    """A quota, where it stands, and what of it is misread."""

    where: str
    quota: ResourceQuota
    misread: Sequence[Misreading]

    def lines(self) -> Iterator[str]:
        """A line for each misreading."""
        for each in self.misread:
            yield f"{self.where}: {self.quota.kind} {self.quota.name}: {each.text}"

    def as_json(self) -> dict[str, Any]:
        return {
            "where": self.where,
            "namespace": self.quota.namespace,
            "name": self.quota.name,
            "misread": [{"reason": each.reason.value, "key": each.key, "message": each.text} for each in self.misread],
        }


async def check(bundle: Bundle, vendors: Vendors) -> list[CheckedQuota]:
    """Check the quotas of the files, with the cards of their nodes. Raises `LoadError`."""
    simulation = Simulation(vendors, Options(), PolicyRules.EMPTY, start_of(bundle))
    await simulation.fill(Bundle(nodes=bundle.nodes))
    checked = []
    for item in (*bundle.quotas, *bundle.accelerator_quotas):
        try:
            is_accelerator_quota = item.kind == KIND
            quota = (
                read_accelerator_quota(item.object, {})
                if is_accelerator_quota
                else ResourceQuota.from_object(item.object)
            )
        except MalformedObject as error:
            raise LoadError(f"{item.where}: {item.kind} {item.name}: {error}") from error
        checked.append(CheckedQuota(item.where, quota, simulation.core.view.misreadings(quota)))
    return checked
