"""Limits that are percents of the healthy cards (docs/spec/quota.md#5.3)."""

from __future__ import annotations

from typing import Any

import pytest
from builders import accelerator_quota, card, node
from hypothesis import given
from hypothesis import strategies as st

from hami_webhook.cluster.api import JSON, Kind
from hami_webhook.kube.objects import format_time
from hami_webhook.queueing.pod_queue import room_of
from hami_webhook.quota.accelerator_quota import read_accelerator_quota
from hami_webhook.quota.account import QuotaAccount
from hami_webhook.quota.percents import PAUSE, Seen, damped, next_fall, percent_faults, read_percent

from .objects import KEYS, NOON, pod, vendors
from .quota_env import QuotaEnv
from .test_accelerator_quotas import A, joined, teams, used

CHANGED = "QuotaLimitChanged"


def cards(count: int, sick: int = 0, **fields: Any) -> list[JSON]:
    return [card(f"GPU-{index}", health=index >= sick, **fields) for index in range(count)]


def limits(env: QuotaEnv, name: str = "all") -> dict[str, str]:
    hard = env.above(name).get("status", {}).get("hard", {})
    return {short: str(hard[key]) for short, key in KEYS.items() if key in hard}


async def become(env: QuotaEnv, changed: JSON, seconds: float = 15) -> None:
    """The node is this one from now on, and so much time goes by."""
    await env.cluster.patch(Kind.NODES, changed["metadata"]["name"], {"metadata": changed["metadata"]})
    await env.run(seconds)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("40%", 0.4), ("0%", 0), ("100%", 1), ("100.00%", 1), ("12.5%", 0.125), ("140%", None), ("100.01%", None),
        ("-1%", None), ("4O%", None), ("%", None), ("40", None), ("40 %", None), ("1e1%", None), ("٤٠%", None),
        ("40%%", None), ("0.123%", None), ("040%", None),
    ],
)  # fmt: skip
def test_a_percent_is_from_0_to_100(text: str, part: float | None) -> None:
    found = read_percent(text)
    assert (None if found is None else float(found)) == part


@pytest.mark.parametrize(
    ("shown", "amount", "seen", "now", "expected"),
    [
        (7, 9, ((7, 0), (3, 0)), 10, (9, ())),
        (7, 3, (), 5, (7, ((7, 5), (3, 5)))),
        (7, 2, ((7, 5), (4, 9)), 5 + PAUSE, (4, ((7, 5), (4, 5 + PAUSE), (2, 5 + PAUSE)))),
        (7, 2, ((7, 5), (2, 5)), 900, (2, ((7, 5), (2, 900)))),  # the write at 305 failed
        (7, 2, ((7, 99), (2, 99)), 5, (7, ((7, 5), (2, 5)))),  # a clock that went back
        (8, 2, ((7, 5), (2, 5)), 900, (8, ((8, 900), (7, 5), (2, 900)))),  # another wrote more meanwhile
    ],
)
def test_a_limit_rises_at_once_and_falls_after_a_pause(
    shown: int | None, amount: int, seen: Seen, now: float, expected: tuple[int, Seen]
) -> None:
    assert damped(shown, amount, seen, now) == expected


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 400)), min_size=1, max_size=60))
def test_however_cards_come_and_go_a_limit_is_the_most_of_the_last_five_minutes(steps: list[tuple[int, int]]) -> None:
    """At every second: it is up at once, and above what there is only while that much was there within the pause."""
    shown, seen, due = None, Seen(), None
    there: list[int] = []
    for amount, seconds in steps:
        for second in range(seconds):
            now = float(len(there))
            if second == 0 or due == now:
                shown, seen = damped(shown, amount, seen, now)
                due = next_fall(seen, now)
            there.append(amount)
            assert shown is not None
            assert amount <= shown == max(there[-int(PAUSE) - 1 :])
            assert len(seen) <= 22


