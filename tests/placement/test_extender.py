"""The extender's answers to kube-scheduler in both modes, on the embedded cluster (core 7.1, 9.2, 12, 13 and 16)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from hami_webhook.cluster.api import JSON, ClusterError, Conflict, Kind, Unavailable
from hami_webhook.placement.extender import Binding, decode_args, decode_binding, encode_filtered
from hami_webhook.placement.extender import Filtered as Answer
from hami_webhook.placement.place import Policies

from .front import MODES, MUTEX, Front, args, drive
from .scenery import ALLOCATED, CORES, MEM, NOW, asks, card, node, pod, quota, running

both = pytest.mark.parametrize("mode", MODES)
EXAMPLE_A = (
    node("node1", card("device1"), card("device2")),
    node("node2", card("device3"), card("device4")),
    running("on1", "node1", "device1,NVIDIA,2000,25:;"),
    running("on2", "node2", "device4,NVIDIA,6000,75:;"),
)


@both
@pytest.mark.parametrize(
    ("node_policy", "card_policy", "node_name", "device"),
    [
        ("binpack", "binpack", "node2", "device4"),
        ("binpack", "spread", "node2", "device3"),
        ("spread", "binpack", "node1", "device1"),
        ("spread", "spread", "node1", "device2"),
    ],
)
def test_example_a_node_and_card(mode: str, node_policy: str, card_policy: str, node_name: str, device: str) -> None:
    async def story() -> None:
        front = Front(mode, Policies(node_policy, card_policy))
        await front.add(*EXAMPLE_A, pod("p", asks(1, 1000, 20), asks(None)))
        answer = await front.filter("p", "node1", "node2")
        grades = await front.extender.prioritize(args({"Pod": front.raw("p"), "NodeNames": ["node1", "node2"]}))
        if mode == "single":
            assert answer["NodeNames"] == [node_name]
            others = ["node1", "node2"] if node_name == "node2" else ["node2", "node1"]
            scores = {"node1": "3.00", "node2": "8.00"}
            told = ",".join(f"{name}:{scores[name]}" for name in others)
            message = f"find fit node({node_name}), 0 nodes not fit, 2 nodes fit({told})"
            assert front.events("p") == [("Normal", "FilteringSucceed", message)]
        else:
            assert answer["NodeNames"] == ["node1", "node2"]
            assert dict(grades) == {"node1": 0, "node2": 0, node_name: 10}
            assert front.events("p") == []
            assert ALLOCATED not in front.read("p").annotations, "nothing is decided yet"
        assert await front.bind("p", node_name) == ""
        assert front.read("p").annotations[ALLOCATED] == f"{device},NVIDIA,1000,20:;;"
        assert front.read("p").annotations["hami.io/bind-phase"] == "allocating"
        assert front.read("p").annotations["hami.io/bind-time"] == str(int(NOW))
        assert front.read("p").node_name == node_name
        told_last = ("Normal", "BindingSucceed", f"Successfully binding node [{node_name}] to default/p")
        assert front.events("p")[-1] == told_last
        assert front.settled[-1] == front.read("p").uid

    drive(story())


@both
def test_example_b_nothing_fits(mode: str) -> None:
    async def story() -> None:
        front = Front(mode)
        await front.add(
            *(node("node1", card("a", 100), card("b", 100)), node("node2", card("c", 100), card("d"))),
            running("busy", "node2", "d,NVIDIA,10,90:;"),
            pod("p", asks(1, 1000, 20)),
        )
        assert await front.filter("p", "node1", "node2", "node3") == {
            "Nodes": None,
            "NodeNames": None,
            "FailedNodes": {
                "node1": "2/2 CardInsufficientMemory",
                "node2": "1/2 CardInsufficientCore, 1/2 CardInsufficientMemory",
                "node3": "node unregistered",
            },
            "FailedAndUnresolvableNodes": {"node3": "node unregistered"},
            "Error": "",
        }
        assert front.events("p") == [
            ("Warning", "FilteringFailed", "1 nodes CardInsufficientCore(node2)"),
            ("Warning", "FilteringFailed", "2 nodes CardInsufficientMemory(node1,node2)"),
            ("Warning", "FilteringFailed", "no available node, 3 nodes do not meet"),
        ]
        assert front.refusals == [front.read("p").uid]

    drive(story())


@both
def test_example_f_quota(mode: str) -> None:
    async def story() -> None:
        front = Front(mode)
        cards = [card(f"G{memory}", memory) for memory in (2000, 8000, 4000, 6000)]
        await front.add(node("n", *cards), quota({CORES: 100, MEM: 2000}))
        assert await front.scheduled(pod("small", asks(1)), "n") == ""
        assert front.read("small").annotations[ALLOCATED] == "G2000,NVIDIA,2000,0:;"
        other = quota({CORES: 100, MEM: 1500}, namespace="b")
        await front.add(other, pod("p", asks(1), namespace="b"))
        cards_again = node("m", *[card(f"H{memory}", memory) for memory in (2000, 8000, 4000, 6000)])
        await front.add(cards_again)
        failed = (await front.filter("p", "m", namespace="b"))["FailedNodes"]
        assert failed == {"m": "4/4 ResourceQuotaNotFit"}

    drive(story())


@both
def test_example_f_two_cards_within_the_quota(mode: str) -> None:
    async def story() -> None:
        front = Front(mode)
        cards = [card(f"G{memory}", memory) for memory in (2000, 8000, 4000, 6000)]
        await front.add(node("n", *cards), quota({CORES: 200, MEM: 4000}))
        assert await front.scheduled(pod("p", asks(2, 2000, 100)), "n") == ""
        assert front.read("p").annotations[ALLOCATED].count(",NVIDIA,2000,100:") == 2
        await front.add(pod("q", asks(1, 1)))
        assert "ResourceQuotaNotFit" in (await front.filter("q", "n"))["FailedNodes"]["n"], "4000 MiB are taken"

    drive(story())


LOCKED = "2026-01-02T15:04:05Z,a,p1"
AT_1506 = 1_767_366_360.0


@both
@pytest.mark.parametrize(
    ("seconds", "holder_lives", "error", "lock"),
    [
        (0, True, "node n has been locked within 5m0s: node lock contention", LOCKED),
        (0, False, "", "2026-01-02T15:06:00Z,b,p2"),
        (185, True, "node n has been locked within 5m0s: node lock contention", LOCKED),
        (186, True, "", "2026-01-02T15:09:06Z,b,p2"),
    ],
    ids=["held", "holder gone", "five minutes", "older"],
)
def test_example_h_lock(mode: str, seconds: int, holder_lives: bool, error: str, lock: str) -> None:
    async def story() -> None:
        front = Front(mode, patience=0)
        front.now = AT_1506 + seconds
        await front.add(node("n", card("G")), pod("p2", asks(1, 1000), namespace="b"))
        if holder_lives:
            await front.add(pod("p1", asks(None), namespace="a"))
        await front.filter("p2", "n", namespace="b")
        await front.lock("n", LOCKED)
        assert await front.bind("p2", "n", namespace="b") == error
        assert front._lock("n") == lock
        if error:
            assert front.events("p2")[-1] == ("Warning", "BindingFailed", error)
            assert front.read("p2", "b").node_name == ""
            kept = (1, 1000, 0) if mode == "single" else (0, 0, 0)  # the latter held nothing before the bind
            assert front.used("n", "G") == kept

    drive(story())


@both
def test_example_h_a_lock_of_ones_own_is_no_hindrance(mode: str) -> None:
    async def story() -> None:
        front = Front(mode, patience=0)
        front.now = AT_1506
        await front.add(node("n", card("G")), pod("p1", asks(1, 1000), namespace="a"))
        await front.filter("p1", "n", namespace="a")
        await front.lock("n", LOCKED)
        assert await front.bind("p1", "n", namespace="a") == ""
        assert front._lock("n") == LOCKED

    drive(story())


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ([], "extender args must be a JSON object"),
        ({}, "extender args missing pod"),
        ({"Pod": None, "NodeNames": []}, "extender args missing pod"),
        ({"Pod": {}, "NodeNames": "n"}, "extender args: NodeNames must be a list of names"),
        ({"Pod": {}, "NodeNames": [1]}, "extender args: NodeNames must be a list of names"),
        ({"Pod": {}, "Nodes": []}, "extender args: Nodes must be a list of nodes"),
        ({"Pod": {}, "Nodes": {"items": [1]}}, "extender args: Nodes must be a list of nodes"),
    ],
)
def test_args_that_are_wrong_are_told(body: Any, error: str) -> None:
    assert decode_args(body) == error


@pytest.mark.parametrize("keys", [("Pod", "NodeNames"), ("pod", "nodenames"), ("POD", "nodeNames")])
def test_keys_are_taken_in_any_case(keys: tuple[str, str]) -> None:
    decoded = args({keys[0]: {"metadata": {}}, keys[1]: ["n"], "Nodes": None})
    assert (decoded.pod, decoded.names, decoded.nodes) == ({"metadata": {}}, ["n"], None)
    binding = decode_binding({"podname": "p", "PODNAMESPACE": "s", "podUID": "u", "node": "n"})
    assert binding == Binding("s", "p", "u", "n")


@pytest.mark.parametrize("body", [None, [], {}, {"PodName": "p", "PodNamespace": "s", "PodUID": "u", "Node": ""}])
def test_a_binding_that_lacks_something_is_told(body: Any) -> None:
    assert decode_binding(body) == "extender binding args must name PodName, PodNamespace, PodUID and Node"


def test_an_empty_answer_has_every_key() -> None:
    assert encode_filtered(Answer()) == {
        "Nodes": None,
        "NodeNames": None,
        "FailedNodes": None,
        "FailedAndUnresolvableNodes": None,
        "Error": "",
    }
    assert encode_filtered(Answer(nodes=[]))["Nodes"] == {"metadata": {}, "items": []}


@both
def test_null_lists_are_an_error_for_our_pods_and_echoed_for_others(mode: str) -> None:
    async def story() -> None:
        front = Front(mode)
        await front.add(pod("ours", asks(1)), pod("other", asks(None)))
        nothing: JSON = {"Nodes": None, "NodeNames": None}
        assert (await front.ask({"Pod": front.raw("ours"), **nothing}))["Error"] == "extender args missing nodes"
        answer = await front.ask({"Pod": front.raw("other"), **nothing})
        assert (answer["Nodes"], answer["NodeNames"], answer["Error"]) == (None, None, "")
        nodes = {"metadata": {}, "items": [node("x")]}
        answer = await front.ask({"Pod": front.raw("other"), "Nodes": nodes, "NodeNames": ["x", "gone"]})
        assert (answer["Nodes"], answer["NodeNames"], answer["FailedNodes"]) == (nodes, ["x", "gone"], None)
        assert front.events("other") == []
        assert front.refusals == []

    drive(story())


@both
def test_a_pod_that_is_not_ours_is_bound_without_waiting_for_anybody(mode: str) -> None:
    async def story() -> None:
        front = Front(mode, patience=0)
        await front.add(node("n", card("G")), pod("holder", asks(None), namespace="a"))
        await front.lock("n", "2026-01-01T00:00:00Z,a,holder")
        async with front.locks.turn("n"):
            assert await front.scheduled(pod("p", asks(None)), "n") == ""
        assert front.read("p").node_name == "n"
        assert front._lock("n") == "2026-01-01T00:00:00Z,a,holder"

    drive(story())


@both
def test_a_pod_that_cannot_be_read_is_told(mode: str) -> None:
    async def story() -> None:
        front = Front(mode)
        told = (await front.ask({"Pod": {"metadata": "x"}, "NodeNames": ["n"]}))["Error"]
        assert told.startswith("the pod can't be read: ")
        assert await front.extender.prioritize(args({"Pod": {"metadata": "x"}, "NodeNames": ["n"]})) == [("n", 0)]
        odd: JSON = {"Pod": {}, "Nodes": {"items": [{"metadata": None}, {}]}}
        assert await front.extender.prioritize(args(odd)) == [("", 0), ("", 0)]

    drive(story())


@both
def test_a_bad_weight_ends_the_call(mode: str) -> None:
    async def story() -> None:
        front = Front(mode)
        key = "hami.io/device-scoring-weights"
        await front.add(node("n", card("G")), pod("p", asks(1), notes={key: "slot=1"}))
        why = "expected slot, core, and memory weights for pod p"
        told = f'calcScore failed invalid {key} annotation "slot=1": {why}'
        assert await front.filter("p", "n") == encode_filtered(Answer(error=told))
        assert front.events("p") == [("Warning", "FilteringFailed", told)]
        assert await front.bind("p", "n") != ""

    drive(story())


@pytest.mark.parametrize(
    ("wants", "failed", "unresolvable"),
    [
        (asks(3, 10), "NodeInsufficientDevice", True),
        (asks(1, 10**6), "2/2 CardInsufficientMemory", False),
        (
            asks(-1),
            "invalid nvidia.com/gpu value -1 in container c0: must be an integer between 0 and 2147483647",
            None,
        ),
    ],
)
def test_what_no_preemption_would_change_is_told(wants: JSON, failed: str, unresolvable: bool) -> None:
    async def story() -> None:
        for mode in MODES:
            front = Front(mode)
            await front.add(node("n", card("G"), card("H")), pod("p", wants))
            answer = await front.filter("p", "n")
            assert answer["FailedNodes"] == {"n": failed}
            assert answer["FailedAndUnresolvableNodes"] == ({"n": failed} if unresolvable else None)

    drive(story())


def test_pure_mismatches_of_type_and_uuid_are_unresolvable_mixed_ones_are_not() -> None:
    async def story() -> None:
        front = Front("single")
        await front.add(node("n", card("G"), card("H")))
        await front.add(pod("p", asks(1, 10), notes={"nvidia.com/use-gpuuuid": "X"}))
        answer = await front.filter("p", "n")
        assert answer["FailedAndUnresolvableNodes"] == answer["FailedNodes"] == {"n": "2/2 CardUuidMismatch"}
        await front.add(pod("q", asks(1, 9000), notes={"nvidia.com/use-gpuuuid": "G"}))
        answer = await front.filter("q", "n")
        assert answer["FailedNodes"] == {"n": "1/2 CardInsufficientMemory, 1/2 CardUuidMismatch"}
        assert answer["FailedAndUnresolvableNodes"] is None

    drive(story())


@both
def test_whole_nodes_are_a_dry_run(mode: str) -> None:
    async def story() -> None:
        front = Front(mode)
        await front.add(node("b", card("G")), running("full", "b", "G,NVIDIA,8000,100:;"), pod("p", asks(1, 8000)))
        given = [node("z", card("Z")), node("b", card("G")), node("a"), node("s", card("S", 10))]
        version = front.raw("p")["metadata"]["resourceVersion"]
        body = {"Pod": front.raw("p"), "Nodes": {"metadata": {}, "items": given}, "NodeNames": ["ignored"]}
        answer = await front.ask(body)
        assert answer["Nodes"] == {"metadata": {}, "items": given[:2]}, "every fitting one, in the order asked"
        assert answer["NodeNames"] is None
        assert answer["FailedNodes"] == {"a": "node unregistered", "s": "1/1 CardInsufficientMemory"}
        assert answer["FailedAndUnresolvableNodes"] == {"a": "node unregistered"}
        assert front.events("p") == []
        assert front.refusals == []
        assert front.raw("p")["metadata"]["resourceVersion"] == version
        body["Nodes"] = {"metadata": {}, "items": None}
        assert (await front.ask(body))["Error"] == "", "Go writes an empty list as null"

    drive(story())


def test_a_dry_run_tells_what_is_wrong_with_the_pod_and_judges_its_quota_by_the_real_pods() -> None:
    async def story() -> None:
        front = Front("cooperative")
        nodes = {"items": [node("z", card("Z"))]}
        await front.add(pod("bad", asks(-1)), quota({MEM: 6000}, used={MEM: 1000}))
        answer = await front.ask({"Pod": front.raw("bad"), "Nodes": nodes})
        assert list(answer["FailedNodes"]) == ["z"]
        assert answer["Nodes"]["items"] == []
        # `used` says less than the pods hold: the pods count
        await front.add(node("n", card("G")), running("r", "n", "G,NVIDIA,5000,0:;"), pod("p", asks(1, 2000)))
        assert (await front.ask({"Pod": front.raw("p"), "Nodes": nodes}))["FailedNodes"] == {
            "z": "1/1 ResourceQuotaNotFit"
        }

    drive(story())


@both
def test_filter_waits_for_the_caches(mode: str) -> None:
    async def story() -> None:
        front = Front(mode)
        await front.add(node("n", card("G")), pod("p", asks(1)), pod("other", asks(None)))
        front.synced.clear()
        assert (await front.filter("other", "n"))["NodeNames"] == ["n"], "not ours: answered at once"
        asked = asyncio.create_task(front.filter("p", "n"))
        await turns()
        assert not asked.done()
        front.synced.set()
        assert (await asked)["NodeNames"] == ["n"]

    drive(story())


def test_a_bind_that_decides_waits_for_the_caches() -> None:
    """Right after a start the pods that hold the cards aren't known yet."""

    async def story() -> None:
        front = Front("cooperative")
        await front.add(node("n", card("G")), pod("p", asks(1, 8000)))
        front.synced.clear()
        asked = asyncio.create_task(front.bind("p", "n"))
        await turns()
        assert not asked.done()
        await front.add(running("r", "n", "G,NVIDIA,8000,0:;"))
        front.synced.set()
        assert "CardInsufficientMemory" in await asked

    drive(story())


