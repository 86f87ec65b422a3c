"""Which Kubernetes is needed."""

from __future__ import annotations

import re

OLDEST = (1, 30)
"""The first minor version in which conditions of webhooks, with CEL's optional fields, are always there."""


def too_old(version: str) -> str:
    """What is wrong with an API server of this version, such as `v1.29.4`; empty if nothing, or if it can't be read."""
    found = minor_version(version)
    if found is None or found >= OLDEST:
        return ""
    return (
        f"the API server is Kubernetes {version}, and v{OLDEST[0]}.{OLDEST[1]} or newer is needed: older versions may "
        "lack matchConditions of webhooks. Every pod of the cluster then waits for this program"
    )


def minor_version(version: str) -> tuple[int, int] | None:
    """The first two numbers of a version such as `v1.36.3`; None if it can't be read."""
    found = re.match(r"v?(\d+)\.(\d+)", version)
    return None if found is None else (int(found[1]), int(found[2]))
