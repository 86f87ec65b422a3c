"""What is left of budgets of hours, and how long it lasts (docs/time.md#budgets)."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from hami_webhook.kube.human_duration import human_duration
from hami_webhook.quota.account import QuotaAccount
from hami_webhook.quota.held_time import MILLIS_PER_HOUR, in_hours
from hami_webhook.state.cluster_view import ClusterView

WIDTH, HEIGHT = 300, 60
"""The size of a burn-down in pixels."""


class BudgetUse(Struct, frozen=True):
    """One key of a quota's budget in the period from `begin` to `end` (Unix seconds), in hours of its unit.

    `spent` since `since`, up to now; `unseen` may have been held besides, at most. `rate` is what is held now.
    `lasts_until` is when nothing is left if that stays so; None if that isn't before the end.
    """

    quota: str
    key: str
    amount: float
    spent: float
    unseen: float
    rate: int
    begin: float
    end: float
    since: float
    lasts_until: float | None

    @property
    def left(self) -> float:
        return max(0.0, self.amount - self.spent)

    def cells(self, now: float) -> tuple[str, ...]:
        """What a table shows of it."""
        spent, amount, left = (in_hours(round(each * MILLIS_PER_HOUR)) for each in (self.spent, self.amount, self.left))
        return (
            self.quota,
            self.key,
            spent,
            amount,
            left,
            str(self.rate),
            human_duration(self.end - now),
            self.lasts(now),
        )

    def lasts(self, now: float) -> str:
        """For how long it lasts at the present rate."""
        if self.left <= 0:
            return "is spent"
        return "to its end" if self.lasts_until is None else human_duration(self.lasts_until - now)

    def burn_down(self, now: float) -> tuple[str, str]:
        """The points of two lines in a picture of `WIDTH` and `HEIGHT`: what is left, up to now and on at the present
        rate, and what would be left if it were spent evenly.
        """

        def point(at: float, left: float) -> str:
            x = WIDTH * min(1.0, max(0.0, (at - self.begin) / (self.end - self.begin)))
            y = HEIGHT * (1 - min(1.0, max(0.0, left / self.amount))) if self.amount else HEIGHT
            return f"{x:.1f},{y:.1f}"

        last = self.end if self.lasts_until is None else self.lasts_until
        at_last = self.left - self.rate * (last - now) / 3600
        actual = point(self.since, self.amount), point(now, self.left), point(last, at_last)
        return " ".join(actual), f"{point(self.begin, self.amount)} {point(self.end, 0.0)}"


HEADINGS = "QUOTA", "KEY", "SPENT", "BUDGET", "LEFT", "HELD NOW", "ENDS IN", "LASTS"


def budgets(view: ClusterView, namespace: str, now: float, name: str = "") -> Iterator[BudgetUse]:
    """The budgets of the quotas that cover a namespace, of all without one; by the quota's name, and its key."""
    quotas = view.caches.accelerator_quotas
    found = quotas.covering(namespace) if namespace else quotas.all()
    for quota in sorted(found, key=lambda each: each.name):
        budget = QuotaAccount.read(quota, view.vendors).time_budget if name in ("", quota.name) else None
        if budget is None:
            continue
        period, state = budget.period_at(now), budget.state
        for key, amount in sorted(budget.amounts.items()):
            left, rate = budget.left(key, now), 0 if state is None else state.rate.get(key, 0)
            until = now + left / 1000 / rate if rate and left > 0 else None
            yield BudgetUse(
                quota.name,
                key,
                amount / MILLIS_PER_HOUR,
                budget.spent(key, now) / MILLIS_PER_HOUR,
                0.0 if state is None else state.unseen.get(key, 0) / MILLIS_PER_HOUR,
                rate,
                period.begin,
                period.end,
                period.begin if state is None else min(now, max(period.begin, state.since / 1000)),
                until if until is not None and until < period.end else None,
            )
