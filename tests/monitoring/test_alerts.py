"""The alerts: when they fire, and what leads from one to what to do (docs/runbooks)."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from .promtool import promtool, with_promtool

ROOT = Path(__file__).parents[2]
EXAMPLES = Path(__file__).with_name("alerts.yaml")
RUNBOOKS = ROOT / "docs" / "runbooks"
PARTS = ["# {alert}", "## What users notice", "## How to see why", "## What to do"]
SPEC: dict[str, Any] = yaml.safe_load(
    (ROOT / "manifests" / "components" / "monitoring" / "prometheusrule.yaml").read_text()
)["spec"]
RULES = {rule["alert"]: rule for group in SPEC["groups"] for rule in group["rules"]}


@with_promtool
def test_prometheus_accepts_the_rules(tmp_path: Path) -> None:
    (tmp_path / "rules.json").write_text(json.dumps(SPEC))
    assert f"SUCCESS: {len(RULES)} rules found" in promtool("check", "rules", tmp_path / "rules.json")


@with_promtool
def test_every_alert_fires_when_it_should_and_is_silent_when_it_should_not(tmp_path: Path) -> None:
    groups = [{**group, "rules": [{**rule, "annotations": {}} for rule in group["rules"]]} for group in SPEC["groups"]]
    (tmp_path / "rules.json").write_text(json.dumps({"groups": groups}))
    shutil.copy(EXAMPLES, tmp_path)
    assert "SUCCESS" in promtool("test", "rules", tmp_path / EXAMPLES.name)


@pytest.mark.parametrize("alert", RULES)
def test_an_alert_has_examples_of_both(alert: str) -> None:
    examples = [
        bool(each.get("exp_alerts"))
        for group in yaml.safe_load(EXAMPLES.read_text())["tests"]
        for each in group["alert_rule_test"]
        if each["alertname"] == alert
    ]
    assert set(examples) == {True, False}


@pytest.mark.parametrize("alert", RULES)
def test_an_alert_says_what_is_wrong_and_has_a_page(alert: str) -> None:
    rule = RULES[alert]
    assert rule["labels"]["severity"] in {"warning", "critical"}
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
    page = RUNBOOKS / f"{alert}.md"
    assert rule["annotations"]["runbook_url"] == str(page.relative_to(ROOT))
    headings = re.findall(r"^##? .*$", page.read_text(), re.MULTILINE)
    assert headings == [part.format(alert=alert) for part in PARTS]


def test_every_page_is_of_an_alert() -> None:
    assert {path.stem for path in RUNBOOKS.iterdir()} == {*RULES, "README"}
