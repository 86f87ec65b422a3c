"""`kubectl hami defrag`: who would move, who stays and why, and how moves are done (docs/room.md#moves)."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from builders import card, node, read_pod
from scheduling.placer_env import NOW, VENDORS
from simulate.files import JSON, pod

from hami_webhook.admission.identities import AdmissionRules
from hami_webhook.cluster.api import Kind
from hami_webhook.cluster.loading import LoadedObject, sort_objects
from hami_webhook.cluster.memory import MemoryCluster
from hami_webhook.core_options import Options
from hami_webhook.evictions.moves import MovablePod, Move, Plan
from hami_webhook.kube.objects import Pod
from hami_webhook.kubectl.defrag import Mover, Stopped, cordoned
from hami_webhook.kubectl.fragments import Movability, WantedCards
from hami_webhook.policy.rules import PolicyRules
from hami_webhook.simulate.simulation import Simulation

from .apiserver import ApiServer
from .conftest import Hami
from .test_ui import entered
from .test_verbs import DEPLOYED

CLASSES = [
    {"kind": "PriorityClass", "metadata": {"name": name}, "value": value} for name, value in (("low", 0), ("high", 100))
]
SPACE: JSON = {"kind": "Namespace", "metadata": {"name": "team-a", "uid": "team-a"}}


def held(name: str, on: int, memory: int = 4000, owner: str | None = "ReplicaSet", **more: Any) -> JSON:
    """A pod that holds a part of the one card of node n0, n1, …; its controller is of the kind `owner`."""
    notes = {"hami.io/vgpu-node": f"n{on}", "hami.io/vgpu-devices-allocated": f"GPU-{on},NVIDIA,{memory},0:;"}
    notes |= more.pop("annotations", {})
    labels = more.pop("labels", {"app": "held"})
    spec = {"schedulerName": "hami-scheduler", **more}
    made = pod(name, gpu=1, mem=memory, namespace="team-a", annotations=notes, nodeName=f"n{on}", **spec)
    made["metadata"] |= {"uid": f"uid-{name}", "creationTimestamp": "2026-01-01T00:00:00Z", "labels": labels}
    if owner is not None:
        reference = {"kind": owner, "name": f"of-{name}", "uid": f"owner-{name}", "controller": True}
        made["metadata"]["ownerReferences"] = [reference]
    return {**made, "status": {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"}}


def cluster(*more: JSON, nodes: int = 2) -> ApiServer:
    cards = [node(f"n{number}", card(f"GPU-{number}", 40000)) for number in range(nodes)]
    return ApiServer([*cards, *CLASSES, SPACE, *DEPLOYED, *more])


def budget(name: str, allowed: int) -> JSON:
    meta = {"name": name, "namespace": "team-a"}
    spec = {"selector": {"matchLabels": {"app": "held"}}}
    return {"kind": "PodDisruptionBudget", "metadata": meta, "spec": spec, "status": {"disruptionsAllowed": allowed}}


WANT = ("defrag", "-n", "team-a", "--want", "1xa100", "--priority-class", "high")


def test_the_fewest_moves_are_shown_and_nothing_is_written(hami: Hami) -> None:
    api = cluster(held("a", 0, 4000), held("b", 1, 3000), budget("keep", 1))
    run = hami(api, *WANT)
    assert (run.status, run.err) == (0, "")
    assert run.out.splitlines() == [
        "Node n1 would have 1 x a100 free after 1 move. This is only a plan: --apply carries it out.",
        "POD       FROM  TO  OWNER            PRIORITY  CARDS  MEMORY  MAY VETO",
        "team-a/b  n1    n0  ReplicaSet/of-b  0         1      2.9Gi   PodDisruptionBudget keep, 1 left",
    ]
    assert {method for method, _ in api.asked} == {"GET"}
    found = json.loads(hami(api, *WANT, "-o", "json").out)
    assert (found["node"], found["fewest"], found["why"], found["applied"]) == ("n1", True, "", False)
    assert [(each["pod"], each["to"]) for each in found["moves"]] == [("team-a/b", "n0")]
    part = hami(api, *WANT, "--gpumem", "30000")
    assert part.out == "Node n1 has 1 x a100 with 30000 MiB of each free now; no pod has to move.\n"


def test_on_an_ordinary_day_nobody_has_to_move(hami: Hami) -> None:
    """A card is free, or all pods are as important as what is wanted: nothing is written, even with --apply."""
    for api, status, said in (
        (cluster(held("a", 0), nodes=2), 0, "Node n1 has 1 x a100 free now; no pod has to move."),
        (cluster(held("a", 0), held("b", 1)), 1, "No moves free 1 x a100: no node takes it even without"),
    ):
        run = hami(api, "defrag", "-n", "team-a", "--want", "1xa100", "--apply")
        assert (run.status, run.err, run.out.startswith(said)) == (status, "", True), run.out
        assert {method for method, _ in api.asked} == {"GET"}


@pytest.mark.parametrize(
    ("why", "first", "more"),
    [
        ("of priority 100 or higher, as what is wanted has 100 (--priority-class)", {"priority": 100}, []),
        ("of priority 100 or higher, as what is wanted has 100 (--priority-class)", {"priority": 101}, []),
        ("without an owner that replaces them elsewhere", {"owner": None}, []),
        ("without an owner that replaces them elsewhere", {"owner": "DaemonSet"}, []),
        ("without an owner that replaces them elsewhere", {"owner": "Job"}, []),
        ("in a pod group", {"labels": {"hami.io/pod-group": "g", "hami.io/pod-group-size": "2"}}, []),
        ("placed by another scheduler", {"schedulerName": "default-scheduler"}, []),
        ("annotated not to be disturbed", {"annotations": {"hami.io/do-not-disturb": "true"}}, []),
        ("annotated not to be disturbed", {"annotations": {"karpenter.sh/do-not-disrupt": "true"}}, []),
        ("annotated not to be", {"annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}}, []),
        ("whose PodDisruptionBudget allows no disruption now", {}, [budget("b", 0)]),
        ("covered by several PodDisruptionBudgets", {}, [budget("a", 1), budget("b", 1)]),
        ("with volumes, or features", {"volumes": [{"persistentVolumeClaim": {"claimName": "c"}}]}, []),
        ("with ResourceClaims", {"resourceClaims": [{"name": "c", "resourceClaimName": "c"}]}, []),
    ],
)
def test_who_never_moves(hami: Hami, why: str, first: JSON, more: list[JSON]) -> None:
    run = hami(cluster(held("a", 0, **first), held("b", 1, **first), *more), *WANT)
    assert run.status == 1
    lines = run.out.splitlines()
    assert lines[0] == "No moves free 1 x a100: no node takes it even without all pods that may be moved."
    assert lines[1].startswith(f"2 pods stay: {why}")


def test_nobody_moves_to_a_node_that_kube_scheduler_refuses(hami: Hami) -> None:
    api = cluster(held("a", 0, nodeSelector={"on": "n0"}), held("b", 1, 30000, owner=None))
    assert hami(api, *WANT).out.startswith("No moves free 1 x a100: other nodes can't take the pods")


def test_a_node_that_takes_no_pods_is_neither_cleared_nor_filled(hami: Hami) -> None:
    api = cluster(held("a", 0), held("b", 1))
    api.objects[0]["spec"] = {"unschedulable": True}
    assert hami(api, *WANT).out.startswith("No moves free 1 x a100: other nodes can't take the pods")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--want", "H100"), "must be a number from 1 to 1024, x, and a model, not 'H100'"),
        (("--want", "0xH100"), "must be a number from 1 to 1024"),
        (("--want", "1xH100", "--gpumem", "000000000199999999"), "must be a number of MiB from 1 to"),
        (("--want", "0000000019999xH100"), "must be a number from 1 to 1024"),
        (("--want", "99999999999999999999xH100"), "must be a number from 1 to 1024"),
        (("--want", "1xH100,A100"), "MODEL has at most 64 printable characters and no comma"),
        (("--want", "1xH100"), "no card's model contains 'H100'; the nodes register NVIDIA A100-SXM4-40GB"),
        (("--want", "1xA100", "--gpumem", "-1"), "must be a number of MiB from 1 to 10000000, not '-1'"),
        (("--want", "1xA100", "--priority-class", "none"), "no PriorityClass none"),
    ],
)
def test_bad_input_by_sentence(
    hami: Hami, flags: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        run = hami(cluster(), "defrag", *flags)
    except SystemExit as error:  # of the parser
        status, err = error.code, capsys.readouterr().err
    else:
        status, err = run.status, run.err
    assert (status, said in err, err.count("\n")) == (2, True, 1), err


def test_a_reader_who_may_not_see_nodes_is_told(hami: Hami) -> None:
    api = cluster(held("a", 0))
    api.only = "team-a"
    run = hami(api, *WANT)
    assert (run.status, run.out) == (1, "")
    assert "nodes can't be listed with your rights" in run.err


@pytest.mark.parametrize(("began", "moves"), [(False, 0), (True, 1)])
async def test_once_moves_began_a_budget_that_allows_none_now_is_waited_for(began: bool, moves: int) -> None:
    """The replacement of the pod before isn't ready yet: the eviction API is asked until it is."""
    simulation = Simulation(VENDORS, Options(), PolicyRules.EMPTY, NOW)
    objects = [*cluster(held("a", 0), held("b", 1), budget("keep", 0)).objects]
    bundle = sort_objects([LoadedObject({"apiVersion": API[each["kind"]], **each}, "test", 0)
                           for each in objects if each["kind"] in API])  # fmt: skip
    await simulation.fill(bundle)
    options = Options(rules=AdmissionRules(scheduler_name="hami-scheduler"))
    wanted = WantedCards(1, "a100", above_all=True)
    plan = Movability(simulation, options, wanted, "team-a", (), began=began).plan(60)
    assert (len(plan.moves) if isinstance(plan, Plan) else 0) == moves


