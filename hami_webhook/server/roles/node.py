"""The role `node`: how this machine's cards are linked, told on its Node. It runs alone, without server and caches."""

from __future__ import annotations

from hami_webhook.cluster.api import Cluster
from hami_webhook.node.link_scores import LinkScores
from hami_webhook.node.nvml import probe
from hami_webhook.server.roles import Role


def node_role(cluster: Cluster, node_name: str) -> Role:
    """One loop."""
    return Role(loops={"link scores": LinkScores(cluster, node_name, probe).run})
