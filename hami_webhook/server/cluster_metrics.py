"""The metrics of the cluster, which the leader alone exports: a sum over all processes counts nothing twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from hami_webhook.cluster.api import Kind
from hami_webhook.controller.showback import Showback
from hami_webhook.server.card_metrics import card_metrics, model_metrics, pod_metrics, read_cards
from hami_webhook.server.exposition import Family
from hami_webhook.server.legacy_metrics import legacy_of
from hami_webhook.server.node_metrics import node_metrics
from hami_webhook.server.quota_metrics import quota_metrics
from hami_webhook.state.cluster_view import ClusterView

_UNREADABLE = Family("hami_webhook_unreadable_objects", "Objects that can't be read.", ("kind",))
_HOLDING = ("namespace", "vendor", "model", "state", "submitted_by")
_SHOWBACK = (
    Family("hami_webhook_showback_card_seconds", "Cards held, times seconds.", _HOLDING, is_counter=True),
    Family("hami_webhook_showback_memory_mib_seconds", "MiB held, times seconds.", _HOLDING, is_counter=True),
    Family("hami_webhook_showback_core_seconds", "Cores held, times seconds.", _HOLDING, is_counter=True),
)


@dataclass(frozen=True, eq=False)  # a registry needs its collectors hashable
class ClusterCollector(Collector):
    """The state of the cluster at the scrape, of which this process `speaks` or not; large families in pieces.

    With `legacy`, HAMi's metrics are there under their old names too.
    """

    cluster: ClusterView
    showback: Showback
    speaks: Callable[[], bool] = lambda: True
    legacy: bool = False

    def collect(self) -> Iterator[Metric]:
        """Every metric, as the cluster is now, however long the rendering takes; nothing while another one speaks."""
        if not self.speaks():
            return
        cluster = self.cluster
        cluster.state.tick(cluster.clock())
        views, pods, nodes = [*cluster.state.views()], [*cluster.state.pods()], [*cluster.state.nodes()]
        cards = yield from read_cards(cluster, views)
        hamis = (
            partial(card_metrics, cards),
            partial(pod_metrics, cluster, views, pods),
            partial(quota_metrics, cluster, pods),
        )
        yield from chain.from_iterable(metrics() for metrics in hamis)
        if self.legacy:
            yield from legacy_of(chain.from_iterable(metrics() for metrics in hamis))
        yield from model_metrics(cards)
        yield from node_metrics(cluster, nodes)
        yield self._unreadable()
        yield from self._showback()

    def _showback(self) -> Iterator[Metric]:
        read = list(self.showback.read())
        for column, family in enumerate(_SHOWBACK):
            yield from family.in_pieces((holding, totals[column]) for holding, totals in read)

    def _unreadable(self) -> Metric:
        kinds = Counter(problem.kind for problem in self.cluster.state.problems())
        unreadable = {kind for kind, _, _ in self.cluster.caches.unreadable}
        kinds.update(kind.singular for kind in Kind if kind.value in unreadable)
        return _UNREADABLE.of(((kind,), number) for kind, number in sorted(kinds.items()))
