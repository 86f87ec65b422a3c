"""What a placement, or a claim's allocation, does to one quota (docs/spec/quota.md#8, docs/spec/dra.md#7)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from hami_webhook.quota.account import QuotaAccount, Swap
from hami_webhook.quota.enforcement import Enforcement
from hami_webhook.quota.ledger import Entry
from hami_webhook.quota.placing import PlacementRequest, Placing
from hami_webhook.quota.refusals import Refusal

from .objects import MEM, NOON, full, read_pod
from .test_account import entry, read

POD = read_pod("p", uid="u", gpu=1, mem=5)
FOUND = ("u", entry(5))


def request(
    mem: int, *, before: int = 5, found: tuple[str, Entry] | None = FOUND, attempt: str = "mine", **more: Any
) -> PlacementRequest:
    """A placement of `mem` by a pod that is charged `before`."""
    placing = Placing(found, full(mem=before), full(mem=mem), full(mem=mem), **more)
    return PlacementRequest(POD, lambda account: placing, attempt=attempt)


def unknown(account: QuotaAccount) -> QuotaAccount:
    return replace(account, used={})


@pytest.mark.parametrize(
    ("account", "asked", "outcome"),
    [
        (read({"mem": 5}, mem=10), request(10), (10, "mine", False)),
        (read({"mem": 5}, mem=10), request(11), "exceeded quota: q"),
        (read({"mem": 5}, mem=10), request(5), (5, "", False)),
        (read({"mem": 5}, mem=10), request(3), (5, "", False)),  # no placement lowers a charge
        (read({"mem": 5}, mem=10), request(5, recorded=True), (5, "mine", False)),
        # of a claim room is looked for by all that it holds, of a placement by what it costs more
        (read({"mem": 12}, mem=10), request(5), (12, "", False)),
        (read({"mem": 12}, mem=10), request(5, limited={MEM}), "exceeded quota: q"),
        (unknown(read(mem=10)), request(6), f"status unknown for quota: q, resources: {MEM}"),
        (unknown(read(mem=10)), request(5, limited={MEM}), f"status unknown for quota: q, resources: {MEM}"),
    ],
)
@pytest.mark.parametrize("enforcement", [Enforcement.ENFORCE, Enforcement.QUEUE])
def test_what_it_costs_more_is_charged_where_there_is_room(
    account: QuotaAccount, asked: PlacementRequest, outcome: tuple[int, str, bool] | str, enforcement: Enforcement
) -> None:
    after = asked.charged(replace(account, enforcement=enforcement), NOON, is_latest=True)
    if isinstance(outcome, str):
        assert isinstance(after, Refusal)
        assert outcome in after.message
        return
    assert isinstance(after, QuotaAccount)
    written = after.ledger.get("u", entry(0))
    assert (after.used[MEM], written.attempt, written.observed) == outcome


@pytest.mark.parametrize("limited", [None, {MEM}])
@pytest.mark.parametrize("account", [read({"mem": 5}, mem=7), unknown(read(mem=7))], ids=["full", "unknown"])
def test_a_quota_that_only_observes_lets_both_pass_and_says_so(account: QuotaAccount, limited: set[str] | None) -> None:
    observing = replace(account, enforcement=Enforcement.OBSERVE)
    after = request(9, limited=limited).charged(observing, NOON, is_latest=True)
    assert isinstance(after, QuotaAccount)
    assert after.ledger["u"].observed
    assert after.observed == 1


def test_what_needs_no_write_has_to_be_known() -> None:
    found = request(5).charged(read({"mem": 5}, mem=10), NOON, is_latest=False)
    assert isinstance(found, Refusal)
    assert found.code == 503
    covered = PlacementRequest(POD, request(5).placing, lambda account, placing: True)
    assert covered.charged(read({"mem": 5}, mem=10), NOON, is_latest=False) == read({"mem": 5}, mem=10)


amounts = st.integers(0, 20)


@given(amounts, amounts, amounts, st.booleans())
def test_what_is_taken_back_leaves_the_account_as_it_was(used: int, before: int, mem: int, has_entry: bool) -> None:
    found = ("u", entry(before)) if has_entry else None
    account = read({"mem": used + before}, {"u": entry(before)} if has_entry else None, mem=60)
    asked = request(mem, before=before, found=found)
    after = asked.charged(account, NOON, is_latest=True)
    assert isinstance(after, QuotaAccount)
    assert after.used[MEM] == used + max(before, mem)
    if after is not account:
        assert asked.taken_back(after, Swap(account, after)) == account
        other = replace(after, ledger={**after.ledger, "u": replace(after.ledger["u"], attempt="another")})
        assert asked.taken_back(other, Swap(account, after)) == other
