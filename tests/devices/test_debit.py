"""What placements cost (docs/spec/quota.md#5, nvidia 7.8), against a simulation of the pod's life."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import groupby

import pytest
from builders import ALLOCATED
from hypothesis import given
from hypothesis import strategies as st

from hami_webhook.devices.debit import Debit, per_device, per_vendor
from hami_webhook.devices.model import DeviceHold, DeviceShare, Kinds, PodUsage, Usage
from hami_webhook.devices.placement_annotations import nanoseconds, placement_counts, read_placed
from hami_webhook.kube.objects import ContainerKind

from .cards import container, init, nvidia, pod

INIT, SIDECAR, APP = ContainerKind.INIT, ContainerKind.SIDECAR, ContainerKind.APP


def lived_through(claims: Sequence[DeviceHold], kinds: Kinds, card: tuple[str, str], init_finished: bool) -> Debit:
    """The most of a card that is held at any moment while the containers start one after another."""
    mine = [claim for claim in claims if (claim.vendor, claim.uuid) == card]

    def of(rows: Collection[int]) -> tuple[int, int, int]:
        held = [claim for claim in mine if claim.row in rows]
        slots = 0
        for row, group in groupby(sorted(held, key=lambda claim: claim.row), key=lambda claim: claim.row):
            taken = [claim.slots for claim in group]
            slots += max(taken) if kinds[row] is INIT else sum(taken)
        return (slots, sum(claim.memory for claim in held), sum(claim.cores for claim in held))

    moments: list[tuple[int, int, int]] = []
    running: set[int] = set()
    for row, kind in enumerate(kinds):
        if kind is SIDECAR:
            running.add(row)
        elif kind is INIT and not init_finished:
            moments.append(of({*running, row}))
    moments.append(of({*running, *(row for row, kind in enumerate(kinds) if kind is APP)}))
    return Debit(*(max(values) for values in zip(*moments, strict=True)))


kind_lists = st.tuples(
    st.lists(st.sampled_from([INIT, SIDECAR]), max_size=4), st.lists(st.just(APP), min_size=1, max_size=3)
).map(lambda parts: [*parts[0], *parts[1]])


@given(st.data(), kind_lists, st.booleans())
def test_a_debit_is_the_peak_of_each_card_over_the_pods_life(
    data: st.DataObject, kinds: Kinds, init_finished: bool
) -> None:
    claim = st.builds(
        DeviceHold,
        st.sampled_from(["NVIDIA", "DCU"]),
        st.sampled_from(["a", "b"]),
        st.integers(0, len(kinds) - 1),
        st.integers(0, 9),
        st.integers(0, 9),
        st.integers(1, 3),
    )
    claims = data.draw(st.lists(claim, max_size=10))
    cards = {(claim.vendor, claim.uuid) for claim in claims}
    expected = {card: lived_through(claims, kinds, card, init_finished) for card in cards}
    found = per_device(claims, kinds, init_finished=init_finished)
    assert found == {card: debit for card, debit in expected.items() if debit != Debit()}
    totals = per_vendor(claims, kinds, init_finished=init_finished)
    for vendor in ("NVIDIA", "DCU"):
        mine = [debit for card, debit in expected.items() if card[0] == vendor]
        assert totals.get(vendor, Debit()) == sum(mine, Debit())


@given(st.data(), kind_lists, st.booleans())
def test_cores_told_apart_are_joined_and_counted(data: st.DataObject, kinds: Kinds, init_finished: bool) -> None:
    """The cores held are a set at each moment of the pod's life; a device's mask has all that are ever held."""
    row = st.integers(0, len(kinds) - 1)
    held = data.draw(st.lists(st.tuples(row, st.integers(1, 15)), max_size=6))
    claims = [DeviceHold("AWSNeuron", "d", row, 0, mask.bit_count(), mask=mask) for row, mask in held]
    cores = 0
    ever: set[int] = set()
    running: set[int] = set()
    for number, kind in enumerate(kinds):
        mine = {bit for row, mask in held if row == number for bit in range(4) if mask >> bit & 1}
        if kind is INIT and init_finished:
            continue
        ever |= mine
        if kind is INIT:
            cores = max(cores, len(running | mine))
        else:
            running |= mine
    cores = max(cores, len(running))
    found = per_device(claims, kinds, init_finished=init_finished).get(("AWSNeuron", "d"), Debit())
    assert (found.cores, found.mask) == (cores, sum(1 << bit for bit in ever))
    assert per_vendor(claims, kinds, init_finished=init_finished).get("AWSNeuron", Debit()).cores == cores


def test_pods_on_one_card_join_their_masks_and_a_container_adds_its_own() -> None:
    incoming = pod(container())
    both = Usage.of((PodUsage(incoming, 1, 0, 2, 0b0011), PodUsage(incoming, 1, 0, 2, 0b0110)))
    assert (both.slots, both.cores, both.mask) == (2, 3, 0b0111)
    after = both.plus(DeviceShare(0, 1, mask=0b1000))
    assert (after.slots, after.cores, after.mask) == (3, 4, 0b1111)
    shares = Usage.of((PodUsage(incoming, 1, 0, 30), PodUsage(incoming, 1, 0, 40))).plus(DeviceShare(0, 20))
    assert (shares.slots, shares.cores, shares.mask) == (3, 90, 0)


def test_a_row_beyond_the_containers_counts_as_an_app_container() -> None:
    claims = [DeviceHold("NVIDIA", "a", 0, 5, 1), DeviceHold("NVIDIA", "a", 7, 6, 2)]
    assert per_device(claims, [INIT]) == {("NVIDIA", "a"): Debit(1, 6, 2)}
    assert per_device(claims, [APP]) == {("NVIDIA", "a"): Debit(2, 11, 3)}
    alone = [DeviceHold("NVIDIA", "a", 1, 6, 2)]
    for init_finished in (False, True):
        assert per_device(alone, [INIT], init_finished=init_finished) == {("NVIDIA", "a"): Debit(1, 6, 2)}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a,NVIDIA,8000,0:;;a,NVIDIA,3000,30:;", (1, 8000, 30)),
        # as many pieces as app containers, or any other number: all of them are app containers
        ("a,NVIDIA,8000,0:;a,NVIDIA,3000,30:;", (2, 11000, 30)),
        ("a,NVIDIA,8000,0:;a,NVIDIA,3000,30:;;;", (2, 11000, 30)),
        (";;;", None),
        ("", None),
    ],
)
def test_what_a_pod_holds_is_read_from_its_record(text: str, expected: tuple[int, int, int] | None) -> None:
    incoming = pod(init(), container("log"), container("a"), annotations={ALLOCATED: text})
    found = read_placed(nvidia(), incoming)
    assert (found and found.debit(init_finished=False)) == (expected and Debit(*expected))


def test_a_pod_without_a_record_holds_nothing() -> None:
    assert read_placed(nvidia(), pod(container())) is None


@pytest.mark.parametrize(
    ("bound", "node", "time", "now", "counts"),
    [
        ("n1", None, None, 0, True),
        ("", "n1", "1000", 1299, True),
        ("", "n1", "1000", 1300, False),
        ("", "n1", "soon", 1000, False),
        ("", "n1", None, 1000, False),
        ("", None, "1000", 1000, False),
    ],
)
def test_a_placement_counts_while_it_is_bound_or_young(
    bound: str, node: str | None, time: str | None, now: float, counts: bool
) -> None:
    notes = {"hami.io/vgpu-node": node, "hami.io/vgpu-time": time}
    incoming = pod(container(), annotations={k: v for k, v in notes.items() if v is not None}, nodeName=bound)
    assert placement_counts(incoming, now, 300) is counts


@pytest.mark.parametrize(
    ("now", "text"),
    [
        (1760000000, "1760000000000000000"),
        (1760000001.0, "1760000001000000000"),
        (1760000000.5, "1760000000500000000"),
        (0.0, "0"),
    ],
)
def test_a_time_is_told_in_nanoseconds(now: float, text: str) -> None:
    assert nanoseconds(now) == text
