"""A card that becomes unhealthy and is well again: the node's annotation, events, and who else writes it."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hami_webhook.cluster.api import Conflict, Forbidden, Kind
from hami_webhook.cluster.memory import MemoryCluster
from hami_webhook.cluster.object_events import ObjectEvents
from hami_webhook.devices.unhealthy_cards import ANNOTATION, UnhealthyCard, encode
from hami_webhook.node.card_health import CardHealthLoop
from hami_webhook.node.cards import CardHealth, ProbeError

NOW = 1_767_225_600.0
SINCE = "2026-01-01T00:00:00Z"
BOOTED = NOW - 1000


def gpu(uuid: str = "G", *causes: str, xids: Sequence[int] = (), recovery: bool | None = None) -> CardHealth:
    return CardHealth(uuid, frozenset(causes), frozenset(xids), recovery)


class Machine:
    """A node with its loop; `cards` is what NVML answers."""

    def __init__(self, folder: Path, annotation: str | None = None) -> None:
        self.now = NOW
        self.cards: Sequence[CardHealth] | ProbeError = [gpu()]
        self.asked = self.closed = 0
        self.cluster = MemoryCluster(lambda: self.now)
        written = {} if annotation is None else {ANNOTATION: annotation}
        asyncio.run(self.cluster.create(Kind.NODES, {"metadata": {"name": "n", "annotations": written}}))
        self.mig_lock = folder / "lock"
        self.start()

    def start(self) -> None:
        """A new process."""
        self.loop = CardHealthLoop(
            self.cluster,
            "n",
            self,
            ObjectEvents(self.cluster, Counter()),
            lambda: self.now,
            booted=BOOTED,
            mig_lock=self.mig_lock,
        )

    def __call__(self) -> Sequence[CardHealth]:
        self.asked += 1
        if isinstance(self.cards, ProbeError):
            raise self.cards
        return self.cards

    def close(self) -> None:
        self.closed += 1

    def look(self, *cards: CardHealth, after: float = 5.0) -> dict[str, list[str]]:
        """The causes in the annotation after one more look at these cards."""
        self.now += after
        self.cards = cards
        asyncio.run(self.loop.step())
        return {uuid: card["causes"] for uuid, card in json.loads(self.annotation or "{}").items()}

    @property
    def annotation(self) -> str | None:
        obj: Any = self.cluster.peek(Kind.NODES, "n")
        found: str | None = obj["metadata"].get("annotations", {}).get(ANNOTATION)
        return found

    @property
    def events(self) -> list[tuple[str, str]]:
        return [(event.note.reason, event.note.message) for event in self.cluster.events for _ in range(event.count)]


def test_a_card_becomes_unhealthy_at_once_and_is_well_after_a_minute(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    assert machine.look(gpu(), gpu("H")) == {}
    assert machine.look(gpu("G", "thermal-slowdown"), gpu("H")) == {"G": ["thermal-slowdown"]}
    assert machine.look(gpu(), gpu("H"), after=59) == {"G": ["thermal-slowdown"]}
    assert machine.look(gpu(), gpu("H"), after=1) == {}
    assert machine.annotation is None
    assert machine.events == [
        ("CardUnhealthy", "the card G gets no new pods: the hardware slows it down, as it is too hot"),
        ("CardHealthy", "the card G is well again, and gets new pods"),
    ]


def test_a_card_that_is_hot_again_and_again_stays_closed_and_is_told_once(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    for _ in range(5):
        assert machine.look(gpu("G", "thermal-slowdown")) == {"G": ["thermal-slowdown"]}
        assert machine.look(gpu(), after=40) == {"G": ["thermal-slowdown"]}
    assert len(machine.events) == 1


def test_a_lost_card_is_listed_until_nvml_finds_it_again(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.look(gpu(), gpu("H"))
    assert machine.look(gpu()) == {"H": ["lost"]}
    assert machine.look(gpu(), after=600) == {"H": ["lost"]}
    machine.look(gpu(), gpu("H"))
    assert machine.look(gpu(), gpu("H"), after=60) == {}


def test_an_error_lasts_until_nvml_says_that_no_reset_is_needed(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    assert machine.look(gpu(xids=[119], recovery=True)) == {"G": ["recovery-needed", "xid-119"]}
    assert machine.look(gpu(recovery=True), after=600) == {"G": ["recovery-needed", "xid-119"]}
    assert machine.look(gpu(recovery=False), after=60) == {}


def test_where_nvml_does_not_say_it_an_error_lasts_until_the_machine_boots_or_somebody_takes_it_away(
    tmp_path: Path,
) -> None:
    machine = Machine(tmp_path)
    machine.look(gpu(xids=[79]))
    assert machine.look(gpu(), after=6000) == {"G": ["xid-79"]}
    asyncio.run(machine.cluster.patch(Kind.NODES, "n", {"metadata": {"annotations": {ANNOTATION: None}}}))
    assert machine.look(gpu(), after=60) == {}
    assert machine.events[-1][0] == "CardHealthy"


@pytest.mark.parametrize(("since", "left"), [(SINCE, {"G": ["xid-79"]}), ("2025-12-31T23:00:00Z", {})])
def test_a_new_process_goes_on_from_what_was_written_since_the_machine_booted(
    tmp_path: Path, since: str, left: dict[str, list[str]]
) -> None:
    machine = Machine(tmp_path, encode({"G": UnhealthyCard(("lost", "xid-79"), since)}))
    machine.look(gpu())
    assert machine.look(gpu(), after=60) == left, "NVML finds it"


@pytest.mark.parametrize("text", ["{", "[]", '{"G": 1}', '{"G": {"causes": ["<b>"]}}', '{"X": {"causes": ["lost"]}}'])
def test_what_others_wrote_is_put_right(tmp_path: Path, text: str) -> None:
    machine = Machine(tmp_path, text)
    assert machine.look(gpu("G", "ecc-double-bit")) == {"G": ["ecc-double-bit"]}


def test_without_nvml_nothing_is_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = encode({"G": UnhealthyCard(("lost",), SINCE)})
    machine = Machine(tmp_path, text)
    machine.cards = ProbeError("NVML Shared Library Not Found")
    for _ in range(2):
        asyncio.run(machine.loop.step())
    assert machine.annotation == text
    said = [record.message for record in caplog.records]
    assert said == ["node n: the health of the cards isn't known: NVML: NVML Shared Library Not Found"]


def test_while_mig_is_changed_nvml_is_let_go(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.mig_lock.touch()
    machine.look(gpu())
    assert (machine.asked, machine.closed) == (0, 1)
    machine.mig_lock.unlink()
    machine.look(gpu())
    assert machine.asked == 1


@pytest.mark.parametrize(("error", "again"), [(Conflict("changed"), False), (Forbidden("nodes"), True)])
def test_what_can_not_be_written_is_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, again: bool
) -> None:
    machine = Machine(tmp_path)
    machine.look(gpu())

    async def fail(*_: object) -> None:
        raise error

    machine.cards = [gpu("G", "ecc-double-bit")]
    with monkeypatch.context() as patched:
        patched.setattr(machine.cluster, "patch", fail)
        assert asyncio.run(machine.loop.step()) is again
    assert machine.annotation is None
    assert machine.events == []
    assert machine.look(gpu("G", "ecc-double-bit")) == {"G": ["ecc-double-bit"]}
