"""Preemption as a whole, on the embedded cluster: who is evicted, what is written, and what survives.

Source: docs/preemption.md.
"""

from __future__ import annotations

import asyncio

import pytest
from builders import card, node, pod, quota
from scheduling.placer_env import MEM, NOW

from hami_webhook.cluster.api import JSON, Forbidden, Kind, Unavailable
from hami_webhook.scheduling.protocol import ExtenderArgs

from .extended import add, budget, extended, high, low, turns

both = pytest.mark.parametrize("mode", ["cooperative", "single"])
ONE, TWO = node("n1", card("a", 8000)), node("n2", card("b", 8000))
FULL = low("x", "n1", "a,NVIDIA,8000,0:;")


@both
async def test_a_pod_is_evicted_as_kube_scheduler_does_it(mode: str) -> None:
    async with extended(ONE, FULL, high(gpu=1, mem=4000), mode=mode) as each:
        answer = await each.filter("high")
        assert answer["FailedNodes"] == {"n1": "1/1 CardInsufficientMemory"}
        victim, uid = each.raw("x"), each.raw("high")["metadata"]["uid"]
        assert victim["metadata"]["deletionGracePeriodSeconds"] == 30, "its own grace period"
        (condition,) = victim["status"]["conditions"]
        assert condition == {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "PreemptionByScheduler",
            "message": "hami-scheduler: preempting to accommodate a higher priority pod",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        assert each.nominated("high") == "n1"
        assert each.events("x") == [("Preempted", f"Preempted by pod {uid} on node n1")]
        assert each.events("high") == [("Preempting", "evicted 1 pod from node n1: default/x")]
        assert (await each.filter("high"))["NodeNames"] is None, "the victim holds its card until it has ended"
        await each.end("x")
        assert (await each.filter("high"))["NodeNames"] == ["n1"]
        assert each.preemption.victims == 1
        assert each.preemption.counts == {"evicting": 1}


@both
async def test_kube_scheduler_is_let_see_the_node_where_victims_are_ending(mode: str) -> None:
    """It takes the nomination away from a pod whose node is refused for good, and fails where nobody is ending yet."""
    now = [NOW]
    other = low("y", "n2", "b,NVIDIA,8000,0:;", 2000)
    async with extended(ONE, TWO, FULL, other, high(gpu=1, mem=4000), mode=mode, clock=lambda: now[0]) as each:
        refused = {f"n{number}": "1/1 CardInsufficientMemory" for number in (1, 2)}
        assert (await each.filter("high"))["FailedAndUnresolvableNodes"] == refused
        assert each.nominated("high") == "n1"
        assert (await each.filter("high"))["FailedAndUnresolvableNodes"] == refused
        now[0] += 2
        answer = await each.filter("high")
        assert answer["FailedNodes"] == refused
        assert answer["FailedAndUnresolvableNodes"] == {"n2": refused["n2"]}


@both
@pytest.mark.parametrize(
    ("why", "objects", "outcome"),
    [
        (
            "equal priority",
            [low("x", "n1", "a,NVIDIA,8000,0:;", 10), high(gpu=1, mem=10)],
            {"no-candidates": 1},
        ),
        ("it may not", [FULL, high(gpu=1, mem=10, preemptionPolicy="Never")], {"policy-never": 1}),
        ("it wouldn't help", [FULL, high(gpu=1, mem=9000)], {"no-candidates": 1}),
        ("no card of the type", [FULL, high(gpu=2, mem=10)], {"no-candidates": 1}),
        (
            "its quota is used up",
            [FULL, quota("q", mem=8100, used={MEM: 8100}), high(gpu=1, mem=4000)],
            {"no-candidates": 1},
        ),
        ("a node is free", [FULL, TWO, high(gpu=1, mem=10)], {}),
    ],
)
async def test_nobody_is_evicted(mode: str, why: str, objects: list[JSON], outcome: dict[str, int]) -> None:
    async with extended(ONE, *objects, mode=mode) as each:
        await each.filter("high")
        assert (each.ending(), each.nominated("high"), each.preemption.counts) == ([], "", outcome), why


@both
async def test_a_priority_that_the_api_server_does_not_show_evicts_nobody(mode: str) -> None:
    async with extended(ONE, FULL, high(gpu=1, mem=10, priority=0), mode=mode) as each:
        forged = each.raw("high")
        forged["spec"]["priority"] = 10
        unknown = {**forged, "metadata": {**forged["metadata"], "uid": "unknown"}}
        for incoming in (forged, unknown):
            await each.extender.filter(ExtenderArgs(incoming, ["n1"], None))
        assert (each.ending(), each.preemption.counts) == ([], {})


async def test_a_dry_run_says_who_would_be_evicted() -> None:
    async with extended(ONE, FULL, high(gpu=1, mem=10), preemption="dry-run") as each:
        await each.filter("high")
        assert (each.ending(), each.nominated("high")) == ([], "")
        assert each.events("high") == [("PreemptionDryRun", "would evict 1 pod from node n1: default/x")]


async def test_who_ends_anyway_is_waited_for() -> None:
    there = [low("y", "n2", "b,NVIDIA,8000,0:;", 10)]
    async with extended(ONE, TWO, FULL, *there, high(gpu=1, mem=10)) as each:
        await each.cluster.delete(Kind.PODS, "y", "default", grace=30)
        await each.filter("high")
        assert (each.ending(), each.nominated("high")) == (["y"], "n2"), "though its priority is the same"


async def test_a_pod_that_should_have_ended_is_waited_for_no_more() -> None:
    now = NOW
    there = [low("y", "n2", "b,NVIDIA,8000,0:;")]
    async with extended(ONE, TWO, FULL, *there, high(gpu=1, mem=10), clock=lambda: now) as each:
        await each.cluster.delete(Kind.PODS, "y", "default", grace=30)
        now += 61
        await each.filter("high")
        assert each.ending() == ["x", "y"]


@both
async def test_the_freed_devices_are_kept_for_the_nominated_pod(mode: str) -> None:
    others = [high(gpu=1, mem=10, name=name, priority=priority) for name, priority in (("same", 10), ("lower", 5))]
    async with extended(ONE, FULL, high(gpu=1, mem=8000), *others, mode=mode) as each:
        await each.filter("high")
        await each.end("x")
        for name in ("same", "lower"):
            assert (await each.filter(name))["NodeNames"] is None, name
        await add(each.cluster, high(gpu=1, mem=8000, name="higher", priority=11))
        assert (await each.filter("higher"))["NodeNames"] == ["n1"]


async def test_what_is_beside_the_kept_devices_is_free() -> None:
    async with extended(ONE, FULL, high(gpu=1, mem=6000), high(gpu=1, mem=2000, name="small", priority=0)) as each:
        await each.filter("high")
        await each.end("x")
        assert (await each.filter("small"))["NodeNames"] == ["n1"]


async def test_a_higher_pod_takes_what_is_kept_and_the_other_one_waits_elsewhere() -> None:
    there = [low("y", "n2", "b,NVIDIA,8000,0:;", 1)]
    async with extended(ONE, TWO, FULL, *there, high(gpu=1, mem=8000)) as each:
        await each.filter("high")
        assert (each.nominated("high"), each.ending()) == ("n1", ["x"])
        await add(each.cluster, high(gpu=1, mem=8000, name="higher", priority=11))
        await each.filter("higher")
        assert (each.nominated("higher"), each.ending()) == ("n1", ["x"]), "x is ending already"
        await each.filter("high")
        assert each.ending() == ["x"], "while those who went for it are ending nobody else goes"
        await each.end("x")
        await each.filter("high")
        assert (each.nominated("high"), each.ending()) == ("n2", ["y"])


@pytest.mark.parametrize("until", [0, 91])
async def test_a_nomination_ends_with_its_time(until: int) -> None:
    now = NOW
    other = high(gpu=1, mem=10, name="lower", priority=5)
    async with extended(ONE, FULL, high(gpu=1, mem=8000), other, clock=lambda: now) as each:
        await each.filter("high")
        await each.end("x")
        now += until
        assert ((await each.filter("lower"))["NodeNames"] == ["n1"]) is (until > 0)


@both
async def test_a_nomination_ends_with_its_pod(mode: str) -> None:
    other = high(gpu=1, mem=10, name="lower", priority=5)
    async with extended(ONE, FULL, high(gpu=1, mem=8000), other, mode=mode) as each:
        await each.filter("high")
        await each.end("x", "high")
        assert (await each.filter("lower"))["NodeNames"] == ["n1"]


STEPS = [
    (f"{call}:{when}", nth)
    for call, times in (("patch", 1), ("patch_status", 3), ("delete_pod", 2))
    for when in ("before", "after")
    for nth in range(1, times + 1)
]
"""The nomination, `nominatedNodeName` and each victim's condition, and each victim's deletion."""


@pytest.mark.parametrize(("step", "nth"), STEPS)
async def test_the_extender_may_end_at_any_step(step: str, nth: int) -> None:
    """It is started again, kube-scheduler asks again, and nobody is evicted twice or in vain."""
    there = [low(f"x{i}", "n1", "a,NVIDIA,4000,0:;", 0, i) for i in (1, 2)]
    others = [low("y", "n2", "b,NVIDIA,8000,0:;", 5)]
    seen = 0
    over = asyncio.Event()

    async def pause(at: str) -> None:
        nonlocal seen
        seen += at == step
        if seen >= nth:
            await over.wait()

    async with extended(ONE, TWO, *there, *others, high(gpu=1, mem=8000), pause=pause) as each:
        await each.filter("high")
        assert seen >= nth
    cluster = each.cluster
    cluster.pause = None
    async with extended(cluster=cluster) as again:
        assert again.queue.refusals in ([], [again.raw("high")["metadata"]["uid"]])
        await again.filter("high")
        assert (again.ending(), again.nominated("high")) == (["x1", "x2"], "n1")
        await again.end("x1", "x2")
        assert (await again.filter("high"))["NodeNames"] == ["n1"]


async def test_budgets_count_what_was_evicted_a_moment_ago() -> None:
    labels: JSON = {"labels": {"app": "a"}}
    there = [FULL | {"metadata": FULL["metadata"] | labels}, low("y", "n2", "b,NVIDIA,8000,0:;", **labels)]
    third = [node("n3", card("c", 8000)), low("z", "n3", "c,NVIDIA,8000,0:;", 9)]
    incoming = [high(gpu=1, mem=8000, name=name) for name in ("first", "second")]
    async with extended(ONE, TWO, *there, *third, *incoming, budget(1)) as each:
        await each.filter("first")
        await each.filter("second")
        assert each.ending() == ["x", "z"], "the budget allows one of x and y"


@pytest.mark.parametrize("step", ["patch:before", "patch_status:before", "delete_pod:before"])
async def test_what_fails_for_a_moment_is_tried_again(step: str) -> None:
    failures = [Unavailable("busy"), Unavailable("busy")]

    async def pause(at: str) -> None:
        if at == step and failures:
            raise failures.pop()

    async with extended(ONE, FULL, high(gpu=1, mem=8000), pause=pause) as each:
        await each.filter("high")
        assert (each.ending(), each.nominated("high")) == (["x"], "n1")


@pytest.mark.parametrize("again", [False, True])
async def test_who_is_gone_when_the_answer_is_lost_was_evicted_all_the_same(again: bool) -> None:
    lost = [Unavailable("connection reset")]

    async def pause(at: str) -> None:
        if at == "delete_pod:after" and lost:
            failure = lost.pop()
            await each.cluster.delete(Kind.PODS, "x", "default")
            if again:
                await each.cluster.create(Kind.PODS, FULL | {"metadata": FULL["metadata"] | {"uid": "another"}})
            raise failure

    async with extended(ONE, FULL, high(gpu=1, mem=8000), pause=pause) as each:
        await each.filter("high")
        assert not lost
        assert [reason for reason, _ in each.events("x")] == ["Preempted"]
        assert each.preemption.victims == 1
        assert each.ending() == []


@pytest.mark.parametrize("became", ["bound", "deleted", "ending"])
async def test_a_failed_deletion_is_not_repeated_for_a_pod_that_no_longer_waits(became: str) -> None:
    failures = [Unavailable("busy")]

    async def pause(at: str) -> None:
        if at == "delete_pod:before" and failures:
            failure = failures.pop()
            if became == "bound":
                await each.cluster.bind("default", "high", each.raw("high")["metadata"]["uid"], "n2")
            else:
                await each.cluster.delete(Kind.PODS, "high", "default", 30 if became == "ending" else None)
            await turns()
            raise failure

    async with extended(ONE, FULL, high(gpu=1, mem=8000), pause=pause) as each:
        await each.filter("high")
        await turns()
        assert not failures
        assert "x" not in each.ending()
        assert each.events("x") == []
        assert became == "deleted" or not each.nominated("high")


async def test_attack_who_deletes_its_pod_between_two_tries_of_a_deletion_had_others_evicted_all_the_same() -> None:
    deletions = 0

    async def pause(at: str) -> None:
        nonlocal deletions
        deletions += at == "delete_pod:before"
        if at == "delete_pod:before" and deletions == 2:
            await each.cluster.delete(Kind.PODS, "high-1", "default")
            await turns()
            raise Unavailable("busy")

    victims = [low(name, "n1", "a,NVIDIA,4000,0:;") for name in ("v1", "v2")]
    waiting = [high(gpu=1, mem=8000, name=f"high-{number}") for number in (1, 2, 3)]
    async with extended(ONE, *victims, *waiting, pause=pause) as each:
        await each.filter("high-1")
        await turns()
        (evicted,) = each.ending()
        await each.end(evicted)
        await each.filter("high-2")
        (evicted,) = each.ending()
        await each.cluster.delete(Kind.PODS, "high-2", "default")
        await each.end(evicted)
        await add(each.cluster, FULL)
        await each.filter("high-3")
        assert each.ending() == []
        assert [reason for reason, _ in each.events("high-3")] == ["PreemptionLimited"]


async def test_who_cannot_be_evicted_leaves_no_nomination() -> None:
    async def pause(at: str) -> None:
        if at == "delete_pod:before":
            raise Forbidden("pods is forbidden")

    async with extended(ONE, FULL, high(gpu=1, mem=8000), pause=pause) as each:
        await each.filter("high")
        assert (each.ending(), each.nominated("high")) == ([], "")
        assert each.events("high") == [("PreemptionFailed", "pods is forbidden")]
        assert each.preemption.counts == {"evicting": 1, "failed": 1}


async def test_once_a_victim_cannot_be_evicted_no_other_goes() -> None:
    deletions = 0

    async def pause(at: str) -> None:
        nonlocal deletions
        deletions += at == "delete_pod:before"
        if at == "delete_pod:before" and deletions == 2:
            raise Forbidden("pods is forbidden")
        if at == "delete_pod:before":
            await turns()  # the API server is slow with the first

    victims = [low(name, "n1", "a,NVIDIA,4000,0:;") for name in ("v1", "v2")]
    async with extended(ONE, *victims, high(gpu=1, mem=8000), pause=pause) as each:
        await each.filter("high")
        await turns()
        assert (deletions, each.ending(), each.nominated("high")) == (2, [], "")
        assert each.events("high") == [("PreemptionFailed", "pods is forbidden")]


@pytest.mark.parametrize("change", ["bound", "deleted"])
async def test_nobody_goes_for_a_pod_that_has_its_place_or_is_gone_once_its_nomination_is_written(change: str) -> None:
    async def pause(at: str) -> None:
        if at == "patch_status:after":
            each.cluster.pause = None
            if change == "bound":
                await each.cluster.bind("default", "high", each.raw("high")["metadata"]["uid"], "n1")
            else:
                await each.cluster.delete(Kind.PODS, "high", "default")
            await turns()

    async with extended(ONE, FULL, high(gpu=1, mem=8000), pause=pause) as each:
        await each.filter("high")
        await turns()
        assert (each.ending(), each.preemption.victims, each.core.nominations.all()) == ([], 0, [])
        assert each.preemption.counts == {"evicting": 1}
        assert not {reason for reason, _ in each.events("high")} & {"PreemptionFailed", "Preempted"}


async def test_nominated_node_name_is_written_again_where_kube_scheduler_took_it_away() -> None:
    taken = False

    async def pause(at: str) -> None:
        nonlocal taken
        if at == "delete_pod:before" and not taken:
            taken = True
            await each.cluster.patch_status(Kind.PODS, "high", {"status": {"nominatedNodeName": None}}, "default")

    async with extended(ONE, FULL, high(gpu=1, mem=8000), pause=pause) as each:
        await each.filter("high")
        assert taken
        assert each.nominated("high") == "n1"


async def test_another_pod_of_the_same_name_is_not_nominated() -> None:
    async def pause(at: str) -> None:
        if at == "patch_status:before":
            each.cluster.pause = None
            await each.end("high")
            await each.cluster.create(Kind.PODS, high(gpu=1, mem=8000))
            await turns()

    async with extended(ONE, FULL, high(gpu=1, mem=8000), pause=pause) as each:
        await each.filter("high")
        await turns()
        assert "nominatedNodeName" not in each.raw("high").get("status", {})
        assert each.ending() == []


async def test_a_nomination_that_cannot_be_withdrawn_is_said_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    refused = 0

    async def pause(at: str) -> None:
        nonlocal refused
        if at == "delete_pod:before":
            refused = 1
            raise Forbidden("pods is forbidden")
        if at == "patch:before" and refused:
            raise Forbidden("nor may it be patched")

    async with extended(ONE, FULL, high(gpu=1, mem=8000), pause=pause) as each:
        await each.filter("high")
        (record,) = [each for each in caplog.records if each.message == "the nomination can't be withdrawn"]
        assert vars(record)["reason"] == "nor may it be patched"
        assert each.preemption.counts["failed"] == 1


async def test_the_nominated_node_that_is_offered_by_itself_first_is_not_all_there_is() -> None:
    """kube-scheduler tries the nominated node alone before it offers the others."""
    there = [low("y", "n2", "b,NVIDIA,8000,0:;", 0, 9)]
    async with extended(ONE, TWO, low("x", "n1", "a,NVIDIA,8000,0:;", 5), *there, high(gpu=1, mem=8000)) as each:
        await each.cluster.patch_status(Kind.PODS, "high", {"status": {"nominatedNodeName": "n1"}}, "default")
        await each.filter("high", ["n1"])
        assert each.ending() == []
        await each.filter("high", ["n1", "n2"])
        assert each.ending() == ["y"]


async def test_what_kube_scheduler_proposes_is_completed_by_devices() -> None:
    """Mixed requests: kube-scheduler knows who has to go for CPU, and asks."""
    there = [low("y", "n2", "b,NVIDIA,4000,0:;"), low("z", "n2", "b,NVIDIA,4000,0:;", 10)]
    cpu = [pod("cpu", nodeName=name, priority=0) | {"status": {"phase": "Running"}} for name in ("n1",)]
    async with extended(ONE, TWO, FULL, *there, *cpu, high(gpu=1, mem=4000), high(gpu=1, mem=8000, name="all")) as each:
        uid = each.raw("cpu")["metadata"]["uid"]
        assert await each.preempt("high", n1=[uid], n2=["y"]) == {"n1": [uid, "x"], "n2": ["y"]}
        assert await each.preempt("high", n1=["x"]) == {"n1": ["x"]}, "nobody else has to go"
        assert await each.preempt("all", n2=["y"]) == {}, "z stays, so it would be in vain"
        assert await each.preempt("cpu", n1=["x"]) == {"n1": ["x"]}, "it requests no devices"
        assert await each.preempt("all", n2=[]) == {}, "kube-scheduler 1.38 leaves a node out that isn't answered"
        assert await each.preempt("cpu", n2=[]) == {"n2": []}, "nor has anybody to go for devices"
        assert await each.preempt("high", n2=[]) == {"n2": ["y"]}, "the one of lower priority makes room"
        await each.filter("high")
        assert each.nominated("high") == "n1"
        assert await each.preempt("high", n2=["y"]) == {}, "others are evicted for it already"


async def test_who_waits_for_kube_schedulers_victims_evicts_nobody_else() -> None:
    there = [pod("cpu", nodeName="n2", priority=0, terminationGracePeriodSeconds=30)]
    async with extended(ONE, TWO, FULL, *there, high(gpu=1, mem=8000), high(gpu=1, mem=10, name="lower")) as each:
        await each.cluster.patch_status(Kind.PODS, "high", {"status": {"nominatedNodeName": "n2"}}, "default")
        await each.cluster.delete_pod("default", "cpu", each.raw("cpu")["metadata"]["uid"])
        await each.filter("high", ["n1"])
        assert each.ending() == ["cpu"]
        assert (await each.filter("lower", ["n2"]))["NodeNames"] is None, "the devices are kept, too"