@both
def test_a_bound_pod_keeps_its_place(mode: str) -> None:
    async def story() -> None:
        front = Front(mode)
        await front.add(node("a", card("A")), node("b", card("B")))
        assert await front.scheduled(pod("p", asks(1, 1000)), "a") == ""
        before = front.raw("p")
        front.hear("p")
        assert (await front.filter("p", "b", "a"))["NodeNames"] == ["a"]
        unbound = {**before, "spec": {k: v for k, v in before["spec"].items() if k != "nodeName"}}
        late = await front.ask({"Pod": unbound, "NodeNames": ["b", "a"]})
        assert late["NodeNames"] == ["a"], "even if kube-scheduler doesn't know yet"
        assert await front.bind("p", "a") == "", "bound there already"
        assert await front.bind("p", "b") == "pod default/p is bound to a already"
        assert front.raw("p") == before
        assert front.used("a", "A") == (1, 1000, 0)

    drive(story())


def a_bind_that_changes_nothing(sent: JSON, error: str) -> None:
    async def story() -> None:
        for mode in MODES:
            front = Front(mode)
            await front.add(node("a", card("A")), node("b", card("B")), pod("p", asks(1, 1000)))
            await front.filter("p", "a")
            front.hear("p")
            before = (front.raw("p"), front.used("a", "A"), front.used("b", "B"))
            mine: JSON = {"PodName": "p", "PodNamespace": "default", "PodUID": front.read("p").uid, "Node": "a"}
            binding = decode_binding({**mine, **sent})
            assert isinstance(binding, Binding)
            assert (await front.extender.bind(binding)).startswith(error)
            assert (front.raw("p"), front.used("a", "A"), front.used("b", "B")) == before
            assert front._lock("a") is None
            assert front.freed == 0

    drive(story())


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        ({"PodName": "nobody"}, 'pod "nobody" not found'),
        ({"PodNamespace": "elsewhere"}, 'pod "p" not found'),
        ({"PodUID": "forged"}, 'pod "p" is another one by now: its UID is '),
    ],
)
def test_a_forged_bind_changes_nothing(sent: JSON, error: str) -> None:
    a_bind_that_changes_nothing(sent, error)


