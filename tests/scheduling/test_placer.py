"""Placing a pod on a cluster: what is written, charged and told, and what is undone where it fails."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

import pytest
from builders import bound_pod, card, container, node, pod, quota

from hami_webhook.cluster.api import ClusterError, Invalid, Kind, Unavailable
from hami_webhook.devices.pod_preferences import GPU_POLICY
from hami_webhook.kube.objects import Pod
from hami_webhook.scheduling.placement_metadata import stale_metadata
from hami_webhook.scheduling.placer import Placement

from .placer_env import ALLOCATED, MEM, NOW, VENDORS, PlacerEnv

TO_ALLOCATE = "hami.io/vgpu-devices-to-allocate"
LONG = "n" * 70


async def test_the_log_names_what_nodes_lack_of_a_vendor_that_none_has(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    env = PlacerEnv()
    names = [f"n{i:02}" for i in range(12)]
    await env.add(*(node(name, card(f"G-{name}", 8000)) for name in names), node("bare"))
    chip = {"name": "main", "image": "x", "resources": {"limits": {"iluvatar.ai/BI-V150-vgpu": 1}}}
    refused = await env.refused(pod("p", chip))
    assert refused == {"bare": "node unregistered"} | dict.fromkeys(names, "NodeInsufficientDevice")
    first = ", ".join(["bare", *(f"n{i:02}" for i in range(9))])
    (logged,) = [record.__dict__ for record in caplog.records if record.name == "hami_webhook.scheduling.placer"]
    assert (logged["namespace"], logged["pod"]) == ("default", "p")
    assert logged["reason"] == (
        f"no BI-V150 cards can be read from annotation hami.io/node-BI-V150-register of {first} and 3 more"
    )


def failing(step: str, error: ClusterError, skip: int = 0) -> Callable[[str], Awaitable[None]]:
    """A cluster on which the operation fails once `skip` of its kind went well."""
    left = [skip]

    async def pause(now: str) -> None:
        if now == step:
            left[0] -= 1
            if left[0] < 0:
                raise error

    return pause


@pytest.mark.parametrize(
    ("name", "label"),
    [("node-1", "node-1"), ("n" * 63, "n" * 63), ("n" * 64, None), (LONG, None)],
    ids=["short", "63 characters", "64 characters", "70 characters"],
)
async def test_the_node_becomes_a_label_only_where_its_name_is_one(name: str, label: str | None) -> None:
    env = PlacerEnv()
    await env.add(node(name, card("G", 8000)))
    placement = await env.placed(pod("p", gpu=1, mem=1000))
    stored = env.cluster.peek(Kind.PODS, "p", "default")
    assert stored is not None
    assert stored["spec"]["nodeName"] == placement.node == name
    assert stored["metadata"].get("labels", {}).get("hami.io/vgpu-node") == label
    assert stored["metadata"]["annotations"] == {
        "hami.io/vgpu-node": name,
        "hami.io/vgpu-time": str(int(NOW)),
        TO_ALLOCATE: "G,NVIDIA,1000,0:;",
        ALLOCATED: "G,NVIDIA,1000,0:;",
        "hami.io/bind-phase": "allocating",
        "hami.io/bind-time": str(int(NOW)),
    }


def test_what_a_former_placement_wrote_is_removed_and_users_keys_stay() -> None:
    stale = {
        "hami.io/vgpu-mig-allocations": "[]",
        "hami.io/dcu-devices-allocated": "x",
        "hami.io/bind-phase": "failed",
        "hami.io/vgpu-node": "elsewhere",
        "hami.io/amd-cu-allocated": "the plugin's own",
        "team": "blue",
        "huawei.com/AscendReal": "another project's, as no configured chip is called so",
    }
    raw = {**pod("p", gpu=1, annotations=stale, labels={"hami.io/vgpu-node": "elsewhere"}), "metadata": {
        "name": "p", "namespace": "default", "uid": "u", "annotations": stale,
        "labels": {"hami.io/vgpu-node": "elsewhere", "app": "x"}}}  # fmt: skip
    read = Pod.from_object(raw)
    removed = {"hami.io/vgpu-mig-allocations": None, "hami.io/dcu-devices-allocated": None, "hami.io/bind-phase": None}
    assert stale_metadata(read, "n", {"hami.io/vgpu-node": "n"}, VENDORS) == {"annotations": removed}
    assert stale_metadata(read, LONG, {}, VENDORS)["labels"] == {"hami.io/vgpu-node": None}
    assert stale_metadata(Pod.from_object(pod("p", gpu=1)), LONG, {}, VENDORS) == {}


async def test_a_mig_instance_is_written_with_its_profile_and_place() -> None:
    env = PlacerEnv()
    profile = {"name": "2g.10gb", "memoryMB": 10240, "core": 28, "sliceCount": 2}
    places = [{"start": start, "size": 2} for start in (0, 2)]
    mig = card("M", 40960, mode="mig", count=7, migProfiles=[{**profile, "placements": places}])
    await env.add(node("n", mig))
    placement = await env.placed(pod("p", container(), container(gpu=2, mem=8000)))
    assert placement.annotations[ALLOCATED] == ";M,NVIDIA,10240,28:M,NVIDIA,10240,28:;"
    reported = json.loads(placement.annotations["hami.io/vgpu-mig-allocations"])
    assert [(r["containerIndex"], r["deviceIndex"], r["placement"]["start"]) for r in reported] == [
        (1, 0, 0),
        (1, 1, 2),
    ]
    assert await env.refused(pod("q", gpu=1, mem=8000)) == {"n": "1/1 CardMigTopologyInfeasible"}


async def test_a_pod_that_asks_for_nothing_is_left_alone() -> None:
    env = PlacerEnv()
    await env.add(node("n", card("G", 8000)))
    assert await env.place(pod("p")) is None
    assert env.events("p") == []


async def test_a_bad_amount_fails_on_every_node_with_its_sentence() -> None:
    env = PlacerEnv()
    await env.add(node("n1", card("G", 8000)), node("n2", card("H", 8000)))
    reported = "invalid nvidia.com/gpu value -1 in container main: must be an integer between 0 and 2147483647"
    assert await env.refused(pod("p", gpu=-1), ["n1", "n2", "gone"]) == dict.fromkeys(("n1", "n2", "gone"), reported)
    assert env.events("p") == [("Warning", "FilteringFailed", "no available node, 3 nodes do not meet")]


async def test_only_the_candidates_given_are_asked_and_unknown_ones_are_unregistered() -> None:
    env = PlacerEnv()
    await env.add(node("a", card("A", 8000)), node("b", card("B", 8000)), node("empty"))
    placement = await env.placed(pod("p", gpu=1, mem=10), ["b", "empty", "gone"])
    assert placement.node == "b"
    assert {n: str(why) for n, why in placement.failed.items()} == dict.fromkeys(("empty", "gone"), "node unregistered")
    assert env.events("p")[0][2] == "find fit node(b), 2 nodes not fit, 1 nodes fit(b:0.00)"


async def test_without_candidates_nothing_fits() -> None:
    env = PlacerEnv()
    assert await env.refused(pod("p", gpu=1)) == {}
    assert env.events("p") == [("Warning", "FilteringFailed", "no available node, 0 nodes do not meet")]


async def test_a_pod_placed_before_gives_up_its_cards_before_it_is_placed_anew() -> None:
    env = PlacerEnv()
    await env.add(node("n", card("G", 8000)))
    wants = pod("p", gpu=1, mem=8000, cores=100)
    await env.assumed(wants)
    env.now += 20
    placement = await env.assumed(wants)
    assert placement.written["hami.io/vgpu-time"] == str(int(NOW) + 20)
    assert env.used("n", "G") == (1, 8000, 100)
    env.now += 290
    env.state.tick(env.now)
    assert env.used("n", "G") == (1, 8000, 100), "the new placement is young"


async def test_a_bound_pod_is_never_placed_again() -> None:
    env = PlacerEnv()
    await env.add(node("n", card("G", 8000)), bound_pod("p", "n", "G,NVIDIA,4000,0:;"))
    before = env.read("p")
    assert await env.placer.place(before) is None
    assert env.read("p") == before
    assert env.used("n", "G") == (1, 4000, 0)


async def test_words_that_mean_nothing_and_blind_choices_are_told() -> None:
    env = PlacerEnv()
    await env.add(node("a", card("G0", 8000), card("G1", 8000)), node("b", card("H", 8000)))
    await env.placed(pod("p", gpu=1, mem=10, annotations={GPU_POLICY: "topology-aware, fastest"}))
    assert env.events("p")[:2] == [
        ("Warning", "PolicyIgnored", f'{GPU_POLICY}: "fastest" is no card policy and acts as spread'),
        ("Warning", "PolicyIgnored", "topology-aware is blind on 1 node without pair scores(a)"),
    ]


async def test_where_the_quota_moved_away_the_next_best_node_is_taken() -> None:
    env = PlacerEnv()
    await env.add(node("l", card("L", 24000)), node("s", card("S", 8000)))
    await env.add(quota("q", mem=13000, used={MEM: 4000}))
    await env.add(bound_pod("other", "l", "L,NVIDIA,10,1:;", namespace="team-b"))

    async def spend(step: str) -> None:
        if step == "patch_status:before":  # before the charge is written somebody took 5000
            env.cluster.pause = None
            await env.cluster.patch_status(Kind.RESOURCE_QUOTAS, "q", {"status": {"used": {MEM: "9000"}}}, "default")

    await env.add(pod("p", gpu=1, percent=50))
    env.cluster.pause = spend
    placement = await env.placed(pod("p", gpu=1, percent=50))
    assert placement.node == "s"
    assert {n: str(why) for n, why in placement.failed.items()} == {"l": "1/1 ResourceQuotaNotFit"}
    assert env.events("p") == [
        ("Normal", "FilteringSucceed", "find fit node(s), 1 nodes not fit, 1 nodes fit(s:0.00)"),
        ("Normal", "BindingSucceed", "Successfully binding node [s] to default/p"),
    ]
    assert env.quota_used() == {MEM: "9k"}


async def growing(env: PlacerEnv) -> None:
    """A namespace in which the pod `p` is charged 4000 and would cost 12000."""
    await env.add(node("l", card("L", 24000)), node("s", card("S", 8000)))
    await env.add(quota("q", mem=20000, used={MEM: 4000}))
    await env.add(bound_pod("other", "l", "L,NVIDIA,10,1:;", namespace="team-b"), pod("p", gpu=1, percent=50))


async def test_annotations_that_cannot_be_written_undo_the_charge_and_are_told() -> None:
    env = PlacerEnv()
    await growing(env)
    env.cluster.pause = failing("bind:before", Invalid("the pod is too large"))
    with pytest.raises(Invalid):
        await env.place(pod("p"))
    assert env.quota_used() == {MEM: "4k"}
    quota_now = env.cluster.peek(Kind.RESOURCE_QUOTAS, "q", "default")
    assert quota_now is not None
    assert "annotations" not in quota_now["metadata"], "no entry is left in the ledger"
    assert env.used("l", "L") == (1, 10, 1)
    assert env.events("p")[1:] == [("Warning", "FilteringFailed", "the pod is too large")]


async def test_a_charge_that_took_too_long_is_undone_and_nothing_is_written() -> None:
    env = PlacerEnv()
    await growing(env)

    async def slow(step: str) -> None:
        if step == "patch_status:after" and env.now == NOW:
            env.now += 11

    env.cluster.pause = slow
    with pytest.raises(ClusterError, match="more than 10 s"):
        await env.place(pod("p"))
    assert env.quota_used() == {MEM: "4k"}
    assert ALLOCATED not in env.read("p").annotations


@pytest.mark.parametrize("step", ["bind:before", "bind:after"], ids=["lost on the way", "written, answer lost"])
async def test_a_binding_that_may_have_been_written_keeps_the_charge(step: str) -> None:
    env = PlacerEnv()
    await growing(env)
    lost: list[str] = []

    async def lose(now: str) -> None:
        if now == step or lost:  # nor can anybody say what became of it
            lost.append(now)
            raise Unavailable("connection lost")

    env.cluster.pause = lose
    with pytest.raises(Unavailable):
        await env.place(pod("p"))
    bound = step == "bind:after"
    assert ("hami.io/vgpu-node" in env.read("p").annotations) is bool(env.read("p").node_name) is bound
    assert env.quota_used() == {MEM: "12k"}
    env.cluster.pause = None
    again = await env.place(pod("p"))
    assert again is None if bound else isinstance(again, Placement), "and the next try is charged once"
    assert env.quota_used() == {MEM: "12k"}


async def test_a_node_that_vanishes_meanwhile_does_no_harm() -> None:
    env = PlacerEnv()
    await growing(env)

    async def vanish(step: str) -> None:
        if step == "patch_status:after":
            env.state.remove_node("l")

    env.cluster.pause = vanish
    assert isinstance(await env.place(pod("p")), Placement)


async def test_an_event_that_cannot_be_recorded_does_not_undo_a_placement() -> None:
    env = PlacerEnv()
    await growing(env)
    env.cluster.pause = failing("record_event:before", Unavailable("no events today"))
    assert (await env.placed(pod("p"))).node == "l"
    assert env.used("l", "L") == (2, 12010, 1)
