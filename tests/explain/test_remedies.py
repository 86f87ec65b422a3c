"""What would have to change: the least that helps, derived by trying it out."""

from __future__ import annotations

import random

import pytest
from builders import bound_pod, card, container, node, pod, quota
from msgspec.structs import replace
from scheduling.placer_env import GPU, MEM, VENDORS, PlacerEnv, request_of

from hami_webhook.cluster.api import JSON
from hami_webhook.devices.pod_fit import NodeFit, fit_pod
from hami_webhook.explain.eviction_search import smallest_eviction
from hami_webhook.scheduling.placer import Unschedulable

from .contexts import context, explained, on, steps

FULL = bound_pod("busy", "n", "G,NVIDIA,6000,50:;")
ROWS: list[tuple[str, list[JSON], JSON, list[list[str]]]] = [
    (
        "the memory that is missing",
        [node("n", card("G", 8000)), FULL],
        pod("p", gpu=1, mem=3000),
        [
            ["free 1000Mi on G of n (held by default/busy)"],
            ["ask for 2Gi (2000 MiB) of a card instead of 2.9Gi in container main: it fits on n"],
        ],
    ),
    (
        "memory and cores of the card that lacks least",
        [node("n", card("G", 8000), card("H", 8000)), FULL, bound_pod("more", "n", "H,NVIDIA,7000,90:;")],
        pod("p", gpu=1, mem=3000, cores=60),
        [["free 1000Mi and 10 cores on G of n (held by default/busy)"]],
    ),
    (
        "a card to itself",
        [node("n", card("G", 8000)), FULL],
        pod("p", gpu=1, mem=1000, cores=100),
        [
            ["empty G on n (held by default/busy)"],
            ["ask for 50 cores of a card instead of 100 in container main: it fits on n"],
        ],
    ),
    (
        "a limit that is too low for the cheapest placement",
        [node("n", card("G", 8000), card("H", 4000)), quota("q", mem=1000, used={})],
        pod("p", gpu=1, percent=50),
        [
            [
                "raise nvidia.com/gpumem of quota q from 1000 to 2000, or free 1000 of it: "
                "this placement costs 2000, others have 0"
            ],
            ["ask for 25 % of a card instead of 50 in container main: it fits on n"],
        ],
    ),
    (
        "room and a limit",
        [node("n", card("G", 8000)), FULL, quota("q", mem=8500, gpu=9, used={MEM: 9000, GPU: 2})],
        pod("p", gpu=1, mem=3000),
        [
            [
                "free 1000Mi on G of n (held by default/busy)",
                "raise nvidia.com/gpumem of quota q from 8500 to 9000, or free 500 of it: "
                "this placement costs 3000, others have 6000",
            ],
            ["ask for 2Gi (2000 MiB) of a card instead of 2.9Gi in container main: it fits on n"],
        ],
    ),
    (
        "fewer cards",
        [node("n", card("G", 8000), card("H", 8000))],
        pod("p", gpu=3, mem=3000),
        [["ask for 2 cards instead of 3 in container main: it fits on n"]],
    ),
    (
        "another node",
        [node("n", card("G", 8000), labels={"zone": "a"})],
        pod("p", gpu=1, mem=3000, nodeSelector={"zone": "b"}),
        [["n: it lacks the labels zone=b of the pod's nodeSelector; its cards would fit"]],
    ),
]