async def test_the_status_has_the_amount_and_holds_it() -> None:
    async with QuotaEnv(accelerator_quota(gpu="40%", mem="50%", cores=9), node("n1", *cards(10))) as env:
        await joined(env, *teams(1))
        await env.run(3)
        assert limits(env) == {"gpu": "4", "mem": str(5 * 40960), "cores": "9"}
        assert env.above()["status"]["shares"][KEYS["gpu"]] == {"percent": "40%", "amount": "4"}
        for number in range(4):
            await env.create(pod(f"p{number}", namespace=A, gpu=1, mem=1))
        refusal = await env.refused(pod("q", namespace=A, gpu=1, mem=1))
        assert (
            "requested: limits.nvidia.com/gpu=1, used: limits.nvidia.com/gpu=4, limited: limits.nvidia.com/gpu=4"
            in (refusal.message)
        )
        assert used(env)["gpu"] == 4


async def test_sick_cards_lower_it_after_five_minutes_and_healthy_ones_raise_it_at_once() -> None:
    """By the device plugin's word or by the monitor's; whoever runs stays, and nobody else starts meanwhile."""
    async with QuotaEnv(accelerator_quota(gpu="40%"), node("n1", *cards(10))) as env:
        await joined(env, *teams(1))
        await env.run(3)
        for number in range(3):
            await env.create(pod(f"p{number}", namespace=A, gpu=1, mem=1))
        await become(env, node("n1", *cards(10, sick=3), unhealthy={"GPU-8": ["lost"], "GPU-9": ["lost"]}), 290)
        assert limits(env) == {"gpu": "4"}
        await env.run(30)
        assert limits(env) == {"gpu": "2"}
        assert used(env) == {"gpu": 3}
        await env.refused(pod("q", namespace=A, gpu=1, mem=1))
        await become(env, node("n1", *cards(10), unhealthy={}))
        assert limits(env) == {"gpu": "4"}
        await env.create(pod("r", namespace=A, gpu=1, mem=1))
        first, down, up = env.events(CHANGED)
    assert first == "limits.nvidia.com/gpu: 40% of the healthy cards are 4 now"
    assert down == "limits.nvidia.com/gpu: 40% of the healthy cards are 2 now, 4 before"
    assert up == "limits.nvidia.com/gpu: 40% of the healthy cards are 4 now, 2 before"


async def test_only_cards_that_the_quota_counts_are_counted() -> None:
    selected = accelerator_quota("a100", gpu="50%", spec={"deviceTypes": ["A100"], "nodeSelector": {"pool": "x"}})
    nodes = [
        node("n1", *cards(4), labels={"pool": "x"}),
        node("n2", *cards(4), labels={"pool": "y"}),
        node("n3", *cards(4, type="NVIDIA H100"), labels={"pool": "x"}),
    ]
    async with QuotaEnv(selected, accelerator_quota(gpu="50%"), *nodes) as env:
        await env.run(5)
        assert (limits(env, "a100"), limits(env)) == ({"gpu": "2"}, {"gpu": "6"})


async def test_until_the_leader_has_written_it_the_status_is_unknown_and_no_amount() -> None:
    """A replica that sees other cards neither guesses nor writes. The word is Kubernetes' own for such a quota."""
    async with QuotaEnv(accelerator_quota(gpu="40%"), node("n1", *cards(10))) as env:
        env.reconcilers.pop()  # no leader
        await joined(env, *teams(1))
        fresh = accelerator_quota("fresh", gpu="40%", mem=1000)
        await env.add(fresh)
        await env.drain()
        refusal = await env.refused(pod("p", namespace=A, gpu=1, mem=1))
        assert "status unknown for quota: fresh, resources: limits.nvidia.com/gpu" in refusal.message
        assert "shares" not in env.above("fresh").get("status", {})
        assert "gpu" not in limits(env, "fresh")


async def test_another_percent_holds_at_once_and_an_amount_takes_its_place() -> None:
    async with QuotaEnv(accelerator_quota(gpu="40%"), node("n1", *cards(10))) as env:
        await env.run(3)
        for written, expected in (("20%", "2"), ("90%", "9"), (5, "5"), ("10%", "1")):
            await env.cluster.patch(Kind.ACCELERATOR_QUOTAS, "all", {"spec": {"hard": {KEYS["gpu"]: written}}})
            await env.run(15)
            assert limits(env) == {"gpu": expected}
        assert env.above()["status"]["shares"] == {KEYS["gpu"]: {"percent": "10%", "amount": "1"}}
        await env.cluster.patch(Kind.ACCELERATOR_QUOTAS, "all", {"spec": {"hard": {KEYS["gpu"]: 7}}})
        await env.run(15)
        assert not env.above()["status"].get("shares")


