"""The process of the role `node`: what it serves, and what it says when something is missing."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO

import httpx
import pytest
from msgspec import structs
from node.machines import DGX_A100, Card, environment
from node.monitored import pod
from node.regions import region
from node.test_nvml import folder as folder  # a libnvidia-ml.so.1

from hami_webhook.cluster.api import Forbidden, Kind, Listing
from hami_webhook.cluster.memory import MemoryCluster
from hami_webhook.server.node_process import NodeSettings
from hami_webhook.server.serve_node import NodeRole

SETTINGS = NodeSettings("gpu-1", "hami-system", "", 0, "127.0.0.1", 0, False, "", 300, False, 0, "text")
MACHINE = replace(DGX_A100, gpus=2, cards=(Card(memory=1 << 30), Card(utilisation=7)))
ROLE = ("-m", "hami_webhook", "serve", "--roles=node")
VGPU_MONITOR = ("-c", "import sys; from hami_webhook.cli import vgpu_monitor; sys.exit(vgpu_monitor())")


@asynccontextmanager
async def serving(cluster: MemoryCluster, settings: NodeSettings) -> AsyncIterator[httpx.AsyncClient]:
    role = NodeRole(cluster, settings)
    await role.listener.start()
    loops = [asyncio.ensure_future(loop()) for name, loop in role.loops().items() if name != "link scores"]
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{role.listener.port}") as client:
        yield client
    for loop in loops:
        loop.cancel()
    await role.listener.drain_and_stop()


async def test_it_serves_what_the_pods_of_its_node_use(tmp_path: Path) -> None:
    cluster = MemoryCluster(lambda: 0.0)
    await cluster.create(Kind.NAMESPACES, {"metadata": {"name": "team-a"}})
    for node, name in (("gpu-1", "here"), ("gpu-2", "there")):
        made = pod(name, "main")
        created = await cluster.create(Kind.PODS, {**made, "spec": {**made["spec"], "nodeName": node}})
        containers = tmp_path / "containers" / f"{created['metadata']['uid']}_main"
        containers.mkdir(parents=True)
        (containers / "a.cache").write_bytes(region())
    async with serving(cluster, structs.replace(SETTINGS, hook_path=str(tmp_path))) as client:
        while (await client.get("/readyz")).status_code != 200:
            pass  # the pods are being listed
        text = (await client.get("/metrics")).text
        assert (await client.get("/healthz")).status_code == 200
    assert 'hami_vgpu_memory_used_bytes{zone="vGPU",namespace="team-a",pod="here",container="main"' in text
    assert "there" not in text
    assert "hami_build_info{" in text
    assert "vGPU_device_memory_usage_in_bytes" not in text


async def test_without_hook_path_it_is_ready_and_serves_cards_alone() -> None:
    async with serving(MemoryCluster(lambda: 0.0), SETTINGS) as client:
        assert (await client.get("/readyz")).status_code == 200
        assert "# TYPE hami_host_gpu_memory_used_bytes gauge" in (await client.get("/metrics")).text


class NoRight(MemoryCluster):
    """A cluster where the role may list no pods."""

    async def list(self, kind: Kind, namespace: str = "", *, node: str = "") -> Listing:
        raise Forbidden(f"{kind.value} is forbidden: the role node may not list them")


async def test_without_the_right_to_list_pods_a_line_says_so_and_it_is_not_ready(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = structs.replace(SETTINGS, hook_path=str(tmp_path))
    async with serving(NoRight(lambda: 0.0), settings) as client:
        ready = await client.get("/readyz")
        while "watching pods: " not in caplog.text:
            ready = await client.get("/readyz")
        assert (ready.status_code, "the pods of this node aren't known yet" in ready.text) == (503, True)
        assert "# TYPE hami_host_gpu_memory_used_bytes gauge" in (await client.get("/metrics")).text
    lines = [record.message for record in caplog.records if "watching" in record.message]
    assert lines[0] == "watching pods: Forbidden: pods is forbidden: the role node may not list them"


@contextmanager
def process(
    command: tuple[str, ...], folder: Path, tmp_path: Path, *arguments: str, **variables: str
) -> Iterator[tuple[subprocess.Popen[str], IO[str]]]:
    """The command on a node with two cards, whose API server doesn't answer, and its standard error."""
    user = {"name": "u", "user": {"token": "t"}}
    cluster = {"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}
    contexts = {"current-context": "x", "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}]}
    login = tmp_path / "login"
    login.write_text(
        json.dumps({"apiVersion": "v1", "kind": "Config", "clusters": [cluster], "users": [user], **contexts})
    )
    known: Mapping[str, str] = {
        **environment(folder, MACHINE),
        "KUBECONFIG": str(login),
        "NODE_NAME": "gpu-1",
        "HOOK_PATH": str(tmp_path),
        **variables,
    }
    started = subprocess.Popen([sys.executable, *command, *arguments], env=known, stderr=subprocess.PIPE, text=True)
    assert started.stderr is not None
    with started:
        try:
            yield started, started.stderr
        finally:
            started.kill()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port


@pytest.mark.integration
@pytest.mark.parametrize("command", [ROLE, VGPU_MONITOR], ids=["serve --roles=node", "vGPUmonitor"])
def test_the_command_serves_cards_although_the_api_server_does_not_answer(
    folder: Path, tmp_path: Path, command: tuple[str, ...]
) -> None:
    port = free_port()
    with process(command, folder, tmp_path, f"--metrics-bind-address=127.0.0.1:{port}", "--legacy-metrics=true") as (
        running,
        log,
    ):
        while "watching pods: Unavailable" not in log.readline():
            assert running.poll() is None
        text = httpx.get(f"http://127.0.0.1:{port}/metrics").text
        assert httpx.get(f"http://127.0.0.1:{port}/readyz").text == "the pods of this node aren't known yet\n"
        running.send_signal(signal.SIGTERM)
        assert running.wait() == 0
    labels = 'nodeid="gpu-1",deviceidx="0",deviceuuid="GPU-0",devicetype="NVIDIA-A100-SXM4-40GB"'
    assert f'HostGPUMemoryUsage{{zone="vGPU",{labels}}} {1 << 30}\n' in text


@pytest.mark.integration
def test_an_address_that_is_taken_is_told(folder: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with process(ROLE, folder, tmp_path, f"--metrics-bind-address={address}") as (running, log):
            said = log.read()
            assert running.wait() == 2
    assert said.endswith(
        f"hami-webhook: --metrics-bind-address {address}: can't be listened on: Address already in use\n"
    )


@pytest.mark.integration
@pytest.mark.parametrize(
    ("command", "arguments", "variables", "said"),
    [
        (ROLE, (), {"NODE_NAME": ""}, '--roles "node": needs NODE_NAME, the name of the node whose GPUs it monitors'),
        (ROLE, (), {"KUBECONFIG": "/nowhere"}, "kubeconfig /nowhere can't be read; --kubeconfig or KUBECONFIG names"),
        (ROLE, ("--priority-feedback",), {"HOOK_PATH": ""}, "--priority-feedback: needs --roles node, and HOOK_PATH"),
        (ROLE, (), {"HAMI_RESYNC_INTERVAL": "often"}, 'HAMI_RESYNC_INTERVAL "often": must be a duration'),
        (VGPU_MONITOR, (), {"HOOK_PATH": ""}, "vGPUmonitor: HOOK_PATH isn't set: set it to the folder of HAMi's hooks"),
    ],
)
def test_what_it_cannot_do_without_is_told_in_a_sentence(
    folder: Path,
    tmp_path: Path,
    command: tuple[str, ...],
    arguments: tuple[str, ...],
    variables: Mapping[str, str],
    said: str,
) -> None:
    with process(command, folder, tmp_path, *arguments, **variables) as (running, log):
        assert said in log.read()
        assert running.wait() == 2
