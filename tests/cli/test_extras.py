"""What runs without the extras of pyproject.toml, and what a command says that lacks one."""

from __future__ import annotations

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
HIDING = f"import sys; sys.modules.update(dict.fromkeys({list(EXTRAS)}))"
"""Modules that are None here raise what missing ones do."""
HAMI_WEBHOOK = f"{HIDING}; from hami_webhook.cli import main; sys.exit(main())"
KUBECTL_HAMI = f"{HIDING}; from hami_webhook.kubectl.main import main; sys.exit(main())"
COMPLETION = f"{HIDING}; from hami_webhook.kubectl.completion import main; sys.exit(main())"


def run(program: str, *arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


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


@pytest.mark.parametrize(
    ("program", "arguments", "printed"),
    [
        (HAMI_WEBHOOK, ["--help"], "usage: hami-webhook"),
        (HAMI_WEBHOOK, ["version"], "hami-webhook "),
        (HAMI_WEBHOOK, ["config", "check", ROOT / "manifests" / "device-config" / "device-config.yaml"], "nvidia: "),
        (HAMI_WEBHOOK, ["quota", "check", EXAMPLES / "quotas" / "nvidia.yaml", "-o", "json"], "gpu-quota"),
        (HAMI_WEBHOOK, ["simulate", "-o", "json", EXAMPLES / "cluster.yaml"], '"pods"'),
        (KUBECTL_HAMI, ["--help"], "usage: kubectl hami"),
        (COMPLETION, ["do"], "doctor\t"),
    ],
)
def test_a_command_that_prints_no_table_needs_no_extra(program: str, arguments: list[str | Path], printed: str) -> None:
    done = run(program, *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert printed in done.stdout


@pytest.mark.parametrize(
    ("program", "arguments", "name", "module"),
    [
        (HAMI_WEBHOOK, ["simulate", EXAMPLES / "cluster.yaml"], "hami-webhook", "rich"),
        (HAMI_WEBHOOK, ["explain", "p", "--cluster", EXAMPLES / "cluster.yaml"], "hami-webhook", "rich"),
        (HAMI_WEBHOOK, ["test", EXAMPLES], "hami-webhook", "rich"),
        (HAMI_WEBHOOK, ["report", "--prometheus", "http://127.0.0.1:9"], "hami-webhook", "rich"),
        (HAMI_WEBHOOK, ["serve", "--roles", "node"], "hami-webhook", "pynvml"),
        (KUBECTL_HAMI, ["quota"], "kubectl hami", "rich"),
        (KUBECTL_HAMI, ["doctor"], "kubectl hami", "rich"),
        (KUBECTL_HAMI, ["ui"], "kubectl hami", "jinja2"),
    ],
)
def test_a_command_names_the_extra_that_it_lacks(
    program: str, arguments: list[str | Path], name: str, module: str
) -> None:
    done = run(program, *arguments, NODE_NAME="n1")
    extra = EXTRAS[module]
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1] == (
        f"{name}: {module} is missing; the extra {extra} has it: pip install 'hami-webhook[{extra}]'"
    )
    assert "Traceback" not in done.stderr


def test_another_module_that_is_missing_is_a_fault_of_ours() -> None:
    done = run(HAMI_WEBHOOK.replace(HIDING, "import sys; sys.modules['hami_webhook.console'] = None"), "simulate", "x")
    assert done.returncode == 1
    assert "ModuleNotFoundError" in done.stderr