def test_a_bind_to_another_node_than_was_decided_is_refused() -> None:
    async def story() -> None:
        front = Front("single")
        await front.add(node("a", card("A")), node("b", card("B")), pod("p", asks(1, 1000)))
        assert "was placed on no node" in await front.bind("p", "a")
        await front.filter("p", "a")
        told = "pod default/p was placed on a, not on b"
        assert await front.bind("p", "b") == told
        assert front.events("p")[-1] == ("Warning", "BindingFailed", told)
        assert await front.bind("p", "ghost") == 'node "ghost" not found'
        assert front.used("a", "A") == (1, 1000, 0), "another node's absence frees nothing"
        assert await front.bind("p", "a") == ""

    drive(story())


@both
def test_a_pod_that_is_gone_holds_nothing_any_longer(mode: str) -> None:
    async def story() -> None:
        front = Front(mode)
        await front.add(node("a", card("A")), pod("p", asks(1, 1000)))
        await front.filter("p", "a")
        uid = front.read("p").uid
        await front.cluster.delete(Kind.PODS, "p", "default")
        assert await front.bind("p", "a", uid=uid) == 'pod "p" not found'
        assert front.used("a", "A") == (0, 0, 0)
        assert front.freed == 1

    drive(story())


@both
def test_a_node_that_is_gone_is_told_and_one_the_cache_lacks_is_asked_for(mode: str) -> None:
    async def story() -> None:
        front = Front(mode)
        await front.add(node("a", card("A")), pod("p", asks(1, 1000)))
        await front.filter("p", "a")
        front.state.remove_node("a")
        error = await front.bind("p", "a")
        assert error == "" if mode == "single" else "node unregistered" in error
        await front.add(node("b", card("B")), pod("q", asks(1, 1000)))
        await front.filter("q", "b")
        front.state.remove_node("b")
        await front.cluster.delete(Kind.NODES, "b")
        assert await front.bind("q", "b") == 'node "b" not found'
        assert front.events("q")[-1] == ("Warning", "BindingFailed", "failed to get node b")
        await front.add(node("b", card("B")))
        assert front.used("b", "B") == (0, 0, 0)

    drive(story())


