"""What `/metrics` shows: as recorded, as docs/metrics.md lists it, without a fault that promtool finds.

To accept a change of the record: `python -m pytest tests/server/test_exposition.py`, then copy what it wrote over
`exposition.txt`.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import get_args

import pytest
from admission.clusters import FULL, quota_cluster
from admission.reviews import cpu, pod, review

from hack.render_interface import INTERFACE, Interface
from hami_webhook.cluster.api import Kind
from hami_webhook.kube import event_reasons
from hami_webhook.kube.event_reasons import EventReason
from hami_webhook.node.monitor import NodeMetrics
from hami_webhook.server.usage_metrics import unhealthy_text, usage_text

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


# docs/metrics.md lists what is served


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


# `promtool check metrics` finds no fault with our own metrics; HAMi's names are HAMi's


HAMIS = ("hami_gpu_", "hami_node_gpu_", "hami_vgpu_", "hami_resource_quota_", "hami_build_info")
"""How the names begin that are HAMi's."""


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool isn't installed (Debian: prometheus)")
async def test_promtool_finds_no_fault_with_our_metrics(tmp_path: Path) -> None:
    async with served(tmp_path, await quota_cluster(FULL), "--preemption=on") as webhook:
        caches = webhook.process.core.caches
        caches.put(Kind.NODES, node())
        caches.put(Kind.PODS, placed("G0,NVIDIA,250,30:;"))
        caches.put(Kind.RESOURCE_QUOTAS, quota({"nvidia.com/gpu": "1"}, "other"))
        await webhook.review("/validate", review(pod("big", gpu=99, mem=3000, uid="big")))
        text = (await webhook.client.get("/metrics")).text
    status, findings = checked(text)
    assert [finding for finding in findings if not finding.startswith(HAMIS)] == []
    assert status == (3 if findings else 0), "3 is for names, 1 for text that can't be read"


def checked(text: str) -> tuple[int, list[str]]:
    """The exit status of `promtool check metrics`, and its lines."""
    done = subprocess.run(["promtool", "check", "metrics"], check=False, input=text, capture_output=True, text=True)
    return done.returncode, (done.stdout + done.stderr).splitlines()
