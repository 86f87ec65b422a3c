"""What runs without the extras of pyproject.toml, and what a command says that lacks one."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from hami_webhook.terminal import EXTRAS

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "manifests" / "examples"
RUNS = """\
import contextlib, importlib, io, json, sys
sys.modules.update(dict.fromkeys(json.loads(sys.argv[1])))
ended = []
for module, *arguments in json.load(sys.stdin):
    output, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        try:
            status = importlib.import_module(module).main(arguments)
        except SystemExit as error:
            status = error.code
    ended.append((status or 0, output.getvalue(), errors.getvalue()))
json.dump(ended, sys.stdout)
"""
"""Calls of `main` without the modules of the extras: where a module is None, it raises what missing ones do."""
HAMI_WEBHOOK, KUBECTL_HAMI = "hami_webhook.cli", "hami_webhook.kubectl.main"
COMPLETION = "hami_webhook.kubectl.completion"
CHECKED = ROOT / "manifests" / "device-config" / "device-config.yaml"
NEED_NO_EXTRA = {
    (HAMI_WEBHOOK, "--help"): "usage: hami-webhook",
    (HAMI_WEBHOOK, "version"): "hami-webhook ",
    (HAMI_WEBHOOK, "config", "check", str(CHECKED)): "nvidia: ",
    (HAMI_WEBHOOK, "quota", "check", f"{EXAMPLES}/quotas/nvidia.yaml", "-o", "json"): "gpu-quota",
    (HAMI_WEBHOOK, "simulate", "-o", "json", f"{EXAMPLES}/cluster.yaml"): '"pods"',
    (KUBECTL_HAMI, "--help"): "usage: kubectl hami",
    (COMPLETION, "do"): "doctor\t",
}
"""Commands that print no table, and a part of what they print."""
LACK_AN_EXTRA = {
    (HAMI_WEBHOOK, "simulate", f"{EXAMPLES}/cluster.yaml"): ("hami-webhook", "rich"),
    (HAMI_WEBHOOK, "explain", "p", "--cluster", f"{EXAMPLES}/cluster.yaml"): ("hami-webhook", "rich"),
    (HAMI_WEBHOOK, "test", str(EXAMPLES)): ("hami-webhook", "rich"),
    (HAMI_WEBHOOK, "report", "--prometheus", "http://127.0.0.1:9"): ("hami-webhook", "rich"),
    (HAMI_WEBHOOK, "serve", "--roles", "node"): ("hami-webhook", "pynvml"),
    (KUBECTL_HAMI, "quota"): ("kubectl hami", "rich"),
    (KUBECTL_HAMI, "doctor"): ("kubectl hami", "rich"),
    (KUBECTL_HAMI, "ui"): ("kubectl hami", "jinja2"),
}
"""Commands, the program that they are of, and the module that they lack."""

Ended = dict[tuple[str, ...], tuple[int, str, str]]


@pytest.fixture(scope="module")
def ended() -> Ended:
    """The status, the output and the errors of each command, all of them in one process."""
    commands = [*NEED_NO_EXTRA, *LACK_AN_EXTRA]
    done = subprocess.run(
        [sys.executable, "-c", RUNS, json.dumps([*EXTRAS])],
        input=json.dumps(commands),
        env={**os.environ, "NODE_NAME": "n1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return {command: tuple(each) for command, each in zip(commands, json.loads(done.stdout), strict=True)}


def test_every_extra_is_known_by_the_module_that_it_installs() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    found = {
        extra: {re.split("[><=]", requirement)[0] for requirement in requirements}
        for extra, requirements in extras.items()
        if extra != "all"
    }
    installed = packages_distributions()
    assert found == {extra: {name.lower() for name in installed[module]} for module, extra in EXTRAS.items()}
    assert extras["all"] == [f"hami-webhook[{','.join(found)}]"]


@pytest.mark.integration
@pytest.mark.parametrize("command", NEED_NO_EXTRA)
def test_a_command_that_prints_no_table_needs_no_extra(command: tuple[str, ...], ended: Ended) -> None:
    status, output, errors = ended[command]
    assert (status, errors) == (0, "")
    assert NEED_NO_EXTRA[command] in output


@pytest.mark.parametrize("command", LACK_AN_EXTRA)
def test_a_command_names_the_extra_that_it_lacks(command: tuple[str, ...], ended: Ended) -> None:
    program, module = LACK_AN_EXTRA[command]
    status, output, errors = ended[command]
    extra = EXTRAS[module]
    assert (status, output) == (2, "")
    assert errors.splitlines()[-1] == (
        f"{program}: {module} is missing; the extra {extra} has it: pip install 'hami-webhook[{extra}]'"
    )
    assert "Traceback" not in errors


@pytest.mark.integration
def test_another_module_that_is_missing_is_a_fault_of_ours() -> None:
    program = "import sys; sys.modules['hami_webhook.console'] = None; from hami_webhook.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, "simulate", "x"], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 1
    assert "ModuleNotFoundError" in done.stderr