async def test_a_node_that_registers_more_cards_than_it_may_raises_nothing() -> None:
    """An attack: a node with more cards than 256 counts for none, and the largest it may register is written."""
    async with QuotaEnv(accelerator_quota(gpu="50%", mem="50%"), node("n1", *cards(10)), node("evil")) as env:
        await joined(env, *teams(1))
        await env.run(3)
        many = [card(f"EVIL-{index}", 2**31 - 1) for index in range(257)]
        await become(env, node("evil", *many))
        assert limits(env) == {"gpu": "5", "mem": str(5 * 40960)}
        await become(env, node("evil", *many[:-1]))
        assert limits(env) == {"gpu": "133", "mem": str((10 * 40960 + 256 * (2**31 - 1)) // 2)}
        await env.create(pod("p", namespace=A, gpu=1, mem=1))


async def test_a_node_that_flaps_changes_no_limit_and_costs_no_write() -> None:
    """An attack: it changes its cards each second for ten minutes. Others use what there is all the while."""
    async with QuotaEnv(accelerator_quota(gpu="50%"), node("n1", *cards(10)), node("evil", *cards(4))) as env:
        await joined(env, *teams(1))
        await env.run(3)
        asked = env.api_calls()
        for second in range(600):
            await become(env, node("evil", *cards(4, sick=4 if second % 2 else 0)), 1)
            assert limits(env) == {"gpu": "7"}
        assert len(env.events(CHANGED)) == 1
        assert not asked["patch_status"]
        for number in range(7):
            await env.create(pod(f"p{number}", namespace=A, gpu=1, mem=1))
        await env.refused(pod("q", namespace=A, gpu=1, mem=1))


async def test_without_the_leader_a_window_of_an_unknown_percent_is_not_written_over_and_over() -> None:
    window = {"at": format_time(NOON + 60)[:-1], "for": "3600s", "hard": {KEYS["gpu"]: 1}}
    async with QuotaEnv(node("n1", *cards(10))) as env:
        env.reconcilers.pop()  # no leader
        await joined(env, *teams(1))
        await env.add(accelerator_quota(gpu="40%", mem=1000, spec={"windows": [window]}))
        await env.drain()
        await env.refused(pod("p", namespace=A, gpu=1, mem=1))
        before = env.above()
        await env.refused(pod("p", namespace=A, gpu=1, mem=1))
        assert env.above() == before
        assert "gpu" not in limits(env)


async def test_quotas_without_percents_are_written_as_before() -> None:
    """The ordinary day: nothing more in the status, no event, and no recompute as cards fall sick."""
    async with QuotaEnv(accelerator_quota(gpu=4, mem=1000), node("n1", *cards(10))) as env:
        await env.run(3)
        before = env.above()
        await become(env, node("n1", *cards(10, sick=5)), 30)
        assert env.above() == before
        assert "shares" not in before["status"]
        assert env.events(CHANGED) == []


@pytest.mark.parametrize("text", ["140%", "-1%", "4O%"])
def test_of_a_file_a_percent_that_is_none_is_named_and_nobody_is_charged(text: str) -> None:
    quota = read_accelerator_quota(accelerator_quota(gpu=text, mem="40%"), {})
    ((key, sentence),) = percent_faults(quota)
    assert key == KEYS["gpu"]
    assert sentence == f"{key}: {text} isn't a percent from 0% to 100%, so no pod is charged; write one such as 40%"
    account = QuotaAccount.read(quota, vendors())
    assert account.unshared == {KEYS["gpu"], KEYS["mem"]}
    assert room_of(account).hard == {}, "nor is anybody told a limit for which to wait"


@pytest.mark.parametrize(
    "share",
    [None, 4, {}, {"percent": "40%"}, {"percent": "40%", "amount": 4}, {"percent": "40%", "amount": "-4"},
     {"percent": "41%", "amount": "4"}, {"percent": "40%", "amount": "9" * 30}, {"percent": "40%", "amount": "٤"}],
)  # fmt: skip
def test_a_status_that_says_nothing_of_it_is_unknown(share: object) -> None:
    written = accelerator_quota(gpu="40%") | {"status": {"hard": {KEYS["gpu"]: "4"}, "used": {KEYS["gpu"]: "1"}}}
    written["status"]["shares"] = {KEYS["gpu"]: share}
    account = QuotaAccount.read(read_accelerator_quota(written, {}), vendors())
    assert (*account.unshared, *account.used) == (KEYS["gpu"],)


async def test_a_window_has_an_amount_where_the_limit_outside_of_it_is_a_percent() -> None:
    """Sick cards lower the percent within the window, too; what it gives is the limit when the window is over."""
    window = {"at": format_time(NOON + 60)[:-1], "for": "3600s", "hard": {KEYS["gpu"]: 1}}
    quota = accelerator_quota(gpu="40%", mem="50%", spec={"windows": [window]})
    async with QuotaEnv(quota, node("n1", *cards(10))) as env:
        await joined(env, *teams(1))
        await env.run(10)
        assert limits(env) == {"gpu": "4", "mem": str(5 * 40960)}
        await env.run(60)
        assert limits(env) == {"gpu": "1", "mem": str(5 * 40960)}
        await become(env, node("n1", *cards(10, sick=4)), 400)
        assert limits(env) == {"gpu": "1", "mem": str(3 * 40960)}
        await env.create(pod("p", namespace=A, gpu=1, mem=1))
        refusal = await env.refused(pod("q", namespace=A, gpu=1, mem=1))
        assert "limited: limits.nvidia.com/gpu=1; this limit holds until 2026-01-01T13:01:00Z" in refusal.message
        await env.run(3600)
        assert limits(env) == {"gpu": "2", "mem": str(3 * 40960)}
        assert env.above()["status"]["window"].get("until") is None
        await env.create(pod("r", namespace=A, gpu=1, mem=1))
        await env.refused(pod("s", namespace=A, gpu=1, mem=1))


async def test_amounts_of_users_and_of_budgets_hold_beside_a_percent() -> None:
    spec = {
        "per": {"label": "project", "hard": {KEYS["gpu"]: 3}},
        "budget": {"amounts": {KEYS["gpu"]: "2h"}, "period": "Month"},
    }
    async with QuotaEnv(accelerator_quota(gpu="40%", spec=spec), node("n1", *cards(10))) as env:
        await joined(env, *teams(1))
        await env.run(3)
        await env.create(pod("p", namespace=A, labels={"project": "x"}, gpu=3, mem=1))
        await env.node_of("p", A)
        refusal = await env.refused(pod("q", namespace=A, labels={"project": "x"}, gpu=1, mem=1))
        assert "limited: limits.nvidia.com/gpu=3" in refusal.message
        refusal = await env.refused(pod("q", namespace=A, labels={"project": "y"}, gpu=2, mem=1))
        assert "limited: limits.nvidia.com/gpu=4" in refusal.message
        await become(env, node("n1", *cards(10, sick=5)), 3600)
        assert limits(env) == {"gpu": "2"}
        await become(env, node("n1", *cards(10)))
        refusal = await env.refused(pod("q", namespace=A, labels={"project": "y"}, gpu=1, mem=1))
        assert "2h of limits.nvidia.com/gpu in January are spent" in refusal.message


async def test_pods_wait_in_the_queue_for_what_a_percent_gives_again() -> None:
    queued = accelerator_quota(gpu="40%", spec={"enforcement": "queue"})
    async with QuotaEnv(queued, node("n1", *cards(10, sick=5))) as env:
        await joined(env, *teams(1))
        await env.run(3)
        for name in ("p", "q"):
            await env.create(pod(name, namespace=A, gpu=2, mem=1))
        await env.run(3)
        await env.release()
        assert [env.pod(name, A).gated for name in ("p", "q")] == [False, True]
        await become(env, node("n1", *cards(10)))
        await env.release()
        assert not env.pod("q", A).gated
