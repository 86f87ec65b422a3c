"""Fit holds the boundaries of the Namespace and of the policy file, whatever a pod's annotations have become."""

from __future__ import annotations

import pytest
from builders import card, node, pod

from hami_webhook.kube.objects import Namespace, Pod
from hami_webhook.policy.rules import DeviceBounds, PolicyRule, PolicyRules
from hami_webhook.scheduling.boundary import BoundedPod, PolicyEnforcer

from .extender_env import MODES, ExtenderEnv, args
from .placer_env import ALLOCATED, VENDORS, PlacerEnv

USE, NOUSE = "nvidia.com/use-gpuuuid", "nvidia.com/nouse-gpuuuid"
USE_TYPE, NOUSE_TYPE = "nvidia.com/use-gputype", "nvidia.com/nouse-gputype"
NODE_POLICY = "hami.io/node-scheduler-policy"
MODE = "nvidia.com/vgpu-mode"
both = pytest.mark.parametrize("mode", MODES)


def bounded(incoming: Pod, namespace: Namespace, policies: PolicyRules) -> BoundedPod:
    async def nobody(name: str) -> Namespace | None:
        raise AssertionError(f"namespace {name} was looked up")

    return PolicyEnforcer(VENDORS, lambda: policies, nobody).bounded(incoming, namespace)


NODE = node("n", card("A", 8000, type="NVIDIA A100-SXM4"), card("B", 8000, type="NVIDIA V100"))
"""`spread`, the default, takes the later card of two that are idle."""


def rules(name: str, **bounds: tuple[str, ...]) -> PolicyRules:
    return PolicyRules((PolicyRule(name, devices={"NVIDIA": DeviceBounds(**bounds)}),))


def space(**annotations: str) -> Namespace:
    """The pods' Namespace; NVIDIA's keys by keyword, such as `use_gpuuuid`."""
    return Namespace("default", {}, {f"nvidia.com/{key.replace('_', '-')}": v for key, v in annotations.items()})


DENIED_B = {
    "rule denies the card": (rules("no-b", deny_uuids=("B",)), space()),
    "rule allows the other card": (rules("only-a", allow_uuids=("A",)), space()),
    "rule allows another type": (rules("a100", allow_types=("A100",)), space()),
    "rule denies the type": (rules("no-v100", deny_types=("V100",)), space()),
    "namespace denies the card": (PolicyRules.EMPTY, space(nouse_gpuuuid="B")),
    "namespace allows another type": (PolicyRules.EMPTY, space(use_gputype="a100")),
}
TAMPERED = {
    "removed": {},
    "the denied card asked for": {USE: "A,B"},
    "blank": {USE: "  ", NOUSE: "", USE_TYPE: "", NOUSE_TYPE: ","},
    "broader types": {USE_TYPE: "a100,NVIDIA,V"},
}


async def scheduled(env: ExtenderEnv, mode: str) -> str:
    """Filter and bind the pod `p`: what it was allocated."""
    assert (await env.filter("p", "n"))["NodeNames"] == ["n"]
    assert await env.bind("p", "n") == ""
    return env.read("p").annotations[ALLOCATED].partition(",")[0]


@both
async def test_without_policy_the_pod_gets_the_card(mode: str) -> None:
    env = ExtenderEnv(mode)
    await env.add(NODE, pod("p", gpu=1, mem=1000))
    assert await scheduled(env, mode) == "B"


@both
@pytest.mark.parametrize("tampered", TAMPERED)
@pytest.mark.parametrize("denied", DENIED_B)
async def test_a_denied_card_is_not_given_whatever_the_annotations_say(mode: str, denied: str, tampered: str) -> None:
    env = ExtenderEnv(mode)
    env.rules, env.namespaces["default"] = DENIED_B[denied]
    await env.add(NODE, pod("p", gpu=1, mem=1000, annotations=TAMPERED[tampered]))
    assert await scheduled(env, mode) == "A"


