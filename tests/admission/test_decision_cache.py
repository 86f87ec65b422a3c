"""A gate that remembers answers as one that doesn't."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_webhook.admission import decision_cache, handler
from hami_webhook.admission.decision_cache import DecisionCache, shape_of
from hami_webhook.admission.denial import Denied
from hami_webhook.admission.review import parse_review
from hami_webhook.device_config import builtin_device_config, enabled_vendors
from hami_webhook.devices.device_lister import NO_FLEET
from hami_webhook.kube.objects import Namespace
from hami_webhook.policy.rules import PolicyRules, Rule
from hami_webhook.policy.selectors import LabelSelector, Requirement
from hami_webhook.quota.ledger import RESERVATION

from .reviews import GPU, JSON, MEM, PERCENT, RULES, Surroundings, container, cpu, gpu, parsed, pod, review

ALL = enabled_vendors(builtin_device_config().config)

CONTAINERS = (
    cpu(),
    gpu(),
    gpu(memory=4000),
    gpu(memory="much"),
    container(limits={MEM: 2000}),
    container(limits={GPU: 1, PERCENT: 50}),
    container(limits={"huawei.com/Ascend910B4": 1, "huawei.com/Ascend910B4-memory": 5000}),
    container(limits={"aws.amazon.com/neuroncore": 3}),
    container(limits={"enflame.com/drs-gcu": 2}),
    container(limits={"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 1000}),
    container(limits={"koordinator.sh/gpu-memory-ratio": 50}),
    gpu(securityContext={"privileged": True}),
)
NOTES = ({}, {"nvidia.com/use-gputype": "A100"}, {"hami.io/gpu-scheduler-policy": "mutex"}, {RESERVATION: "mine"})
ASPECTS: dict[str, Any] = {
    "name": ("a", "b", "c"),
    "asking": CONTAINERS,
    "notes": NOTES,
    "labels": ({}, {"team": "x"}),
    "volume": ("kube-api-access-1", "kube-api-access-2"),
}


def made_of(aspects: dict[str, Any]) -> JSON:
    name, volume = aspects["name"], aspects["volume"]
    return pod(
        {**aspects["asking"], "volumeMounts": [{"name": volume, "mountPath": "/x"}]},
        name=name,
        uid=f"uid-{name}",
        annotations=aspects["notes"],
        labels=aspects["labels"],
        volumes=[{"name": volume}],
    )


NAMESPACES = st.sampled_from(({}, {"hami.io/gpu-scheduler-policy": "spread"}, {"nvidia.com/use-gputype": "V100"}))
X = LabelSelector((Requirement("team", "Exists"),))
POLICIES = st.sampled_from(
    (
        PolicyRules.EMPTY,
        PolicyRules((Rule("spread", enforce={"hami.io/node-scheduler-policy": "spread"}),)),
        PolicyRules((Rule("elsewhere", pod_selector=X, scheduler_name="other-scheduler"),)),
    )
)
CHANGE = st.one_of(
    *(st.tuples(st.just(aspect), st.sampled_from(values)) for aspect, values in ASPECTS.items()),
    st.tuples(st.just("namespace"), NAMESPACES),
    st.tuples(st.just("policies"), POLICIES),
)


class Scene:
    """A gate in a place that changes."""

    def __init__(self) -> None:
        self.around = Surroundings()
        self.policies = PolicyRules.EMPTY
        self.gate = self.fresh(self.around)

    def fresh(self, around: Surroundings) -> handler.AdmissionHandler:
        return handler.AdmissionHandler(
            ALL,
            RULES,
            policies=lambda: self.policies,
            namespaces=around,
            charging=around,
            fleet=NO_FLEET,
            reservation_key=RESERVATION,
        )

    def change(self, what: str, to: Any) -> None:
        if what == "policies":
            self.policies = to
        else:
            self.around.there["team-a"] = Namespace("team-a", {}, to)


def said(step: Any, made: JSON) -> object:
    try:
        answer = asyncio.run(step(parsed(review(made))))
    except Denied as denial:
        return denial.code, denial.message
    return answer.encoded


@given(st.lists(CHANGE, min_size=2, max_size=12))
def test_a_gate_that_remembers_answers_as_a_new_one(changes: list[tuple[str, Any]]) -> None:
    """Each pod differs from the one before it in one aspect, or in where it arrives."""
    scene, aspects = Scene(), {aspect: values[0] for aspect, values in ASPECTS.items()}
    for aspect, value in changes:
        if aspect in aspects:
            aspects[aspect] = value
        else:
            scene.change(aspect, value)
        made, new = made_of(aspects), Surroundings(scene.around.there)
        assert said(scene.gate.mutate, made) == said(scene.fresh(new).mutate, made)
        before = len(scene.around.charged)
        assert said(scene.gate.validate, made) == said(scene.fresh(new).validate, made)
        assert [identity for _, identity in scene.around.charged[before:]] == [identity for _, identity in new.charged]


@pytest.mark.parametrize("step", ["mutate", "validate"])
def test_the_second_of_two_pods_alike_takes_no_thought(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene()
    told = said(getattr(scene.gate, step), pod(gpu(), name="a", uid="a"))

    def never(*_: object) -> None:
        raise AssertionError("thought again")

    for name in ("read_draft", "validate"):
        monkeypatch.setattr(handler, name, never)
    assert said(getattr(scene.gate, step), pod(gpu(), name="b", uid="b")) == told
    assert [identity for _, identity in scene.around.charged] == (["a", "b"] if step == "validate" else [])


def test_what_depends_on_the_nodes_is_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene()
    asking = container(limits={"aws.amazon.com/neuroncore": 3})
    asked: list[str] = []

    class DeviceLister(type(NO_FLEET)):  # type: ignore[misc]  # the class of a value
        def inventories(self, vendor: str) -> tuple[()]:
            asked.append(vendor)
            return ()

    monkeypatch.setattr(scene.gate, "_fleet", DeviceLister())
    for name in ("a", "b"):
        asked.clear()
        said(scene.gate.mutate, pod(asking, name=name))
        assert asked


def test_only_so_much_is_remembered() -> None:
    known: DecisionCache[int] = DecisionCache()
    here = Namespace("team-a", {}, {})

    def about(memory: int, **more: Any) -> bytes | None:
        return shape_of(parsed(review(pod(gpu(memory=memory), **more))))

    for memory in range(1, 300):
        known.keep(about(memory), here, PolicyRules.EMPTY, memory)
    assert known.lookup(about(299), here, PolicyRules.EMPTY) == 299
    assert known.lookup(about(1), here, PolicyRules.EMPTY) is None
    assert len(known._known) == 256
    large = about(7, annotations={"large": "x" * decision_cache._LARGEST})
    assert large is None
    known.keep(large, here, PolicyRules.EMPTY, 7)
    assert known.lookup(large, here, PolicyRules.EMPTY) is None


@pytest.mark.parametrize(
    ("key", "value"), [("name", 5), ("uid", []), ("creationTimestamp", 1), ("creationTimestamp", "soon")]
)
def test_a_pod_with_an_odd_name_is_like_no_other(key: str, value: object) -> None:
    scene = Scene()
    assert isinstance(said(scene.gate.mutate, pod(gpu())), bytes)
    made = pod(gpu())
    made["metadata"][key] = value
    told = said(scene.gate.mutate, made)
    assert isinstance(told, tuple)
    assert told[0] == 400


def test_a_pod_nested_deeper_than_can_be_written_is_answered() -> None:
    plain = orjson.dumps(review(pod(gpu(image="deep"), name="a", uid="a")))
    deep = plain.replace(b'"deep"', b'{"x":' * 400 + b"1" + b"}" * 400)
    scene = Scene()
    for step in (scene.gate.mutate, scene.gate.validate):
        assert asyncio.run(step(parse_review(deep, "application/json")))


def test_a_pod_is_as_old_as_it_likes() -> None:
    scene = Scene()
    made = [pod(gpu(), name=name, uid=name) for name in ("a", "b")]
    for number, each in enumerate(made):
        each["metadata"]["creationTimestamp"] = f"2026-01-01T00:00:0{number}Z"
    shapes = {shape_of(parsed(review(each))) for each in made}
    assert len(shapes) == 1
    assert None not in shapes
    assert said(scene.gate.validate, made[0]) == said(scene.gate.validate, made[1])
