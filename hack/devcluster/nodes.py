"""`hack/dev-cluster add-node` and `remove-node`: a process for the nodes that were added together."""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import subprocess
import sys
import time
from pathlib import Path

from .boards import Board, NoSuchBoard, find
from .card_nodes import PLUGIN, READY, user
from .client import JSON, ApiError, Client
from .device_plugin import ACCOUNT, GROUPS, rights
from .identities import Authority
from .plane import assets
from .sandbox import missing

STATE = "running.json"
"""The file that says what runs."""
MOST_NODES = 100
_PROGRAM = "card_nodes"
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_READY_SECONDS = 60.0


class Refused(Exception):
    """What was wanted can't be had; the text says what would be right."""


def add(folder: Path, options: argparse.Namespace) -> int:
    """Add the nodes, wait until their cards are registered, and print their names."""
    try:
        board = find(options.vendor, options.model, options.cards)
    except NoSuchBoard as error:
        raise Refused(str(error)) from None
    if not 1 <= options.nodes <= MOST_NODES:
        raise Refused(f"--nodes must be 1 to {MOST_NODES}, not {options.nodes}")
    if options.name is not None and not _NAME.fullmatch(options.name):
        raise Refused(f"--name must be letters a to z, digits and '-', as in gpu-1, and not {options.name!r}")
    server = _server(folder)
    return asyncio.run(_add(folder, server, board, options.name, options.nodes))


async def _add(folder: Path, server: str, board: Board, name: str | None, count: int) -> int:
    async with Client(server, folder, "admin") as admin:
        there = {item["metadata"]["name"] for item in (await admin.get("/api/v1/nodes"))["items"]}
        if name is None:
            numbered = (f"{board.vendor}-{number}" for number in range(1, len(there) + count + 1))
            names = [each for each in numbered if each not in there][:count]
        else:
            names = [name] if count == 1 else [f"{name}-{number}" for number in range(1, count + 1)]
        taken = sorted(there & set(names))
        if taken:
            are = "is" if len(taken) == 1 else "are"
            raise Refused(f"{', '.join(taken)} {are} there already: remove-node takes nodes away, --name names others")
        for path, right in rights():
            try:
                await admin.post(path, right)
            except ApiError as error:
                if error.code != 409:  # an earlier call's, or that of HAMi's chart
                    raise
        process, log = _start(folder, server, board, names)
        if not await _wait(admin, process, names):
            process.kill()
            end = "\n".join(log.read_text(errors="replace").splitlines()[-5:])
            raise Refused(f"the nodes didn't get ready; the end of {log}:\n{end}")
    lacking = missing()
    if lacking:
        print(f"dev-cluster: pods of our own images won't run: {lacking}", file=sys.stderr)
    for each in names:
        print(f"{each}: {board.cards} × {board.model.type}")
    return 0


def command(folder: Path, server: str, programs: Path, board: Board, names: list[str]) -> list[str]:
    """The command of a process that keeps nodes of these names, and the certificates that it needs in the folder."""
    authority = Authority(folder)
    authority.client(PLUGIN, ACCOUNT, *GROUPS)
    for name in names:
        authority.client(user(name), f"system:node:{name}", "system:nodes")
    options = {"server": server, "credentials": folder, "folder": folder / "pods", "programs": programs}
    options |= {"versions": folder / "versions", "nodes": ",".join(names)}
    options |= {"vendor": board.vendor, "model": board.name, "cards": board.cards}
    module = [sys.executable, "-m", f"{__package__}.{_PROGRAM}"]
    # in a mount namespace of its own, so that no volume outlives it
    apart = [] if missing() else ["unshare", "--mount", "--propagation", "private"]
    return [*apart, *module, *(f"--{key}={value}" for key, value in options.items())]


def _start(folder: Path, server: str, board: Board, names: list[str]) -> tuple[subprocess.Popen[bytes], Path]:
    """Start the process of nodes, which outlives this one."""
    programs = assets(build=False)
    if programs is None:
        raise Refused("the control plane's programs are gone; `make controlplane` builds them")
    log = folder / f"{_PROGRAM}-{names[0]}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command(folder, server, programs, board, names),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=Path(__file__).parents[2],
            start_new_session=True,
        )
    state = json.loads((folder / STATE).read_text())
    state["pids"][f"{_PROGRAM}:{names[0]}"] = process.pid
    (folder / STATE).write_text(json.dumps(state, indent=1))
    return process, log


async def _wait(admin: Client, process: subprocess.Popen[bytes], names: list[str]) -> bool:
    """Whether all nodes are complete, in time."""
    end = time.monotonic() + _READY_SECONDS
    while process.poll() is None and time.monotonic() < end:
        items = (await admin.get("/api/v1/nodes", labelSelector=READY))["items"]
        if {item["metadata"]["name"] for item in items} >= set(names):
            return True
        await asyncio.sleep(0.1)
    return False


def remove(folder: Path, names: list[str]) -> int:
    """Take nodes away, with their pods. Their process ends with the last of its nodes."""
    asyncio.run(_remove(folder, _server(folder), list(dict.fromkeys(names))))
    return 0


async def _remove(folder: Path, server: str, names: list[str]) -> None:
    async with Client(server, folder, "admin") as admin:
        added = {item["metadata"]["name"] for item in (await admin.get("/api/v1/nodes", labelSelector=READY))["items"]}
        unknown = [name for name in names if name not in added]
        if unknown:
            known = f"there are: {', '.join(sorted(added))}" if added else "there are none"
            raise Refused(f"add-node made no {', '.join(unknown)}; {known}")
        for name in names:
            pods = (await admin.get("/api/v1/pods", fieldSelector=f"spec.nodeName={name}"))["items"]
            for pod in pods:
                await _delete(
                    admin, f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
                )
            await _delete(admin, f"/api/v1/nodes/{name}")
            print(f"{name}: removed, with {len(pods)} pod{'' if len(pods) == 1 else 's'}")


async def _delete(admin: Client, path: str) -> None:
    gone: JSON = {"gracePeriodSeconds": 0}
    try:
        await admin.delete(path, gone)
    except ApiError as error:
        if error.code != 404:
            raise


def _server(folder: Path) -> str:
    """The API server of the cluster that is up."""
    running = pids(folder)
    if not running or not is_running("kube-apiserver", running.get("kube-apiserver", 0)):
        raise Refused("no cluster is running: hack/dev-cluster up starts it")
    server: str = json.loads((folder / STATE).read_text())["server"]
    return server


def pids(folder: Path) -> dict[str, int]:
    """The processes of the cluster in a folder, by their program; of added nodes with the first one's name."""
    state = folder / STATE
    return dict(json.loads(state.read_text())["pids"]) if state.exists() else {}


def is_added(program: str) -> bool:
    """Whether it is the process of added nodes, which ends when they are deleted."""
    return program.startswith(f"{_PROGRAM}:")


def is_running(program: str, pid: int) -> bool:
    """Whether the process is there and still that program: the number may be another's by now."""
    name = program.partition(":")[0]
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    except OSError:
        return False
    return Path(command[0]).name == name or f"{__package__}.{name}" in command