def test_a_placement_that_is_too_old_is_not_bound() -> None:
    async def story() -> None:
        front = Front("single")
        await front.add(node("a", card("A")), pod("p", asks(1, 1000)))
        await front.filter("p", "a")
        front.now += 300
        assert "too old to be bound" in await front.bind("p", "a")
        assert front.read("p").node_name == ""

    drive(story())


def test_a_placement_that_was_given_up_is_not_bound() -> None:
    async def story() -> None:
        front = Front("single")
        await front.add(node("a", card("A")), pod("p", asks(1, 5000)))
        await front.filter("p", "a")
        await front.add(running("r", "a", "A,NVIDIA,8000,0:;"))
        assert (await front.filter("p", "a"))["NodeNames"] is None
        front.hear("p")
        assert front.used("a", "A") == (1, 8000, 0)
        assert "too old to be bound" in await front.bind("p", "a")

    drive(story())


@both
def test_the_lock_is_let_go_by_whom_fails_and_kept_by_whom_is_bound(mode: str) -> None:
    async def story() -> None:
        fails = [True]

        async def pause(step: str) -> None:
            if step == "bind:before" and fails:
                fails.pop()
                raise Conflict("no")

        front = Front(mode, pause=pause)
        await front.add(node("n", card("G")), pod("p", asks(1, 1000)))
        await front.filter("p", "n")
        assert await front.bind("p", "n") == "no"
        assert front._lock("n") is None
        assert front.events("p")[-1] == ("Warning", "BindingFailed", "no")
        front.hear("p")
        assert front.used("n", "G") == ((1, 1000, 0) if mode == "single" else (0, 0, 0))
        assert front.freed == (0 if mode == "single" else 1)
        await front.filter("p", "n")
        assert await front.bind("p", "n") == ""
        assert front._lock("n") == "2026-01-01T00:00:00Z,default,p"
        front.hear("p")
        assert front.used("n", "G") == (1, 1000, 0)

    drive(story())


