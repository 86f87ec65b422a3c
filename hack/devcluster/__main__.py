"""`hack/dev-cluster up|down|status`: one control plane with a kubelet, up until it is ended."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

from .plane import BUILD, ControlPlane, ControlPlaneError, assets
from .sandbox import missing

FOLDER = Path(__file__).parents[2] / ".dev-cluster"
STATE = FOLDER / "running.json"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="hack/dev-cluster",
        description="A real Kubernetes control plane on loopback, with a node that runs our images as local processes.",
    )
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    for name, text, run in (
        ("up", "start it, unless it runs already, and print its kubeconfig's path", up),
        ("down", "stop it and delete all that it stored", down),
        ("status", "say whether it runs (exit status 0) or not (1)", status),
    ):
        verbs.add_parser(name, help=text, description=text).set_defaults(run=run)
    code: int = parser.parse_args().run()
    return code


def up() -> int:
    if _alive():
        print(_state()["kubeconfig"])
        return 0
    shutil.rmtree(FOLDER, ignore_errors=True)
    programs = assets(build=True)
    if programs is None:
        print(f"dev-cluster: {BUILD.name} couldn't provide the control plane's programs", file=sys.stderr)
        return 1
    plane = ControlPlane(programs, FOLDER, bound=False)
    lacking = missing()
    if lacking:
        print(f"dev-cluster: without a node, so no pod will run: {lacking}", file=sys.stderr)
    else:
        plane.managers = (*plane.managers, "kubelet")
    try:
        plane.start()
    except ControlPlaneError as error:
        print(f"dev-cluster: {error}", file=sys.stderr)
        return 1
    state = {
        "server": plane.server,
        "kubeconfig": str(plane.kubeconfig),
        "pids": {name: process.pid for name, process in plane.running.items()},
    }
    STATE.write_text(json.dumps(state, indent=1))
    print(f"dev-cluster: {plane.server} is up; logs and data in {FOLDER}", file=sys.stderr)
    print(plane.kubeconfig)
    return 0


def down() -> int:
    pids = _pids()
    for each in (signal.SIGTERM, signal.SIGKILL):
        for program, pid in reversed(pids.items()):
            if _is_running(program, pid):
                os.kill(pid, each)
        deadline = time.monotonic() + 5
        while any(_is_running(*item) for item in pids.items()) and time.monotonic() < deadline:
            time.sleep(0.05)
    shutil.rmtree(FOLDER, ignore_errors=True)
    print("dev-cluster: down" if pids else "dev-cluster: wasn't up", file=sys.stderr)
    return 0


def status() -> int:
    if not _alive():
        print("dev-cluster: not running" if not _pids() else "dev-cluster: partly running; `down` cleans up")
        return 1
    state = _state()
    print(f"dev-cluster: running at {state['server']}\nexport KUBECONFIG={state['kubeconfig']}")
    return 0


def _state() -> dict[str, str]:
    found: dict[str, str] = json.loads(STATE.read_text())
    return found


def _pids() -> dict[str, int]:
    return dict(json.loads(STATE.read_text())["pids"]) if STATE.exists() else {}


def _alive() -> bool:
    pids = _pids()
    return bool(pids) and all(_is_running(program, pid) for program, pid in pids.items())


def _is_running(program: str, pid: int) -> bool:
    """Whether the process is there and still that program: the number may be another's by now."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    except OSError:
        return False
    return Path(command[0]).name == program or f"{__package__}.{program}" in command


if __name__ == "__main__":
    sys.exit(main())
