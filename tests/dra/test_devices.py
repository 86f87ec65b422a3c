"""Slices of many nodes: whose a pool is, and what a change costs (docs/spec/dra.md#9)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_webhook.devices.debit import Debit
from hami_webhook.dra import devices as devices_module
from hami_webhook.dra import selectors
from hami_webhook.dra.allocation import Allocated, allocated
from hami_webhook.dra.claim_cache import ClaimCache
from hami_webhook.dra.cost import cost_of, cost_steps
from hami_webhook.dra.devices import DeviceID, PublishedDevices
from hami_webhook.dra.holders import BareClaim, held_by
from hami_webhook.dra.selectors import MOST_CHARACTERS, MOST_EXPRESSIONS, Budget
from hami_webhook.kube import claims_wire as wire
from hami_webhook.kube.wire import convert
from hami_webhook.time_slices import run_at_once

from .objects import (
    CLASSES,
    HAMI,
    NVIDIA,
    ROWS,
    exactly,
    inventory,
    published,
    requests,
    resource_slice,
    result,
    share,
    whole,
)

JSON = dict[str, Any]
CHEAP = "4Mi"


def of_pool(pool: str, node: str | None, *devices: JSON, generation: int = 1, name: str = "") -> JSON:
    """A slice that names a pool, whatever its node is; without a node it is for all nodes."""
    found = resource_slice(pool, *devices, driver=NVIDIA, generation=generation, name=name or f"{node}-{pool}")
    if node is None:
        del found["spec"]["nodeName"]
        return {**found, "spec": {**found["spec"], "allNodes": True}}
    return {**found, "spec": {**found["spec"], "nodeName": node}}


def claim(node: str | None, *, pool: str = "n1", device: str = "a0") -> wire.ResourceClaim:
    """A claim to which a device was given, as kube-scheduler writes it: with the node that the device is of."""
    held: JSON = {"devices": {"results": [{"driver": NVIDIA, "pool": pool, "device": device, "request": "r0"}]}}
    if node is not None:
        field = {"key": "metadata.name", "operator": "In", "values": [node]}
        held["nodeSelector"] = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    return convert({"metadata": {"name": "c"}, "status": {"allocation": held}}, wire.ResourceClaim, "claim")


def cost(found: Allocated) -> list[int]:
    return [each.debit.memory for each in found.devices]


EVIL = of_pool("n1", "evil", whole("a0", CHEAP), whole("a1", CHEAP), generation=10**9, name="0-first")
OURS = of_pool("n1", "n1", whole("a0", "80Gi"), whole("a1", "80Gi"))


@pytest.mark.parametrize("order", [(EVIL, OURS), (OURS, EVIL)])
def test_a_slice_that_names_another_nodes_pool_neither_blocks_nor_cheapens_its_cards(order: tuple[JSON, ...]) -> None:
    """The attack: with the largest generation, and a name that sorts first, as NodeRestriction lets a node write."""
    both, alone = published(order), published([OURS])
    for node in ("n1", None):
        assert cost(held_by(claim(node), both)) == cost(held_by(claim(node), alone)) == [80 * 1024]
    asked = requests(exactly(NVIDIA))
    assert cost_of(asked, inventory(*order)) == cost_of(asked, inventory(OURS))
    assert (
        both.problems
        == both.of_others
        == {"0-first": f"node evil names pool n1 of driver {NVIDIA}, which belongs to node n1: its devices don't count"}
    )
    assert both.on("evil") == []


def test_while_a_node_publishes_nothing_another_one_says_nothing_of_its_cards() -> None:
    """Its driver is replaced, say: what its cards have isn't known, and what evil says of them isn't believed."""
    only_evil = published([EVIL])
    (unknown,) = held_by(claim("n1"), only_evil).unseen
    assert unknown == f"device a0 of pool n1 of driver {NVIDIA} is in no ResourceSlice of node n1"


@pytest.mark.parametrize(
    ("pool", "nodes", "counting"),
    [
        ("n1", ["n1"], ["n1"]),
        ("cards", ["n1"], ["n1"]),
        ("n1", ["evil", "n1"], ["n1"]),
        # slices without a node are written by no node, so their pools are no node's
        ("cards", ["evil", None], [None]),
        ("evil", ["evil", None], [None]),
        # a pool of two nodes that has no node's name: each has its own, as for kube-scheduler
        ("cards", ["n1", "n2"], ["n1", "n2"]),
    ],
)
def test_whose_a_pool_is(pool: str, nodes: list[str | None], counting: list[str | None]) -> None:
    found = published([of_pool(pool, node, whole(f"d-{node}")) for node in nodes])
    assert sorted(device.id.name for device in found.all) == sorted(f"d-{node}" for node in counting)
    left_out = {f"{node}-{pool}" for node in nodes if node not in counting}
    assert {name for name, text in found.problems.items() if "don't count" in text} == left_out


def test_of_pools_of_one_name_the_allocations_node_says_which_and_else_the_dearest_counts() -> None:
    both = published([of_pool("cards", "n1", whole("a0", "80Gi")), of_pool("cards", "evil", whole("a0", CHEAP))])
    found = [cost(held_by(claim(node, pool="cards"), both)) for node in ("n1", "evil", None)]
    assert found == [[80 * 1024], [4], [80 * 1024]]
    assert both.problems["n1-cards"] == f"names pool cards of driver {NVIDIA}, which node evil publishes too"


def test_a_card_of_another_node_is_not_taken_by_a_namesake() -> None:
    """What kube-scheduler gives of evil's device is held of evil's."""
    cache = ClaimCache(ROWS)
    for each in (of_pool("cards", "n1", whole("a0")), of_pool("cards", "evil", whole("a0"))):
        cache.put_slice(each["metadata"]["name"], convert(each, wire.ResourceSlice, "slice"))
    cache.put_claim(claim("evil", pool="cards"))
    assert {node: bool(cache.on(node)) for node in ("n1", "evil")} == {"n1": False, "evil": True}


NODES = st.sampled_from(["n1", "n2", None])
WRITES = st.lists(
    st.tuples(
        st.sampled_from("abcd"),
        st.none() | st.tuples(st.sampled_from(["n1", "x"]), NODES, st.integers(1, 3), st.sets(st.sampled_from("pqr"))),
    ),
    max_size=25,
)


@given(WRITES)
def test_slices_that_come_change_and_go_one_by_one_are_as_if_they_came_at_once(
    writes: list[tuple[str, tuple[str, str | None, int, set[str]] | None]],
) -> None:
    one_by_one, there = PublishedDevices((), ROWS), dict[str, JSON]()
    for name, content in writes:
        there.pop(name, None)
        before, version = one_by_one.all, one_by_one.version
        if content is None:
            one_by_one.drop(name)
        else:
            pool, node, generation, of_slice = content
            cards = [whole(card) for card in sorted(of_slice)]
            there[name] = of_pool(pool, node, *cards, generation=generation, name=name)
            one_by_one.put(convert(there[name], wire.ResourceSlice, "slice"))
        assert one_by_one.all == before or one_by_one.version != version
    at_once = published(there.values())
    assert one_by_one.problems == at_once.problems
    assert set(map(str, one_by_one.all)) == set(map(str, at_once.all))
    for node in ("n1", "n2", ""):
        assert set(map(str, one_by_one.on(node))) == set(map(str, at_once.on(node)))
        for name in "pqr":
            identity = DeviceID(NVIDIA, "x", name)
            assert len(one_by_one.named(identity, node)) == len(at_once.named(identity, node))


# --- what a change costs


class Work:
    """Devices that were read of slices, and evaluations of expressions."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.read = self.evaluated = self.compiled = 0
        of_slice, selects = PublishedDevices._devices_of, selectors._Selector.selects
        made = selectors._Selector.__init__

        def read(
            devices: PublishedDevices, each: wire.ResourceSlice, unpriced: dict[str, str]
        ) -> Iterator[devices_module.PublishedDevice]:
            for device in of_slice(devices, each, unpriced):
                self.read += 1
                yield device

        def evaluated(selector: Any, device: Any) -> bool | None:
            self.evaluated += 1
            return selects(selector, device)

        def compiled(selector: Any, expression: str) -> None:
            self.compiled += 1
            made(selector, expression)

        monkeypatch.setattr(PublishedDevices, "_devices_of", read)
        monkeypatch.setattr(selectors._Selector, "selects", evaluated)
        monkeypatch.setattr(selectors._Selector, "__init__", compiled)

    def done(self) -> tuple[int, int]:
        found = self.read, self.evaluated
        self.read = self.evaluated = 0
        return found


