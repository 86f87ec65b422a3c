"""What a command imports is most of the time that it takes: what only others need isn't imported."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.integration

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
