"""The Dockerfile's image, as `hack/image build` made it: what its entrypoint does, as the image's own user."""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from e2e.deployment import eventually

from hack.demo import Client
from hack.devcluster.plane import free_ports
from hami_webhook import __version__, pki

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "manifests" / "examples"
USER = 65532
CHECK = "config", "check", "/m/device-config/device-config.yaml"
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "p", "namespace": "team-a"},
    "spec": {"containers": [{"name": "main", "image": "cuda", "resources": {"limits": {"nvidia.com/gpu": 9}}}]},
}


@contextmanager
def running(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """`hack/image run` with options of `buildah run`, `--` and arguments of the entrypoint."""
    process = subprocess.Popen(
        [ROOT / "hack" / "image", "run", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
        process.communicate(timeout=60)


def printed(*arguments: str) -> str:
    with running(*arguments) as process:
        out, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    return out


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    """A serving pair that the image's user may read."""
    folder = tmp_path / "tls"
    pki.write(folder, pki.generate("hami-webhook", "hami-system", now=datetime.now(UTC)), force=True)
    for path in (folder, *folder.iterdir()):
        os.chown(path, USER, USER)
    return folder


def test_the_entrypoint_is_this_version_of_the_program() -> None:
    assert printed("--", "version").startswith(f"hami-webhook {__version__} ")


def test_it_has_what_the_pods_run_and_no_tables() -> None:
    assert "nvidia: " in printed("--volume", f"{ROOT / 'manifests'}:/m:ro", "--", *CHECK)
    command = (ROOT / "hack" / "image", "run", "--", "simulate", "-")
    done = subprocess.run(command, input="", capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout) == (2, "")
    assert "pip install 'hami-webhook[cli]'" in done.stderr


def answer(port: int, authority: Path) -> int | str:
    """The status of /readyz, or why there is none."""
    trusting = ssl.create_default_context(cafile=str(authority))
    try:
        with urllib.request.urlopen(f"https://127.0.0.1:{port}/readyz", context=trusting, timeout=5) as found:
            return int(found.status)
    except OSError as error:
        return str(error)


def test_it_serves_reviews_as_its_own_user(certificates: Path) -> None:
    port, metrics, extender = free_ports(3)
    with running(
        *("--volume", f"{EXAMPLES}:/examples:ro", "--volume", f"{certificates}:/tls:ro", "--"),
        *("serve", "--embedded-cluster", "/examples/cluster.yaml"),
        *(f"--http_bind=127.0.0.1:{port}", "--cert_file=/tls/tls.crt", "--key_file=/tls/tls.key"),
        *(f"--metrics-bind-address=127.0.0.1:{metrics}", f"--extender-bind-address=127.0.0.1:{extender}"),
    ) as process:
        authority = certificates / pki.CA_CERTIFICATE
        eventually(lambda: (process.poll(), answer(port, authority)), (None, 200), seconds=60)
        assert owners("hami-webhook serve") == {USER}
        response = asyncio.run(Client(port, authority).review("/validate", POD))
        assert response["status"]["code"] == 403
        assert "exceeded quota: gpu-quota, requested: limits.nvidia.com/gpumem=" in response["status"]["message"]


def owners(command: str) -> set[int]:
    """The users that processes with this in their command line run as."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            if command in words and "/opt/hami-webhook/bin" in words:
                found.add(process.stat().st_uid)
        except (FileNotFoundError, ProcessLookupError):
            pass
    return found