API = {"Node": "v1", "Pod": "v1", "Namespace": "v1", "PodDisruptionBudget": "policy/v1"}


@pytest.mark.integration
def test_the_overview_says_what_is_fragmented_and_what_moves_would_free(tmp_path: Path) -> None:
    html = "<b>A100</b>"
    api = cluster(held("a", 0, 4000), held("b", 1, 3000), node("n2", card("GPU-9", type=html)))
    with entered(api, tmp_path) as client:
        page = client.get("/overview").text
        assert "free memory (100 %) is on cards that pods hold" in page
        assert "move would free" not in page, "it is looked for when it is asked for"
        (link,) = re.findall('href="(/overview[^"]*moves=yes#fragments)"', page)
        page = client.get(link.replace("&amp;", "&")).text
    assert "1 move would free 1 whole card of NVIDIA A100-SXM4-40GB on node n1; now a pod gets none." in page
    assert html not in page


@pytest.mark.integration
def test_the_overview_of_an_ordinary_day_says_nothing_of_fragments(tmp_path: Path) -> None:
    with entered(cluster(), tmp_path) as client:
        assert "fragments" not in client.get("/overview?moves=yes").text


# moves


class Owned:
    """A cluster on which an owner replaces what is evicted, or doesn't."""

    def __init__(self, place: str = "n1", *, allowed: int = 1, replaces: bool = True) -> None:
        self.now = 1000.0
        self.cluster = MemoryCluster(lambda: self.now)
        self.place = place
        self.allowed = allowed
        self.replaces = replaces

    async def start(self) -> Pod:
        await self.cluster.ensure_namespace("team-a")
        made = held("a", 0)
        await self.cluster.create(Kind.PODS, made)
        if self.allowed < 1:
            await self.cluster.create(Kind.POD_DISRUPTION_BUDGETS, budget("b", self.allowed))
        return Pod.from_object(made)

    async def sleep(self, seconds: float) -> None:
        """Time passes, in which the kubelet ends pods and the owner makes one in their place."""
        self.now += seconds
        going = [each for each in self.cluster.peek_all(Kind.PODS) if "deletionTimestamp" in each["metadata"]]
        for each in going:
            await self.cluster.delete(Kind.PODS, each["metadata"]["name"], "team-a")
            if self.replaces:
                other = {**each, "spec": {**each["spec"], "nodeName": self.place}}
                meta = {"name": "a-2", "uid": "uid-a-2", "namespace": "team-a"}
                meta["ownerReferences"] = each["metadata"]["ownerReferences"]
                await self.cluster.create(Kind.PODS, {**other, "metadata": meta})
        await asyncio.sleep(0)


