"""Each file of the corpus, and what hypothesis makes of it, against what must hold for any input (`targets.py`).

A fault that is found gets its input as a file of `corpus/`, named after what is special in it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hack.bench.counting import counted_calls

from .targets import JSON_TARGETS, TARGETS, dumped

CORPUS = Path(__file__).parent / "corpus"
LARGEST = 64 * 1024
"""Bytes of a file: an input is cut down to what it shows."""
CALLS, CALLS_PER_BYTE = 60_000, 40
"""Calls of our own functions that an input may cost, and besides for each of its bytes: several times what is usual."""

FILES = sorted(CORPUS.glob("*/*"))
INPUTS = {target: [file.read_bytes() for file in FILES if file.parent.name == target] for target in TARGETS}
MUTATIONS = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def test_every_folder_is_a_target_and_every_target_has_inputs() -> None:
    assert {file.name for file in CORPUS.iterdir()} == set(TARGETS)
    assert [target for target, inputs in INPUTS.items() if not inputs] == []
    assert [file.name for file in FILES if file.stat().st_size > LARGEST] == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_corpus(file: Path) -> None:
    content = file.read_bytes()
    with counted_calls() as calls:
        TARGETS[file.parent.name](content)
    assert sum(calls.values()) <= CALLS + CALLS_PER_BYTE * len(content)


AMOUNTS = st.sampled_from(
    ["0", "-1", "1", "9" * 19, "9" * 400, "1e400", "1e18", "0.5", "16Gi", "NaN", "\u0663", " 1", "2k", "8Ei"]
)
NUMBERS = st.sampled_from([0, -1, 1, 2**31, 2**53, 2**63, 2**64, -(2**63), 10**400, 1e300, float("nan"), float("-inf")])
LEAVES = st.none() | st.booleans() | st.integers() | NUMBERS | AMOUNTS | st.text(max_size=8)
TREES = st.recursive(
    LEAVES, lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=8), below, max_size=3)
)
TEXTS_OF_TREES = TREES.map(lambda tree: dumped(tree).decode())
DEPTHS = st.sampled_from([30, 250, 990, 1015, 5000])


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of each value in a JSON document, the document's own first."""
    yield path
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, below in members:
        yield from _places(below, (*path, step))


def _replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    step, *rest = path
    if isinstance(value, dict):
        return {key: _replaced(below, tuple(rest), new) if key == step else below for key, below in value.items()}
    return [_replaced(below, tuple(rest), new) if place == step else below for place, below in enumerate(value)]


def _documents(target: str) -> list[Any]:
    """The inputs that are JSON documents; without those nested deeply, which hypothesis can't print."""
    found = []
    for content in INPUTS[target]:
        with contextlib.suppress(orjson.JSONDecodeError):
            if b"[" * 100 not in content:
                found.append(orjson.loads(content))
    return found


@st.composite
def mutated_documents(draw: st.DrawFn, documents: list[Any]) -> bytes:
    """A document of the corpus with up to three of its values replaced, also by those of other documents."""
    document = draw(st.sampled_from(documents))
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(list(_places(document))))
        other = draw(st.sampled_from(documents))
        elsewhere = draw(st.sampled_from(list(_places(other))))
        for step in elsewhere:
            other = other[step]
        new = draw(draw(st.sampled_from((TREES, TEXTS_OF_TREES, st.just(other)))))
        document = _replaced(document, path, new)
    written = dumped(document)
    if draw(st.integers(0, 9)) == 0:  # a value nested deeply, which no strategy above makes
        depth = draw(DEPTHS)
        written = written.replace(b"null", b"[" * depth + b"]" * depth, 1)
    return written


@st.composite
def mutated_bytes(draw: st.DrawFn, inputs: list[bytes]) -> bytes:
    """An input of the corpus, cut, doubled, spliced or overwritten."""
    content = draw(st.sampled_from(inputs))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(content)))
        end = draw(st.integers(start, min(len(content), start + 40)))
        other = draw(st.sampled_from(inputs))
        part = draw(
            st.binary(max_size=6)
            | AMOUNTS.map(str.encode)
            | st.just(content[start:end] * 3)
            | st.just(other[start:end])
            | st.sampled_from([b",", b":", b";", b"\n", b"{", b"[", b'"', b"- ", b"&a ", b"*a", b"<<: *a", b"\xff"])
        )
        content = content[:start] + part + content[end:]
    return content


@pytest.mark.parametrize("target", sorted(JSON_TARGETS))
@MUTATIONS
@given(data=st.data())
def test_documents_with_other_values(target: str, data: st.DataObject) -> None:
    TARGETS[target](data.draw(mutated_documents(_documents(target)) | TREES.map(dumped)))


@pytest.mark.parametrize("target", sorted(TARGETS))
@MUTATIONS
@given(data=st.data())
def test_inputs_with_other_bytes(target: str, data: st.DataObject) -> None:
    TARGETS[target](data.draw(mutated_bytes(INPUTS[target]) | st.binary(max_size=64)))
