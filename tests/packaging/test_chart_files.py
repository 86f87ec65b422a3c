"""The Helm chart's rendered files, and its default values against the schema they are checked with."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from hack.chart_values import Affinity, Resources, Values
from hack.render_chart import CHART, FILES
from hami_webhook.policy.selectors import WrittenSelector

OF_KUBERNETES = (Affinity, Resources, WrittenSelector)
"""What Kubernetes defines: every part of it may be left out."""


@pytest.mark.parametrize("path", FILES)
def test_the_file_is_as_rendered(path: str) -> None:
    assert (CHART / path).read_text() == FILES[path](), "python -m hack.render_chart writes it anew"


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


def test_values_yaml_has_every_value_and_is_valid() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    Values.model_validate(values)
    assert without_default(Values, values) == []


def test_no_template_names_our_usual_namespace() -> None:
    """The release's namespace is the user's choice."""
    templates = [path for path in CHART.rglob("templates/**/*") if path.is_file()]
    assert templates
    assert [path.name for path in templates if "hami-system" in path.read_text()] == []
