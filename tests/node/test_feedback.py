"""Priority feedback: the rule of docs/spec/hami-core.md#5 as a table, step by step, and who carries it out."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pytest

from hami_webhook.node import region_files
from hami_webhook.node.feedback import Competitor, PriorityFeedback, allowed_priority, feedback
from hami_webhook.node.region import V1_1, V1_2, DeviceUse, Region
from hami_webhook.node.region_files import ContainerKey, RegionFolder

from .monitored import SYSTEM, MonitoredNode, pod
from .regions import Container, compile_program, region

A, B, C = (ContainerKey(f"uid-{name}", "main") for name in "abc")
NAMES = {"a": A, "b": B, "c": C}
CARDS = {A: ("GPU-0",), B: ("GPU-0", "GPU-1"), C: ("GPU-1",)}
PRIORITIES = {A: 0, B: 1, C: 1}
State = Mapping[ContainerKey, tuple[int, int]]
"""recent_kernel and utilization_switch."""


def shared(uuids: Iterable[str], recent: int = 0, switch: int = 0) -> Region:
    devices = tuple(DeviceUse(index, uuid, 0, 0, 0, 0, 0, 0) for index, uuid in enumerate(uuids))
    return Region(V1_2, devices, switch, recent, 0, 0)


def computing(uuids: Sequence[str], priority: int, recent: int = 5, switch: int = 0) -> Competitor:
    """A container that was allocated these cards."""
    return Competitor(shared(uuids, recent, switch), priority, frozenset(uuids))


def stepped(state: State) -> dict[ContainerKey, tuple[int, int]]:
    """The state after a step."""
    containers = {key: computing(CARDS[key], PRIORITIES[key], *fields) for key, fields in state.items()}
    written = feedback(containers)
    assert all(fields for fields in written.values()), "nothing is written that is right already"
    return {
        key: (written.get(key, {}).get("recent_kernel", recent), written.get(key, {}).get("utilization_switch", switch))
        for key, (recent, switch) in state.items()
    }


# a has priority 0 on card 0, b has 1 on cards 0 and 1, c has 1 on card 1; each row: who computes before the step, and
# recent_kernel and utilization_switch of each after it
STEPS = [
    ("", (0, 0), (0, 0), (0, 0)),
    ("b", (0, 0), (1, 0), (0, 0)),
    ("bc", (0, 0), (1, 1), (1, 1)),
    ("c", (0, 0), (0, 0), (1, 0)),
    ("abc", (1, 0), (-1, 1), (1, 1)),
    ("ac", (1, 0), (-1, 1), (1, 0)),
    ("c", (0, 0), (0, 0), (1, 0)),
    ("bc", (0, 0), (1, 1), (1, 1)),
    ("", (0, 0), (0, 0), (0, 0)),
    ("a", (1, 0), (-1, 1), (0, 0)),
    ("", (0, 0), (0, 0), (0, 0)),
    ("", (0, 0), (0, 0), (0, 0)),
]


def test_three_containers_on_two_cards_step_by_step() -> None:
    state: dict[ContainerKey, tuple[int, int]] = dict.fromkeys((A, B, C), (0, 0))
    for number, (computing, *after) in enumerate(STEPS):
        for name in computing:  # HAMi-core sets it with each kernel, unless it has to wait
            recent, switch = state[NAMES[name]]
            state[NAMES[name]] = (recent if recent < 0 else 2, switch)
        state = stepped(state)
        assert list(state.values()) == after, f"step {number}: {computing}"


def test_containers_on_other_cards_do_not_wait_for_each_other() -> None:
    high, low = computing(["GPU-0"], 0), computing(["GPU-1"], 1)
    assert feedback({A: high, B: low}) == {A: {"recent_kernel": 4}, B: {"recent_kernel": 4}}


def test_a_container_without_known_cards_waits_for_nobody() -> None:
    high, low = computing(["GPU-0"], 0), computing([], 1, -1, 1)
    assert feedback({A: high, B: low})[B] == {"recent_kernel": 0, "utilization_switch": 0}


def test_cards_that_a_container_was_not_allocated_hold_nobody_back() -> None:
    """Whatever it writes into its region: those of others are theirs."""
    attacker = Competitor(shared([f"GPU-{number}" for number in range(8)], recent=5), 0, frozenset(["GPU-0"]))
    victim, neighbour = computing(["GPU-1"], 1), computing(["GPU-0"], 1)
    written = feedback({A: attacker, B: victim, C: neighbour})
    assert written[B] == {"recent_kernel": 4}
    assert written[C] == {"recent_kernel": -1, "utilization_switch": 1}


@pytest.mark.parametrize(
    ("written", "declared", "allowed"), [(0, 0, 0), (1, 0, 1), (0, 1, 1), (-5, 0, 0), (0, None, 1), (7, None, 7)]
)
def test_no_container_gives_itself_a_higher_priority_than_its_pod_declares(
    written: int, declared: int | None, allowed: int
) -> None:
    assert allowed_priority(written, declared) == allowed


GPU_0 = {"hami.io/vgpu-devices-allocated": "GPU-0,NVIDIA,1000,30:;"}


class FeedbackNode(MonitoredNode):
    """A node with a container of high and one of low priority on the same card, both computing."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        high, low = pod("a", "main", annotations=GPU_0), pod("b", "main", annotations=GPU_0)
        for made, priority in ((high, "0"), (low, "1")):
            made["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/priority": priority}}
        self.put(high, low)
        self.region("a", "main", region(tail=(0, 3, 0)))
        self.region("b", "main", region(tail=(0, 3, 0)))
        self.feedback = self.another()

    def another(self) -> PriorityFeedback:
        return PriorityFeedback(self.pods, RegionFolder(str(self.folder)), mig_lock=self.folder / "mig.lock")

    def fields(self) -> list[tuple[int, int]]:
        """recent_kernel and utilization_switch of both."""
        found = [each for each in self.regions.read([A, B]).values() if isinstance(each, Region)]
        return [(each.recent_kernel, each.utilization_switch) for each in found]


