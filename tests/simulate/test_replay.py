"""Replays of records, on the nodes and quotas of files (docs/room.md#a-recorded-time)."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence

import pytest
from builders import card, node, quota
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from hami_webhook.cluster.loading import LoadedObject, sort_objects
from hami_webhook.device_config import builtin_device_config, enabled_vendors
from hami_webhook.devices.unhealthy_cards import ANNOTATION, LOST, UnhealthyCard, encode
from hami_webhook.policy.rules import PolicyRules
from hami_webhook.scheduling.placer import SchedulingPolicies
from hami_webhook.simulate import replay as module
from hami_webhook.simulate.node_flags import AddedNodes, NodeChange
from hami_webhook.simulate.replay import Replay, Start, without_pods
from hami_webhook.simulate.replay_report import ReplayReport, replayed
from hami_webhook.simulate.run_options import simulation_options
from hami_webhook.simulate.simulation import Simulation
from hami_webhook.terminal import UsageError
from hami_webhook.usage.recorded_pods import Record, RecordedContainer, RecordedPod

from .files import JSON, START, Simulate, listed

VENDORS = enabled_vendors(builtin_device_config().config)
SIZE = 40_000
HOUR = 3600
END = START + 24 * HOUR


def recorded(
    created: float,
    started: float | None,
    ended: float | None,
    *,
    namespace: str = "team-a",
    priority: str = "",
    init: bool = False,
    **limits: int,
) -> RecordedPod:
    """A pod with times in hours after the start of the record; of one whole card if no limits are given."""
    amounts = {f"nvidia.com/{name.replace('_', '-')}": amount for name, amount in (limits or {"gpu": 1}).items()}
    at = [None if each is None else START + each * HOUR for each in (created, started, ended)]
    assert at[0] is not None
    return RecordedPod(namespace, at[0], at[1], at[2], [RecordedContainer(init, amounts)], priority)


def record(*pods: RecordedPod) -> Record:
    return Record(START, END, sorted(pods, key=lambda pod: pod.created))


def node_of(name: str, cards: int = 1, **more: object) -> JSON:
    return {**node(name, *(card(f"GPU-{name}-{number}", SIZE) for number in range(cards))), **more}


def queueing(gpu: str) -> JSON:
    """A quota for which pods wait in their order."""
    made = quota(namespace="team-a", gpu=gpu)
    made["metadata"]["annotations"] = {"hami.io/quota-enforcement": "queue"}
    return made


async def filled(objects: Sequence[JSON]) -> Simulation:
    options = simulation_options("hami-scheduler", SchedulingPolicies())
    simulation = Simulation(VENDORS, options, PolicyRules.EMPTY, END)
    await simulation.fill(without_pods(sort_objects([LoadedObject(each, "test", 0) for each in objects])))
    return simulation


def starts(of: Record, *objects: JSON) -> list[float | None]:
    """When pods start in the replay, in hours after the start of the record."""

    async def run() -> Sequence[Start | None]:
        return await Replay(await filled(objects), of).run()

    return [None if each is None else (each.at - START) / HOUR for each in asyncio.run(run())]


def report(of: Record, *objects: JSON, change: NodeChange | None = None) -> ReplayReport:
    return asyncio.run(replayed(lambda: filled(objects), of, change or NodeChange()))


A, B = recorded(1, 1, 5), recorded(2, 6, 8)


@pytest.mark.parametrize(
    ("why", "pods", "objects", "expected"),
    [
        ("one after the other on one card", [A, B], [node_of("n1")], [1, 5]),
        ("at once on two", [A, B], [node_of("n1", 2)], [1, 2]),
        ("one that runs already comes first", [recorded(-3, -2, 4), A], [node_of("n1")], [0, 4]),
        ("one that waits already has its turn by age", [recorded(1, 1, 2), recorded(-1, 3, 5)], [node_of("n1")],
         [2, 0]),
        ("shares fit on one card", [recorded(1, 1, 9, gpu=1, gpumem=20_000), recorded(2, 9, 10, gpu=1, gpumem=20_000)],
         [node_of("n1")], [1, 2]),
        ("so do percentages", [recorded(1, 1, 9, gpu=1, gpumem_percentage=60),
                               recorded(2, 2, 3, gpu=1, gpumem_percentage=50)], [node_of("n1")], [1, 9]),
        ("an init container's card counts", [recorded(1, 1, 9, init=True), B], [node_of("n1")], [1, 9]),
        ("who gives up waiting doesn't start", [recorded(1, 1, 20), recorded(2, None, 3), recorded(4, 21, 22)],
         [node_of("n1")], [1, None, 20]),
        ("who never started runs to the end if it gets a card", [recorded(1, None, 3), B], [node_of("n1")], [1, None]),
        ("too large for every node", [recorded(1, 1, 2, gpu=3), B], [node_of("n1", 2)], [None, 2]),
        ("larger than any number of a card", [recorded(1, 1, 2, gpu=2**53), B], [node_of("n1", 2)], [None, 2]),
        ("a quota refuses until another ends", [A, B], [node_of("n1", 2), quota(namespace="team-a", gpu="1")], [1, 5]),
        ("a quota lets wait", [A, B, recorded(3, 8, 9)],
         [node_of("n1", 2), queueing(gpu="1")],
         [1, 5, 7]),
        ("what a quota used before doesn't count", [A],
         [node_of("n1"), quota(namespace="team-a", gpu="1", used={"limits.nvidia.com/gpu": "1"})], [1]),
        ("taints are tolerated", [A], [node_of("n1", spec={"taints": [{"key": "gpu", "effect": "NoSchedule"}]})], [1]),
        ("a cordoned node takes none", [A], [node_of("n1", spec={"unschedulable": True})], [None]),
        ("by priority", [A, recorded(2, 5, 6), recorded(3, 7, 8, priority="high")],
         [node_of("n1"), {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"},
                          "value": 10}], [1, 6, 5]),
        ("a class that is gone is none", [recorded(1, 1, 2, priority="gone")],
         [node_of("n1"), {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"},
                          "value": 10}], [1]),
    ],
)  # fmt: skip
def test_when_pods_start(why: str, pods: list[RecordedPod], objects: list[JSON], expected: list[float | None]) -> None:
    assert starts(record(*pods), *objects) == [expected[index] for index in _order(pods)], why


def _order(pods: Sequence[RecordedPod]) -> list[int]:
    """The indices of pods as a record has them: by creation."""
    return sorted(range(len(pods)), key=lambda index: pods[index].created)


CLUSTERS = (
    [node_of("n1", 2)],
    [node_of("n1"), node_of("n2", 3), quota(namespace="team-b", gpu="2")],
    [node_of("n1", 2), node_of("n2"), queueing(gpu="2")],
)
_LIMITS: st.SearchStrategy[dict[str, int]] = st.sampled_from(
    [{"gpu": 1}, {"gpu": 2}, {"gpu": 1, "gpumem": 15_000}, {"gpu": 1, "gpumem_percentage": 60}, {"gpu": 9}]
)
_PODS = st.builds(
    lambda namespace, limits, created, waited, ran: recorded(
        created,
        None if waited is None else created + waited,
        None if ran is None else created + (waited or 0) + ran,
        namespace=namespace,
        **limits,
    ),
    st.sampled_from(["team-a", "team-b"]),
    _LIMITS,
    st.integers(-3, 20),
    st.none() | st.integers(0, 3),
    st.none() | st.integers(0, 6),
).filter(lambda pod: pod.ended is None or pod.ended > START)
_RECORDS = st.lists(_PODS, max_size=12).map(lambda pods: record(*pods))


def _as_record(of: Record, found: Sequence[Start | None]) -> Record:
    """What would be recorded of a replay."""
    pods = [
        replace(pod, started=None, ended=None)
        if start is None
        else replace(pod, started=start.at, ended=start.until if start.until <= of.end else None)
        for pod, start in zip(of.pods, found, strict=True)
    ]
    return replace(of, pods=pods)


@given(of=_RECORDS, objects=st.sampled_from(CLUSTERS))
def test_the_record_of_a_replay_has_the_same_starts_again(of: Record, objects: list[JSON]) -> None:
    """Of pods whose time to run is known: a pod that never starts waits to the end."""
    of = replace(of, pods=[pod for pod in of.pods if pod.started is not None and pod.started > START])

    async def run(of: Record) -> Sequence[Start | None]:
        return await Replay(await filled(objects), of).run()

    first = asyncio.run(run(of))
    again = asyncio.run(run(_as_record(of, first)))
    assert [each and (each.at, sorted(each.cards)) for each in again] == [
        each and (each.at, sorted(each.cards)) for each in first
    ]
    found = asyncio.run(replayed(lambda: filled(objects), _as_record(of, first), NodeChange()))
    assert found.close in (100.0, None)
    assert found.rows[0].wait_mean == found.rows[1].wait_mean


@given(of=_RECORDS, objects=st.sampled_from(CLUSTERS))
def test_nothing_is_overspent_and_no_use_is_above_100_percent(of: Record, objects: list[JSON]) -> None:
    async def run() -> Sequence[Start | None]:
        return await Replay(await filled(objects), of).run()

    found = asyncio.run(run())
    times = sorted({each.at for each in found if each is not None})
    pairs = list(zip(of.pods, found, strict=True))
    for now in times:
        there = [(pod, start) for pod, start in pairs if start is not None and start.at <= now < start.until]
        held: dict[str, int] = {"team-a": 0, "team-b": 0}
        cards: list[tuple[str, str, str]] = []
        for pod, start in there:
            held[pod.namespace] += len(start.cards)
            whole = not {"nvidia.com/gpumem", "nvidia.com/gpumem-percentage"} & pod.containers[0].limits.keys()
            cards += list(start.cards) * (2 if whole else 1)
        assert all(held[namespace] <= hard for namespace, hard in _hard(objects).items())
        assert all(len([*same]) <= 2 for _, same in itertools.groupby(sorted(cards)))
    for row in asyncio.run(replayed(lambda: filled(objects), of, NodeChange())).rows[1:]:
        assert row.cards is not None
        assert row.memory is not None
        assert 0 <= row.cards <= 100
        assert 0 <= row.memory <= 100
        assert row.started + row.never == len(of.pods)


def _hard(objects: Sequence[JSON]) -> dict[str, int]:
    quotas = [each for each in objects if each["kind"] == "ResourceQuota"]
    return {each["metadata"]["namespace"]: int(each["spec"]["hard"]["limits.nvidia.com/gpu"]) for each in quotas}


DAY = [
    recorded(0, 0, 12),
    recorded(6, 12, 18),
    recorded(6, 18, 24 - 1),
    recorded(20, None, None, gpu=2),
]


def test_the_rows_of_a_day() -> None:
    """One card, three pods that had it one after the other, and one that asks for two."""
    found = report(record(*DAY), node_of("n1"), change=NodeChange(AddedNodes(1, "n1")))
    as_recorded, today, other = found.rows
    assert [each.run for each in found.rows] == ["as recorded", "replayed", "with other nodes"]
    assert (as_recorded.started, as_recorded.never, as_recorded.wait_mean) == (3, 1, (6 + 12 + 4) * HOUR / 3)
    assert (today.started, today.never, today.wait_mean, found.close) == (3, 1, as_recorded.wait_mean, 100.0)
    assert as_recorded.cards is None
    assert today.cards == round(100 * 23 / 24, 1)
    assert as_recorded.memory == today.memory == round(100 * 23 / 24, 1)
    assert (other.started, other.never) == (3, 1)
    assert other.wait_mean == (0 + 6 + 4) * HOUR / 3
    assert found.sentences[0].startswith("The record has 4 pods in the 24h from 2026-01-01T00:00:00Z")
    assert "starts 100 % of the pods within a minute of their recorded start" in found.sentences[1]
    assert "4 pods aren't in the record" in found.sentences[2]
    assert "1 pod never started as recorded" in found.sentences[3]


def test_cards_that_the_monitor_found_sick_are_none_of_the_cards() -> None:
    sick = node_of("n1", 2)
    sick["metadata"]["annotations"][ANNOTATION] = encode({"GPU-n1-1": UnhealthyCard((LOST,))})
    (_, with_sick), (_, alone) = (report(record(*DAY), each).rows for each in (sick, node_of("n1")))
    assert (with_sick.cards, with_sick.memory) == (alone.cards, alone.memory)


def test_a_replay_says_how_far_it_is_from_the_record() -> None:
    """A pod whose node selector the record doesn't have waited for its node; here any card is its own."""
    found = report(record(recorded(1, 3, 4), recorded(2, 2, 3)), node_of("n1", 2))
    assert found.close == 50.0
    assert "starts 50 % of the pods" in found.sentences[1]
    assert "its mean wait is 60m shorter" in found.sentences[1]


