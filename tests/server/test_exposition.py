"""Names, types, help texts and labels of all that `/metrics` shows: dashboards and alerts use them (docs/metrics.md).

To accept a change: `python -m pytest tests/server/test_exposition.py`, then copy what it wrote over `exposition.txt`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from admission.clusters import FULL, quota_cluster
from admission.reviews import cpu, pod, review

from hami_webhook.cluster.api import Kind

from .serving import AS_JSON, Served, served
from .sockets import until
from .test_metrics import node, placed, quota

SNAPSHOT = Path(__file__).with_name("exposition.txt")
OF_LIBRARY = re.compile(r"(# (HELP|TYPE) )?(process|python)_")
BUILD = re.compile(r"^hami_build_info\{.*\}")


def without_values(text: str) -> str:
    """The lines without the samples' values, sorted: neither they nor the order are promised."""
    lines = [line if line.startswith("#") else line.rpartition(" ")[0] for line in text.splitlines()]
    lines = [line for line in lines if not OF_LIBRARY.match(line)]
    return "".join(f"{BUILD.sub('hami_build_info', line)}\n" for line in sorted(lines))


def annotations_of(webhook: Served, node: str) -> Mapping[str, str]:
    """The annotations of a node in the cache."""
    known = webhook.process.core.state.node(node)
    return known.annotations if known is not None else {}


ABOVE = {"metadata": {"name": "all"}, "spec": {"namespaceSelector": {}, "hard": {"limits.nvidia.com/gpu": 9}}}


async def test_the_exposition_is_as_recorded(tmp_path: Path) -> None:
    cluster = await quota_cluster(FULL)
    for kind, obj in (
        (Kind.NODES, node()),
        (Kind.NODES, node("not json", "n2")),
        (Kind.PODS, placed("G0,NVIDIA,250,30:;")),
        (Kind.ACCELERATOR_QUOTAS, ABOVE),
        (Kind.RESOURCE_QUOTAS, quota({"nvidia.com/gpu": "9"}, "other")),
    ):
        await cluster.create(kind, obj)
    async with served(tmp_path, cluster, "--legacy-metrics") as webhook:
        await until(lambda: all("hami.io/node-handshake" in annotations_of(webhook, name) for name in ("n1", "n2")))
        await webhook.review("/mutate", review(pod("p", cpu())))
        await webhook.review("/webhook", review(pod("new", gpu=1, mem=3000, uid="new")))
        await webhook.review("/validate", review(pod("big", gpu=99, mem=3000, uid="big")))
        url = f"{webhook.extender_url}/filter"
        await webhook.client.post(url, content=b"{}", headers=AS_JSON)
        text = without_values((await webhook.client.get("/metrics")).text)
    (tmp_path / SNAPSHOT.name).write_text(text)
    assert text == SNAPSHOT.read_text(), f"see {tmp_path / SNAPSHOT.name}"
