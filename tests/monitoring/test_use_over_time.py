"""The queries for what containers used over a time, on a real Prometheus that has recorded samples."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from hami_webhook.usage.history import ContainerHistory, read_history

from .promtool import with_promtool
from .recorded import recorded

MIB = 1 << 20
DAY = 86400
EVERY = 60


@pytest.mark.integration
@with_promtool
def test_the_queries_find_percentile_most_and_span_of_each_container(tmp_path: Path) -> None:
    """One container on two cards, whose monitor restarts in between; one whose labels Prometheus renamed; one old."""
    now = int(time.time())
    own = 'namespace="team-a",pod="p",container="main"'
    renamed = 'namespace="hami-system",exported_namespace="team-b",exported_pod="q",exported_container="main"'
    hours = 6 * 60
    rising = [index * MIB for index in range(1, 101)]
    text = [
        "# TYPE hami_vgpu_memory_used_bytes gauge",
        *(f"hami_vgpu_memory_used_bytes{{{labels}}} {value} {at}" for labels, value, at in [
            *((f'{own},device_uuid="0",instance="1"', 100 * MIB, now - (2 * hours - i) * EVERY) for i in range(hours)),
            *((f'{own},device_uuid="0",instance="2"', 200 * MIB, now - (hours - i) * EVERY) for i in range(hours)),
            *((f'{own},device_uuid="1",instance="2"', 50 * MIB, now - (hours - i) * EVERY) for i in range(hours)),
            *((f'{renamed},device_uuid="2"', value, now - (100 - i) * EVERY) for i, value in enumerate(rising)),
            (f'{own.replace("team-a", "old")},device_uuid="3"', 9 * MIB, now - 2 * DAY),
        ]),
        "# TYPE hami_container_device_utilization_ratio gauge",
        *(f"hami_container_device_utilization_ratio{{{own}}} {50 if i else 90} {now - (hours - i) * EVERY}"
          for i in range(hours)),
    ]  # fmt: skip
    with recorded(tmp_path, text) as url:
        found = read_history(url, DAY)
        only = read_history(url, DAY, "team-b")
        of_the_other = read_history(url, DAY, "team-a")
    p, q = ("team-a", "p", "main"), ("team-b", "q", "main")
    assert found.keys() == {p, q}
    assert ([*only], [*of_the_other]) == ([q], [p])
    assert (found[p].memory_p95, found[p].memory_most, found[p].cores_p95, found[p].cores_most) == (200, 200, 50, 90)
    assert found[p].seconds == pytest.approx(12 * 3600, abs=900)  # steps, and the five minutes that a sample lasts
    assert found[q] == only[q] == ContainerHistory(found[q].seconds, 96, 100, None, None)
    assert found[q].seconds == pytest.approx(100 * 60, abs=900)
