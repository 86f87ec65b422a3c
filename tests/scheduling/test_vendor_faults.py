"""An unexpected exception of a vendor's rules over one node is that node's reason, and nobody else's."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import pytest
from builders import bound_pod, card, node, pod, read_pod
from evictions.extended import extended
from explain.contexts import explained, on

from hami_webhook.devices import registry
from hami_webhook.devices.fit_request import Candidate, Check
from hami_webhook.devices.model import Inventory, NodeView, Rows
from hami_webhook.devices.registry import VendorFaults
from hami_webhook.kube.objects import Node, Pod
from hami_webhook.quota.pricing import charge_of, price_pending
from hami_webhook.state.cluster_cache import ClusterCache

from .extender_env import MODES, ExtenderEnv, args
from .placer_env import NOW, VENDORS

TRAP = "trap"
"""The UUID of the card over which the rules fail."""
NVIDIA = VENDORS["NVIDIA"]
INTERNAL = "NodeInternalError"


@pytest.fixture(autouse=True)
def faults(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> VendorFaults:
    """What the vendors' rules did in this test."""
    fresh = VendorFaults()
    monkeypatch.setattr(VENDORS, "faults", fresh)
    caplog.set_level(logging.ERROR, registry.__name__)
    return fresh


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[], list[tuple[str, str]]]:
    """The node and the exception of each line that was logged."""

    def logged() -> list[tuple[str, str]]:
        records = [record for record in caplog.records if record.name == registry.__name__]
        assert all(record.exc_info for record in records), "there is no traceback"
        return [(str(vars(record)["node"]), str(record.exc_info and record.exc_info[1])) for record in records]

    return logged


@pytest.fixture
def bad_check(monkeypatch: pytest.MonkeyPatch) -> Check:
    """A check of NVIDIA's that raises over the trap."""

    def passes(candidate: Candidate) -> bool:
        if candidate.device.uuid == TRAP:
            raise IndexError("list index out of range")
        return True

    check = Check("CardNotHealth", passes)
    monkeypatch.setattr(NVIDIA, "checks", (check, *NVIDIA.checks))
    return check


def fail_over(monkeypatch: pytest.MonkeyPatch, method: str, is_bad: Callable[..., bool]) -> None:
    """Let a method of NVIDIA's, or of its occupancy, raise for some arguments."""
    owner = NVIDIA if hasattr(NVIDIA, method) else NVIDIA.occupancy
    usual = getattr(owner, method)

    def failing(*arguments: object) -> object:
        if is_bad(*arguments):
            raise KeyError(method)
        return usual(*arguments)

    monkeypatch.setattr(owner, method, failing)


NODES = (node("bad", card(TRAP)), node("good", card("g")))


async def prepared(mode: str) -> ExtenderEnv:
    env = ExtenderEnv(mode)
    await env.add(*NODES, pod("p", gpu=1, mem=1000), pod("q", gpu=1, mem=1000))
    return env


@pytest.mark.vendor_faults
@pytest.mark.parametrize("mode", MODES)
async def test_the_other_nodes_take_the_pod(
    mode: str, bad_check: Check, faults: VendorFaults, lines: Callable[[], list[tuple[str, str]]]
) -> None:
    """In filter, in prioritize, and in bind, which tests the node once more."""
    env = await prepared(mode)
    answer = await env.filter("p", "bad", "good")
    assert answer["NodeNames"] == ["good"]
    assert answer["FailedNodes"] == answer["FailedAndUnresolvableNodes"] == {"bad": INTERNAL}
    assert answer["Error"] == ""
    graded = await env.extender.prioritize(args({"Pod": env.raw("p"), "NodeNames": ["bad", "good"]}))
    assert dict(graded)["bad"] == 0
    assert await env.bind("p", "good") == ""
    assert f"node bad can't take the pod any longer: {INTERNAL}" in await env.bind("q", "bad")
    assert set(faults.counts) == {"fit"}
    assert lines() == [("bad", "list index out of range")]


