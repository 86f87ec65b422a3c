"""What a review, a filter and a recompute cost in calls of our own functions."""

from __future__ import annotations

import subprocess
from base64 import b64decode
from dataclasses import replace
from pathlib import Path

import pytest

from hack.bench import calls
from hack.bench.calls import CASES, WORK, recorded, reviewed, risen, warm_calls

OF_THE_FIRST = 50
"""More calls for the first pod of a workload: what its amounts and those of its quota mean is worked out once."""


@pytest.mark.parametrize("name", WORK)
def test_it_takes_hardly_more_calls_than_are_recorded(name: str) -> None:
    assert risen(name, WORK[name](), recorded()[name]) == ""


@pytest.mark.parametrize("name", CASES)
def test_the_first_pod_of_a_workload_takes_little_more_and_has_the_same_answer(name: str) -> None:
    reviewed(CASES[name])  # for what is worked out once in a process
    first, second = reviewed(CASES[name])
    assert first.calls.total() <= second.calls.total() + OF_THE_FIRST
    if CASES[name].hard is None:
        assert first.response == second.response


def test_a_pod_without_claims_takes_hardly_more_calls_where_claims_are_charged() -> None:
    alone, beside = CASES["plain GPU, validated and charged"], CASES["plain GPU, charged, beside claims"]
    assert risen("beside claims", warm_calls(beside), warm_calls(alone)) == ""


def test_stamps_take_few_calls_and_no_read_and_pods_without_cards_none() -> None:
    """The API server of these reviews has nothing to be read."""
    plain, cpu = CASES["plain GPU, mutated"], CASES["nothing managed"]
    assert warm_calls(replace(cpu, stamping=True)) == warm_calls(cpu)
    more = warm_calls(replace(plain, stamping=True)) - warm_calls(plain)
    assert 0 < more.total() <= 20, more
    (stamped,) = reviewed(replace(plain, stamping=True), ["a"])
    assert "hami.io~1submitted-by" in str(b64decode(stamped.response["patch"]))


def test_what_rose_is_named_with_the_commits_that_changed_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def commit(file: Path, title: str) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(title)
        by = ("-c", "user.name=a", "-c", "user.email=a@example.com")
        for arguments in (("init", "-q"), ("add", "."), (*by, "commit", "-q", "-m", title)):
            subprocess.run(["git", "-C", tmp_path, *arguments], check=True)

    monkeypatch.setattr(calls, "ROOT", tmp_path)
    monkeypatch.setattr(calls, "RECORD", tmp_path / "calls.json")
    before = {"kube.objects:Pod.named": 1, "kube.patch:MapDraft.get": 20, "quota.store:known": 3}
    assert risen("plain GPU", before | {"kube.patch:MapDraft.get": 21}, before) == ""
    more = {"kube.objects:Pod.named": 2, "kube.patch:MapDraft.get": 20, "a:new": 4}
    rise = "plain GPU: 26 calls, 24 are recorded: a:new 0 → 4, kube.objects:Pod.named 1 → 2. "
    assert risen("plain GPU", more, before).startswith(f"{rise}If it has to: ")
    commit(tmp_path / "hami_webhook/kube/objects.py", "kube: before the record")
    commit(tmp_path / "calls.json", "bench: the record")
    commit(tmp_path / "hami_webhook/kube/patch.py", "kube: another module")
    commit(tmp_path / "hami_webhook/a/__init__.py", "a: something new")
    found = risen("plain GPU", more, before)
    assert found.startswith(f"{rise}Changed since by: ")
    assert [line[8:] for line in found.removeprefix(f"{rise}Changed since by: ").split(". If")[0].split("; ")] == [
        "a: something new"
    ]
