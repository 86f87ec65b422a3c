"""Enflame's rules against brute-force readings of them, on random nodes and pods."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction
from math import ceil
from typing import Any

import pytest
from builders import container, read_node
from hypothesis import given
from hypothesis import strategies as st

from hami_webhook.devices.vendors.enflame.profiles import Wanted, read_capacity
from hami_webhook.devices.vendors.enflame.shared import rounded, slices_for
from hami_webhook.kube.objects import Pod
from hami_webhook.kube.quantity import Quantity

from .enflame import ALLOCATED, R, drs_capacity, drs_card, drs_node, share, slices
from .fit_env import CHART, FitEnv, Placed, pod

JSON = dict[str, Any]
DRS_CAPACITY = "enflame.com/gcu-drs-capacity"


@pytest.mark.parametrize(
    ("f", "percentages"),
    [
        (2, "50 100"),
        (3, "33 66 100"),
        (4, "25 50 75 100"),
        (5, "20 40 60 80 100"),
        (6, "16 33 50 66 83 100"),
        (8, "12 25 37 50 62 75 87 100"),
    ],
)
def test_the_only_possible_percentages(f: int, percentages: str) -> None:
    assert sorted({rounded(percent, f) for percent in range(1, 101)}) == [int(text) for text in percentages.split()]


@pytest.mark.parametrize("f", range(1, 101))
def test_rounding_is_the_pages_inequality_and_changes_nothing_twice(f: int) -> None:
    s = Fraction(100, f)
    for percent in range(1, 101):
        (k,) = (k for k in range(1, f + 1) if s * (k - 1) < percent <= s * k)
        assert (slices_for(percent, f), rounded(percent, f)) == (k, int(s * k))
        assert (slices_for(int(s * k), f), rounded(int(s * k), f)) == (k, int(s * k))


tables = st.dictionaries(
    st.builds("{}g.{}gb".format, st.integers(1, 8), st.integers(1, 48)), st.just("0"), min_size=1, max_size=6
)


@given(tables, st.none() | st.integers(1, 9), st.none() | st.integers(1, 120_000), st.none() | st.integers(1, 100))
def test_a_request_gets_the_first_profile_that_serves_it(
    written: dict[str, str], size: int | None, memory: int | None, cores: int | None
) -> None:
    table, _ = read_capacity(drs_capacity(profiles=written))
    sizes = sorted((int(name.split("g.")[0]), int(name.split("g.")[1][:-2])) for name in written)
    slices_, largest = max(s for s, _ in sizes), max(gb for _, gb in sizes)
    wanted = memory or 0
    if wanted > 2 * largest:
        wanted = ceil(wanted / 1024)
    for s, gb in sizes:
        if s == size if size is not None else gb >= wanted and ceil(s * 100 / slices_) >= (cores or 0):
            expected = (s, gb, ceil(s * 100 / slices_))
            break
    else:
        expected = None
    found = Wanted(size, None if memory is None else Quantity.parse(memory), cores).profile(table)
    assert (found and (found.size, found.gigabytes, found.cores)) == expected


@given(st.integers(1, 64 * 1024**3), tables)
def test_bytes_are_gigabytes_rounded_up(amount: int, written: dict[str, str]) -> None:
    table, _ = read_capacity(drs_capacity(profiles=written))
    kibibytes = Wanted(memory=Quantity.parse(f"{ceil(amount / 1024)}Ki"))
    fitting = [p for p in table.profiles if p.gigabytes >= ceil(ceil(amount / 1024) / 1024**2)]
    assert kibibytes.profile(table) == (fitting[0] if fitting else None)


# one card per pod

sizes = st.sampled_from([1, 1, 3, 6])
policies = st.sampled_from(["spread", "binpack"])


@given(
    st.lists(st.lists(sizes, max_size=3), min_size=1, max_size=4),
    st.lists(sizes, max_size=2),
    st.lists(sizes, min_size=1, max_size=3),
    policies,
)
def test_a_pod_gets_the_first_card_in_order_that_takes_all_of_it(
    held: list[list[int]], inits: list[int], apps: list[int], policy: str
) -> None:
    env = FitEnv([drs_node("n", len(held))])
    used = []
    for index, mine in enumerate(held):
        fits: list[int] = []
        for number, size in enumerate(mine):
            if sum(fits) + size <= 6 and sum(_gb(s) for s in [*fits, size]) <= 40:
                fits.append(size)
                only = {"enflame.com/use-gpuuuid": f"n-enflame-drs-{index}"}
                assert isinstance(env.place(slices(size, f"{index}-{number}", **only)), Placed)
        used.append(fits)

    def takes(fits: list[int]) -> bool:
        loads = [apps, *([size] for size in inits)]
        return all(sum(fits) + sum(load) <= 6 and sum(map(_gb, fits)) + sum(map(_gb, load)) <= 40 for load in loads)

    first = (inits + apps)[0]

    def score(index: int) -> Fraction:
        fits = used[index]
        return (
            Fraction(sum(fits) + 1, 6)
            + Fraction(sum(map(_percent, fits)) + _percent(first), 100)
            + Fraction(sum(map(_gb, fits)) + _gb(first), 40)
        )

    sign = 1 if policy == "spread" else -1
    order = sorted(range(len(used)), key=lambda index: (sign * score(index), -index))
    expected = next((index for index in order if takes(used[index])), None)
    incoming = pod(
        "p",
        *(container(f"a{n}", **{R.SLICES: size}) for n, size in enumerate(apps)),
        init=[container(f"i{n}", **{R.SLICES: size}) for n, size in enumerate(inits)],
        annotations={"hami.io/gpu-scheduler-policy": policy},
    )
    placed = env.place(incoming)
    if expected is None:
        assert not isinstance(placed, Placed)
        return
    assert isinstance(placed, Placed)
    rows = placed.annotations[ALLOCATED].split(";")[:-1]
    assert {row.split(",")[0] for row in rows} == {f"n-enflame-drs-{expected}"}


def _gb(size: int) -> int:
    return {1: 6, 3: 20, 6: 40}[size]


def _percent(size: int) -> int:
    return ceil(size * 100 / 6)


# no card is oversold, whatever comes

contents = st.one_of(
    st.tuples(st.just("drs"), st.lists(sizes, min_size=1, max_size=3)),
    st.tuples(st.just("shared"), st.lists(st.integers(0, 100), min_size=1, max_size=3)),
    st.tuples(st.just("cards"), st.lists(st.integers(2, 3), min_size=1, max_size=1)),
)
pods = st.lists(
    st.tuples(contents, st.booleans(), policies | st.just("mutex"), st.sampled_from([None, "use", "nouse"])),
    min_size=1,
    max_size=10,
)


@given(st.permutations(range(3)), st.integers(1, 8), st.lists(st.integers(1, 6), min_size=3, max_size=3), pods)
def test_no_card_is_oversold_or_in_two_modes(
    minors: list[int], f: int, capacities: list[int], coming: list[Any]
) -> None:
    text = drs_capacity(*(drs_card(i, str(m), capacities[i]) for i, m in enumerate(minors)))
    healthy = '{"0":6,"1":0,"2":6}'
    notes = {DRS_CAPACITY: text, "enflame.com/gcu-shared-capacity": healthy}
    env = FitEnv([read_node("n", capacity={R.COUNT: 3, R.SHARED_GCU: 3 * f}, **notes)])
    for number, ((form, amounts), remove, policy, list_key) in enumerate(coming):
        incoming = _asking(f"p{number}", form, amounts, policy, list_key)
        placed = env.place(incoming)
        if isinstance(placed, Placed):
            rows = CHART["Enflame-DRS" if form == "drs" else "Enflame"].decode(
                Pod.from_object({**incoming, "metadata": {**incoming["metadata"], "annotations": placed.annotations}})
            )
            assert rows is not None
            uuids = [{entry.uuid for entry in row} for row in rows]
            assert all(mine == uuids[0] for mine in uuids)
            assert all(len(row) == len(mine) for row, mine in zip(rows, uuids, strict=True))
            if form == "cards":
                assert len(uuids[0]) == amounts[0]
            if list_key is not None:
                assert all(("drs-0" in u or "enflame-0" in u) is (list_key == "use") for u in uuids[0])
            assert not any(u.endswith("enflame-1") for u in uuids[0])
        else:
            assert list(placed.values()) != [""]
        _check(env, minors, capacities)
        if remove:
            env.remove(f"p{number}")


def _asking(name: str, form: str, amounts: list[int], policy: str, list_key: str | None) -> JSON:
    notes = {"hami.io/gpu-scheduler-policy": policy}
    if list_key is not None:
        notes[f"enflame.com/{list_key}-gpuuuid"] = "n-enflame-0,n-enflame-drs-0"
    if form == "cards":
        return share(None, amounts[0], name, **notes)
    wanted = [{R.SLICES: a} if form == "drs" else {R.VGCU: 1, R.PERCENT: a} for a in amounts]
    return pod(name, *(container(f"c{n}", **w) for n, w in enumerate(wanted)), annotations=notes)


def _check(env: FitEnv, minors: list[int], capacities: list[int]) -> None:
    view = next(env.state.views())
    modes: dict[int, set[str]] = defaultdict(set)
    for index, minor in enumerate(minors):
        usage = view.used("Enflame-DRS", f"n-enflame-drs-{index}")
        assert usage.slots <= capacities[index]
        assert usage.memory <= 40 * 1024
        if usage.slots:
            modes[minor].add("drs")
    for index in range(3):
        usage = view.used("Enflame", f"n-enflame-{index}")
        assert usage.slots <= 100
        assert usage.memory <= 100
        if usage.slots:
            modes[index].add("shared")
    assert all(len(found) == 1 for found in modes.values())


@given(st.lists(st.integers(1, 100), min_size=1, max_size=8), st.integers(1, 8))
def test_a_shared_cards_slices_are_never_more_than_it_is_cut_into(percents: list[int], f: int) -> None:
    env = FitEnv([read_node("n", capacity={R.COUNT: 1, R.SHARED_GCU: f})])
    taken = 0
    for number, percent in enumerate(percents):
        placed = env.place(share(percent, name=f"p{number}"))
        fits = taken + slices_for(percent, f) <= f
        assert isinstance(placed, Placed) is fits
        if isinstance(placed, Placed):
            taken += int(placed.annotations["enflame.com/gcu-request-size"])
