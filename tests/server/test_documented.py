"""docs/metrics.md lists what is served."""

from __future__ import annotations

import re
from pathlib import Path

from admission.clusters import FULL, quota_cluster

from .serving import served

PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()


async def test_the_metrics_that_are_listed_are_those_that_are_served(tmp_path: Path) -> None:
    async with served(tmp_path / "tls", await quota_cluster(FULL), "--preemption=on") as webhook:
        text = (await webhook.client.get("/metrics")).text
    first_cells = re.findall(r"^\| (`hami_[^|]*)\|", PAGE, re.MULTILINE)
    listed = re.findall(r"`(\w+)`", "".join(first_cells))
    assert sorted(listed) == sorted(re.findall(r"^# TYPE (hami_\w+) ", text, re.MULTILINE))


def test_the_events_that_are_listed_are_recorded_somewhere() -> None:
    source = "".join(path.read_text() for path in (Path(__file__).parents[2] / "hami_webhook").rglob("*.py"))
    events = PAGE.partition("## Events")[2]
    reasons = re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`[^|]*)\|", events, re.MULTILINE)))
    assert len(reasons) > 10
    assert [reason for reason in reasons if f'"{reason}"' not in source] == []
