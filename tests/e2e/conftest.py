"""One real control plane for the session, shared by namespaces of their own."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hack.devcluster.plane import ControlPlane, assets


@pytest.fixture(scope="session")
def plane() -> Iterator[ControlPlane]:
    programs = assets(build=False)
    if programs is None:
        pytest.fail("the control plane isn't built; `make controlplane` does it", pytrace=False)
    with tempfile.TemporaryDirectory(prefix="hami-webhook-e2e-") as folder:
        plane = ControlPlane(programs, Path(folder))
        plane.start()
        try:
            yield plane
        finally:
            plane.stop()
