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

from . import nodes
from .boards import MODELS
from .nodes import STATE, is_running, pids
from .plane import BUILD, ControlPlane, ControlPlaneError, assets
from .sandbox import missing

FOLDER = Path(__file__).parents[2] / ".dev-cluster"


def main() -> int:
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="hack/dev-cluster",
        description="A real Kubernetes control plane on loopback, with a node that runs our images as local processes, "
        "and nodes with cards that stand in for those of a real cluster.",
    )
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    for name, text, run in (
        ("up", "start it, unless it runs already, and print its kubeconfig's path", up),
        ("down", "stop it with all its nodes, and delete all that it stored", down),
        ("status", "say whether it runs (exit status 0) or not (1)", status),
    ):
        verbs.add_parser(name, help=text, description=text, allow_abbrev=False).set_defaults(
            run=lambda _, run=run: run()
        )
    text = "add nodes with cards, whose kubelets and device plugins are simulated: pods on them come to Running and end"
    add = verbs.add_parser("add-node", help=text, description=f"{text}.", epilog=_models(), allow_abbrev=False)
    add.formatter_class = argparse.RawDescriptionHelpFormatter
    add.add_argument("--name", help="its name; of several nodes what comes before their numbers (default: the vendor)")
    add.add_argument("--nodes", type=int, default=1, metavar="N", help="how many nodes (default: 1)")
    add.add_argument("--vendor", choices=sorted(MODELS), default="nvidia", help="whose cards (default: nvidia)")
    add.add_argument("--model", help="which (default: the first of the vendor, below)")
    add.add_argument(
        "--cards", type=int, metavar="N", help="how many in each node (default: as the machine has, often 8)"
    )
    add.set_defaults(run=lambda options: nodes.add(FOLDER, options))
    text = "take away nodes that add-node made, with their pods"
    remove = verbs.add_parser("remove-node", help=text, description=f"{text}.", allow_abbrev=False)
    remove.add_argument("names", nargs="+", metavar="NAME")
    remove.set_defaults(run=lambda options: nodes.remove(FOLDER, options.names))
    options = parser.parse_args()
    try:
        code: int = options.run(options)
    except nodes.Refused as error:
        print(f"dev-cluster: {error}", file=sys.stderr)
        return 1
    return code


def _models() -> str:
    return "models:\n" + "\n".join(f"  {vendor:<10} {', '.join(models)}" for vendor, models in sorted(MODELS.items()))


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
    (FOLDER / STATE).write_text(json.dumps(state, indent=1))
    print(f"dev-cluster: {plane.server} is up; logs and data in {FOLDER}", file=sys.stderr)
    print(plane.kubeconfig)
    return 0


def down() -> int:
    found = pids(FOLDER)
    for each in (signal.SIGTERM, signal.SIGKILL):
        for program, pid in reversed(found.items()):
            if is_running(program, pid):
                os.kill(pid, each)
        deadline = time.monotonic() + 5
        while any(is_running(*item) for item in found.items()) and time.monotonic() < deadline:
            time.sleep(0.05)
    shutil.rmtree(FOLDER, ignore_errors=True)
    print("dev-cluster: down" if found else "dev-cluster: wasn't up", file=sys.stderr)
    return 0


def status() -> int:
    if not _alive():
        print("dev-cluster: not running" if not pids(FOLDER) else "dev-cluster: partly running; `down` cleans up")
        return 1
    state = _state()
    print(f"dev-cluster: running at {state['server']}\nexport KUBECONFIG={state['kubeconfig']}")
    return 0


def _state() -> dict[str, str]:
    found: dict[str, str] = json.loads((FOLDER / STATE).read_text())
    return found


def _alive() -> bool:
    found = {program: pid for program, pid in pids(FOLDER).items() if not nodes.is_added(program)}
    return bool(found) and all(is_running(program, pid) for program, pid in found.items())


if __name__ == "__main__":
    sys.exit(main())
