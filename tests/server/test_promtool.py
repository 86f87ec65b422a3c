"""`promtool check metrics` finds no fault with our own metrics; HAMi's names are HAMi's."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from admission.clusters import FULL, quota_cluster
from admission.reviews import pod, review

from hami_webhook.cluster.api import Kind

from .serving import served
from .test_metrics import node, placed, quota

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
