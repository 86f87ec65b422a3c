"""Nothing of docs/interface.txt, the interface, disappears or changes unnoticed: docs/stability.md has the rules."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hack.changelog import section
from hack.interface import Item, items
from hack.interface_levels import DEPRECATED
from hack.render_interface import CHANGELOG, INTERFACE, Gone, Interface, Line, render

STORED = Interface.read(INTERFACE.read_text())
CHANGES = CHANGELOG.read_text()
FLAG = Item("flag", "hami-webhook serve --roles", "list default=webhook")
"""It is stable, by the table of levels."""
QUOTA = Item("AcceleratorQuota", "v1alpha1 spec.colour", "string")
"""It is alpha."""


def test_what_users_rely_on_is_as_it_is_listed() -> None:
    changes = list(STORED.changes(items()))
    assert not changes, "\n".join(changes)


def test_the_list_is_as_it_is_written_by_hack() -> None:
    assert INTERFACE.read_text() == render(INTERFACE.read_text(), CHANGES), "make render writes it"


def test_what_is_gone_is_named_in_the_changelog() -> None:
    missing = [str(gone) for gone in STORED.gone if not gone.is_noted(CHANGES)]
    assert missing == [], "name them in CHANGELOG.md, in backquotes, under Upgrading of that version"


def listed(*found: Item) -> Interface:
    return Interface([Line.of(item) for item in found], [])


OLD = Line(FLAG, "stable", "0.3.0: something better")
MAY_GO = "If docs/stability.md lets it go now, run make render, and name"


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        pytest.param(
            [Line.of(FLAG)],
            [],
            "flag hami-webhook serve --roles (stable) is gone. Keep it, and list it under DEPRECATED in hack/",
            id="what is gone is to be deprecated first",
        ),
        pytest.param([Line.of(QUOTA)], [], MAY_GO, id="alpha may go"),
        pytest.param([OLD], [], MAY_GO, id="what was deprecated may go"),
        pytest.param(
            [Line.of(FLAG)],
            [replace(FLAG, detail="list default=node")],
            "(stable) was 'list default=webhook' and is 'list default=node'. Keep it",
            id="a default changes",
        ),
        pytest.param([], [QUOTA], "spec.colour is new, and alpha: add it by running make render", id="what is new"),
        pytest.param(
            [Line(FLAG, "alpha")], [FLAG], "is now: stable  hami-webhook serve --roles", id="a level is raised"
        ),
        pytest.param([Line(QUOTA, "stable")], [QUOTA], "(stable) would be alpha: no level is lowered", id="or lowered"),
    ],
)
def test_a_change_says_what_to_do(before: list[Line], after: list[Item], words: str) -> None:
    (found,) = Interface(before, []).changes(after)
    assert words in found


def test_what_goes_is_kept_as_gone_until_the_version_that_brings_it_has_a_number() -> None:
    after = Interface.read(str(listed(FLAG, QUOTA).followed_by([FLAG], "Unreleased")))
    assert (after.lines, after.gone) == ([Line.of(FLAG)], [Gone("Unreleased", Line.of(QUOTA))])
    released = Interface.read(str(after.followed_by([FLAG], "0.9.0")))
    assert released.gone == [Gone("0.9.0", Line.of(QUOTA))]
    assert released.followed_by([FLAG], "0.10.0").gone == released.gone


def test_what_nobody_was_promised_goes_without_a_trace() -> None:
    ledger = Item("AcceleratorQuota", "v1alpha1 status.ledger", "string")
    assert listed(ledger).followed_by([], "0.9.0").gone == []


@pytest.mark.parametrize(
    ("notes", "noted"),
    [
        ("## 0.9.0\n\n### Upgrading\n\n- `--roles` is gone.\n", True),
        ("## 0.9.0\n\n### Upgrading\n\n- Nothing.\n\n### Fixed\n\n- `--roles` is gone.\n", False),
        ("## 0.9.0\n\n### Upgrading\n\n- --roles is gone.\n", False),
        ("## 0.8.0\n\n### Upgrading\n\n- `--roles` is gone.\n", False),
    ],
)
def test_the_changelog_must_name_it_under_upgrading_of_its_version(notes: str, noted: bool) -> None:
    assert Gone("0.9.0", Line.of(FLAG)).is_noted(notes) == noted


def test_what_is_deprecated_is_announced_in_the_changelog() -> None:
    for group, names, text in DEPRECATED:
        version = text.partition(":")[0]
        notes = section(CHANGES, version) or section(CHANGES, "Unreleased") or ""
        announced = notes.partition("\n### Deprecated\n")[2].partition("\n### ")[0]
        assert any(f"`{each.rpartition(' ')[2]}`" in announced for each in (group, names)), (group, names)
