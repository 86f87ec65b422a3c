"""Quotas that count some cards only, by device type and node (docs/spec/quota.md#5.1)."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import Any

import pytest
import virtual_time
from builders import card, container, node
from hypothesis import event, given
from hypothesis import strategies as st

from hami_webhook.admission.denial import Denied
from hami_webhook.cluster.api import Kind
from hami_webhook.devices.model import Device, NodeView
from hami_webhook.kubectl.overview import Overview
from hami_webhook.quota.card_selection import COUNTED, DEVICE_TYPES, NODE_SELECTOR, CardSelection
from hami_webhook.scheduling.placer import Placement

from .objects import ALLOCATED, GPU, LARGE, MEM, TEAM, account_of, pod, quota
from .quota_env import QuotaEnv
from .test_quota_lint import judged

H100, A10 = "NVIDIA-NVIDIA H100 80GB HBM3", "NVIDIA-NVIDIA A10"
MEMORY = {H100: 81559, A10: 23028}


def node_of(name: str, *types: str, pool: str = "") -> dict[str, Any]:
    cards = [card(f"{name}-{index}", MEMORY[each], type=each) for index, each in enumerate(types)]
    return node(name, *cards, labels={"pool": pool} if pool else {})


def counting(name: str, types: str | None = None, selector: str | None = None, **hard: Any) -> dict[str, Any]:
    made = quota(name, **hard)
    notes = {DEVICE_TYPES: types, NODE_SELECTOR: selector}
    made["metadata"]["annotations"] = {key: value for key, value in notes.items() if value is not None}
    return made


def of_type(name: str, model: str = "", **amounts: Any) -> dict[str, Any]:
    return pod(name, annotations={"nvidia.com/use-gputype": model} if model else {}, **amounts)


@pytest.mark.parametrize(
    ("types", "registered", "counted"),
    [
        ("A10", "NVIDIA-NVIDIA A10", True),
        ("A10", "NVIDIA-NVIDIA A100-SXM4-40GB", False),
        ("A10", "NVIDIA-NVIDIA A10G", False),
        ("a100", "NVIDIA-NVIDIA A100-SXM4-40GB", True),
        ("A100-SXM4", "NVIDIA-NVIDIA A100-SXM4-40GB", True),
        ("A10,A100", "NVIDIA-NVIDIA A100-SXM4-40GB", True),
        ("910B", "Ascend910B3", False),
        ("Ascend910B3", "Ascend910B3", True),
        ("A.0", "NVIDIA-NVIDIA A10", False),
    ],
)
def test_types_are_whole_words(types: str, registered: str, counted: bool) -> None:
    cards = CardSelection.of(account_of(counting("q", types, mem=1)).quota)
    assert cards is not None
    assert cards.admits(registered, {}) is counted


@pytest.mark.parametrize(
    ("types", "selector", "admitted"),
    [
        ("H100", None, {"hn", "ht"}),
        ("h100,a10", None, {"hn", "ht", "an", "at"}),
        (None, "pool=train", {"ht", "at"}),
        ("A10", "pool=train", {"at"}),
        ("A10", "pool=train,zone=a", set()),
        ("", "", {"hn", "ht", "an", "at"}),
        ("H100", "train", {"hn", "ht"}),
    ],
)
def test_which_cards_are_counted(types: str | None, selector: str | None, admitted: set[str]) -> None:
    cards = CardSelection.of(account_of(counting("q", types, selector, mem=1)).quota) or CardSelection()
    places = {"hn": (H100, {}), "ht": (H100, {"pool": "train"}), "an": (A10, {}), "at": (A10, {"pool": "train"})}
    assert {name for name, (model, labels) in places.items() if cards.admits(model, labels)} == admitted


@pytest.mark.parametrize(
    ("annotations", "reported"),
    [
        ({DEVICE_TYPES: "A100,H100", NODE_SELECTOR: "pool=train"}, ""),
        ({DEVICE_TYPES: " , "}, f"{DEVICE_TYPES} names no type, so all are counted; write types such as A100,H100"),
        (
            {NODE_SELECTOR: "train"},
            f"{NODE_SELECTOR}: train is no list of labels, so all nodes are counted; write labels such as pool=train",
        ),
    ],
)
def test_what_selects_nothing_is_told(annotations: dict[str, str], reported: str) -> None:
    assert judged({MEM: "9"}, annotations=annotations) == ([("QuotaMisread", reported)] if reported else [])


def test_types_that_no_card_has_are_told() -> None:
    (reported,) = judged({GPU: "9"}, cards=(LARGE,), annotations={DEVICE_TYPES: "A1000"})
    there = card("GPU-0", LARGE)["type"]
    text = f"{DEVICE_TYPES}: no card has such a type; write words of those that there are: {there}"
    assert reported == ("QuotaMisread", text)
    assert judged({GPU: "9"}, cards=(LARGE,), annotations={DEVICE_TYPES: f"A1000,{there}"}) == []


async def test_a_node_that_comes_moves_nobodys_charge_before_the_pod_is_placed() -> None:
    async with QuotaEnv(node_of("h", H100), counting("q", "H100", gpu=1)) as env:
        await env.create(of_type("p", gpu=1, mem=1000))
        assert env.used("q") == {"gpu": 1}
        await env.add(node_of("a", A10))
        await env.run(60)
        assert env.used("q") == {"gpu": 1}
        assert list(env.states("q").values()) == ["floor"]
        placed = await env.core.placer.place(env.pod("p"), ["a"])
        assert isinstance(placed, Placement)
        await env.run(3)
        assert env.used("q") == {"gpu": 0}
        assert env.ledger("q") == {}


async def test_the_overview_shows_what_is_on_the_selected_cards() -> None:
    async with QuotaEnv(node_of("h", H100), node_of("a", A10), counting("q", "H100", gpu=4)) as env:
        for name in ("a", "h"):
            await env.create(of_type(name, gpu=1, mem=1000))
            await env.core.placer.place(env.pod(name), [name])
        await env.create(of_type("waiting", "H100", gpu=2, mem=1))
        await env.run(3)
        [shown] = Overview(env.core.view, env.now).quotas(TEAM)
        assert [(key.used, key.waiting, key.placed) for key in shown.keys] == [(3, 2, 1)]
        assert [each.name for each in shown.pods] == ["h", "waiting"]
        assert [use.model for use in shown.models] == [H100]
        assert [room.model for room in shown.room] == [H100]
        assert "counts some cards only: types h100" in shown.notes


async def test_the_overview_looks_at_each_card_once_for_all_quotas_of_a_selection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked_at: list[str] = []
    has_free_slot = NodeView.has_free_slot

    def watched(view: NodeView, device: Device) -> bool:
        looked_at.append(device.uuid)
        return has_free_slot(view, device)

    monkeypatch.setattr(NodeView, "has_free_slot", watched)
    quotas = [counting(f"{types}-{number}".lower(), types, gpu=4) for number in range(9) for types in ("H100", None)]
    async with QuotaEnv(node_of("h", H100), node_of("a", A10), *quotas) as env:
        looked_at.clear()
        shown = Overview(env.core.view, env.now).quotas(TEAM)
        cards = [device.uuid for view in env.core.state.views() for device in view.inventories["NVIDIA"].devices]
    assert [[room.model for room in each.room] for each in shown] == [[H100]] * 9 + [[A10, H100]] * 9
    assert Counter(looked_at) == Counter([*cards, "h-0"])


async def test_relabelled_nodes_are_recounted() -> None:
    async with QuotaEnv(node_of("n", A10, pool="train"), counting("q", selector="pool=train", gpu=4)) as env:
        await env.create(of_type("p", gpu=1, mem=1))
        assert await env.node_of("p") == "n"
        await env.run(3)
        assert env.used("q") == {"gpu": 1}
        await env.cluster.patch(Kind.NODES, "n", {"metadata": {"labels": {"pool": "serve"}}})
        await env.run(3)
        assert env.used("q") == {"gpu": 0}
        await env.cluster.patch(Kind.NODES, "n", {"metadata": {"labels": {"pool": "train"}}})
        await env.run(3)
        assert env.used("q") == {"gpu": 1}


async def test_pods_on_cards_that_are_no_longer_registered_stay_counted_by_their_type() -> None:
    nodes = node_of("h", H100), node_of("a", A10)
    async with QuotaEnv(*nodes, counting("h100", "H100", gpu=4), counting("a10", "A10", gpu=4)) as env:
        await env.create(of_type("p", "A10", gpu=1, mem=1))
        await env.place("p")
        await env.cluster.patch(Kind.NODES, "a", {"metadata": {"annotations": {"hami.io/node-nvidia-register": "[]"}}})
        await env.run(3)
        assert (env.used("h100"), env.used("a10")) == ({"gpu": 0}, {"gpu": 1})


async def test_what_is_selected_anew_is_counted_anew_before_anything_is_charged() -> None:
    async with QuotaEnv(node_of("h", H100), node_of("a", A10), counting("q", "H100", gpu=1)) as env:
        await env.create(of_type("a", "A10", gpu=1, mem=1))
        await env.place("a")
        assert env.used("q") == {"gpu": 0}
        assert env.quota("q")["metadata"]["annotations"][COUNTED] == "types h100"
        patch = {"metadata": {"annotations": {DEVICE_TYPES: "A10"}}}
        await env.cluster.patch(Kind.RESOURCE_QUOTAS, "q", patch, TEAM)
        denial = await env.refused(of_type("b", "A10", gpu=1, mem=1))
        assert denial.message.endswith(f"requested: {GPU}=1, used: {GPU}=1, limited: {GPU}=1")
        await env.cluster.patch(Kind.RESOURCE_QUOTAS, "q", {"metadata": {"annotations": {DEVICE_TYPES: None}}}, TEAM)
        await env.run(3)
        assert env.used("q") == {"gpu": 1}
        assert COUNTED not in env.quota("q")["metadata"].get("annotations", {})


def held(env: QuotaEnv, types: tuple[str, ...], pool: str) -> tuple[int, int]:
    """Slots and MiB that placed pods hold of some types in a pool, read off the pods and the nodes alone."""
    slots = memory = 0
    for item in env.cluster.peek_all(Kind.PODS, TEAM):
        notes = item["metadata"].get("annotations", {})
        for entry in notes.get(ALLOCATED, "").replace(";", ":").split(":"):
            if not entry:
                continue
            uuid, _, mib, _ = entry.split(",")
            where = env.cluster.peek(Kind.NODES, uuid.rpartition("-")[0])
            assert where is not None
            model = H100 if uuid.startswith("h") else A10
            if (not types or any(each in model for each in types)) and pool in (
                where["metadata"]["labels"].get("pool"),
                "",
            ):
                slots += 1
                memory += int(mib)
    return slots, memory


QUOTAS = {"h100": (("H100",), ""), "a10": (("A10",), ""), "train": ((), "train"), "all": ((), "")}
POOLS = {"ht": "train", "hs": "serve", "at": "train", "as": "serve"}
CREATED = st.tuples(
    st.just("create"),
    st.sampled_from(["", "H100", "A10"]),
    st.sampled_from(["", "", "train", "serve"]),
    st.sampled_from([{"gpu": 1, "mem": 9000}, {"gpu": 2, "mem": 4000}, {"gpu": 1, "percent": 40}, {"gpu": 1}]),
    st.sampled_from([True, True, True, False]),
)
OTHERS = st.tuples(st.sampled_from(["place", "delete", "wait"]), st.integers(0, 30))
LIMITS = st.tuples(st.sampled_from([1, 3, 50, 50]), st.sampled_from([40_000, 100_000, 10**6, 10**6]))


Want = tuple[str, str, dict[str, Any]]
"""The type and the pool that a pod names, if any, and what it asks."""


def waiting(want: Want, types: tuple[str, ...], pool: str) -> tuple[int, int]:
    """What a waiting pod costs a quota: nothing unless it can get no other cards."""
    model, own_pool, amounts = want
    on = [(H100 if name[0] == "h" else A10, each) for name, each in POOLS.items()]
    mine = [(card, each) for card, each in on if model in card and own_pool in ("", each)]
    if not all((not types or types[0] in card) and pool in ("", each) for card, each in mine):
        return 0, 0
    smallest = min(MEMORY[card] for card, _ in mine)
    memory = amounts.get("mem", smallest * amounts.get("percent", 100) // 100)
    return amounts["gpu"], amounts["gpu"] * memory


class Crowd:
    """A namespace with the quotas, whose pods come, are placed and go."""

    def __init__(self, env: QuotaEnv, limits: dict[str, tuple[int, int]]) -> None:
        self.env = env
        self.limits = limits
        self.names: list[str] = []
        self.wants: dict[str, Want] = {}
        self.made = self.placed = 0

    async def act(self, action: str, *what: Any) -> None:
        if action == "create":
            model, pool, amounts, at_once = what
            name = await self.create((model, pool, amounts))
            if name and at_once:
                await self.place(name)
        elif action == "wait":
            await self.env.run(what[0])
        elif self.names:
            name = self.names[what[0] % len(self.names)]
            if action == "place":
                await self.place(name)
            else:
                await self.env.delete(name, grace=0)
                self.names.remove(name)

    async def create(self, want: Want) -> str:
        self.made += 1
        name, (model, pool, amounts) = f"p{self.made}", want
        notes: dict[str, Any] = {"nvidia.com/use-gputype": model} if model else {}
        spec: dict[str, Any] = {"nodeSelector": {"pool": pool}} if pool else {}
        over = [
            quota
            for quota, cards in QUOTAS.items()
            for cost, sum_, limit in zip(waiting(want, *cards), self.expected(quota), self.limits[quota], strict=True)
            if cost and cost + sum_ > limit
        ]
        with suppress(Denied):
            await self.env.create(pod(name, container(**amounts), annotations=notes, **spec))
            self.names.append(name)
            self.wants[name] = want
        assert (name in self.wants) == (not over)
        return "" if over else name

    async def place(self, name: str) -> None:
        found = self.env.pod(name)
        if found.node_name:
            return
        wanted = (found.node_selector or {}).get("pool", "")
        nodes = [node for node, pool in POOLS.items() if wanted in ("", pool)]
        before = {quota: self.waiting(quota) for quota in QUOTAS}
        self.placed += isinstance(await self.env.core.placer.place(found, nodes), Placement)
        await self.env.drain()
        for each, cards in QUOTAS.items():
            most = [sum(pair) for pair in zip(held(self.env, *cards), before[each], strict=True)]
            assert all(used <= bound for used, bound in zip(self.used(each), most, strict=True))

    def used(self, quota: str) -> tuple[int, int]:
        used = self.env.used(quota)
        return used["gpu"], used["mem"]

    def waiting(self, quota: str) -> tuple[int, int]:
        """What the pods that aren't placed cost together."""
        names = [name for name in self.names if not self.env.pod(name).node_name]
        costs = [waiting(self.wants[name], *QUOTAS[quota]) for name in names]
        return sum(slots for slots, _ in costs), sum(memory for _, memory in costs)

    def expected(self, quota: str) -> tuple[int, int]:
        (slots, memory), (more, much) = held(self.env, *QUOTAS[quota]), self.waiting(quota)
        return slots + more, memory + much

    async def check(self) -> None:
        for name, limits in self.limits.items():
            assert all(used <= limit for used, limit in zip(self.used(name), limits, strict=True))
        await self.env.run(3)
        assert {quota: self.used(quota) for quota in QUOTAS} == {quota: self.expected(quota) for quota in QUOTAS}


@given(
    actions=st.lists(CREATED | CREATED | OTHERS, min_size=12, max_size=25),
    limits=st.fixed_dictionaries(dict.fromkeys(QUOTAS, LIMITS)),
)
def test_random_pods_are_charged_what_a_count_of_the_cards_says_and_refused_for_no_other_reason(
    actions: list[Any], limits: dict[str, tuple[int, int]]
) -> None:
    async def run() -> None:
        nodes = (
            node_of("ht", H100, H100, pool="train"),
            node_of("hs", H100, pool="serve"),
            node_of("at", A10, A10, pool="train"),
            node_of("as", A10, A10, A10, pool="serve"),
        )
        made = [
            counting(name, ",".join(types) or None, f"pool={pool}" if pool else None,
                     gpu=limits[name][0], mem=limits[name][1])
            for name, (types, pool) in QUOTAS.items()
        ]  # fmt: skip
        async with QuotaEnv(*nodes, *made) as env:
            crowd = Crowd(env, limits)
            for action in actions:
                await crowd.act(*action)
                await crowd.check()
            event(f"{min(crowd.placed, 5)} or more pods placed")

    virtual_time.run(run())
