"""What `kubectl hami doctor` says of idle pods, of which without figures nothing is known."""

from __future__ import annotations

import pytest
from builders import accelerator_quota, bound_pod
from simulate.files import JSON

from .conftest import Hami
from .installation import Installation, stamp

LIMITING = accelerator_quota("shared", spec={"idleAfter": "2h"}, gpu=4)


@pytest.fixture
def installation() -> Installation:
    """A quota limits idleness; two pods run on a node, and nobody serves figures."""
    made = Installation()
    made.objects.append(LIMITING)
    for name in ("other", "measured"):
        held = bound_pod(name, "n1", "GPU-1,NVIDIA,1000,10:;", namespace="team-a", uid=name)
        held["status"]["startTime"] = "2026-11-22T11:00:00Z"
        made.objects.append(held)
    return made


def idle(hami: Hami, installation: Installation) -> JSON:
    """The check, which is the only one with findings about it."""
    found: JSON = next(
        each for each in hami(installation.api, "doctor", "-o", "json").result["checks"] if each["check"] == "idle"
    )
    return found


def test_a_limit_without_figures_has_no_effect(hami: Hami, installation: Installation) -> None:
    (fault,) = idle(hami, installation)["findings"]
    text = "its idleAfter has no effect: the cluster doesn't serve usage.hami.io"
    assert (fault["subject"], fault["fault"]) == ("AcceleratorQuota shared", text)


def test_pods_without_figures_are_named_by_node(hami: Hami, installation: Installation) -> None:
    meta = {"name": "measured", "namespace": "team-a"}
    usage = {"kind": "PodUsage", "apiVersion": "usage.hami.io/v1alpha1", "metadata": meta, "timestamp": stamp()}
    installation.objects.append(usage)
    found = idle(hami, installation)
    (advice,) = found["advice"]
    assert (found["findings"], advice["subject"]) == ([], "node n1")
    text = "has no figures of 1 pod (team-a/other), so that no quota takes them for idle"
    assert advice["fault"] == text


def test_ordinary_day_without_a_limit_nothing_is_asked(hami: Hami) -> None:
    installation = Installation()
    found = idle(hami, installation)
    assert (found["findings"], found["advice"]) == ([], [])
    assert not any("usage.hami.io" in path for _, path in installation.api.asked)