@both
def test_pods_with_init_containers_only_lock_too(mode: str) -> None:
    async def story() -> None:
        front = Front(mode)
        await front.add(node("n", card("G")))
        assert await front.scheduled(pod("p", asks(None), inits=[asks(1, 1000)]), "n") == ""
        assert front._lock("n") == "2026-01-01T00:00:00Z,default,p"

    drive(story())


@both
@pytest.mark.parametrize("effect", [True, False], ids=["it took effect", "it did not"])
def test_a_bind_whose_answer_is_lost_is_looked_after(mode: str, effect: bool) -> None:
    async def story() -> None:
        async def pause(step: str) -> None:
            if step == ("bind:after" if effect else "bind:before"):
                raise Unavailable("lost")

        front = Front(mode, pause=pause)
        await front.add(node("n", card("G")), pod("p", asks(1, 8000)), pod("q", asks(1, 8000)))
        await front.filter("p", "n")
        assert await front.bind("p", "n") == ("" if effect else "lost")
        assert front.used("n", "G") == (1, 8000, 0), "who knows: nobody else gets the card"
        assert (await front.filter("q", "n"))["NodeNames"] is None
        assert (front._lock("n") is None) is not effect

    drive(story())


@both
def test_a_placement_whose_answer_is_lost_holds_its_cards(mode: str) -> None:
    async def story() -> None:
        lost = [True]

        async def pause(step: str) -> None:
            if step == "patch:after" and lost and front.raw("p")["metadata"].get("annotations", {}).get(ALLOCATED):
                lost.pop()
                raise Unavailable("lost")

        front = Front(mode, pause=pause)
        await front.add(node("n", card("G")), pod("p", asks(1, 8000)), pod("q", asks(1, 8000)))
        first = await front.filter("p", "n")
        if mode == "single":
            assert first["Error"] == "lost"
        else:
            assert await front.bind("p", "n") == "lost"
        assert (await front.filter("q", "n"))["NodeNames"] is None
        front.hear("p")
        assert front.used("n", "G") == (1, 8000, 0)
        assert (await front.filter("p", "n"))["NodeNames"] == ["n"]
        assert await front.bind("p", "n") == ""
        assert front.used("n", "G") == (1, 8000, 0)

    drive(story())


