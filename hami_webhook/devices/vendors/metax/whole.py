"""Metax-GPU: whole cards, known only by their number (docs/spec/metax.md#3, #5 to #9).

MetaX's plugin picks the physical card; which node it is on is chosen here, by two tables that the plugin keeps there.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping

import orjson
from msgspec import Struct

from hami_webhook.devices import reasons
from hami_webhook.devices.capacity_devices import capacity, counted
from hami_webhook.devices.fit_request import AMOUNT_CHECKS, FREE_SLOT, HEALTHY, MUTEX, WITHIN_QUOTA, Candidate, Check
from hami_webhook.devices.keys import DeviceKeys
from hami_webhook.devices.model import FixedMemory, Inventory, MemoryRequest, NodeView, Rows
from hami_webhook.devices.vendor import Vendor
from hami_webhook.devices.vendors.metax.section import MetaxSection
from hami_webhook.kube.objects import Container, Node, Pod
from hami_webhook.kube.quantity import parse_whole

LOSSES = "metax-tech.com/gpu.topology.losses"
SCORES = "metax-tech.com/gpu.topology.scores"
CARD_MEMORY = 65536
WORST_LOSS = WORST_SCORE = 2000


class MetaxNode(Struct, frozen=True):
    """What else of a node counts: the plugin's tables by the number of cards requested, and how many cards may be used.

    `losses` says what taking that many cards does to the node's topology, `scores` how well that many can be linked.
    `usable` is less than the number of cards where some of them are broken; which ones nobody says.
    """

    losses: Mapping[str, int]
    scores: Mapping[str, int]
    usable: int


def read_table(text: str | None) -> dict[str, int] | None:
    """A topology table, empty without one; None for what is no JSON object of integers."""
    if text is None:
        return {}
    try:
        table = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(table, dict):
        return None
    sound = all(isinstance(value, int) and not isinstance(value, bool) for value in table.values())
    return table if sound else None


def _one_more_is_usable(candidate: Candidate) -> bool:
    fit_request = candidate.fit_request
    facts = fit_request.inventory.facts
    assert isinstance(facts, MetaxNode)
    in_use = sum(fit_request.overlay.used(card.vendor, card.uuid).slots > 0 for card in fit_request.inventory.devices)
    return in_use + len(fit_request.taken) < facts.usable


class MetaxGpu(Vendor):
    key = "Metax-GPU"
    section_name = "metax"
    section_type = MetaxSection
    section_fields = ("resource_count_name",)
    keys = DeviceKeys.usual("metax-gpu")
    default_cores = 100
    lock = None
    # the tables rank nodes, not the policy that is named like them
    topology_ranks_nodes = False
    checks = (
        HEALTHY,
        FREE_SLOT,
        MUTEX,
        WITHIN_QUOTA,
        *AMOUNT_CHECKS,
        Check(reasons.CARD_NOT_HEALTH, _one_more_is_usable),
    )

    def memory(self, container: Container, mebibytes: int) -> MemoryRequest:
        return FixedMemory(CARD_MEMORY)

    def inventory(self, node: Node) -> Inventory | None:
        count = capacity(node, self.count_name)
        devices = tuple(counted(self.key, node, "metax", count, slots=1, memory=CARD_MEMORY, cores=100))
        if not devices:
            return None
        tables = {key: read_table(node.annotations.get(key)) for key in (LOSSES, SCORES)}
        warnings = tuple(
            f"{key} is ignored: it must be a JSON object of integers" for key, table in tables.items() if table is None
        )
        usable = parse_whole(node.allocatable.get(self.count_name))
        facts = MetaxNode(tables[LOSSES] or {}, tables[SCORES] or {}, count if usable is None else usable)
        return Inventory(devices, facts, warnings)

    def traits(self, inventory: Inventory, places: Mapping[str, int]) -> Hashable:
        facts = inventory.facts
        assert isinstance(facts, MetaxNode)
        return frozenset(facts.losses.items()), frozenset(facts.scores.items()), facts.usable

    def score(self, pod: Pod, view: NodeView, rows: Rows, policy: str) -> float:
        """Binpack takes the least loss, spread the best links; without the table the node is the last to be taken."""
        facts = view.inventories[self.key].facts
        assert isinstance(facts, MetaxNode)
        count = str(len({device.uuid for row in rows if self.key in row for device in row[self.key].devices}))
        if policy == "binpack":
            return float(WORST_LOSS - facts.losses.get(count, WORST_LOSS))
        if policy == "spread":
            return float(WORST_SCORE - facts.scores.get(count, 0))
        return 0.0
