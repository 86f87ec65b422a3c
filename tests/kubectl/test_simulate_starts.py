"""`kubectl hami simulate` says when pods would start that aren't created."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from builders import card, node
from simulate.files import GPU, pod, quota

from hami_webhook.kube.objects import format_time

from .apiserver import ApiServer
from .conftest import Hami
from .test_verbs import DEPLOYED, SPACES, placed


@pytest.mark.parametrize(("at", "placed_then"), [(None, False), (3000, False), (4000, True)])
def test_simulate_says_when_a_pod_would_start(hami: Hami, tmp_path: Path, at: int | None, placed_then: bool) -> None:
    """The pod that runs ends an hour from now by its deadline; `at` is so many seconds from now."""
    path = tmp_path / "p.json"
    path.write_text(json.dumps(pod("p", gpu=1, mem=1000)))
    full = quota(gpu="1", used={GPU: "1"})
    full["metadata"]["annotations"] = {"hami.io/quota-enforcement": "queue", "hami.io/quota-max-runtime": "2h"}
    runs = placed("runs", memory=1000, activeDeadlineSeconds=7200)
    now = int(time.time())
    runs["status"] = {"phase": "Running", "startTime": format_time(now - 3600)}
    api = ApiServer([node("n1", card("GPU-1")), full, runs, *SPACES, *DEPLOYED])
    flags = [] if at is None else ["--at", format_time(now + at)]
    run = hami(api, "simulate", "-n", "team-a", "-o", "json", *flags, str(path))
    (found,) = run.result["pods"]
    # 30 s of grace, and 10 s until others have the room
    waits = f"starts by {format_time(now + 3640)} at the latest; first in line"
    assert (bool(found["placement"]), found.get("waits", "").endswith(waits)) == (placed_then, not placed_then)
    assert {method for method, _ in api.asked} == {"GET"}


def test_a_tenant_who_does_not_see_what_holds_room_gets_no_start(hami: Hami, tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text(json.dumps(pod("p", gpu=1, mem=1000, activeDeadlineSeconds=60)))
    full = quota(gpu="1", used={GPU: "1"})
    full["metadata"]["annotations"] = {"hami.io/quota-enforcement": "queue", "hami.io/quota-max-runtime": "2h"}
    api = ApiServer([node("n1", card("GPU-1")), full, *SPACES, *DEPLOYED])
    run = hami(api, "simulate", "-n", "team-a", "-o", "json", str(path))
    assert "its start isn't known: amounts of no pod" in run.result["pods"][0]["waits"]
