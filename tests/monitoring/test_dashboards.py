"""The dashboards: each file is as rendered, and every panel says what it shows, in which unit."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from hack.dashboards.__main__ import FOLDER, rendered

from .promtool import promtool, with_promtool

ROOT = Path(__file__).parents[2]
ALERTS = ROOT / "manifests" / "components" / "monitoring" / "prometheusrule.yaml"
BOARDS = {path.name: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}


def panels(board: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def test_the_files_are_as_rendered() -> None:
    found = {path.name: path.read_text() for path in FOLDER.glob("*.json")}
    assert found == rendered(), "make render writes them"


def test_kustomize_makes_config_maps_of_all() -> None:
    named = re.findall(r"files: \[(.+)\]", (FOLDER / "kustomization.yaml").read_text())
    assert sorted(named) == sorted(BOARDS)


@pytest.mark.parametrize("name", BOARDS)
def test_every_panel_has_a_description_a_unit_and_queries(name: str) -> None:
    found = panels(BOARDS[name])
    assert len(found) > 8
    lacking = [
        panel["title"]
        for panel in found
        if not (panel["description"] and panel["fieldConfig"]["defaults"]["unit"] and panel["targets"])
    ]
    assert lacking == []


@pytest.mark.parametrize("name", BOARDS)
def test_no_panel_lies_on_another(name: str) -> None:
    places = [panel["gridPos"] for panel in BOARDS[name]["panels"]]
    cells = [
        (x, y)
        for place in places
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) == 23
    assert len({panel["id"] for panel in BOARDS[name]["panels"]}) == len(places)


@pytest.mark.parametrize("path", [*FOLDER.glob("*.json"), ALERTS], ids=lambda path: path.name)
def test_every_metric_that_is_asked_for_is_documented(path: Path) -> None:
    """And what docs/metrics.md lists is served: tests/server/test_exposition.py."""
    asked = {name.removesuffix("_bucket") for name in re.findall(r"\bhami_\w+", path.read_text())}
    documented = set(re.findall(r"`(hami_\w+)`", (ROOT / "docs" / "metrics.md").read_text()))
    assert asked
    assert asked - documented == set()


@with_promtool
@pytest.mark.parametrize("name", BOARDS)
def test_prometheus_can_read_every_query(name: str, tmp_path: Path) -> None:
    queries = [target["expr"] for panel in panels(BOARDS[name]) for target in panel["targets"]]
    rules = [
        {"record": f"panel:{number}", "expr": re.sub(r"\$__\w+", "5m", query)} for number, query in enumerate(queries)
    ]
    (tmp_path / "rules.json").write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    promtool("check", "rules", tmp_path / "rules.json")