@both
@pytest.mark.parametrize("denied", DENIED_B)
async def test_a_list_of_commas_opens_no_boundary(mode: str, denied: str) -> None:
    env = ExtenderEnv(mode)
    env.rules, env.namespaces["default"] = DENIED_B[denied]
    await env.add(NODE, pod("p", gpu=1, mem=1000, annotations={USE: " , "}))
    assert (await env.filter("p", "n"))["NodeNames"] is None


@both
@pytest.mark.parametrize("own", [None, "binpack"])
async def test_an_enforced_node_policy_holds_and_is_written(mode: str, own: str | None) -> None:
    env = ExtenderEnv(mode)
    env.rules = PolicyRules((PolicyRule("spread-out", enforce={NODE_POLICY: "spread"}),))
    notes = {} if own is None else {NODE_POLICY: own}
    await env.add(node("a", card("A", 8000)), node("b", card("B", 8000)), pod("before", gpu=1, mem=1000))
    await env.filter("before", "a")
    assert await env.bind("before", "a") == ""
    await env.add(pod("p", gpu=1, mem=1000, annotations=notes))
    answer = await env.filter("p", "a", "b")
    if mode == "single":
        assert answer["NodeNames"] == ["b"]
    else:
        grades = await env.extender.prioritize(args({"Pod": env.raw("p"), "NodeNames": ["a", "b"]}))
        assert dict(grades) == {"a": 0, "b": 10}
    assert await env.bind("p", "b") == ""
    assert env.read("p").annotations[NODE_POLICY] == "spread"


@both
async def test_what_policy_sets_is_written_with_the_placement(mode: str) -> None:
    """A device plugin reads the mode that Fit read; a default doesn't replace the pod's own value."""
    env = ExtenderEnv(mode)
    env.rules = PolicyRules(
        (
            PolicyRule("core", enforce={MODE: "hami-core"}, default={NODE_POLICY: "spread"}),
            *rules("b", deny_uuids=("B",)).rules,
        )
    )
    await env.add(NODE, pod("p", gpu=1, mem=1000, annotations={MODE: "mig", NODE_POLICY: "binpack"}))
    assert await scheduled(env, mode) == "A"
    notes = env.read("p").annotations
    assert (notes[MODE], notes[NODE_POLICY], notes[NOUSE]) == ("hami-core", "binpack", "B")


@both
@pytest.mark.parametrize(
    ("policies", "notes", "reason"),
    [
        (
            rules("only-a", allow_uuids=("A",)),
            {USE: "B"},
            "use-gpuuuid: none of B is allowed in namespace default (allowed: A), by policy only-a",
        ),
        (
            PolicyRules((*rules("only-a", allow_uuids=("A",)).rules, *rules("no-a", deny_uuids=("A",)).rules)),
            {},
            "use-gpuuuid: nothing is allowed in namespace default (policy only-a allows only A; denied: A), "
            "by policy only-a, policy no-a",
        ),
    ],
)
async def test_a_pod_that_policy_leaves_nothing_fits_nowhere_and_reads_which_policy(
    mode: str, policies: PolicyRules, notes: dict[str, str], reason: str
) -> None:
    env = ExtenderEnv(mode)
    await env.add(NODE, node("m", card("A2", 8000)), pod("p", gpu=1, mem=1000, annotations=notes))
    env.rules = policies
    answer = await env.filter("p", "m", "n")
    assert (answer["NodeNames"], answer["FailedNodes"]) == (None, {"m": reason, "n": reason})
    assert env.events("p") == [
        ("Warning", "FilteringFailed", "no available node, 2 nodes do not meet"),
        ("Warning", "FilteringFailed", reason),
    ]
    error = await env.bind("p", "n")
    assert error == f"node n can't take the pod any longer: {reason}"
    assert env.read("p").node_name == ""
    assert ALLOCATED not in env.read("p").annotations