@pytest.mark.vendor_faults
async def test_a_filter_of_whole_nodes_leaves_that_node_out(bad_check: Check, faults: VendorFaults) -> None:
    env = await prepared("cooperative")
    answer = await env.ask({"Pod": env.raw("p"), "Nodes": {"items": list(NODES)}, "NodeNames": None})
    assert [each["metadata"]["name"] for each in answer["Nodes"]["items"]] == ["good"]
    assert answer["FailedNodes"] == {"bad": INTERNAL}
    assert faults.counts == {"fit": 1}


@pytest.mark.vendor_faults
async def test_a_fault_in_the_score_is_a_refusal_too(monkeypatch: pytest.MonkeyPatch, faults: VendorFaults) -> None:
    def bad_score(incoming: Pod, view: NodeView, rows: Rows, policy: str) -> bool:
        return view.name == "bad"

    fail_over(monkeypatch, "score", bad_score)
    env = await prepared("cooperative")
    answer = await env.filter("p", "bad", "good")
    assert (answer["NodeNames"], answer["FailedNodes"]) == (["good"], {"bad": INTERNAL})
    assert faults.counts == {"score": 1}


@pytest.mark.vendor_faults
async def test_a_registration_that_raises_is_unreadable(monkeypatch: pytest.MonkeyPatch, faults: VendorFaults) -> None:
    """Also one that could be read before: the cards of that time aren't trusted."""
    env = await prepared("cooperative")
    fail_over(monkeypatch, "inventory", lambda found: found.name == "bad")
    await env.label("bad", "zone", "another value, so the node is read again")
    assert env.state.registrations("bad")["NVIDIA"] == "unreadable"
    (problem,) = env.state.problems()
    assert problem.text == "the NVIDIA cards can't be read, by a fault of ours (KeyError)"
    answer = await env.filter("p", "bad", "good")
    assert (answer["NodeNames"], answer["FailedNodes"]) == (["good"], {"bad": "node unregistered"})
    assert faults.counts == {"registration": 1}


@pytest.mark.vendor_faults
async def test_where_usage_is_not_known_the_backends_cards_are_closed(
    monkeypatch: pytest.MonkeyPatch, faults: VendorFaults
) -> None:
    def on_trap(inventory: Inventory, pods: Sequence[Pod]) -> bool:
        return inventory.devices[0].uuid == TRAP

    fail_over(monkeypatch, "unusable_devices", on_trap)
    env = await prepared("cooperative")
    answer = await env.filter("p", "bad", "good")
    assert (answer["NodeNames"], answer["FailedNodes"]) == (["good"], {"bad": "1/1 CardNotHealth"})
    assert faults.counts == {"usage": 1}


@pytest.mark.vendor_faults
def test_a_pod_whose_allocation_raises_is_a_problem_of_that_pod(
    monkeypatch: pytest.MonkeyPatch, faults: VendorFaults
) -> None:
    fail_over(monkeypatch, "marks", lambda placed: placed.name == "r")
    state = ClusterCache(VENDORS)
    state.set_node(Node.from_object(NODES[0]), NOW)
    for name in ("r", "s"):
        state.set_pod(Pod.from_object(bound_pod(name, "bad", f"{TRAP},NVIDIA,1000,10:;", uid=f"uid-{name}")), NOW)
    view = state.view("bad")
    assert view is not None
    assert view.used("NVIDIA", TRAP).memory == 1000
    assert [(problem.name, "a fault of ours (KeyError)" in problem.text) for problem in state.problems()] == [
        ("r", True)
    ]
    assert faults.counts == {"usage": 1}


@pytest.mark.vendor_faults
async def test_nobody_is_evicted_because_of_a_fault(bad_check: Check) -> None:
    """The node's pods may be what the rules trip over, but that isn't known."""
    victim = bound_pod("r", "bad", f"{TRAP},NVIDIA,40960,0:;", uid="r", priority=0)
    async with extended(NODES[0], victim, pod("p", gpu=1, mem=40960, uid="p", priority=1000)) as env:
        assert (await env.filter("p"))["FailedAndUnresolvableNodes"] == {"bad": INTERNAL}
        assert env.ending() == []


