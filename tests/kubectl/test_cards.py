"""`kubectl hami nodes` and `cards`, of other schedulers' cards, and pods that ask for cards by annotation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from builders import card, node
from integrations.koords import ALLOCATED as KOORDINATED
from integrations.koords import share
from simulate.files import JSON, pod
from simulate.test_other_schedulers import running

from .apiserver import ApiServer
from .conftest import Hami
from .test_verbs import DEPLOYED, SPACES, with_uid


def koordinated(name: str, on: str, *shares: JSON) -> JSON:
    """A running pod with shares of cards that Koordinator gave it."""
    found = with_uid(pod(name, annotations={KOORDINATED: json.dumps({"gpu": [*shares]})}, nodeName=on))
    return {**found, "status": {"phase": "Running"}}


@pytest.mark.parametrize(
    ("example", "pods", "rows"),
    [
        (
            "volcano.yaml",
            [running("held", "volcano-1", "GPU-b,NVIDIA,3000,30:", 1, 3000)],
            [
                ("volcano-1", "volcano", 2, 20, 1, 32768, 3000, 200, 30, 1),
                ("volcano-2", "volcano", 1, 10, 0, 40960, 0, 100, 0, 0),
            ],
        ),
        (
            "koordinator.yaml",
            [koordinated("held", "koord-a10", share(1, core="50", ratio="50"))],
            [
                ("koord-a10", "koordinator", 2, 0, 1, 46080, 11520, 200, 50, 1),
                ("koord-a100", "koordinator", 4, 0, 0, 327680, 0, 400, 0, 0),
            ],
        ),
    ],
)
def test_the_cards_of_other_schedulers_are_listed(
    hami: Hami, example: str, pods: list[JSON], rows: list[tuple[Any, ...]]
) -> None:
    text = (Path(__file__).parents[2] / "manifests" / "examples" / example).read_text()
    objects = [each for each in yaml.safe_load_all(text) if each and each["kind"] in ("Node", "Device")]
    config = {"kind": "ConfigMap", "metadata": {"name": "hami-device-config", "namespace": "hami-system"}}
    config["data"] = {"device-config.yaml": "volcano: {enabled: true}\nkoordinator: {enabled: true}\n"}
    api = ApiServer([*DEPLOYED, config, *SPACES, *objects, *pods])
    found = hami(api, "nodes", "-o", "json").result
    keys = ("node", "vendor", "cards", "slots", "used_slots", "memory", "used_memory", "cores", "used_cores", "pods")
    assert [tuple(each[key] for key in keys) for each in found] == rows
    held = next(row for row in hami(api, "cards").out.splitlines() if "team-a/held" in row)
    assert "Gi of " in held


def test_models_are_text_and_not_markup(hami: Hami) -> None:
    odd = node("n1", card("GPU-1", type="NVIDIA [red]x[/red]"))
    run = hami(ApiServer([odd]), "cards", "-o", "wide")
    assert "NVIDIA [red]x[/red]" in run.out


# What `kubectl hami` shows of pods that ask another scheduler for cards by annotation (docs/spec/kai.md)


def test_a_share_that_kai_places_is_there_with_its_costs(hami: Hami) -> None:
    """Its containers name no resource."""
    labelled = {**node("kai"), "kind": "Node"}
    labelled["metadata"]["labels"] = {"nvidia.com/gpu.memory": "80000"}
    share = pod("share", annotations={"gpu-fraction": "0.5"}, schedulerName="kai-scheduler", nodeName="kai")
    (found,) = hami(ApiServer([labelled, share]), "pods", "-o", "json").result
    assert found["amounts"] == {
        "limits.nvidia.com/gpu": 1,
        "limits.nvidia.com/gpucores": 50,
        "limits.nvidia.com/gpumem": 40000,
    }
