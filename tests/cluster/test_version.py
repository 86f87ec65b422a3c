"""Which API servers are too old."""

from __future__ import annotations

import pytest

from hami_webhook.cluster.version import too_old


@pytest.mark.parametrize(
    "version", ["v1.30.0", "v1.30.0-alpha.1", "v1.36.3", "1.31.4+k3s1", "v2.0.0", "v1.100.0", "", "x"]
)
def test_versions_that_nothing_is_said_about(version: str) -> None:
    assert too_old(version) == ""


@pytest.mark.parametrize("version", ["v1.29.14", "1.28.9-gke.100", "v1.9.0", "v0.99.0"])
def test_versions_that_are_too_old(version: str) -> None:
    assert too_old(version).startswith(f"the API server is Kubernetes {version}, and v1.30 or newer is needed: ")
