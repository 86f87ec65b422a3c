"""The Helm chart's rendered files, and its default values against the schema they are checked with."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml
from pydantic import BaseModel

from hack.chart_readme import OF_KUBERNETES, comments, rows_of
from hack.chart_values import Values
from hack.daemon_values import DaemonValues
from hack.render_chart import CHART, DAEMON_CHART, DAEMON_FILES, FILES, changes
from hami_webhook import __version__

CATEGORIES = {
    *("ai-machine-learning", "database", "integration-delivery", "monitoring-logging", "networking", "security"),
    *("storage", "streaming-messaging", "skip-prediction"),
}
"""Those of Artifact Hub."""


@pytest.mark.parametrize(
    ("file", "render"),
    [
        *((CHART / path, render) for path, render in FILES.items()),
        *((DAEMON_CHART / path, render) for path, render in DAEMON_FILES.items()),
    ],
    ids=lambda value: value.name if isinstance(value, Path) else "",
)
def test_the_file_is_as_rendered(file: Path, render: Callable[[], str]) -> None:
    assert file.read_text() == render(), "make render writes it"


def without_default(model: type[BaseModel], values: Any, path: str = "") -> list[str]:
    """The paths of values that the schema knows and values.yaml doesn't have."""
    if model in OF_KUBERNETES:
        return []
    missing = []
    for name, field in model.model_fields.items():
        key = field.alias or name
        if key not in values:
            missing.append(path + key)
        elif isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            missing += without_default(field.annotation, values[key], f"{path}{key}.")
    return missing


@pytest.mark.parametrize(("chart", "model"), [(CHART, Values), (DAEMON_CHART, DaemonValues)])
def test_values_yaml_has_every_value_and_is_valid(chart: Path, model: type[BaseModel]) -> None:
    values = yaml.safe_load((chart / "values.yaml").read_text())
    model.model_validate(values)
    assert without_default(model, values) == []


def test_artifact_hub_can_read_what_the_chart_says_of_itself() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    notes = {name.removeprefix("artifacthub.io/"): text for name, text in chart["annotations"].items()}
    assert notes["license"] == "Apache-2.0"
    assert notes["category"] in CATEGORIES
    assert yaml.safe_load(notes["images"]) == [{"name": "hami-webhook", "image": f"hami-webhook:{__version__}"}]
    log = yaml.safe_load(notes["changes"])
    assert log
    for change in log:
        assert change["kind"] in {"added", "changed", "deprecated", "removed", "fixed", "security"}
        assert change["description"]
        assert "](" not in change["description"]
    start, _, icon = chart["icon"].partition("base64,")
    assert start == "data:image/svg+xml;"
    assert ElementTree.fromstring(base64.b64decode(icon)).get("viewBox") == "0 0 96 96"


def test_changes_are_of_the_version_in_plain_text() -> None:
    log = (
        "## 2.0.0\n\n### Upgrading\n\n- Do\n  [this](a.md).\n\n"
        "### Fixed\n\n#### Queues\n\n- A.\n\n#### Claims\n\n- B.\n\n## 1.0.0\n\n### Added\n\n- C.\n"
    )
    found = [(change["kind"], change["description"]) for change in changes(log, "2.0.0")]
    assert found == [("changed", "Do this."), ("fixed", "A."), ("fixed", "B.")]


def test_a_value_means_what_stands_above_it() -> None:
    text = "# Head.\n\n# One,\n# and more.\na:\n  # Two.\n  b: 1\n  c:\n  - d: 1\n# Three.\ne: 1\n"
    assert comments(text) == {"a": "One, and more.", "a.b": "Two.", "e": "Three."}


def test_the_table_has_every_value() -> None:
    text = (CHART / "values.yaml").read_text()
    rows = [row.path for row in rows_of(Values, yaml.safe_load(text), comments(text))]
    assert len(rows) == len(set(rows))
    assert set(comments(text)) <= set(rows)
    assert {"global.imageTag", "node.nodeSelector", "scheduler.kubeScheduler.image.tag", "prometheus.podSelector"} <= {
        *rows
    }


def test_no_template_names_our_usual_namespace() -> None:
    """The release's namespace is the user's choice."""
    templates = [path for path in CHART.rglob("templates/**/*") if path.is_file()]
    assert templates
    assert [path.name for path in templates if "hami-system" in path.read_text()] == []