def fleet(cache: ClaimCache, slices: int, devices: int) -> None:
    """A node with slices of as many devices, and the classes."""
    for number in range(slices):
        put(cache, number, devices)
    for name, expressions in CLASSES.items():
        written = {"spec": {"selectors": [{"cel": {"expression": each}} for each in expressions]}}
        cache.put_class(name, convert(written, wire.DeviceClass, "class"))


def put(cache: ClaimCache, number: int, devices: int, memory: str = "40Gi", *, generation: int = 1) -> None:
    cards = [share(f"d{number}-{card}", memory) for card in range(devices)]
    written = resource_slice("big", *cards, name=f"s{number}", generation=generation)
    cache.put_slice(f"s{number}", convert(written, wire.ResourceSlice, "slice"))


def test_a_change_of_a_slice_costs_what_that_slice_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """The attack: a node with very many devices rewrites one of its slices all the time, and others ask for prices."""
    work, cache = Work(monkeypatch), ClaimCache(ROWS)
    fleet(cache, slices=30, devices=8)
    asked = requests(exactly(memory="10Gi"), exactly(cel=f'device.attributes["{HAMI}"].uuid != "x"', cores="1"))
    cost_of(asked, cache.inventory)
    assert work.done() == (240, 2 * 240)
    for turn in range(5):
        put(cache, 3, 8, f"{turn + 1}Gi")
        assert cost_of(asked, cache.inventory).debits["NVIDIA"].memory == (10 + turn + 1) * 1024
        assert work.done() == (8, 2 * 8)