@both
def test_a_pod_that_is_being_bound_is_neither_placed_anew_nor_bound_twice(mode: str) -> None:
    async def story() -> None:
        front = Front(mode)
        await front.add(node("n", card("G")), node("m", card("M")), pod("p", asks(1, 8000)), pod("q", asks(1, 8000)))
        await front.filter("p", "n")
        async with front.locks.turn("n"):
            under_way = asyncio.create_task(front.bind("p", "n"))
            await turns()
            assert (await front.filter("p", "m", "n"))["Error"] == "pod default/p is being bound to node n"
            assert await front.bind("p", "n") == "pod default/p is being bound already"
            assert await front.bind("p", "gone") == "pod default/p is being bound already"
            assert await front.bind("nobody", "n", uid=front.read("p").uid) != ""
            assert front.used("n", "G") == (1, 8000, 0)
            assert (await front.filter("q", "n"))["NodeNames"] is None
        assert await under_way == ""
        assert front.read("p").annotations["hami.io/vgpu-node"] == front.read("p").node_name == "n"

    drive(story())


def test_a_bind_that_waited_refuses_a_placement_that_another_scheduler_replaced() -> None:
    async def story() -> None:
        front = Front("single")
        await front.add(node("n", card("G")), node("m", card("M")), pod("p", asks(1, 8000)))
        await front.filter("p", "n")
        async with front.locks.turn("n"):
            under_way = asyncio.create_task(front.bind("p", "n"))
            await turns()
            other = {"metadata": {"annotations": {"hami.io/vgpu-node": "m", ALLOCATED: "M,NVIDIA,8000,0:;"}}}
            await front.cluster.patch(Kind.PODS, "p", other, "default")
        assert await under_way == "pod default/p was placed on m, not on n"
        assert front.read("p").node_name == ""
        assert front._lock("n") is None

    drive(story())


