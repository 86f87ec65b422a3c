"""`kubectl hami` in a process of its own, as a user runs it, and what it imports."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from simulate.files import GPU, quota
from terminals import on_terminal

from .apiserver import ApiServer, serving

pytestmark = pytest.mark.integration

PROGRAM = "import sys; from hami_webhook.kubectl.main import main; sys.exit(main())"

IMPATIENT = "import hami_webhook.kubectl.verbs as verbs; verbs._EVERY = verbs._SHARE = 0"

INTERRUPTIBLE = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
"""A shell's background jobs ignore Ctrl-C, and so do their children."""


def test_watching_shows_a_change_once_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    paths: queue.Queue[str] = queue.Queue()
    api = ApiServer([quota(gpu="4", used={GPU: "1"})], on_request=paths.put)
    with serving(api, tmp_path) as kubeconfig:
        process = subprocess.Popen(
            [sys.executable, "-c", f"{INTERRUPTIBLE}; {IMPATIENT}; {PROGRAM}", "quota", "--watch"],
            env={**os.environ, "KUBECONFIG": str(kubeconfig)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        deadline = threading.Timer(120, process.kill)
        deadline.start()
        try:
            assert process.stdout is not None
            heading, first = (process.stdout.readline().split() for _ in range(2))
            assert (heading[3], first[3]) == ("USED", "1")
            while not paths.empty():
                paths.get()
            # another round shows the same, and isn't printed
            for _ in range(2):
                while paths.get(timeout=60) != "/api/v1/resourcequotas":
                    pass
            api.objects[:] = [quota(gpu="4", used={GPU: "3"})]
            heading, second = (process.stdout.readline().split() for _ in range(2))
            assert (heading[3], second[3]) == ("USED", "3")
            process.send_signal(signal.SIGINT)
            assert process.wait() == 130
        finally:
            deadline.cancel()
            process.kill()
            process.communicate()


@pytest.mark.parametrize(("variables", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_a_terminal_gets_colours_unless_it_wants_none(
    tmp_path: Path, variables: dict[str, str], coloured: bool
) -> None:
    api = ApiServer([quota(gpu="4", used={GPU: "1"})])
    with serving(api, tmp_path) as kubeconfig:
        variables = {"NO_COLOR": "", "KUBECONFIG": str(kubeconfig), **variables}
        shown = on_terminal([sys.executable, "-c", PROGRAM, "quota"], "stdout", variables)
    assert "gpu-quota" in shown
    assert ("\x1b[32m" in shown) == coloured


# What a command imports is most of the time that it takes


EXPLAIN_POD = "from hami_webhook.kubectl.main import parser; from hami_webhook.kubectl import verbs"
NOT_NEEDED = (
    *("kubernetes.client", "kubernetes.aio.dynamic", "urllib3", "starlette", "uvicorn", "jinja2"),
    *("hami_webhook.server", "hami_webhook.controller", "hami_webhook.cluster.informer", "hami_webhook.doctor.checks"),
    *("prometheus_client.exposition", "importlib.metadata", "cel_expr_python", "hami_webhook.policy.file"),
    *("hami_webhook.kubectl.overview", "hami_webhook.kubectl.tables", "hami_webhook.usage.samples"),
)


def test_explaining_a_pod_imports_nothing_of_other_verbs_and_changes_no_variable() -> None:
    found = f"import os, sys; before = dict(os.environ); {EXPLAIN_POD}; assert dict(os.environ) == before"
    found += f"; print(*(name for name in {NOT_NEEDED} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", found], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
