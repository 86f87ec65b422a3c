"""Real control planes for the session, shared by namespaces of their own."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from hack.devcluster.plane import ControlPlane, assets

from .apiproxy import ApiProxy
from .deployment import ROOT, Deployment, Kubectl, sweep
from .hamischeduler import HamiScheduler, scheduling
from .installation import Cluster, add_card_node
from .kubelet import Kubelets

os.environ.setdefault("GOGC", "400")
"""Of all Go programs that tests start: their memory is small, and collecting it often takes a fifth of their time."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let no test fail for a connection that an earlier one left open.

    Tests here end clients and servers in the middle of their work; the garbage collector finds what they leave, in
    whichever test runs then.
    """
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"))
    # files with a node first: each worker changes its control plane once
    without_node = {item.path for item in items if "plane" in _fixtures(item)}
    items.sort(key=lambda item: item.path in without_node)


class Planes:
    """The control plane of the file that runs: started when it has to be another one than the file before had.

    One that no test uses any more takes 4 to 10 % of a core.
    """

    def __init__(self) -> None:
        self._running = contextlib.ExitStack()
        self._planes: dict[tuple[str, ...], ControlPlane] = {}

    def with_programs(self, *more: str) -> ControlPlane:
        """That with these programs beside those that all have."""
        if more not in self._planes:
            self.stop()
            self._planes[more] = self._running.enter_context(started(*more))
        return self._planes[more]

    def stop(self) -> None:
        self._planes.clear()
        self._running.close()


@pytest.fixture(scope="session")
def planes() -> Iterator[Planes]:
    planes = Planes()
    yield planes
    planes.stop()


@pytest.fixture(scope="module")
def plane(planes: Planes) -> ControlPlane:
    return planes.with_programs()


@pytest.fixture(scope="module")
def proxy(plane: ControlPlane) -> Iterator[ApiProxy]:
    """What the programs of a file reach the API server through."""
    with ApiProxy(plane) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def plane_with_node(planes: Planes) -> ControlPlane:
    """A control plane with a kubelet, as `hack/dev-cluster up` starts it for root."""
    return planes.with_programs("kubelet")


@pytest.fixture(scope="module", autouse=True)
def swept(request: pytest.FixtureRequest) -> Iterator[None]:
    """The next file finds nothing of this one's on the control planes that they share."""
    used = {name for item in request.session.items if item.path == request.path for name in _fixtures(item)}
    planes: list[ControlPlane] = [
        request.getfixturevalue(each) for each in ("plane", "plane_with_node") if each in used
    ]
    yield
    for each in planes:
        sweep(Kubectl(each.kubeconfig))


def _fixtures(item: pytest.Item) -> list[str]:
    return item.fixturenames if isinstance(item, pytest.Function) else []


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


@pytest.fixture(scope="module")
def kubelets(program: Deployment) -> Iterator[Kubelets]:
    """What allocates for the pods of a module's program."""
    running = Kubelets(program.login("hami-device-plugin"))
    yield running
    running.close()


@pytest.fixture(scope="module")
def scheduler(
    plane: ControlPlane, program: Deployment, kubelets: Kubelets, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[HamiScheduler]:
    """What places the pods of a module's program."""
    folder = tmp_path_factory.mktemp("scheduler")
    with scheduling(plane, folder, program.login("hami-scheduler"), "cooperative") as both:
        yield both


@pytest.fixture
def cluster(plane_with_node: ControlPlane, tmp_path: Path) -> Cluster:
    return Cluster(plane_with_node, Kubectl(plane_with_node.kubeconfig), tmp_path)


@pytest.fixture
def card_node(cluster: Cluster) -> Iterator[str]:
    """A node with one card, which kube-scheduler may use."""
    add_card_node(cluster.kubectl, "gpu-1", 24576)
    yield "gpu-1"
    cluster.kubectl("delete", "node", "gpu-1")


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package's commands on the PATH, as pip writes them."""
    folder = tmp_path / "bin"
    folder.mkdir()
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    for name, target in scripts.items():
        module, function = target.split(":")
        path = folder / name
        path.write_text(f"#!{sys.executable}\nimport sys\nfrom {module} import {function}\nsys.exit({function}())\n")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