@both
def test_two_binds_at_once_never_get_the_same_card(mode: str) -> None:
    """Words about the pod are recorded as events, and between them another bind may decide."""

    async def story() -> None:
        async def pause(step: str) -> None:
            await turns()

        front = Front(mode, pause=pause)
        notes = {"hami.io/gpu-scheduler-policy": "fastest"}
        await front.add(node("n", card("G")), *(pod(f"p{i}", asks(1, 8000), notes=notes) for i in range(4)))
        answers = await asyncio.gather(*(front.filter(f"p{i}", "n") for i in range(4)))
        left = [i for i, answer in enumerate(answers) if answer["NodeNames"]]
        errors = await asyncio.gather(*(front.bind(f"p{i}", "n") for i in left))
        assert errors.count("") == 1
        assert sum(bool(front.read(f"p{i}").node_name) for i in range(4)) == 1

    drive(story())


def test_who_does_not_fit_any_longer_learns_it_without_the_lock() -> None:
    async def story() -> None:
        front = Front("cooperative")
        await front.add(node("n", card("G")), pod("p", asks(1, 8000)), pod("q", asks(1, 8000)))
        await asyncio.gather(front.filter("p", "n"), front.filter("q", "n"))
        async with front.locks.turn("n"):
            first = asyncio.create_task(front.bind("p", "n"))
            await turns()
            told = "node n can't take the pod any longer: 1/1 CardInsufficientMemory"
            assert await front.bind("q", "n") == told
        assert await first == ""
        assert front.refusals == [front.read("q").uid]

    drive(story())


@both
def test_a_uid_that_is_another_pods_is_refused_at_filter(mode: str) -> None:
    async def story() -> None:
        front = Front(mode)
        await front.add(node("n", card("G")), pod("p", asks(1, 8000)), pod("q", asks(1, 8000)))
        await front.filter("p", "n")
        held = front.used("n", "G")
        forged = {**front.raw("q"), "metadata": {**front.raw("q")["metadata"], "uid": front.read("p").uid}}
        assert "isn't the one with the UID" in (await front.ask({"Pod": forged, "NodeNames": ["n"]}))["Error"]
        assert front.used("n", "G") == held

    drive(story())


def test_a_cluster_that_fails_is_the_error_of_the_answer() -> None:
    async def story() -> None:
        async def pause(step: str) -> None:
            if step == "list:before":
                raise ClusterError("down")

        for mode in MODES:
            front = Front(mode, pause=pause)
            await front.add(node("n", card("G")), pod("p", asks(1)))
            assert (await front.filter("p", "n"))["Error"] == "down"

    drive(story())


def test_the_lock_is_hamis() -> None:
    assert MUTEX == "hami.io/mutex.lock"


async def turns() -> None:
    """Let everything else go as far as it can."""
    for _ in range(20):
        await asyncio.sleep(0)