async def moved(owned: Owned) -> str:
    the_pod = await owned.start()
    raw = owned.cluster.peek(Kind.PODS, "a", "team-a")
    assert raw is not None
    request: Any = None
    move = Move(MovablePod(the_pod, "n0", {"n1"}, request, 4000, {}), "n1")
    found: Any = _Found(raw, read_pod("wanted"))
    return await Mover(owned.cluster, 5.0, lambda: owned.now, owned.sleep).move(found, move)


class _Found:
    def __init__(self, raw: JSON, wanted: Pod) -> None:
        self.pod, self.wanted = wanted, "1 x a100"
        self.raw: Callable[[Pod], JSON] = lambda pod: raw


async def test_a_pod_is_evicted_and_its_replacement_waited_for() -> None:
    owned = Owned()
    assert await moved(owned) == "n1"
    notes = [event.note for event in owned.cluster.events]
    assert [(each.reason, each.message) for each in notes] == [
        ("PodMoved", "Moved off node n0, which gets 1 x a100 free")
    ]


@pytest.mark.parametrize(
    ("owned", "said"),
    [
        (Owned(replaces=False), "what ReplicaSet of-a makes for team-a/a wasn't made within 5 s"),
        (Owned(place=""), "what ReplicaSet of-a makes for team-a/a has no node within 5 s"),
        (Owned(place="n0"), "team-a/a was replaced on node n0 again: it tolerates the cordon"),
        (Owned(allowed=0), "team-a/a may not be evicted: Cannot evict pod as it would violate"),
    ],
)
async def test_what_does_not_come_ends_the_moves(owned: Owned, said: str) -> None:
    with pytest.raises(Stopped, match=said):
        await moved(owned)


