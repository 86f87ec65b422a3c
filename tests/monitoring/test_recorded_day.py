"""`simulate --replay` of a recorded day that a real Prometheus has (docs/room.md#a-recorded-time)."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from builders import card, node
from simulate.conftest import own_kubeconfig, simulate  # noqa: F401 - fixtures
from simulate.files import Simulate, listed

from .promtool import with_promtool
from .recorded import KnownPod, kube_state_metrics, recorded

HOUR = 3600
WHOLE = {"nvidia_com_gpu": 1}
RENAMED = (
    'namespace="kube-system",pod="ksm",container="ksm",'
    'exported_namespace="{namespace}",exported_pod="{name}",uid="{name}"'
)
"""As a server without `honorLabels` has the labels of a pod."""


@pytest.mark.integration
@with_promtool
def test_a_recorded_day_on_todays_nodes_and_with_one_more(tmp_path: Path, simulate: Simulate) -> None:  # noqa: F811
    """A card for three jobs one after the other: one ran when the day began, one completes, one is deleted.

    A fourth waits to the end for more than there is. Another pod asks for no cards, and one ended before that day.
    """
    end = int(time.time()) // HOUR * HOUR - 2 * HOUR
    start = end - 24 * HOUR
    second = KnownPod("second", "team-b", start + 6 * HOUR, start + 12 * HOUR, WHOLE, deleted=start + 18 * HOUR)
    share = {"nvidia_com_gpu": 1, "nvidia_com_gpumem": 20000}
    pods = [
        KnownPod("before", "team-a", start - 8 * HOUR, start - 8 * HOUR, WHOLE, start - 7 * HOUR),
        KnownPod("first", "team-a", start - 7 * HOUR, start - 7 * HOUR, WHOLE, start + 12 * HOUR),
        replace(second, labels=RENAMED, container='exported_container="main"'),
        KnownPod("third", "team-a", start + 7 * HOUR, start + 18 * HOUR, share),
        KnownPod("fourth", "team-b", start + 20 * HOUR, None, {"nvidia_com_gpu": 2}),
        KnownPod("web", "team-a", start, start, {"memory": 1 << 30}),
    ]
    cluster = simulate.file("cluster.json", listed(node("n1", card("GPU-1", 40000))))
    at = datetime.fromtimestamp(end, UTC).isoformat()
    flags = ("simulate", "--cluster", cluster, "--replay", "24", "--now", at, "-o", "json", "--add", "1xn1")
    with recorded(tmp_path, kube_state_metrics(pods, start - 9 * HOUR, end)) as url:
        done = simulate.main(*flags, "--prometheus", url)
    as_recorded, today, other = done.result["rows"]
    assert (done.status, done.result["pods"], done.result["start"], done.result["end"]) == (0, 4, start, end)
    # 6 and 11 hours, and 4 to the end; the deleted pod was seen last a minute before it went
    assert (as_recorded["started"], as_recorded["never"], as_recorded["wait_mean"]) == (3, 1, 21 * HOUR / 3)
    assert (today["started"], today["never"]) == (3, 1)
    assert today["wait_mean"] == pytest.approx(as_recorded["wait_mean"], abs=120)
    assert today["wait_mean"] <= as_recorded["wait_mean"]
    assert (today["cards"], today["memory"]) == (100.0, 87.5)
    assert as_recorded["memory"] == pytest.approx(today["memory"], abs=0.5)
    assert (other["started"], other["never"]) == (3, 1)
    assert other["wait_p95"] == pytest.approx(5 * HOUR, abs=120)
    assert other["wait_mean"] == pytest.approx((0 + 5 + 4) * HOUR / 3, abs=60)
    assert any("the replay starts 100 % of the pods within a minute" in each for each in done.result["sentences"])


@pytest.mark.integration
@with_promtool
def test_without_kube_state_metrics_a_sentence_names_what_is_missing(tmp_path: Path, simulate: Simulate) -> None:  # noqa: F811
    """And where it is there, but no pod asked for cards."""
    now = int(time.time())
    cluster = simulate.file("cluster.json", listed(node("n1", card("GPU-1", 40000))))
    flags = ("simulate", "--cluster", cluster, "--replay", "2", "--prometheus")
    with recorded(tmp_path, ["# TYPE up gauge", f"up 1 {now - 60}"]) as url:
        done = simulate.main(*flags, url)
    assert (done.status, done.out) == (2, "")
    assert "has no series kube_pod_container_resource_limits, kube_pod_created, kube_pod_status_sch" in done.err
    assert "https://github.com/kubernetes/kube-state-metrics" in done.err
    web = KnownPod("web", "team-a", now - HOUR, now - HOUR, {"memory": 1 << 30})
    folder = tmp_path / "other"
    folder.mkdir()
    with recorded(folder, kube_state_metrics([web], now - HOUR, now)) as url:
        done = simulate.main(*flags, url)
    assert (done.status, done.out) == (2, "")
    assert "no pod of the last 2h had limits of resources with cards" in done.err
