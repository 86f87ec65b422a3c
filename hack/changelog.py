"""CHANGELOG.md by its headings."""

from __future__ import annotations

import re


def section(changelog: str, heading: str) -> str | None:
    """What the changelog has under `## heading`; None if it has no such heading."""
    found = re.search(rf"^## {re.escape(heading)}\b[^\n]*\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
    return found[1] if found else None