@pytest.mark.parametrize(("objects", "raw", "proposed"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_the_least_that_helps_is_proposed(objects: list[JSON], raw: JSON, proposed: list[list[str]]) -> None:
    explanation = explained(raw, *objects)
    assert steps(explanation) == proposed
    assert not any(found.fits for found in explanation.nodes)


def test_a_quota_without_room_is_shown_with_what_the_placement_would_cost() -> None:
    explanation = explained(
        pod("p", gpu=1, percent=50), node("n", card("G", 8000)), quota("q", mem=1000, gpu=2, used={})
    )
    rows = {account.key: account for account in explanation.quotas}
    assert {key: (a.costs, a.most) for key, a in rows.items()} == {
        GPU: (1, 2),
        MEM: (4000, 1000),
    }


def test_the_nearest_node_comes_first() -> None:
    explanation = explained(
        pod("p", gpu=1, mem=7000),
        node("a", card("A", 8000)),
        node("b", card("B", 8000)),
        bound_pod("x", "a", "A,NVIDIA,5000,0:;"),
        bound_pod("y", "b", "B,NVIDIA,2000,0:;"),
    )
    assert [change.node for change in explanation.changes if change.steps[0].kind == "free"] == ["b", "a"]


def test_of_equal_nodes_each_change_names_its_own_cards() -> None:
    explanation = explained(
        pod("p", gpu=1, mem=7000),
        *(node(name, card(f"G{name}", 8000)) for name in "ab"),
        *(bound_pod(f"busy-{name}", name, f"G{name},NVIDIA,5000,0:;") for name in "ab"),
    )
    assert steps(explanation)[:2] == [
        [f"free 3.9Gi on G{name} of {name} (held by default/busy-{name})"] for name in "ab"
    ]


def test_what_keeps_the_scheduler_away_comes_with_every_change() -> None:
    raw = pod("p", gpu=1, mem=3000, schedulerName="default-scheduler")
    gated = explained(raw, node("n", card("G", 8000)), FULL, gates=("wait",))
    assert steps(gated)[0] == [
        "its scheduling gates must be removed: wait",
        "its schedulerName must be hami-scheduler, not default-scheduler",
        "free 1000Mi on G of n (held by default/busy)",
    ]
    assert steps(explained(raw, node("n", card("G", 8000)))) == [
        ["its schedulerName must be hami-scheduler, not default-scheduler"]
    ]


@pytest.mark.parametrize("scheduler", ["hami-scheduler", "hami-scheduler-claims"])
@pytest.mark.parametrize(
    ("taken", "why"),
    [
        (
            {"gpu.nvidia.com": "nvidia.com/gpu", "sgpu": "metax-tech.com/sgpu"},
            "DeviceClass gpu.nvidia.com takes nvidia.com/gpu",
        ),
        ({}, "a DeviceClass takes one of its resources"),  # which may not be seen by tenants
    ],
)
def test_the_class_that_keeps_kube_scheduler_from_placing_it_is_named(
    scheduler: str, taken: dict[str, str], why: str
) -> None:
    raw = pod("p", gpu=1, mem=3000, schedulerName=scheduler)
    free = node("n", card("G", 8000))
    ((step,),) = steps(explained(raw, free, cannot_fit=True, taken=taken))
    assert step.startswith(f"its kube-scheduler says cannot fit resource, as {why}: disable the filter")
    assert explained(raw, free, taken=taken).changes == []


def chance(seed: int) -> tuple[list[JSON], JSON]:
    """A cluster and a pod at random."""
    dice = random.Random(seed)
    objects: list[JSON] = []
    for n in range(dice.randint(1, 3)):
        uuids = [f"n{n}g{g}" for g in range(dice.randint(1, 4))]
        cards = [card(u, dice.choice([4000, 8000]), count=dice.choice([2, 10]), numa=dice.randint(0, 1)) for u in uuids]
        objects.append(node(f"n{n}", *cards))
        for r in range(dice.randint(0, 5)):
            held = f"{dice.choice(uuids)},NVIDIA,{dice.choice([500, 1500])},{dice.choice([0, 30, 100])}:;"
            objects.append(bound_pod(f"n{n}r{r}", f"n{n}", held))
    if dice.random() < 0.5:
        objects.append(quota("q", mem=dice.choice([2000, 9000]), gpu=dice.choice([1, 8]), used={}))
    policies = ["binpack", "spread", "mutex", "numa-first,spread", "topology-aware"]
    notes = {"hami.io/gpu-scheduler-policy": dice.choice(policies)}
    if dice.random() < 0.3:
        notes["nvidia.com/numa-bind"] = "true"

    def one() -> JSON:
        return container(
            gpu=dice.randint(1, 3), mem=dice.choice([None, 1000, 5000]), cores=dice.choice([None, 20, 100])
        )

    inits = [one()] if dice.random() < 0.3 else []
    return objects, pod("p", *(one() for _ in range(dice.randint(1, 2))), init=inits, annotations=notes)


@pytest.mark.parametrize("seed", range(50))
async def test_the_verdicts_are_the_schedulers_and_the_proposals_true(seed: int) -> None:
    objects, raw = chance(seed)
    explanation = explained(raw, *objects)
    env = PlacerEnv()
    await env.add(*objects)
    answer = await env.place(raw)
    assert answer is not None
    reasons = {account.name: account.reason for account in explanation.nodes if not account.fits}
    assert reasons == {name: str(why) for name, why in answer.failed.items()}
    assert isinstance(answer, Unschedulable) == (not any(account.fits for account in explanation.nodes))
    for account in explanation.nodes:
        counted = [line.label for line in account.cards if line.label]
        for label in set(counted):
            assert f"{counted.count(label)}/{len({line.uuid for line in account.cards})} {label}" in account.reason
    pod_request = request_of(raw)
    for view in context(*objects).state.views():
        eviction = smallest_eviction(view, pod_request, VENDORS)
        if eviction is None:
            continue
        kept = dict(view.usage)
        for key, (slots, memory, cores) in eviction.freed.items():
            was = view.used(*key)
            assert min(slots, memory, cores) >= 0
            kept[key] = replace(was, slots=was.slots - slots, memory=was.memory - memory, cores=was.cores - cores)
        assert isinstance(fit_pod(replace(view, usage=kept), pod_request, VENDORS, None), NodeFit)


@pytest.mark.parametrize("seed", range(20))
def test_a_limit_raised_as_proposed_lets_the_pod_in(seed: int) -> None:
    objects, raw = chance(seed)
    explanation = explained(raw, *objects)
    for change in explanation.changes:
        if {step.kind for step in change.steps} != {"quota"}:
            continue
        raised: JSON = {step.subject.partition("/")[2]: step.amounts["to"] for step in change.steps}
        changed = [
            quota("q", used={}, **{**{key: int(text) for key, text in obj["spec"]["hard"].items()}, **raised})
            if "hard" in obj.get("spec", {})
            else obj
            for obj in objects
        ]
        assert on(explained(raw, *changed), change.node).fits
