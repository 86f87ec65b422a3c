"""What a review costs in calls of our own functions, beside what the shared stack does for any request."""

from __future__ import annotations

import pytest

from hack.bench.calls import CASES, recorded, reviewed, risen, warm_calls

OF_THE_FIRST = 50
"""More calls for the first pod of a workload: what its amounts and those of its quota mean is worked out once."""


@pytest.mark.parametrize("name", CASES)
def test_a_review_takes_hardly_more_calls_than_are_recorded(name: str) -> None:
    assert risen(name, warm_calls(CASES[name]), recorded()[name]) == ""


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


def test_what_rose_is_named() -> None:
    before = {"kube.objects:Pod.named": 1, "kube.patch:MapDraft.get": 20, "quota.store:known": 3}
    assert risen("plain GPU", before | {"kube.patch:MapDraft.get": 21}, before) == ""
    rise = risen("plain GPU", {"kube.objects:Pod.named": 2, "kube.patch:MapDraft.get": 20, "a:new": 4}, before)
    assert rise.startswith(
        "a review (plain GPU) takes 26 calls, 24 are recorded: a:new 0 → 4, kube.objects:Pod.named 1 → 2. "
    )
