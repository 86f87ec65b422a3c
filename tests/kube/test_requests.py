"""Effective requests: the pages' examples, and a pod's life played through."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tables import in_one_test

from hami_webhook.kube.objects import ContainerKind
from hami_webhook.kube.requests import effective

INIT, SIDECAR, APP = ContainerKind.INIT, ContainerKind.SIDECAR, ContainerKind.APP
Row = tuple[ContainerKind, int]


@in_one_test(
    ("rows", "waiting", "after_init"),
    [
        ([], 0, 0),
        ([(APP, 5000)], 5000, 5000),
        ([(APP, 1), (APP, 2)], 3, 3),
        ([(INIT, 8000), (APP, 5000)], 8000, 5000),  # quota 13 #12
        ([(SIDECAR, 2000), (INIT, 6000), (APP, 3000)], 8000, 5000),  # #13
        ([(INIT, 6000), (SIDECAR, 2000), (APP, 3000)], 6000, 5000),
        ([(INIT, 5000), (APP, 4000)], 5000, 4000),  # core 16 D
        ([(SIDECAR, 2000), (INIT, 20000), (APP, 10000)], 22000, 12000),  # core 16 E
        ([(INIT, 20000), (SIDECAR, 2000), (APP, 10000)], 20000, 12000),
        ([(INIT, 3), (INIT, 5), (APP, 4)], 5, 4),
        ([(SIDECAR, 1), (INIT, 3), (SIDECAR, 2), (INIT, 3), (APP, 2)], 6, 5),
    ],
)
def test_examples(rows: list[Row], waiting: int, after_init: int) -> None:
    assert effective(rows) == waiting
    assert effective(iter(rows), init_finished=True) == after_init


def life(rows: list[Row]) -> tuple[list[int], int]:
    """What a pod holds at each moment of its start-up, and once its apps run."""
    running: list[int] = []
    moments = []
    for kind, amount in rows:
        if kind is APP:
            continue
        running.append(amount)
        moments.append(sum(running))
        if kind is INIT:
            running.pop()
    running += [amount for kind, amount in rows if kind is APP]
    return moments, sum(running)


_inits = st.lists(st.tuples(st.sampled_from((INIT, SIDECAR)), st.integers(0, 100)), max_size=6)
_apps = st.lists(st.tuples(st.just(APP), st.integers(0, 100)), max_size=4)


@given(_inits, _apps)
def test_it_is_the_peak_of_the_pods_life(inits: list[Row], apps: list[Row]) -> None:
    rows = [*inits, *apps]
    moments, at_last = life(rows)
    assert effective(rows) == max([*moments, at_last])
    assert effective(rows, init_finished=True) == at_last
