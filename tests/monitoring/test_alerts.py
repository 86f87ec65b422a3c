"""The alerts: when they fire, and what leads from one to what to do (docs/runbooks)."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from tables import in_one_test

from .promtool import promtool, with_promtool

ROOT = Path(__file__).parents[2]
EXAMPLES = Path(__file__).with_name("alerts.yaml")
RUNBOOKS = ROOT / "docs" / "runbooks"
PARTS = ["# {alert}", "## Symptoms", "## Diagnosis", "## Remedy"]
SPEC: dict[str, Any] = yaml.safe_load(
    (ROOT / "manifests" / "components" / "monitoring" / "prometheusrule.yaml").read_text()
)["spec"]
RULES = {rule["alert"]: rule for group in SPEC["groups"] for rule in group["rules"]}


@pytest.mark.integration
@with_promtool
def test_prometheus_accepts_the_rules(tmp_path: Path) -> None:
    (tmp_path / "rules.json").write_text(json.dumps(SPEC))
    assert f"SUCCESS: {len(RULES)} rules found" in promtool("check", "rules", tmp_path / "rules.json")


@pytest.mark.integration
@with_promtool
@pytest.mark.parametrize(("of_days", "evaluation"), [(False, "1m"), (True, "5m")])
def test_an_alert_fires_at_its_fault_alone_and_no_other_does(tmp_path: Path, of_days: bool, evaluation: str) -> None:
    """Rules are evaluated each minute, and each five minutes in examples that go on for a day: promtool takes long."""
    groups = [{**group, "rules": [{**rule, "annotations": {}} for rule in group["rules"]]} for group in SPEC["groups"]]
    (tmp_path / "rules.json").write_text(json.dumps({"groups": groups}))
    examples = yaml.safe_load(EXAMPLES.read_text())
    healthy = examples.pop("healthy")
    chosen = [each for each in examples["tests"] if (last_minute(each) > 1000) is of_days]
    assert chosen
    examples |= {"tests": [amid(healthy, each) for each in chosen], "evaluation_interval": evaluation}
    (tmp_path / EXAMPLES.name).write_text(json.dumps(examples))
    assert "SUCCESS" in promtool("test", "rules", tmp_path / EXAMPLES.name)


def last_minute(example: dict[str, Any]) -> int:
    """When its alerts are looked at last."""
    return max(int(each["eval_time"].removesuffix("m")) for each in example["alert_rule_test"])


def amid(healthy: list[dict[str, str]], example: dict[str, Any]) -> dict[str, Any]:
    """The example with the series of a healthy installation besides, and every alert looked at whenever one is."""
    own = {_target(each["series"]) for each in example["input_series"]}
    series = [*example["input_series"], *(each for each in healthy if _target(each["series"]) not in own)]
    expected: dict[str, dict[str, Any]] = {}
    for each in example["alert_rule_test"]:
        expected.setdefault(each["eval_time"], {})[each["alertname"]] = each.get("exp_alerts", [])
    looked_at = [
        {"alertname": alert, "eval_time": at, "exp_alerts": alerts.get(alert, [])}
        for at, alerts in expected.items()
        for alert in RULES
    ]
    return {**example, "input_series": series, "alert_rule_test": looked_at}


def _target(series: str) -> str:
    """The metric of a series, and for `up` whose it is."""
    container = re.search(r'container="(\w+)"', series)
    return series.partition("{")[0] + (container[1] if container and series.startswith("up") else "")


@pytest.mark.parametrize("alert", RULES)
def test_an_alert_has_examples_of_both(alert: str) -> None:
    examples = [
        bool(each.get("exp_alerts"))
        for group in yaml.safe_load(EXAMPLES.read_text())["tests"]
        for each in group["alert_rule_test"]
        if each["alertname"] == alert
    ]
    assert set(examples) == {True, False}


@in_one_test("alert", RULES)
def test_an_alert_says_what_is_wrong_and_has_a_page(alert: str) -> None:
    rule = RULES[alert]
    assert rule["labels"]["severity"] in {"info", "warning", "critical"}
    assert set(rule["annotations"]) == {"summary", "description", "runbook"}
    page = RUNBOOKS / f"{alert}.md"
    assert rule["annotations"]["runbook"] == str(page.relative_to(ROOT))
    headings = re.findall(r"^##? .*$", page.read_text(), re.MULTILINE)
    assert headings == [part.format(alert=alert) for part in PARTS]


def test_the_list_of_pages_has_the_severity_of_each_alert() -> None:
    rows = re.findall(r"^\| \[(\w+)\]\(\1\.md\) \| (\w+) \|", (RUNBOOKS / "README.md").read_text(), re.MULTILINE)
    assert dict(rows) == {alert: rule["labels"]["severity"] for alert, rule in RULES.items()}


def test_every_page_is_of_an_alert() -> None:
    assert {path.stem for path in RUNBOOKS.iterdir()} == {*RULES, "README"}
