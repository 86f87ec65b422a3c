"""Effective requests: the pages' examples, and a pod's life played through."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hami_webhook.kube.objects import ContainerKind
from hami_webhook.kube.requests import effective

INIT, SIDECAR, APP = ContainerKind.INIT, ContainerKind.SIDECAR, ContainerKind.APP
Row = tuple[ContainerKind, int]


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
