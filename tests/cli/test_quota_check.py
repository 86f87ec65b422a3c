"""`quota check`, as CI runs it."""

from __future__ import annotations

import io
import json
import sys
from types import SimpleNamespace

import pytest
import yaml
from builders import card, node
from quota.right_quotas import RIGHT
from simulate.files import Simulate

JSON = dict[str, object]


def quota(name: str, **hard: str) -> JSON:
    spec = {"hard": {f"limits.nvidia.com/{key}": amount for key, amount in hard.items()}}
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": name, "namespace": "team"}, "spec": spec}


def test_right_quotas_pass_without_a_word(command: Simulate) -> None:
    quotas = [quota(name) | {"spec": spec} for name, spec in RIGHT.items()]
    run = command.main("quota", "check", command.file("q.yaml", yaml.safe_dump_all(quotas)))
    assert (run.status, run.out, run.err) == (0, "", "")


def test_each_misreading_is_a_line_with_its_place(command: Simulate) -> None:
    path = command.file(
        "q.yaml", yaml.safe_dump_all([quota("right", gpu="4"), quota("wrong", gpumem="16Gi", gpus="1")])
    )
    run = command.main("quota", "check", path)
    units = "limits.nvidia.com/gpumem: 16Gi means 17179869184 units of 1 MiB; for as many bytes write 16384"
    key = "limits.nvidia.com/gpus has no effect, as nothing counts it; did you mean limits.nvidia.com/gpu?"
    assert (run.status, run.err) == (1, "")
    first, second = run.out.splitlines()
    assert first.startswith(f"{path}:")
    assert first.endswith(f": ResourceQuota wrong: {units}")
    assert second.endswith(f": ResourceQuota wrong: {key}")


def test_json_has_the_reason_the_key_and_the_sentence(command: Simulate) -> None:
    path = command.file("q.json", json.dumps(quota("wrong", gpumem="16Gi")))
    run = command.main("quota", "check", path, "-o", "json")
    text = "limits.nvidia.com/gpumem: 16Gi means 17179869184 units of 1 MiB; for as many bytes write 16384"
    misread = [{"reason": "QuotaUnitSuspicious", "key": "limits.nvidia.com/gpumem", "message": text}]
    assert run.status == 1
    assert json.loads(run.out) == {
        "quotas": [{"where": f"{path}:1", "namespace": "team", "name": "wrong", "misread": misread}]
    }


def test_limits_are_compared_with_the_cards_of_nodes_in_the_files(command: Simulate) -> None:
    quotas = command.file("q.json", json.dumps(quota("small", gpumem="80")))
    nodes = command.file("n.json", json.dumps(node("n1", card("GPU-1", 24576))))
    assert command.main("quota", "check", quotas).status == 0
    run = command.main("quota", "check", quotas, nodes)
    assert run.status == 1
    assert "less than the smallest card has (24576 MiB)" in run.out


def test_a_device_configuration_says_which_keys_are_counted(command: Simulate) -> None:
    path = command.file("q.json", json.dumps(quota("renamed", gpumem="8000")))
    config = command.file("c.yaml", "nvidia: {resourceCountName: a.b/gpu, resourceMemoryName: a.b/gpumem}\n")
    run = command.main("quota", "check", path, "--config", config)
    assert run.status == 1
    assert "enables no vendor with nvidia.com/gpumem" in run.out


def test_standard_input_is_read(command: Simulate, monkeypatch: pytest.MonkeyPatch) -> None:
    text = json.dumps(quota("wrong", gpus="1")).encode()
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(text)))
    assert command.main("quota", "check", "-").status == 1


def test_files_that_can_not_be_used_are_named(command: Simulate) -> None:
    path = command.file("n.json", json.dumps(node("n1")))
    run = command.main("quota", "check", path)
    assert (run.status, run.out, run.err) == (2, "", f"hami-webhook: no ResourceQuota in {path}\n")
    path = command.file("q.json", json.dumps(quota("odd") | {"spec": {"hard": 3}}))
    run = command.main("quota", "check", path)
    assert (run.status, run.out) == (2, "")
    assert run.err == f"hami-webhook: {path}:1: ResourceQuota odd: spec.hard must be an object, not a number\n"