@pytest.mark.parametrize("objects", [[], [node("n1")]])
def test_a_cluster_without_cards_is_refused(objects: list[JSON]) -> None:
    with pytest.raises(UsageError, match="no node of the cluster has registered healthy cards"):
        report(record(A), *objects)


def test_a_replay_of_too_many_steps_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_TRIES", 5)
    with pytest.raises(UsageError, match="more than 5 times: give --replay fewer hours"):
        report(record(*(recorded(number, number, 24) for number in range(6))), node_of("n1"))


def test_equal_pods_that_wait_are_tried_once_when_one_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenant's many waiting pods cost a replay no more than one of them at each end."""
    monkeypatch.setattr(module, "MOST_TRIES", 1000)
    many = [recorded(1, None, None, gpu=2) for _ in range(200)]
    ends = [recorded(2 + number, 2 + number, 3 + number) for number in range(20)]
    found = report(record(*many, *ends), node_of("n1"))
    assert (found.rows[1].started, found.rows[1].never) == (20, 200)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--replay", "24"], "--replay needs --prometheus URL"),
        (["--replay", "0", "--prometheus", "http://p"], "must be a number of hours from 1 to 168, not '0'"),
        (["--replay", "169", "--prometheus", "http://p"], "must be a number of hours from 1 to 168, not '169'"),
        (["--replay", "-1", "--prometheus", "http://p"], "--replay"),
        (["--replay", "\u0661", "--prometheus", "http://p"], "must be a number of hours from 1 to 168"),
        (["--replay", "9" * 5000, "--prometheus", "http://p"], "must be a number of hours from 1 to 168, not '999"),
        (["--prometheus", "http://p", "--waiting"], "--prometheus says where --replay reads: give --replay HOURS, too"),
        (["--replay", "1", "--prometheus", "http://p", "--waiting"], "give neither files of pods nor --waiting"),
        (
            ["--replay", "1", "--prometheus", "file:///etc/passwd"],
            "must be a URL, such as http://prometheus.monitoring",
        ),
        (["--replay", "1", "--prometheus", "http://127.0.0.1:1"], "can't be reached"),
    ],
)
def test_bad_input_by_sentence(simulate: Simulate, flags: list[str], said: str) -> None:
    path = simulate.file("cluster.json", listed(node_of("n1")))
    done = simulate.main("simulate", "--cluster", path, *flags)
    assert (done.status, done.out) == (2, "")
    assert said in done.err
    assert len(done.err) < 500


def test_a_replay_on_files_needs_a_cluster(simulate: Simulate) -> None:
    done = simulate.main("simulate", "--replay", "1", "--prometheus", "http://p")
    assert (done.status, "--replay needs the cluster's nodes: give --cluster FILE" in done.err) == (2, True)
