"""Pods that can't be bound: `/bind` says why, and neither pods, nodes nor quotas are written.

Source: docs/spec/security.md#3.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from builders import card, node, pod, quota
from hypothesis import given
from hypothesis import strategies as st
from tables import in_one_test

from hami_webhook.cluster.api import JSON, Kind
from hami_webhook.kube.names import is_subdomain
from hami_webhook.scheduling.protocol import Binding, decode_binding

from .extender_env import MODES, ExtenderEnv, turns
from .placer_env import ALLOCATED

both = pytest.mark.parametrize("mode", MODES)


class Recorded(ExtenderEnv):
    """A env that notes every write but events."""

    def __init__(self, mode: str) -> None:
        super().__init__(mode, pause=self._note)
        self.writes: list[str] = []
        self.calls: list[str] = []

    async def _note(self, step: str) -> None:
        call, _, when = step.partition(":")
        if when == "before":
            self.calls.append(call)
            if call not in ("get", "list", "record_event"):
                self.writes.append(call)


async def delete(env: Recorded) -> None:
    await env.cluster.delete(Kind.PODS, "p", "default", grace=30)


async def end(env: Recorded) -> None:
    await env.cluster.patch_status(Kind.PODS, "p", {"status": {"phase": "Failed"}}, "default")


async def gate(env: Recorded) -> None:
    gates = {"spec": {"schedulingGates": [{"name": "example.com/wait"}]}}
    await env.cluster.patch(Kind.PODS, "p", gates, "default")


async def bind_elsewhere(env: Recorded) -> None:
    await env.cluster.bind("default", "p", env.read("p").uid, "b")


async def leave(env: Recorded) -> None:
    pass


Change = Callable[[Recorded], Awaitable[None]]
CASES: dict[str, tuple[Change, JSON, str]] = {
    "unknown node": (leave, {"Node": "ghost"}, 'node "ghost" not found'),
    "another UID": (leave, {"PodUID": "forged"}, 'pod "p" is another one by now: its UID is '),
    "unknown pod": (leave, {"PodName": "q"}, 'pod "q" not found'),
    "another namespace": (leave, {"PodNamespace": "elsewhere"}, 'pod "p" not found'),
    "already bound": (bind_elsewhere, {}, "pod default/p is bound to b already"),
    "terminating": (delete, {}, "pod default/p is being deleted, cannot be assigned to a host"),
    "ended": (end, {}, "pod default/p has ended: its phase is Failed"),
    "gated": (gate, {}, "pod default/p has non-empty .spec.schedulingGates"),
    "another scheduler's": (
        leave,
        {"PodName": "theirs"},
        "pod default/theirs is to be bound by scheduler volcano, not by hami-scheduler",
    ),
}


@both
@pytest.mark.parametrize("known", [True, False], ids=["as the watch told", "not told yet"])
@pytest.mark.parametrize("case", CASES)
async def test_a_pod_that_can_not_be_bound_is_refused(case: str, known: bool, mode: str) -> None:
    """Before anything is written, if it is known by then; else the binding is refused, and the lock let go."""
    change, sent, error = CASES[case]
    env = Recorded(mode)
    env.extender._schedulers = lambda: {"hami-scheduler"}
    mine = pod("p", gpu=1, mem=1000, schedulerName="hami-scheduler")
    theirs = pod("theirs", gpu=1, mem=1000, schedulerName="volcano")
    await env.add(
        node("a", card("A", 8000)),
        node("b", card("B", 8000)),
        quota("q", used={}, gpu=5),
        mine,
        theirs,
    )
    name = sent.get("PodName", "p")
    uid = env.read("theirs" if name == "theirs" else "p").uid
    await env.filter("p", "a")
    await change(env)
    if known:
        env.hear("p")
    asked: JSON = {"PodName": "p", "PodNamespace": "default", "PodUID": uid, "Node": "a", **sent}
    binding = decode_binding(asked)
    assert isinstance(binding, Binding)
    del env.writes[:]
    held = (env.used("a", "A"), env.used("b", "B"), env.queue.times_freed)
    assert (await env.extender.bind(binding)).startswith(error)
    assert env.writes == [] or (not known and env.writes == ["patch", "bind", "patch"])
    assert env.read("p").node_name in ("", "b")
    assert ALLOCATED not in env.read("p").annotations
    assert env._lock("a") is None
    if change is leave:
        assert (env.used("a", "A"), env.used("b", "B"), env.queue.times_freed) == held


@both
async def test_a_gate_that_is_gone_before_the_watch_tells_is_no_obstacle(mode: str) -> None:
    env = Recorded(mode)
    await env.add(node("a", card("A", 8000)), pod("p", gpu=1, mem=1000))
    await gate(env)
    env.hear("p")
    await env.cluster.patch(Kind.PODS, "p", {"spec": {"schedulingGates": None}}, "default")
    await env.filter("p", "a")
    assert await env.bind("p", "a") == ""
    assert env.read("p").node_name == "a"


@both
async def test_any_scheduler_is_served_where_admission_sets_no_name(mode: str) -> None:
    env = Recorded(mode)
    await env.add(node("a", card("A", 8000)), pod("p", gpu=1, mem=1000, schedulerName="mine"))
    await env.filter("p", "a")
    assert await env.bind("p", "a") == ""
    await turns()


NOT_NAMES = (
    "../secrets/x",
    "..",
    ".",
    "a/b",
    "a%2fb",
    "a?b=c",
    "a#b",
    "A",
    "a_b",
    "a b",
    "a\n",
    "-a",
    "a.",
    "é",
    "a" * 254,
)


@in_one_test("name", NOT_NAMES)
@in_one_test("field", ["PodName", "PodNamespace", "Node"])
def test_what_can_not_be_a_name_is_refused_at_once(field: str, name: str) -> None:
    sent = {"PodName": "p", "PodNamespace": "default", "PodUID": "u", "Node": "a", field: name}
    error = f"extender binding args: {field} {name[:100]!r} is no name that a Kubernetes object can have"
    assert decode_binding(sent) == error


@given(st.fixed_dictionaries({key: st.text(min_size=1) for key in ("PodName", "PodNamespace", "PodUID", "Node")}))
def test_a_binding_that_is_read_names_objects_that_can_be(sent: JSON) -> None:
    binding = decode_binding(sent)
    if isinstance(binding, Binding):
        assert all(map(is_subdomain, (binding.namespace, binding.name, binding.node)))
    else:
        assert binding.startswith("extender binding args")


async def test_the_lock_of_a_node_costs_no_list_whatever_is_in_it() -> None:
    env = Recorded("single")
    await env.add(node("a", card("A", 8000)), pod("p", gpu=1, mem=1000))
    await env.filter("p", "a")
    await env.lock("a", "2026-01-01T00:00:00Z,,")
    del env.calls[:]
    assert "can't be read" in await env.bind("p", "a")
    assert "list" not in env.calls
    assert env.naps == 0
    env.now += 301
    await env.filter("p", "a")
    assert await asyncio.wait_for(env.bind("p", "a"), 5) == ""