def test_generations_that_go_up_and_down_are_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The attack: one slice of another generation takes all others of the pool out, and lets them in again."""
    work, cache = Work(monkeypatch), ClaimCache(ROWS)
    fleet(cache, slices=30, devices=8)
    asked = requests(exactly(memory="10Gi"))
    cost_of(asked, cache.inventory)
    work.done()
    for generation in (2, 1, 2, 1):
        put(cache, 0, 8, generation=generation)
        cost_of(asked, cache.inventory)
        assert work.done() == (8, 8)


def test_slices_that_are_written_again_as_they_were_cost_no_price(monkeypatch: pytest.MonkeyPatch) -> None:
    """An ordinary day: drivers write their slices again, and informers list them."""
    work, cache = Work(monkeypatch), ClaimCache(ROWS)
    fleet(cache, slices=3, devices=4)
    asked = requests(exactly(memory="10Gi"))
    first = cost_of(asked, cache.inventory)
    work.done()
    put(cache, 1, 4)
    assert cost_of(asked, cache.inventory) is first
    assert work.done() == (4, 0)


def bare(namespace: str, *written: JSON) -> BareClaim:
    spec = {"devices": {"requests": [{"name": f"r{i}", "exactly": each} for i, each in enumerate(written)]}}
    meta = {"name": "c", "namespace": namespace, "uid": f"uid-{namespace}"}
    return BareClaim.of(convert({"metadata": meta, "spec": spec}, wire.ResourceClaim, "claim"))


async def test_others_have_their_turn_while_very_many_devices_are_looked_at() -> None:
    """The first price after a start, in slices of time: nobody else waits for the whole of it."""
    cache, longest = ClaimCache(ROWS), 0.0
    fleet(cache, slices=60, devices=128)
    loop = asyncio.get_running_loop()
    pricing = asyncio.create_task(cache.prepare(bare("team-a", exactly(memory="1Gi"))))
    turns = 0
    while not pricing.done():
        began = loop.time()
        await asyncio.sleep(0)
        longest, turns = max(longest, loop.time() - began), turns + 1
    assert turns > 3
    assert cost_of(bare("team-a", exactly(memory="1Gi")).requests, cache.inventory).debits["NVIDIA"].memory == 1024


def numbers(depth: int) -> str:
    listed = f"[{', '.join(map(str, range(10)))}]"
    return "".join(f"{listed}.all({name}, " for name in "abcdefgh"[:depth]) + "true" + ")" * depth


def test_expressions_are_counted_before_any_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The attack: as many as the API server takes for a claim, 32 requests of 8 alternatives with 32 selectors each."""
    work = Work(monkeypatch)
    alternatives = [
        [
            {**exactly(), "selectors": [{"cel": {"expression": f"{a} + {r} + {s} >= 0"}} for s in range(32)]}
            for a in range(8)
        ]
        for r in range(32)
    ]
    cost_of(requests(*alternatives), inventory(resource_slice("n1", share("a0")), classes={}), seconds=1000.0)
    assert work.compiled == MOST_EXPRESSIONS
    work.compiled = 0
    long = [exactly(cel=f'device.driver != "{number}{"x" * 5000}"') for number in range(20)]
    cost_of(requests(*long), inventory(resource_slice("n1", share("a0")), classes={}), seconds=1000.0)
    assert work.compiled == MOST_CHARACTERS // 5020


