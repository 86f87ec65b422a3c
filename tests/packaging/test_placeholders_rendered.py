"""Placeholders in the chart (docs/spec/placeholders.md)."""

from __future__ import annotations

from pathlib import Path

import pytest
from helm_program import JSON, Helm, built

pytestmark = [pytest.mark.integration, pytest.mark.skipif(built() is None, reason="helm renders the chart")]


def test_placeholders_and_their_rights_are_there_where_they_are_enabled_alone(tmp_path: Path) -> None:
    helm = Helm(tmp_path)

    def rendered(*more: str) -> tuple[list[str], list[JSON], list[str]]:
        objects = helm.template(*more)
        (controller,) = [
            each
            for each in objects
            if each["kind"] == "Deployment" and each["metadata"]["name"] == "hami-webhook-controller"
        ]
        (container,) = controller["spec"]["template"]["spec"]["containers"]
        flags = [each for each in container["args"] if each.startswith(("--placeholder", "--preemption"))]
        named = [each for each in objects if "placeholder" in each["metadata"]["name"]]
        rules = [rule for each in named for rule in each.get("rules", ())]
        return flags, rules, [each["kind"] for each in named]

    assert rendered() == ([], [], [])
    flags, rules, kinds = rendered("--set", "placeholders.enabled=true,placeholders.image.registry=mirror.local")
    assert flags == [
        "--placeholders=10",
        "--placeholders-per-group=4",
        "--placeholder-timeout=15m",
        "--placeholder-image=mirror.local/pause:3.10",
        "--preemption=on",
    ]
    assert rules == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["create", "delete"]}]
    assert sorted(kinds) == ["PriorityClass", "Role", "RoleBinding"]