@pytest.mark.vendor_faults
def test_a_pod_that_another_scheduler_bound_there_costs_what_it_declares(
    bad_check: Check, faults: VendorFaults
) -> None:
    """What it holds is worked out by Fit (docs/spec/quota.md#5)."""
    state = ClusterCache(VENDORS)
    state.set_node(Node.from_object(NODES[0]), NOW)
    by_hand = read_pod("p", gpu=1, mem=1000, nodeName="bad", uid="p")
    assert (
        charge_of(by_hand, VENDORS, state.capacity, NOW).amounts
        == price_pending(by_hand, VENDORS, state.capacity).amounts
    )
    assert faults.counts == {"fit": 1}


@pytest.mark.vendor_faults
def test_explain_says_that_it_is_ours(bad_check: Check) -> None:
    found = explained(pod("p", gpu=1, mem=1000), *NODES)
    assert on(found, "good").fits
    assert (on(found, "bad").reason, on(found, "bad").why) == (
        INTERNAL,
        "hami-webhook failed on this node; its log says why",
    )


@pytest.mark.vendor_faults
async def test_the_answer_goes_when_the_node_changes(monkeypatch: pytest.MonkeyPatch, faults: VendorFaults) -> None:
    def failing(*arguments: object, **more: object) -> list[int]:
        raise RuntimeError("selection")

    with monkeypatch.context() as patch:
        patch.setattr(NVIDIA, "selection", failing)
        env = ExtenderEnv("cooperative")
        await env.add(NODES[0], pod("p", gpu=1, mem=1000))
        assert (await env.filter("p", "bad"))["FailedNodes"] == {"bad": INTERNAL}
    assert (await env.filter("p", "bad"))["FailedNodes"] == {"bad": INTERNAL}, "it is remembered, as other answers are"
    assert faults.counts == {"fit": 1}
    await env.lock("bad", "another value")
    assert (await env.filter("p", "bad"))["NodeNames"] == ["bad"]


@pytest.mark.vendor_faults
async def test_attack_pods_of_many_shapes_fill_no_log(
    bad_check: Check, faults: VendorFaults, lines: Callable[[], list[tuple[str, str]]]
) -> None:
    """Every shape is tested anew, and meets the same fault in the same place."""
    env = ExtenderEnv("cooperative")
    await env.add(*NODES)
    for number in range(100):
        await env.add(pod(f"p{number}", gpu=1, mem=1000 + number))
        assert (await env.filter(f"p{number}", "bad", "good"))["NodeNames"] == ["good"]
    assert faults.counts == {"fit": 100}
    assert len(lines()) == 1


@pytest.mark.vendor_faults
def test_attack_nodes_that_come_and_go_fill_no_memory(faults: VendorFaults) -> None:
    most = registry._MOST_LOGGED
    for number in range(most + 10):
        faults.record("fit", f"n{number}", ValueError())
    assert len(faults._logged) == most


@pytest.mark.vendor_faults
def test_attack_nodes_that_come_and_go_make_no_log_of_a_fault_that_goes_on(
    faults: VendorFaults, lines: Callable[[], list[tuple[str, str]]]
) -> None:
    error = ValueError("the same")
    for number in range(registry._MOST_LOGGED + 10):
        faults.record("fit", f"n{number}", ValueError())
        faults.record("fit", "old", error)
    assert lines().count(("old", "the same")) == 1


async def test_on_an_ordinary_day_nothing_is_counted_or_logged(
    faults: VendorFaults, lines: Callable[[], list[tuple[str, str]]]
) -> None:
    env = await prepared("single")
    await env.add(pod("huge", gpu=9))
    assert (await env.filter("huge", "bad", "good"))["NodeNames"] is None
    (first,) = (await env.filter("p", "bad", "good"))["NodeNames"]
    assert await env.bind("p", first) == ""
    assert (faults.counts, lines()) == ({}, [])
