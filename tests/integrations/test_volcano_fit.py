"""Where Volcano would place a pod: checks, order, MIG geometry, score (docs/spec/volcano.md#6 to #9)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from builders import container
from devices.fit_env import NOW, configured, pod
from hypothesis import given
from hypothesis import strategies as st
from tables import in_one_test

from hami_webhook.devices.foreign_scheduler import NoNode
from hami_webhook.integrations.sections import PLUGIN_MIG_GEOMETRIES
from hami_webhook.integrations.volcano.geometry import Geometries, InstancePlace
from hami_webhook.integrations.volcano.ids_annotation import decode
from hami_webhook.quota.pricing import price_pending

from .schedulers_env import SchedulersEnv
from .volcanoes import A40GB, IDS, MEMORY, MODE, NUMBER, T4, a40, pod_with_limits, t4, vgpu, volcano_node

JSON = dict[str, Any]
GROUP, SPREAD = "scheduling.k8s.io/group-name", "volcano.sh/vgpu-podgroup-policy"


def squeezed(ids: str, *cards: str, notes: Mapping[str, str] | None = None) -> SchedulersEnv:
    """One node with these cards (one T4 by default), on which a pod holds what `ids` says."""
    env = SchedulersEnv([volcano_node("n1", *(cards or (t4("GPU-a"),)))])
    if ids:
        env.keep(pod_with_limits(1, name="holder", notes=notes), "n1", {IDS: ids})
    return env


def ids_of(env: SchedulersEnv, manifest: JSON) -> str:
    return env.predicted(manifest).annotations[IDS]


def full(slots: int, memory: int = 1, cores: int = 0) -> str:
    return "".join(f"GPU-a,NVIDIA,{memory},{cores}:" for _ in range(slots))


@in_one_test(
    ("env", "manifest", "why"),
    [
        (squeezed("", t4("GPU-a", "false")), pod_with_limits(1), "1/1 CardNotHealth"),
        (squeezed(""), pod_with_limits(1, notes={"volcano.sh/vgpu-use-gpuuuid": "GPU-z"}), "1/1 CardUuidMismatch"),
        (squeezed(""), pod_with_limits(1, notes={"volcano.sh/vgpu-nouse-gpuuuid": "GPU-a"}), "1/1 CardUuidMismatch"),
        (squeezed(full(10)), pod_with_limits(1, 5), "1/1 CardTimeSlicingExhausted"),
        (
            squeezed(full(1), notes={GROUP: "g"}),
            pod_with_limits(1, 5, notes={GROUP: "g", SPREAD: "spread"}),
            "1/1 ExclusiveDeviceAllocateConflict",
        ),
        (squeezed(full(1, 16000)), pod_with_limits(1, 385), "1/1 CardInsufficientMemory"),
        (squeezed(full(1, 5, 60)), pod_with_limits(1, 5, 41), "1/1 CardInsufficientCore"),
        (squeezed(full(1)), pod_with_limits(1, 5, 100), "1/1 ExclusiveDeviceAllocateConflict"),
        (squeezed(full(1, 5, 100)), pod_with_limits(1, 5), "1/1 CardComputeUnitsExhausted"),
        (squeezed("", "GPU-a,10,16384,AMD-X,true,hami-core"), pod_with_limits(1, 5), "1/1 CardTypeMismatch"),
        (squeezed(""), pod_with_limits(1, 5, notes={"nvidia.com/use-gputype": "a100"}), "1/1 CardTypeMismatch"),
        (squeezed(""), pod_with_limits(1, 5, notes={"nvidia.com/nouse-gputype": "tESLA"}), "1/1 CardTypeMismatch"),
        (squeezed("", a40("GPU-a")), pod_with_limits(1, 40961 - 1, 1, mode="mig"), None),
        (
            squeezed("GPU-a[group1-0],NVIDIA,5,0:", a40("GPU-a")),
            pod_with_limits(1, 5121),
            "1/1 CardMigTopologyInfeasible",
        ),
        (squeezed(""), pod_with_limits(1, 5, mode="mig"), "1/1 ModeNotFit"),  # example 6
        (squeezed(""), pod_with_limits(2, 5), "NodeInsufficientDevice"),
        # one that holds just what is left
        (squeezed(full(9, 1000)), pod_with_limits(1, 7384), None),
        (squeezed(full(1, 5, 60)), pod_with_limits(1, 5, 40), None),
        (squeezed(full(1), notes={GROUP: "g"}), pod_with_limits(1, 5, notes={GROUP: "g"}), None),
        (squeezed(full(1), notes={GROUP: "g"}), pod_with_limits(1, 5, notes={GROUP: "h", SPREAD: "spread"}), None),
        (squeezed(full(1, 0), notes={GROUP: "g"}), pod_with_limits(1, 5, notes={GROUP: "g", SPREAD: "spread"}), None),
        (squeezed(""), pod_with_limits(1, 5, notes={"nvidia.com/use-gputype": "x,TESLA"}), None),
        (
            squeezed(""),
            pod_with_limits(1, 5, notes={"nvidia.com/use-gputype": "tesla", "nvidia.com/nouse-gputype": "tesla"}),
            None,
        ),
    ],
)
def test_a_card_must_pass_every_check(env: SchedulersEnv, manifest: JSON, why: str | None) -> None:
    predicted = env.predict(manifest)
    assert (dict(predicted.failed) if isinstance(predicted, NoNode) else None) == ({"n1": why} if why else None)


def test_the_first_failure_tells() -> None:
    """Each of these fails every check that comes after its own, too."""
    everything = {"volcano.sh/vgpu-use-gpuuuid": "z", GROUP: "g", SPREAD: "spread", "nvidia.com/use-gputype": "z"}
    labels = []
    for without in ((), ("volcano.sh/vgpu-use-gpuuuid",), ("volcano.sh/vgpu-use-gpuuuid", SPREAD)):
        notes = {key: text for key, text in everything.items() if key not in without}
        env = squeezed(full(1, 16384, 100), notes={GROUP: "g"})
        predicted = env.predict(pod_with_limits(1, 5, 100, notes=notes))
        labels.append(predicted.failed["n1"].partition(" ")[2])
    assert labels == ["CardUuidMismatch", "ExclusiveDeviceAllocateConflict", "CardInsufficientMemory"]


def test_cards_that_passed_in_vain_are_counted() -> None:
    env = squeezed("GPU-a,NVIDIA,16384,0:", t4("GPU-a"), t4("GPU-b"), t4("GPU-c", "false"), a40("GPU-d", "x"))
    notes = {"nvidia.com/use-gputype": "Tesla"}
    assert env.predict(pod_with_limits(2, 5, notes=notes)).failed == {
        "n1": "1/4 AllocatedCardsInsufficientRequest, 1/4 CardInsufficientMemory, 1/4 CardNotHealth, "
        "1/4 CardTypeMismatch"
    }


@pytest.mark.parametrize(
    ("policy", "cards"),
    [("", ["d", "c", "b", "a"]), ("binpack", ["b", "a", "c", "d"]), ("spread", ["c", "d", "a", "b"])],
)
def test_the_policy_orders_the_cards(policy: str, cards: list[str]) -> None:
    node = volcano_node("n1", *(t4(uuid) for uuid in "abcd"))
    env = SchedulersEnv([node], configured(f'volcano: {{schedulePolicy: "{policy}"}}'))
    env.keep(pod_with_limits(1, name="u"), "n1", {IDS: "a,NVIDIA,100,0:b,NVIDIA,100,0:b,NVIDIA,100,0:"})
    taken = [entry.uuid for entry in decode(ids_of(env, pod_with_limits(4, 5)))[0]]
    assert taken == cards


def test_later_containers_see_what_earlier_ones_took() -> None:
    env = squeezed("", t4("GPU-a"), t4("GPU-b"))
    two = pod("p", vgpu(1, 16000, name="a"), container("idle"), vgpu(2, 300, name="c"))
    predicted = env.predicted(two)
    assert predicted.annotations[IDS] == "GPU-b,NVIDIA,16000,0:;GPU-b,NVIDIA,300,0:GPU-a,NVIDIA,300,0:"
    assert {row: [part.uuid for part in parts] for row, parts in predicted.parts.items()} == {
        0: ["GPU-b"],
        2: ["GPU-b", "GPU-a"],
    }
    assert env.predict(pod("p", vgpu(1, 16000, name="a"), vgpu(2, 400, name="c"))).failed == {
        "n1": "1/2 AllocatedCardsInsufficientRequest, 1/2 CardInsufficientMemory"
    }


def test_mig_instances_of_one_pod_are_apart() -> None:
    env = squeezed("", a40("GPU-a"))
    with_limits = pod("p", *(vgpu(1, 8000, name=name) for name in "abc"), annotations={MODE: "mig"})
    assert ids_of(env, with_limits) == ";".join(f"GPU-a[group2-{i}],NVIDIA,8000,0:" for i in range(3))
    assert env.place(with_limits)[1][f"limits.{MEMORY}"] == 3 * 10240
    assert env.failed(pod_with_limits(1, 8000, name="p4", mode="mig")) == {"n1": "1/1 CardMigTopologyInfeasible"}
    env.state.remove_pod("uid-p")
    assert (
        ids_of(env, pod_with_limits(1, 3000, mode="mig")) == "GPU-a[group1-0],NVIDIA,3000,0:"
    )  # idle: any group again


@pytest.mark.parametrize(
    "ids", ["GPU-a[other-0],NVIDIA,5,0:", "GPU-a[group1-0],NVIDIA,5,0:GPU-a[group2-0],NVIDIA,5,0:"]
)
def test_a_card_whose_geometry_is_not_known_gives_no_instance(ids: str) -> None:
    env = squeezed(ids, a40("GPU-a"))
    assert env.predict(pod_with_limits(1, 5, mode="mig")).failed == {"n1": "1/1 CardMigTopologyInfeasible"}


def test_the_score_is_that_of_the_policy() -> None:
    for policy, score in (("", 0), ("binpack", 100 * (4096 + 3000) / 16384), ("spread", 0)):
        env = SchedulersEnv([volcano_node("n1", t4("GPU-a"))], configured(f'volcano: {{schedulePolicy: "{policy}"}}'))
        env.keep(pod_with_limits(1, name="u"), "n1", {IDS: "GPU-a,NVIDIA,4096,0:"})
        predicted = env.predicted(pod_with_limits(1, 3000))
        assert predicted.score == score
    spread = SchedulersEnv(
        [volcano_node(n, t4(f"GPU-{n}")) for n in ("a", "b")], configured("volcano: {schedulePolicy: spread}")
    )
    spread.keep(pod_with_limits(1, name="u"), "a", {IDS: "GPU-a,NVIDIA,4096,0:"})
    predicted = spread.predicted(pod_with_limits(1, 3000))
    assert (predicted.node, predicted.score) == ("b", 100)


def test_equal_nodes_go_by_name_and_others_say_why() -> None:
    nodes = [volcano_node("c", t4("GPU-c")), volcano_node("b", t4("GPU-b")), volcano_node("a", t4("GPU-a", "false"))]
    predicted = SchedulersEnv([*nodes, volcano_node("d", t4("GPU-d"), offered={NUMBER: 0})]).predicted(
        pod_with_limits(1)
    )
    assert predicted.node == "b"
    assert predicted.failed == {"a": "1/1 CardNotHealth", "d": "node unregistered"}


def test_what_volcano_writes() -> None:
    predicted, _ = squeezed("").place(pod_with_limits(1, 5))
    stamp = str(int(NOW))
    assert predicted.annotations == {
        IDS: "GPU-a,NVIDIA,5,0:",
        "volcano.sh/devices-to-allocate": "GPU-a,NVIDIA,5,0:",
        "volcano.sh/vgpu-node": "n1",
        "volcano.sh/vgpu-time": stamp,
        "volcano.sh/bind-time": stamp,
        "volcano.sh/bind-phase": "allocating",
    }


def test_blocks_are_not_mebibytes() -> None:
    """With a factor of 10 a card registers 4096 blocks, and an instance of 5120 MiB takes 512."""
    card = f"GPU-a,10,4096,{A40GB},true,mig"
    env = SchedulersEnv([volcano_node("n1", card)], configured("volcano: {gpuMemoryFactor: 10}"))
    predicted, cost = env.place(pod_with_limits(1, 300, mode="mig"))
    assert predicted.annotations[IDS] == "GPU-a[group1-0],NVIDIA,300,0:"
    assert predicted.parts[0][0].memory == 5120
    assert cost[f"limits.{MEMORY}"] == 512


# properties

_SIZES = (1, 3000, 5120, 5121, 9728, 10240, 15000, 19968, 20481, 40000, 40960)
_GEOMETRIES = [(entry.models[0], entry) for entry in PLUGIN_MIG_GEOMETRIES]


@given(st.sampled_from(_GEOMETRIES), st.sampled_from(_SIZES), st.data())
def test_the_instance_is_the_one_that_the_rule_names(entry: tuple[str, Any], least: int, data: st.DataObject) -> None:
    """Section 7.5 read out loud, over every place of every group."""
    model, table = entry
    every = []  # (group's rank, memory, position), which is the order of preference
    for rank, group in enumerate(table.allowed_geometries):
        memories = [kind.memory for kind in group.geometries for _ in range(kind.count)]
        every += [(rank, memory, position, group.group) for position, memory in enumerate(memories)]
    ranks = sorted({place[0] for place in every})
    active = data.draw(st.none() | st.sampled_from(ranks))
    in_group = [place for place in every if place[0] == active]
    taken = data.draw(st.sets(st.sampled_from(in_group), min_size=1)) if in_group else set()
    usable = [p for p in every if p[1] >= least and p not in taken and active in (None, p[0])]
    expected = min(usable, default=None)
    geometry = Geometries(PLUGIN_MIG_GEOMETRIES).of(f"NVIDIA-{model}")
    assert geometry is not None
    found = geometry.choose(least, {InstancePlace(p[3], p[2]) for p in taken})
    assert (found and (found.place, found.kind.memory)) == (
        expected and (InstancePlace(expected[3], expected[2]), expected[1])
    )


_CARDS = st.sampled_from(
    [
        (16384, T4, "hami-core"),
        (40960, A40GB, "mig"),
        (40960, A40GB, "hami-core"),
        (24576, "NVIDIA-NVIDIA A30", "mig"),
        (81920, "NVIDIA-NVIDIA A100-SXM4-80GB", "mig"),
    ]
)


@st.composite
def _nodes(draw: st.DrawFn) -> list[Any]:
    made = []
    for name in ("n1", "n2"):
        kinds = draw(st.lists(_CARDS, min_size=1, max_size=3))
        slots = draw(st.integers(1, 4))
        cards = [
            f"{name}-{i},{slots},{memory},{kind},{'true' if draw(st.integers(0, 5)) else 'false'},{mode}"
            for i, (memory, kind, mode) in enumerate(kinds)
        ]
        made.append(volcano_node(name, *cards))
    return made


@st.composite
def _pods(draw: st.DrawFn, name: str) -> JSON:
    containers = []
    for index in range(draw(st.integers(1, 2))):
        memory, percent = draw(
            st.sampled_from([(None, None), (None, 20), (None, 100), (500, None), (8000, None), (15000, 7)])
        )
        containers.append(
            vgpu(draw(st.integers(1, 2)), memory, draw(st.sampled_from([None, 0, 40, 100])), percent, name=f"c{index}")
        )
    mode = draw(st.sampled_from([None, None, "mig", "hami-core"]))
    return pod(name, *containers, annotations={} if mode is None else {MODE: mode})


@given(st.data(), _nodes(), st.sampled_from(["", "binpack", "spread"]))
def test_predictions_never_oversell_a_card_and_cost_at_least_the_charge(
    data: st.DataObject, nodes: list[Any], policy: str
) -> None:
    env = SchedulersEnv(nodes, configured(f'volcano: {{schedulePolicy: "{policy}"}}'))
    for number in range(5):
        manifest = data.draw(_pods(f"p{number}"))
        admitted = env.admit(manifest)
        charge = price_pending(admitted.pod, env.vendors, env.state.capacity).amounts
        predicted = env.predict(admitted.manifest)
        if isinstance(predicted, NoNode):
            continue
        _, cost = env.place(admitted.manifest, admit=False)
        assert all(cost.get(key, 0) >= amount for key, amount in charge.items()), (charge, cost)
        assert {key: charge[key] for key in charge if not key.endswith("memory")} == {
            key: cost[key] for key in cost if not key.endswith("memory")
        }
    for node in nodes:
        held: dict[str, list[Any]] = {}
        for guest in env.state.foreign_pods_on(node.name):
            for entry in (entry for row in decode(guest.annotations[IDS]) for entry in row):
                held.setdefault(entry.uuid, []).append(entry)
        for card in node.annotations["volcano.sh/node-vgpu-register"].rstrip(":").split(":"):
            uuid, slots, memory, _, healthy, _ = card.split(",")
            entries = held.get(uuid, [])
            places = [entry.place for entry in entries if entry.place]
            assert len(entries) <= int(slots)
            assert sum(entry.memory for entry in entries) <= int(memory)
            assert sum(entry.cores for entry in entries) <= 100
            assert len(entries) == 1 or all(entry.cores < 100 for entry in entries)
            assert len(set(places)) == len(places)
            assert len({place.group for place in places}) <= 1
            assert not entries or healthy == "true"