async def test_attack_of_two_people_at_once_one_cordons_a_node_and_uncordons_it() -> None:
    """Nor is a node uncordoned that somebody cordoned for maintenance after the plan was made."""
    api = MemoryCluster(lambda: 1000.0)
    await api.create(Kind.NODES, node("n0", card("GPU-0", 40000)))

    async def is_cordoned() -> bool:
        return bool((await api.get(Kind.NODES, "n0")).get("spec", {}).get("unschedulable"))

    async with cordoned(api, "n0"):
        with pytest.raises(Stopped, match="somebody cordoned node n0 since the plan was made"):
            async with cordoned(api, "n0"):
                pytest.fail("both moved pods")
        assert await is_cordoned()
    assert not await is_cordoned()


async def test_a_node_is_cordoned_though_others_write_to_it() -> None:
    class Busy(MemoryCluster):
        """Whose kubelet writes to the node between the first read and the patch."""

        wrote = False

        async def get(self, kind: Kind, name: str, namespace: str = "") -> JSON:
            found = await super().get(kind, name, namespace)
            if not self.wrote:
                self.wrote = True
                await self.patch(kind, name, {"metadata": {"labels": {"kubelet": "wrote"}}})
            return found

    api = Busy(lambda: 1000.0)
    await api.create(Kind.NODES, node("n0", card("GPU-0", 40000)))
    async with cordoned(api, "n0"):
        assert (await api.get(Kind.NODES, "n0"))["spec"]["unschedulable"]