@pytest.fixture
def node(tmp_path: Path) -> FeedbackNode:
    return FeedbackNode(tmp_path)


async def test_a_container_of_low_priority_finds_that_it_has_to_wait(
    node: FeedbackNode, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    program = compile_program(tmp_path_factory.mktemp("fakevgpu"))
    file = tmp_path / B.folder / "1.cache"
    file.unlink()
    with Container(program, file, V1_1) as low:
        low.tell("uuid 0 GPU-0", "tail 3 0 0")  # it says that it has the highest priority
        await node.feedback.step()
        assert low.tail() == (-1, 1)
        for _ in range(3):
            await node.feedback.step()
        assert low.tail() == (0, 0)


@pytest.mark.parametrize("text", ["GPU-1,NVIDIA,1000,30:;", "GPU-0,", "x" * 300_000, "\ud800"])
async def test_a_pod_whose_allocation_names_other_cards_or_none_holds_nobody_back(
    node: FeedbackNode, text: str
) -> None:
    high = pod("a", "main", annotations={"hami.io/vgpu-devices-allocated": text})
    high["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/priority": "0"}}
    node.put(high, pod("b", "main", annotations=GPU_0))
    await node.feedback.step()
    assert node.fields() == [(2, 0), (2, 0)]


async def test_one_process_of_a_node_does_it(node: FeedbackNode, caplog: pytest.LogCaptureFixture) -> None:
    other = node.another()
    with caplog.at_level(logging.WARNING):
        await node.feedback.step()
        await other.step()
        await other.step()
    assert node.fields() == [(2, 0), (-1, 1)]
    assert caplog.messages == [
        f"no priority feedback: another process on this node does it: it holds the lock on {node.folder}"
    ]


async def test_where_hami_s_own_monitor_runs_it_does_it(node: FeedbackNode, caplog: pytest.LogCaptureFixture) -> None:
    node.put(pod("plugin", "device-plugin", "vgpu-monitor", namespace=SYSTEM), pod("a", "main"), pod("b", "main"))
    with caplog.at_level(logging.WARNING):
        await node.feedback.step()
    assert node.fields() == [(3, 0), (3, 0)]
    assert caplog.messages == [f"no priority feedback: HAMi's own monitor does it, in the pod {SYSTEM}/plugin"]


async def test_it_pauses_while_mig_is_changed(node: FeedbackNode) -> None:
    (node.folder / "mig.lock").touch()
    await node.feedback.step()
    assert node.fields() == [(3, 0), (3, 0)]
    (node.folder / "mig.lock").unlink()
    await node.feedback.step()
    assert node.fields() == [(2, 0), (-1, 1)]


async def test_a_region_that_cannot_be_written_keeps_no_other_from_it(
    node: FeedbackNode, caplog: pytest.LogCaptureFixture
) -> None:
    os.link(node.folder / A.folder / "1.cache", node.folder / "another-name")
    with caplog.at_level(logging.WARNING):
        await node.feedback.step()
    assert node.fields() == [(3, 0), (-1, 1)]
    assert caplog.messages == [
        "no priority feedback: the region of the container main can't be written: the file has other names, and isn't "
        "written"
    ]


def test_folders_of_pods_that_are_gone_are_removed_once_they_are_old(node: FeedbackNode, tmp_path: Path) -> None:
    now = time.time()
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    for name in ("gone_main", "gone-lately_main", "uid-a_other", "no-container"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.cache").touch()
    (tmp_path / "gone_main" / "link").symlink_to(outside)
    (tmp_path / "gone_link").symlink_to(outside)
    for name in ("gone_main", "uid-a_other", "no-container"):
        os.utime(tmp_path / name, (now - 400, now - 400))
    os.utime(tmp_path / "gone_link", (now - 400, now - 400), follow_symlinks=False)
    assert sorted(node.regions.remove_leftovers({"uid-a", "uid-b"}, before=now - 300)) == ["gone_link", "gone_main"]
    kept = {path.name for path in tmp_path.iterdir()}
    assert kept == {A.folder, B.folder, "outside", "gone-lately_main", "uid-a_other", "no-container"}
    assert (outside / "kept").exists()


def test_however_deep_and_wide_a_folder_is_it_is_removed_in_the_end(
    node: FeedbackNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no link in it is followed."""
    monkeypatch.setattr(region_files, "_MOST_REMOVED", 5000)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    top = tmp_path / "gone_main"
    for number in range(3):
        (top / f"wide-{number}" / "within").mkdir(parents=True)
        (top / f"wide-{number}" / "within" / "x.cache").touch()
    before = os.open(top, os.O_RDONLY)
    for _ in range(3000):  # its path is longer than the kernel takes
        os.mkdir("deep", dir_fd=before)
        os.symlink(outside, "link", dir_fd=before)
        inner = os.open("deep", os.O_RDONLY, dir_fd=before)
        os.close(before)
        before = inner
    os.close(before)
    rounds: list[list[str]] = []
    while top.exists() and len(rounds) < 10:
        os.utime(top, (1, 1))
        rounds.append(node.regions.remove_leftovers({"uid-a", "uid-b"}, before=2))
    assert rounds[0] == []
    assert rounds[-1] == ["gone_main"]
    assert [path.name for path in outside.iterdir()] == ["kept"]
