"""Real control planes for the session, shared by namespaces of their own."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hack.devcluster.plane import ControlPlane, assets


@pytest.fixture(scope="session")
def plane() -> Iterator[ControlPlane]:
    with started() as plane:
        yield plane


@pytest.fixture(scope="session")
def plane_with_node() -> Iterator[ControlPlane]:
    """A control plane with a kubelet, as `hack/dev-cluster up` starts it for root."""
    with started("kubelet") as plane:
        yield plane


@contextlib.contextmanager
def started(*more: str) -> Iterator[ControlPlane]:
    programs = assets(build=False)
    if programs is None:
        pytest.fail("the control plane isn't built; `make controlplane` does it", pytrace=False)
    with tempfile.TemporaryDirectory(prefix="hami-webhook-e2e-") as folder:
        plane = ControlPlane(programs, Path(folder))
        plane.managers = (*plane.managers, *more)
        plane.start()
        try:
            yield plane
        finally:
            plane.stop()
