"""Enflame's rules against brute-force readings of them, on random nodes and pods."""

from __future__ import annotations

from fractions import Fraction
from math import ceil

from builders import container, read_node
from hypothesis import given
from hypothesis import strategies as st
from tables import in_one_test

from hami_webhook.devices.codecs import decode_pod_devices
from hami_webhook.devices.vendors.enflame.profiles import Wanted, read_capacity
from hami_webhook.devices.vendors.enflame.shared import rounded, slices_for
from hami_webhook.kube.quantity import Quantity

from .enflame import ALLOCATED, R, both_node, drs_capacity, drs_card, drs_node, share, slices
from .fit_env import FitEnv, Placed, pod


@in_one_test("f", range(1, 101))
def test_rounding_is_the_pages_inequality_and_changes_nothing_twice(f: int) -> None:
    for percent in range(1, 101):
        (k,) = (k for k in range(1, f + 1) if 100 * (k - 1) < percent * f <= 100 * k)
        expected = 100 * k // f
        assert (slices_for(percent, f), rounded(percent, f)) == (k, expected)
        assert (slices_for(expected, f), rounded(expected, f)) == (k, expected)


tables = st.dictionaries(
    st.builds("{}g.{}gb".format, st.integers(1, 8), st.integers(1, 48)), st.just("0"), min_size=1, max_size=6
)


@given(tables, st.none() | st.integers(1, 9), st.none() | st.integers(1, 120_000), st.integers(0, 100))
def test_a_request_gets_the_first_profile_that_serves_it(
    written: dict[str, str], size: int | None, memory: int | None, cores: int
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


@given(
    st.lists(st.lists(sizes, max_size=3), min_size=1, max_size=4),
    st.lists(sizes, max_size=2),
    st.lists(sizes, min_size=1, max_size=3),
    st.sampled_from(["spread", "binpack"]),
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


# a card is in one mode, whatever comes

shared = st.lists(
    st.builds(lambda percent: {R.VGCU: 1, R.PERCENT: percent}, st.integers(0, 100)), min_size=1, max_size=3
)
whole = st.builds(lambda count: [{R.VGCU: count}], st.integers(2, 3))
partitions = st.lists(st.builds(lambda size: {R.SLICES: size}, sizes), min_size=1, max_size=3)


@given(st.permutations(range(3)), st.integers(1, 8), st.lists(shared | whole | partitions, min_size=1, max_size=10))
def test_a_card_is_in_one_mode_and_serves_all_of_a_pod(
    minors: list[int], f: int, coming: list[list[dict[str, int]]]
) -> None:
    env = FitEnv([both_node("n", 3, f, *(drs_card(index, str(minor)) for index, minor in enumerate(minors)))])
    for number, amounts in enumerate(coming):
        placed = env.place(pod(f"p{number}", *(container(f"c{n}", **each) for n, each in enumerate(amounts))))
        if isinstance(placed, Placed):
            rows = decode_pod_devices(placed.annotations[ALLOCATED])
            assert len({frozenset(entry.uuid for entry in row) for row in rows}) == 1
        modes = [env.used("Enflame-DRS", f"n-enflame-drs-{minors.index(minor)}", "n")[0] for minor in range(3)]
        for minor, slots in enumerate(modes):
            assert not slots or env.used("Enflame", f"n-enflame-{minor}", "n")[0] == 0


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
