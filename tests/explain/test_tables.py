"""Answers on a terminal: short for a cluster of any size, the nearest misses first, and what the reader can do."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from builders import bound_pod, card, node, pod

from hami_webhook.console import SafeConsole
from hami_webhook.explain.node_groups import answer_of, by_nearness, groups_of
from hami_webhook.explain.report import CardReport, Change, Explanation, NodeReport, Step
from hami_webhook.explain.tables import NEAREST, changes_of, show, tables_of

from .contexts import explained
from .mixed_nodes import WAITING, mixed_nodes, quotas

PAGE = Path(__file__).parents[2] / "docs" / "explain.md"
SCREEN = 40
"""Lines of a terminal."""


def lines_of(explanation: Explanation, *, everything: bool = False, width: int = 80) -> list[str]:
    console = SafeConsole(width=width, force_terminal=False)
    with console.capture() as capture:
        show(explanation, console, everything=everything)
    return [line.rstrip() for line in capture.get().splitlines()]


def test_24_mixed_nodes_are_one_screen() -> None:
    explanation = explained(WAITING, *mixed_nodes(), *quotas(), nearest=NEAREST)
    assert len(lines_of(explanation)) <= SCREEN
    assert "\n".join(lines_of(explanation, width=120)) in PAGE.read_text()
    groups, nearest, _ = tables_of(explanation)
    assert groups.rows == [
        ("6", "CardInsufficientMemory", "most free 21.6Gi, on a100-000-5"),
        ("2", "CardNotHealth", "sick-000-0, sick-000-1"),
        ("4", "CardTypeMismatch", "t4-000-0, t4-000-1, t4-000-2 and 1 more"),
        ("1", "no NVIDIA cards: the registration can't be read", "broken-000"),
        ("8", "no NVIDIA cards", "cpu-000-0, cpu-000-1, cpu-000-2 and 5 more"),
        (
            "3",
            "no NVIDIA cards: their device plugin left the handshake unanswered",
            "silent-000-0, silent-000-1, silent-000-2",
        ),
    ]
    assert [row[0] for row in nearest.rows if row[0]] == ["a100-000-5", "a100-000-4", "a100-000-3"]


def test_1000_nodes_are_two_screens_and_below_a_second_of_computing() -> None:
    """The limit is that of a machine ten times as slow."""
    copies = mixed_nodes(42)
    began = time.process_time()
    made = explained(WAITING, *copies, *quotas(), nearest=NEAREST)
    lines = lines_of(made)
    assert time.process_time() - began < 10
    assert len(made.nodes) == 1008
    assert len(lines) <= 2 * SCREEN
    assert next(change.node for change in made.changes if change.steps[0].kind == "free") == "a100-000-5"


def test_all_nodes_with_all_cards_are_shown_when_asked_for() -> None:
    explanation = explained(WAITING, *mixed_nodes(), *quotas())
    shown = " ".join(lines_of(explanation, everything=True, width=250))
    assert [each.name for each in explanation.nodes if each.name not in shown] == []
    assert [card.uuid for each in explanation.nodes for card in each.cards if card.uuid not in shown] == []
    assert len(explanation.changes) > 10
    assert all(step.text in shown for change in explanation.changes for step in change.steps)


def test_the_nearest_come_first() -> None:
    held = [
        bound_pod("a", "near", "N,NVIDIA,7000,10:;"),
        bound_pod("b", "far", "F,NVIDIA,7900,10:;"),
        bound_pod("c", "cores", "C,NVIDIA,7900,95:;"),
    ]
    nodes = [
        node("cpu"),
        node("far", card("F", 8000)),
        node("cores", card("C", 8000)),
        node("small", card("S", 1500)),
        node("elsewhere", card("E", 8000)),
        node("near", card("N", 8000)),
    ]
    for each in nodes:
        each["metadata"]["labels"]["zone"] = "b" if each["metadata"]["name"] == "elsewhere" else "a"
    found = explained(pod("p", gpu=1, mem=2000, cores=10, nodeSelector={"zone": "a"}), *nodes, *held)
    assert [each.name for each in by_nearness(found.nodes)] == ["elsewhere", "near", "far", "cores", "small", "cpu"]
    answers = {answer_of(each): each.name for each in found.nodes}
    assert answers["node(s) didn't match Pod's node affinity/selector"] == "elsewhere"
    assert [(group.answer, group.nearest) for group in groups_of(found.nodes)] == [
        ("node(s) didn't match Pod's node affinity/selector", "cards would fit on elsewhere"),
        ("CardInsufficientMemory", "most free 1.5Gi, on small"),
        ("no NVIDIA cards", "cpu"),
    ]


def test_fitting_nodes_come_first_with_what_they_would_give() -> None:
    nodes = [node(f"n{index}", card(f"G{index}", 8000)) for index in range(4)]
    found = explained(pod("p", gpu=1, mem=2000), node("a-full", card("F", 1000)), *nodes)
    groups, nearest, *_ = tables_of(found)
    assert [row[:2] for row in groups.rows] == [("4", "fits"), ("1", "CardInsufficientMemory")]
    assert nearest.rows[1] == (
        "",
        "G0",
        "would give main 2Gi and 0 cores; now 0/10 slots, 0Mi/7.8Gi, 0/100 cores",
    )


def test_cards_alike_are_one_row_with_the_one_that_lacks_the_least() -> None:
    cards = [card(f"G{index}", 8000) for index in range(4)]
    held = [bound_pod(f"p{index}", "n", f"G{index},NVIDIA,{7000 - 1000 * index},0:;") for index in range(3)]
    found = explained(pod("p", gpu=1, mem=7500), node("n", *cards[:3], card("U", 8000, health=False)), *held)
    (table,) = tables_of(found)
    assert table.rows[1:] == [
        ("", "G2 and 2 more", "needs 7.3Gi, 2.9Gi of 7.8Gi free"),
        ("", "U", "is registered as unhealthy"),
    ]


def step(kind: str, *pods: str) -> Change:
    return Change([Step(kind, f"{kind} {' '.join(pods)}", pods=pods)])


def headings(*changes: Change) -> list[tuple[str, Sequence[str], int]]:
    return list(changes_of(Explanation("team-a", "p", "waits", changes=changes)))


def test_what_the_reader_can_do_is_apart_from_what_takes_an_administrator() -> None:
    assert headings(
        step("free", "team-b/x"),
        step("request"),
        step("quota"),
        step("free", "team-a/x"),
        step("free"),
        step("register"),
    ) == [
        ("Any of these would change it, in namespace team-a:", ["request ", "free team-a/x"], 0),
        ("Any of these would change it, by an administrator:", ["free team-b/x", "quota ", "free "], 1),
    ]
    assert headings(step("gates")) == [("This would change it, in namespace team-a:", ["gates "], 0)]


def test_no_node_is_to_register_cards_that_it_never_had() -> None:
    offering = node("kubelet-offers", capacity={"nvidia.com/gpu": 8})
    found = explained(pod("p", gpu=1, mem=10), node("cpu"), offering, *mixed_nodes()[8:12])
    assert sorted(change.node for change in found.changes) == [
        "broken-000",
        "kubelet-offers",
        "silent-000-0",
        "silent-000-1",
        "silent-000-2",
    ]


@pytest.mark.parametrize("everything", [False, True])
def test_texts_of_others_stay_in_their_place(everything: bool) -> None:
    odd = f"\x1b[2J\u202e[red]x{'y' * 500}"
    lacking = CardReport("NVIDIA", odd, odd, 0, 1, 0, 8, 0, 100, 9, 0, "CardTypeMismatch", odd, [odd])
    nodes = [NodeReport(f"{odd}{index}", False, odd, odd, "main", cards=[lacking], answer=odd) for index in range(9)]
    lines = lines_of(Explanation("team-a", "p", "waits", nodes=nodes), everything=everything)
    shown = "\n".join(lines)
    assert not {"\x1b", "\u202e"} & {*shown}
    assert "[red]x" in shown
    assert everything or len(lines) <= 2 * SCREEN
