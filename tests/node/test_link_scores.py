"""What the role `node` writes on its node, and what it leaves alone."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence

import pytest

from hami_webhook.cluster.api import Kind
from hami_webhook.cluster.memory import MemoryCluster
from hami_webhook.devices.vendors.nvidia import SCORES
from hami_webhook.node.cards import ProbeError
from hami_webhook.node.link_scores import WRITTEN, LinkScores
from hami_webhook.node.pair_scores import PcieLevel, ProbedCard


def cards(level: PcieLevel) -> list[ProbedCard]:
    return [ProbedCard("a", "0", {"b": level}), ProbedCard("b", "1", {"a": level})]


def scores(level: PcieLevel) -> str:
    return json.dumps(
        [{"uuid": "a", "score": {"b": level.value}}, {"uuid": "b", "score": {"a": level.value}}], separators=(",", ":")
    )


class Machine:
    """A node of an embedded cluster, whose GPUs may be linked anew."""

    def __init__(self) -> None:
        self.cluster = MemoryCluster(lambda: 0.0)
        self.found: Sequence[ProbedCard] | ProbeError = cards(PcieLevel.SINGLE)
        self.role = LinkScores(self.cluster, "gpu-1", self.probe)

    def probe(self) -> Sequence[ProbedCard]:
        if isinstance(self.found, ProbeError):
            raise self.found
        return self.found

    async def annotated(self, **annotations: str | None) -> None:
        notes = {SCORES: annotations["scores"]}
        await self.cluster.patch(Kind.NODES, "gpu-1", {"metadata": {"annotations": notes}})

    async def annotations(self) -> dict[str, str]:
        found = await self.cluster.get(Kind.NODES, "gpu-1")
        notes: dict[str, str] = found["metadata"].get("annotations") or {}
        return notes

    async def version(self) -> str:
        found = await self.cluster.get(Kind.NODES, "gpu-1")
        return str(found["metadata"]["resourceVersion"])


async def machine() -> Machine:
    made = Machine()
    await made.cluster.create(Kind.NODES, {"metadata": {"name": "gpu-1", "annotations": {"other": "stays"}}})
    return made


async def test_scores_are_written_once_and_again_when_the_links_change() -> None:
    here = await machine()
    await here.role.step()
    notes = await here.annotations()
    assert (notes[SCORES], notes["other"]) == (scores(PcieLevel.SINGLE), "stays")
    version = await here.version()
    await here.role.step()
    assert await here.version() == version
    here.found = cards(PcieLevel.SYSTEM)
    await here.role.step()
    assert (await here.annotations())[SCORES] == scores(PcieLevel.SYSTEM)


@pytest.mark.parametrize("before", [True, False], ids=["before", "meanwhile"])
async def test_a_node_whose_plugin_writes_them_is_left_alone(before: bool) -> None:
    here = await machine()
    if not before:
        await here.role.step()
    await here.annotated(scores="[]")
    await here.role.step()
    assert (await here.annotations())[SCORES] == "[]"
    await here.annotated(scores=None)
    await here.role.step()
    assert (await here.annotations())[SCORES] == scores(PcieLevel.SINGLE), "nobody writes them any longer"


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (ProbeError("NVML Shared Library Not Found"), "no links are known: NVML: NVML Shared Library Not Found"),
        ([], "NVML finds no GPU"),
    ],
)
def test_without_gpus_nothing_is_written_and_it_is_said_once(
    found: Sequence[ProbedCard] | ProbeError, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        here = await machine()
        here.found = found
        version = await here.version()
        for _ in range(3):
            await here.role.step()
        assert await here.version() == version
        assert WRITTEN not in await here.annotations()

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())
    assert [record.message for record in caplog.records if said in record.message] == caplog.messages[:1]
    assert len(caplog.messages) == 1


async def test_a_node_that_changes_meanwhile_is_looked_at_again() -> None:
    here = await machine()
    get = here.cluster.get

    async def stale(kind: Kind, name: str, namespace: str = "") -> dict[str, object]:
        found = await get(kind, name, namespace)
        await here.cluster.patch(Kind.NODES, "gpu-1", {"metadata": {"annotations": {SCORES: "[]"}}})
        return found

    here.cluster.get = stale  # type: ignore[method-assign]  # somebody writes between read and write
    assert await here.role.step() is False
    here.cluster.get = get  # type: ignore[method-assign]  # as above
    assert (await here.annotations())[SCORES] == "[]"
    assert await here.role.step() is True


async def test_links_that_are_told_by_one_side_only_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    here = await machine()
    here.found = [ProbedCard("a", "0", {"b": PcieLevel.SINGLE}), ProbedCard("b", "1", {})]
    await here.role.step()
    assert json.loads((await here.annotations())[SCORES])[0]["score"] == {"b": 0}
    assert "a and b don't agree on their links" in caplog.text


def test_a_node_that_is_gone_is_told(caplog: pytest.LogCaptureFixture) -> None:
    role = LinkScores(MemoryCluster(lambda: 0.0), "gone", lambda: cards(PcieLevel.NODE))
    assert asyncio.run(role.step()) is True
    assert "the pair scores can't be written" in caplog.text
