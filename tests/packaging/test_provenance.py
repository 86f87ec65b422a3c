"""The provenance of a release, against the fields that in-toto's Statement v1 and SLSA's provenance v1 require."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from hack import release
from hack.provenance import LOCAL, Origin, statement

URI = {"type": "string", "pattern": r"^[a-z][a-z0-9+.-]*:\S+$"}
DIGEST = {"type": "object", "minProperties": 1, "additionalProperties": {"type": "string", "pattern": "^[0-9a-f]+$"}}
DESCRIPTOR = {
    "type": "object",
    "anyOf": [{"required": ["uri"]}, {"required": ["digest"]}, {"required": ["content"]}],
    "properties": {"name": {"type": "string"}, "uri": URI, "digest": DIGEST},
    "additionalProperties": False,
}
STATEMENT = {
    "type": "object",
    "required": ["_type", "subject", "predicateType", "predicate"],
    "additionalProperties": False,
    "properties": {
        "_type": {"const": "https://in-toto.io/Statement/v1"},
        "subject": {
            "type": "array",
            "minItems": 1,
            "items": {**DESCRIPTOR, "required": ["name", "digest"]},
        },
        "predicateType": {"const": "https://slsa.dev/provenance/v1"},
        "predicate": {
            "type": "object",
            "required": ["buildDefinition", "runDetails"],
            "properties": {
                "buildDefinition": {
                    "type": "object",
                    "required": ["buildType", "externalParameters"],
                    "properties": {
                        "buildType": URI,
                        "externalParameters": {"type": "object"},
                        "internalParameters": {"type": "object"},
                        "resolvedDependencies": {"type": "array", "items": DESCRIPTOR},
                    },
                    "additionalProperties": False,
                },
                "runDetails": {
                    "type": "object",
                    "required": ["builder"],
                    "properties": {"builder": {"type": "object", "required": ["id"], "properties": {"id": URI}}},
                    "additionalProperties": False,
                },
            },
            "additionalProperties": False,
        },
    },
}


def made(folder: Path, source: str) -> Any:
    (folder / "lock.txt").write_text("a==1\n")
    (folder / "file").write_bytes(b"file")
    origin = Origin("0123abcd", source, LOCAL, {"image": "hami-webhook"})
    return json.loads(statement([folder / "file"], [folder / "lock.txt"], folder, origin))


@pytest.mark.parametrize("source", ["", "https://example.org/hami-webhook"])
def test_a_statement_has_what_it_must(tmp_path: Path, source: str) -> None:
    found = made(tmp_path, source)
    assert [error.message for error in Draft202012Validator(STATEMENT).iter_errors(found)] == []
    assert found["subject"] == [{"name": "file", "digest": {"sha256": hashlib.sha256(b"file").hexdigest()}}]
    repository, lock = found["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert repository["digest"] == {"gitCommit": "0123abcd"}
    assert repository.get("uri") == (f"git+{source}" if source else None)
    assert lock == {"name": "lock.txt", "digest": {"sha256": hashlib.sha256(b"a==1\n").hexdigest()}}


def test_a_builder_that_is_no_uri_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUILDER", "my machine")
    with pytest.raises(release.ReleaseError, match="BUILDER must be a URI, such as https://"):
        release.attest(tmp_path, "hami-webhook", "DOWNLOADS")


@pytest.mark.parametrize(
    ("origin", "url"),
    [
        ("https://user:pw@example.org/hami/webhook.git\n", "https://example.org/hami/webhook.git"),
        ("https://example.org/hami-webhook\n", "https://example.org/hami-webhook"),
        ("/srv/git/hami-webhook\n", ""),
        ("git@example.org:hami/webhook.git\n", ""),
    ],
)
def test_the_repository_is_named_without_credentials(monkeypatch: pytest.MonkeyPatch, origin: str, url: str) -> None:
    monkeypatch.setattr(release, "run", lambda *_: origin)
    assert release.repository() == url
