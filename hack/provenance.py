"""Says what the files of a release were made of: a statement of in-toto with a predicate of SLSA, as JSON.

https://in-toto.io/Statement/v1, https://slsa.dev/provenance/v1. It isn't signed: who publishes a release signs it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:hami-webhook:make-release:v1"
"""`make release`, as docs/development.md describes it."""
LOCAL = "urn:hami-webhook:builder:local"
"""Whoever called it, on a machine of theirs."""


@dataclass(frozen=True)
class Origin:
    """A build: the commit, the repository's URL (empty: unknown), the builder's URI, and what it was called with."""

    commit: str
    source: str
    builder: str
    parameters: Mapping[str, str]


def statement(files: Sequence[Path], materials: Sequence[Path], root: Path, origin: Origin) -> str:
    """The statement about `files`, made of the commit and, beyond it, of what the `materials` of `root` list."""
    source: dict[str, Any] = {"name": "hami-webhook", "digest": {"gitCommit": origin.commit}}
    if origin.source:
        source["uri"] = f"git+{origin.source}"
    dependencies = [source, *({**_described(path), "name": str(path.relative_to(root))} for path in materials)]
    found = {
        "_type": STATEMENT,
        "subject": [_described(path) for path in files],
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": dict(origin.parameters),
                "resolvedDependencies": dependencies,
            },
            "runDetails": {"builder": {"id": origin.builder}},
        },
    }
    return json.dumps(found, indent=2) + "\n"


def _described(path: Path) -> dict[str, Any]:
    return {"name": path.name, "digest": {"sha256": hashlib.sha256(path.read_bytes()).hexdigest()}}