async def test_who_writes_slow_selectors_is_alone_in_waiting_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The attack: a team posts claims with slow selectors at once. A claim without any passes all of them."""
    cache, order = ClaimCache(ROWS), list[str]()
    fleet(cache, slices=2, devices=20)

    async def prepared(name: str, pod: BareClaim) -> None:
        await cache.prepare(pod)
        order.append(name)

    slow = [
        asyncio.create_task(prepared(f"slow-{n}", bare("evil", exactly(cel=f"{n} >= 0 && {numbers(4)}"))))
        for n in range(4)
    ]
    await asyncio.sleep(0)
    await asyncio.create_task(prepared("quick", bare("team-a", exactly(memory="1Gi"))))
    assert order == ["quick"]
    await asyncio.gather(*slow)
    assert order[1:] == [f"slow-{n}" for n in range(4)]


def test_what_there_was_no_time_for_goes_on_where_it_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of several reviews has time for some devices; the price is right in the end."""
    work, now = Work(monkeypatch), iter(range(10_000))
    few = inventory(
        *(resource_slice(f"n{n}", share(f"d{n}", "10Gi" if n < 9 else "20Gi")) for n in range(10)), classes={}
    )
    asked = requests(exactly(cel=f'device.attributes["{HAMI}"].uuid == "d9"'))
    clock = partial(lambda: float(next(now)))
    costs = []
    for _ in range(6):
        run_at_once(cost_steps(asked, few, Budget(5.0, clock)))
        costs.append(cost_of(asked, few).debits["NVIDIA"].memory)
    assert costs[0] == 10240
    assert costs[-1] == 20480
    assert work.evaluated == 10


def test_nothing_that_a_claim_is_given_depends_on_the_name_of_its_slice() -> None:
    """An ordinary day: HAMi's driver on many nodes, each with the pool of its name."""
    many = published([resource_slice(f"n{n}", share("d0"), share("d1")) for n in range(20)])
    assert many.problems == {}
    (held,) = allocated([result("d1", "n7", consumedCapacity={"memory": "1Gi", "cores": "5"})], many, "n7").devices
    assert (held.node, held.debit) == ("n7", Debit(1, 1024, 5))
