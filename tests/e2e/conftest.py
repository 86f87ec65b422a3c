"""Real control planes for the session, shared by namespaces of their own."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import tomllib
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from hack.devcluster.plane import ControlPlane, assets

from .api_client import Key, api_client
from .apiproxy import ApiProxy
from .claims import namespace_with_quota
from .deployment import ROOT, Deployment, Kubectl
from .hamischeduler import HamiScheduler, scheduling
from .installation import Cluster, add_card_node
from .kubelet import Kubelets
from .scheduling import scheduler_account
from .sweeping import sweep

REPLICAS = ("hami-webhook-0", "hami-webhook-1", "hami-webhook-2")
SHARED = ("three_replicas", "two_replicas", "one_replica")
"""The fixtures of programs that files share."""

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
            item.add_marker(pytest.mark.filterwarnings("default:.* left"))
    # files with a node first, then those with programs of their own: each worker changes as little as possible
    places: dict[Path, int] = {}
    for item in items:
        used = _fixtures(item)
        place = next((4 - count for count, name in enumerate(SHARED) if name in used), int("plane" in used))
        places[item.path] = max(place, places.get(item.path, 0))
    items.sort(key=lambda item: places[item.path])


class Planes:
    """The control plane of the file that runs, and the program: started when the file before had others.

    A control plane that no test uses any more takes 4 to 10 % of a core.
    """

    def __init__(self, folders: pytest.TempPathFactory) -> None:
        self._folders = folders
        self._running = contextlib.ExitStack()
        self._planes: dict[tuple[str, ...], ControlPlane] = {}
        self._program: tuple[int, Deployment] | None = None
        self._before: dict[Path, set[Key]] = {}

    def with_programs(self, *more: str) -> ControlPlane:
        """That with these programs beside those that all have."""
        if more not in self._planes:
            self.stop()
            plane = self._planes[more] = self._running.enter_context(started(*more))
            self._before[plane.kubeconfig] = api_client(plane.kubeconfig).everything()
        return self._planes[more]

    def with_replicas(self, plane: ControlPlane, count: int) -> Deployment:
        """Our program on the plane that runs, with so many replicas, `hami-webhook-0` and so on."""
        if self._program is not None and self._program[0] != count:
            self.without_program()
        if self._program is None:
            self._program = count, Deployment(plane, self._folders.mktemp("program"), Kubectl(plane.kubeconfig))
        program = self._program[1]
        program.install()
        program.start_missing(*REPLICAS[:count])
        return program

    def without_program(self) -> None:
        if self._program is not None:
            self._program[1].close()
        self._program = None

    def sweep(self, plane: ControlPlane) -> list[str]:
        """What a file left there, which is deleted."""
        before = self._before[plane.kubeconfig]
        return sweep(Kubectl(plane.kubeconfig), before, running=self._program is not None)

    def stop(self) -> None:
        self.without_program()
        self._planes.clear()
        self._running.close()


@pytest.fixture(scope="session")
def planes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Planes]:
    planes = Planes(tmp_path_factory)
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
    """The next file finds the control plane as this one found it; what had to be deleted for that is a warning."""
    used = {name for item in request.session.items if item.path == request.path for name in _fixtures(item)}
    if "planes" not in used:
        yield
        return
    planes: Planes = request.getfixturevalue("planes")
    if used.isdisjoint(SHARED):
        planes.without_program()
    shared = [request.getfixturevalue(each) for each in ("plane", "plane_with_node") if each in used]
    yield
    for each in shared:
        if left := planes.sweep(each):
            warnings.warn(f"{request.path.name} left {', '.join(left)}", stacklevel=1)


@pytest.fixture(scope="module")
def one_replica(planes: Planes, plane: ControlPlane) -> Deployment:
    """Our program, which the next file with this fixture finds running, as a test left it."""
    return planes.with_replicas(plane, 1)


@pytest.fixture(scope="module")
def two_replicas(planes: Planes, plane: ControlPlane) -> Deployment:
    return planes.with_replicas(plane, 2)


@pytest.fixture(scope="module")
def three_replicas(planes: Planes, plane: ControlPlane) -> Deployment:
    return planes.with_replicas(plane, 3)


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
def program(one_replica: Deployment) -> Deployment:
    """What a file tests that needs no program of its own, with the accounts of scheduler and device plugins."""
    scheduler_account(one_replica.kubectl)
    return one_replica


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
def team(program: Deployment) -> Iterator[str]:
    """A namespace with a quota, for pods with claims."""
    with namespace_with_quota(program.kubectl) as space:
        yield space


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
