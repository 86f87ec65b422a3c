"""The extender's answers to kube-scheduler in both modes, on the embedded cluster.

Source: docs/spec/core.md#7.1, #9.2, #12, #13 and #16.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from builders import bound_pod, card, container, node, pod, quota

from hami_webhook.cluster.api import JSON, ClusterError
from hami_webhook.scheduling.placer import SchedulingPolicies
from hami_webhook.scheduling.protocol import (
    Binding,
    Proposal,
    decode_args,
    decode_binding,
    decode_proposals,
    encode_filtered,
)
from hami_webhook.scheduling.protocol import Filtered as Answer

from .extender_env import MODES, MUTEX, ExtenderEnv, args, turns
from .placer_env import ALLOCATED, MEM, NOW

both = pytest.mark.parametrize("mode", MODES)
EXAMPLE_A = (
    node("node1", card("device1", 8000), card("device2", 8000)),
    node("node2", card("device3", 8000), card("device4", 8000)),
    bound_pod("on1", "node1", "device1,NVIDIA,2000,25:;"),
    bound_pod("on2", "node2", "device4,NVIDIA,6000,75:;"),
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
async def test_example_a_node_and_card(
    mode: str, node_policy: str, card_policy: str, node_name: str, device: str
) -> None:
    env = ExtenderEnv(mode, SchedulingPolicies(node_policy, card_policy))
    await env.add(*EXAMPLE_A, pod("p", container(gpu=1, mem=1000, cores=20), container()))
    answer = await env.filter("p", "node1", "node2", "unknown")
    grades = await env.extender.prioritize(args({"Pod": env.raw("p"), "NodeNames": ["node1", "node2"]}))
    others = ["node1", "node2"] if node_name == "node2" else ["node2", "node1"]
    scores = {"node1": "3.00", "node2": "8.00"}
    reported = ",".join(f"{name}:{scores[name]}" for name in others)
    message = f"find fit node({node_name}), 1 nodes not fit, 2 nodes fit({reported})"
    if mode == "single":
        assert answer["NodeNames"] == [node_name]
        assert env.events("p") == [("Normal", "FilteringSucceed", message)]
    else:
        assert answer["NodeNames"] == ["node1", "node2"]
        assert dict(grades) == {"node1": 0, "node2": 0, node_name: 10}
        assert env.events("p") == []
        assert ALLOCATED not in env.read("p").annotations, "nothing is decided yet"
    assert await env.bind("p", node_name) == ""
    assert env.read("p").annotations[ALLOCATED] == f"{device},NVIDIA,1000,20:;;"
    assert env.read("p").annotations["hami.io/bind-phase"] == "allocating"
    assert env.read("p").annotations["hami.io/bind-time"] == str(int(NOW))
    assert env.read("p").node_name == node_name
    bound = f"Successfully binding node [{node_name}] to default/p"
    assert env.events("p") == [("Normal", "FilteringSucceed", message), ("Normal", "BindingSucceed", bound)]
    assert env.queue.placed[-1] == env.read("p").uid


@both
async def test_example_b_nothing_fits(mode: str) -> None:
    env = ExtenderEnv(mode)
    await env.add(
        *(node("node1", card("a", 100), card("b", 100)), node("node2", card("c", 100), card("d", 8000))),
        bound_pod("busy", "node2", "d,NVIDIA,10,90:;"),
        pod("p", gpu=1, mem=1000, cores=20),
    )
    failed = {
        "node1": "2/2 CardInsufficientMemory",
        "node2": "1/2 CardInsufficientCore, 1/2 CardInsufficientMemory",
        "node3": "node unregistered",
    }
    assert await env.filter("p", "node1", "node2", "node3") == {
        "Nodes": None,
        "NodeNames": None,
        "FailedNodes": failed,
        "FailedAndUnresolvableNodes": failed,
        "Error": "",
    }
    assert env.events("p") == [
        ("Warning", "FilteringFailed", "1 nodes CardInsufficientCore(node2)"),
        ("Warning", "FilteringFailed", "2 nodes CardInsufficientMemory(node1,node2)"),
        ("Warning", "FilteringFailed", "no available node, 3 nodes do not meet"),
    ]
    assert env.queue.refusals == [env.read("p").uid]


@both
async def test_example_f_quota(mode: str) -> None:
    env = ExtenderEnv(mode)
    cards = [card(f"G{memory}", memory) for memory in (2000, 8000, 4000, 6000)]
    await env.add(node("n", *cards), quota("q", cores=100, mem=2000, used={}))
    assert await env.scheduled(pod("small", gpu=1), "n") == ""
    assert env.read("small").annotations[ALLOCATED] == "G2000,NVIDIA,2000,0:;"
    other = quota("q", cores=100, mem=1500, namespace="b", used={})
    await env.add(other, pod("p", gpu=1, namespace="b"))
    cards_again = node("m", *[card(f"H{memory}", memory) for memory in (2000, 8000, 4000, 6000)])
    await env.add(cards_again)
    failed = (await env.filter("p", "m", namespace="b"))["FailedNodes"]
    assert failed == {"m": "4/4 ResourceQuotaNotFit"}


@both
async def test_example_f_two_cards_within_the_quota(mode: str) -> None:
    env = ExtenderEnv(mode)
    cards = [card(f"G{memory}", memory) for memory in (2000, 8000, 4000, 6000)]
    await env.add(node("n", *cards), quota("q", cores=200, mem=4000, used={}))
    assert await env.scheduled(pod("p", gpu=2, mem=2000, cores=100), "n") == ""
    assert env.read("p").annotations[ALLOCATED].count(",NVIDIA,2000,100:") == 2
    await env.add(pod("q", gpu=1, mem=1))
    assert "ResourceQuotaNotFit" in (await env.filter("q", "n"))["FailedNodes"]["n"], "4000 MiB are taken"


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
async def test_example_h_lock(mode: str, seconds: int, holder_lives: bool, error: str, lock: str) -> None:
    env = ExtenderEnv(mode, patience=0)
    env.now = AT_1506 + seconds
    await env.add(node("n", card("G", 8000)), pod("p2", gpu=1, mem=1000, namespace="b"))
    if holder_lives:
        await env.add(pod("p1", namespace="a"))
    await env.filter("p2", "n", namespace="b")
    await env.lock("n", LOCKED)
    assert await env.bind("p2", "n", namespace="b") == error
    assert env._lock("n") == lock
    if error:
        assert env.events("p2")[-1] == ("Warning", "BindingFailed", error)
        assert env.read("p2", "b").node_name == ""
        kept = (1, 1000, 0) if mode == "single" else (0, 0, 0)  # the latter held nothing before the bind
        assert env.used("n", "G") == kept


@both
async def test_example_h_a_lock_of_ones_own_is_no_hindrance(mode: str) -> None:
    env = ExtenderEnv(mode, patience=0)
    env.now = AT_1506
    await env.add(node("n", card("G", 8000)), pod("p1", gpu=1, mem=1000, namespace="a"))
    await env.filter("p1", "n", namespace="a")
    await env.lock("n", LOCKED)
    assert await env.bind("p1", "n", namespace="a") == ""
    assert env._lock("n") == "2026-01-02T15:06:00Z,a,p1"


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ([], "extender args must be a JSON object"),
        ({}, "extender args missing pod"),
        ({"Pod": None, "NodeNames": []}, "extender args missing pod"),
        ({"NodeNames": []}, "extender args missing pod"),
        ({"Pod": [], "NodeNames": []}, "extender args missing pod"),
        ({"Pod": {}, "NodeNames": "n"}, "extender args: NodeNames must be a list of names"),
        ({"Pod": {}, "NodeNames": [1]}, "extender args: NodeNames must be a list of names"),
        ({"Pod": {}, "Nodes": []}, "extender args: Nodes must be a list of nodes"),
        ({"Pod": {}, "Nodes": {"items": [1]}}, "extender args: Nodes must be a list of nodes"),
    ],
)
def test_args_that_are_wrong_are_told(body: Any, error: str) -> None:
    assert decode_args(body) == error


@pytest.mark.parametrize(
    ("body", "decoded"),
    [
        ([], "extender preemption args missing pod"),
        ({"Pod": []}, "extender preemption args missing pod"),
        ({"Pod": {}}, ({}, {})),
        (
            {"Pod": {"A": 1}, "NodeNameToMetaVictims": {"n": {"Pods": [{"UID": "u"}], "NumPDBViolations": 1}, "m": {}}},
            ({"A": 1}, {"n": Proposal(("u",), 1), "m": Proposal(())}),
        ),
        (
            {
                "pod": {},
                "nodeNameToMetaVictims": None,
                "nodeNameToVictims": {"n": {"pods": [{"metadata": {"uid": "u"}}]}},
            },
            ({}, {"n": Proposal(("u",))}),
        ),
        (
            {"Pod": {}, "NodeNameToMetaVictims": {"n": {"Pods": [{}]}}},
            "extender preemption args: a victim on node n has no UID",
        ),
        (
            {"Pod": {}, "NodeNameToMetaVictims": {"n": {"Pods": [5]}}},
            "extender preemption args: Expected `object`, got `int` - at `$.nodenametometavictims[...].pods[0]`",
        ),
    ],
)
def test_victims_are_read_by_node(body: Any, decoded: Any) -> None:
    assert decode_proposals(body) == decoded


@pytest.mark.parametrize("keys", [("Pod", "NodeNames"), ("pod", "nodenames"), ("POD", "nodeNames")])
def test_keys_are_taken_in_any_case(keys: tuple[str, str]) -> None:
    decoded = args({keys[0]: {"metadata": {}}, keys[1]: ["n"], "Nodes": None})
    assert (decoded.pod, decoded.names, decoded.nodes) == ({"metadata": {}}, ["n"], None)
    binding = decode_binding({"podname": "p", "PODNAMESPACE": "s", "podUID": "u", "node": "n"})
    assert binding == Binding("s", "p", "u", "n")


@pytest.mark.parametrize("keys", [("Nodes", "items"), ("nodes", "Items"), ("NODES", "ITEMS")])
@pytest.mark.parametrize(
    ("items", "nodes"), [([{"metadata": {"name": "n"}}], [{"metadata": {"name": "n"}}]), (None, [])]
)
def test_keys_of_whole_nodes_are_taken_in_any_case(keys: tuple[str, str], items: Any, nodes: list[JSON]) -> None:
    decoded = args({"Pod": {}, keys[0]: {"metadata": {}, keys[1]: items}})
    assert (decoded.names, decoded.nodes) == (None, nodes)


@pytest.mark.parametrize(
    "body",
    [
        None,
        [],
        {},
        {"PodName": "p", "PodNamespace": "s", "PodUID": "u", "Node": ""},
        {"PodName": "p", "PodNamespace": "s", "PodUID": "u", "Node": 1},
    ],
)
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
async def test_null_lists_are_an_error_for_our_pods_and_echoed_for_others(mode: str) -> None:
    env = ExtenderEnv(mode)
    await env.add(pod("ours", gpu=1), pod("other"))
    nothing: JSON = {"Nodes": None, "NodeNames": None}
    assert (await env.ask({"Pod": env.raw("ours"), **nothing}))["Error"] == "extender args missing nodes"
    answer = await env.ask({"Pod": env.raw("other"), **nothing})
    assert (answer["Nodes"], answer["NodeNames"], answer["Error"]) == (None, None, "")
    nodes = {"metadata": {}, "items": [node("x")]}
    answer = await env.ask({"Pod": env.raw("other"), "Nodes": nodes, "NodeNames": ["x", "gone"]})
    assert (answer["Nodes"], answer["NodeNames"], answer["FailedNodes"]) == (nodes, ["x", "gone"], None)
    assert env.events("other") == []
    assert env.queue.refusals == []


@both
async def test_a_pod_that_is_not_ours_is_bound_without_waiting_for_anybody(mode: str) -> None:
    env = ExtenderEnv(mode, patience=0)
    await env.add(node("n", card("G", 8000)), pod("holder", namespace="a"))
    await env.lock("n", "2026-01-01T00:00:00Z,a,holder")
    async with env.locks.turn("n"):
        assert await env.scheduled(pod("p"), "n") == ""
    assert env.read("p").node_name == "n"
    assert env._lock("n") == "2026-01-01T00:00:00Z,a,holder"


@both
async def test_a_pod_that_cannot_be_read_is_told(mode: str) -> None:
    env = ExtenderEnv(mode)
    reported = (await env.ask({"Pod": {"metadata": "x"}, "NodeNames": ["n"]}))["Error"]
    assert reported.startswith("the pod can't be read: ")
    assert await env.extender.prioritize(args({"Pod": {"metadata": "x"}, "NodeNames": ["n"]})) == [("n", 0)]
    odd: JSON = {"Pod": {}, "Nodes": {"items": [{"metadata": None}, {}]}}
    assert await env.extender.prioritize(args(odd)) == [("", 0), ("", 0)]


@both
async def test_a_bad_weight_ends_the_call(mode: str) -> None:
    env = ExtenderEnv(mode)
    key = "hami.io/device-scoring-weights"
    await env.add(node("n", card("G", 8000)), pod("p", gpu=1, annotations={key: "slot=1"}))
    why = "expected slot, core, and memory weights for pod p"
    reported = f'calcScore failed invalid {key} annotation "slot=1": {why}'
    assert await env.filter("p", "n") == encode_filtered(Answer(error=reported))
    assert env.events("p") == [("Warning", "FilteringFailed", reported)]
    assert await env.bind("p", "n") != ""


@both
async def test_whole_nodes_are_a_dry_run(mode: str) -> None:
    env = ExtenderEnv(mode)
    await env.add(node("b", card("G", 8000)), bound_pod("full", "b", "G,NVIDIA,8000,100:;"), pod("p", gpu=1, mem=8000))
    given = [node("z", card("Z", 8000)), node("b", card("G", 8000)), node("a"), node("s", card("S", 10))]
    version = env.raw("p")["metadata"]["resourceVersion"]
    body = {"Pod": env.raw("p"), "Nodes": {"metadata": {}, "items": given}, "NodeNames": ["ignored"]}
    answer = await env.ask(body)
    assert answer["Nodes"] == {"metadata": {}, "items": given[:2]}, "every fitting one, in the order asked"
    assert answer["NodeNames"] is None
    assert answer["FailedNodes"] == {"a": "node unregistered", "s": "1/1 CardInsufficientMemory"}
    assert answer["FailedAndUnresolvableNodes"] == answer["FailedNodes"]
    assert env.events("p") == []
    assert env.queue.refusals == []
    assert env.raw("p")["metadata"]["resourceVersion"] == version
    body["Nodes"] = {"metadata": {}, "items": None}
    assert (await env.ask(body))["Error"] == "", "Go writes an empty list as null"


async def test_a_dry_run_tells_what_is_wrong_with_the_pod_and_judges_its_quota_by_the_real_pods() -> None:
    env = ExtenderEnv("cooperative")
    nodes = {"items": [node("z", card("Z", 8000))]}
    await env.add(pod("bad", gpu=-1), quota("q", mem=6000, used={MEM: 1000}))
    answer = await env.ask({"Pod": env.raw("bad"), "Nodes": nodes})
    assert list(answer["FailedNodes"]) == ["z"]
    assert answer["Nodes"]["items"] == []
    # `used` says less than the pods hold: the pods count
    await env.add(node("n", card("G", 8000)), bound_pod("r", "n", "G,NVIDIA,5000,0:;"), pod("p", gpu=1, mem=2000))
    assert (await env.ask({"Pod": env.raw("p"), "Nodes": nodes}))["FailedNodes"] == {"z": "1/1 ResourceQuotaNotFit"}


@both
async def test_filter_waits_for_the_caches(mode: str) -> None:
    env = ExtenderEnv(mode)
    await env.add(node("n", card("G", 8000)), pod("p", gpu=1), pod("other"))
    env.synced.clear()
    assert (await env.filter("other", "n"))["NodeNames"] == ["n"], "not ours: answered at once"
    asked = asyncio.create_task(env.filter("p", "n"))
    await turns()
    assert not asked.done()
    env.synced.set()
    assert (await asked)["NodeNames"] == ["n"]


async def test_a_bind_that_decides_waits_for_the_caches() -> None:
    """Right after a start the pods that hold the cards aren't known yet."""
    env = ExtenderEnv("cooperative")
    await env.add(node("n", card("G", 8000)), pod("p", gpu=1, mem=8000))
    env.synced.clear()
    asked = asyncio.create_task(env.bind("p", "n"))
    await turns()
    assert not asked.done()
    await env.add(bound_pod("r", "n", "G,NVIDIA,8000,0:;"))
    env.synced.set()
    assert "CardInsufficientMemory" in await asked


async def test_a_cluster_that_fails_is_the_error_of_the_answer() -> None:
    async def pause(step: str) -> None:
        if step == "list:before":
            raise ClusterError("down")

    for mode in MODES:
        env = ExtenderEnv(mode, pause=pause)
        await env.add(node("n", card("G", 8000)), pod("p", gpu=1))
        assert (await env.filter("p", "n"))["Error"] == "down"


def test_the_lock_is_hamis() -> None:
    assert MUTEX == "hami.io/mutex.lock"