@both
async def test_who_finds_no_node_reads_what_policy_changed(mode: str) -> None:
    env = ExtenderEnv(mode)
    env.rules = rules("no-b", deny_uuids=("B",))
    await env.add(node("n", card("B", 8000)), pod("p", gpu=1, mem=1000))
    answer = await env.filter("p", "n")
    assert answer["FailedNodes"] == {"n": "1/1 CardUuidMismatch"}
    assert [message for _, _, message in env.events("p")] == [
        "1 nodes CardUuidMismatch(n)",
        "no available node, 1 nodes do not meet",
        f"{NOUSE} set to B by policy no-b",
    ]


@both
async def test_a_pod_whose_namespace_is_not_known_waits(mode: str) -> None:
    env = ExtenderEnv(mode)
    await env.add(NODE, pod("p", gpu=1, mem=1000))
    env.namespaces["default"] = None
    error = "namespace default isn't known yet, nor are the devices that it allows; try again"
    assert await env.filter("p", "n") == {
        "Nodes": None, "NodeNames": None, "FailedNodes": None, "FailedAndUnresolvableNodes": None, "Error": error
    }  # fmt: skip
    if mode == "cooperative":
        assert await env.bind("p", "n") == error
    del env.namespaces["default"]
    assert await scheduled(env, mode) == "B"


@both
async def test_policy_that_changes_between_filter_and_bind_holds_at_bind(mode: str) -> None:
    """In single mode the placement was decided and written before."""
    env = ExtenderEnv(mode)
    await env.add(NODE, pod("p", gpu=1, mem=1000))
    await env.filter("p", "n")
    env.rules = rules("no-b", deny_uuids=("B",))
    assert await env.bind("p", "n") == ""
    given = env.read("p").annotations[ALLOCATED].partition(",")[0]
    assert given == ("B" if mode == "single" else "A")


@both
async def test_the_autoscalers_dry_run_is_bounded_too(mode: str) -> None:
    env = ExtenderEnv(mode)
    env.rules = rules("no-b", deny_uuids=("B",))
    await env.add(pod("p", gpu=1, mem=1000))
    named = [node("a", card("A", 8000)), node("b", card("B", 8000))]
    answer = await env.ask({"Pod": env.raw("p"), "Nodes": {"items": named}, "NodeNames": None})
    assert [item["metadata"]["name"] for item in answer["Nodes"]["items"]] == ["a"]
    assert answer["FailedNodes"] == {"b": "1/1 CardUuidMismatch"}


async def test_a_place_that_was_found_before_policy_changed_is_not_remembered() -> None:
    env = PlacerEnv()
    await env.add(NODE)
    assert (await env.placed(pod("p", gpu=1, mem=1000))).annotations[ALLOCATED].startswith("B,")
    env.rules = rules("no-b", deny_uuids=("B",))
    assert (await env.placed(pod("q", gpu=1, mem=1000))).annotations[ALLOCATED].startswith("A,")
    env.namespaces["default"] = Namespace("default", {}, {NOUSE: "A"})
    assert await env.refused(pod("r", gpu=1, mem=1000)) == {"n": "2/2 CardUuidMismatch"}


@pytest.mark.parametrize(
    ("namespace", "policies"),
    [
        (Namespace("default", {}, {}), PolicyRules.EMPTY),
        (Namespace("default", {}, {"kubectl.kubernetes.io/last-applied-configuration": "{}"}), PolicyRules.EMPTY),
        (Namespace("default", {}, {}), rules("no-b", deny_uuids=("B",))),
    ],
)
def test_a_pod_that_meets_policy_is_the_very_pod(namespace: Namespace, policies: PolicyRules) -> None:
    incoming = Pod.from_object(pod("p", gpu=1, mem=1000, annotations={NOUSE: "B"}))
    assert bounded(incoming, namespace, policies).pod is incoming


def test_a_pod_without_devices_is_left_alone() -> None:
    incoming = Pod.from_object(pod("p"))
    assert bounded(incoming, Namespace("default", {}, {NOUSE: "B"}), PolicyRules.EMPTY).pod is incoming
