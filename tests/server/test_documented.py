"""docs/metrics.md lists what is served."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from admission.clusters import FULL, quota_cluster

from hack.render_interface import INTERFACE, Interface
from hami_webhook.kube import event_reasons
from hami_webhook.kube.event_reasons import EventReason
from hami_webhook.node.monitor import NodeMetrics
from hami_webhook.server.usage_metrics import unhealthy_text, usage_text

from .serving import served

PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()


async def test_the_metrics_that_are_listed_are_those_that_are_served(tmp_path: Path) -> None:
    async with served(tmp_path / "tls", await quota_cluster(FULL), "--preemption=on") as webhook:
        text = (await webhook.client.get("/metrics")).text
    text += b"".join(usage_text(NodeMetrics(0.0, [], [], [], 0, {}), "gpu-1", legacy=False)).decode()
    text += unhealthy_text({}, "gpu-1").decode()
    first_cells = re.findall(r"^\| (`hami_[^|]*)\|", PAGE, re.MULTILINE)
    listed = re.findall(r"`(\w+)`", "".join(first_cells))
    served_types = re.findall(r"^# TYPE (hami_\w+) (\w+)$", text, re.MULTILINE)
    assert sorted(listed) == sorted(name for name, _ in served_types)
    stored = [line.item for line in Interface.read(INTERFACE.read_text()).lines]
    interface = {item.name: item.detail for item in stored if item.group == "metric"}
    assert {name: detail.partition(",")[0] for name, detail in interface.items()} == dict(served_types)


def test_the_events_that_are_listed_are_those_that_can_be_recorded() -> None:
    events = PAGE.partition("## Events")[2]
    first_cells = re.findall(r"^\| (`[^|]*)\|", events, re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)`", "".join(first_cells))) == sorted(get_args(EventReason))


def test_no_event_is_listed_that_nothing_records() -> None:
    modules = [path for path in Path(event_reasons.__file__).parents[1].rglob("*.py") if path.stem != "event_reasons"]
    source = "".join(path.read_text() for path in modules)
    assert [reason for reason in get_args(EventReason) if f'"{reason}"' not in source] == []
