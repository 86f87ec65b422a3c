"""Every vendor's cards in one cluster, 460 pods of every kind: the same outcome twice, and sums that agree.

What a pod of a vendor costs, and where it may go, is in the conformance suites and the vendor's own tests; what
holds among all of them is here.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from hami_webhook.device_config import enabled_vendors, load_device_config
from hami_webhook.integrations import SCHEDULERS

from . import gpu_shares, vgpus
from .crowd import CLASS, the_crowd
from .families import FAMILIES, JSON, MANAGED
from .fleet import the_config, the_fleet, the_quotas

pytestmark = pytest.mark.integration

PODS = (320, 140)
"""Ours, and other schedulers'."""
FIRST = 110
"""A quarter of the pods: as many as a second run needs to show that it is the same."""
KNOWN = MANAGED.union(vgpus.KEYS, gpu_shares.KEYS)


def shuffled(value: Any, pick: random.Random) -> Any:
    """The same with the keys of every mapping in another order, also of JSON in a text."""
    if isinstance(value, dict):
        items = [(key, shuffled(item, pick)) for key, item in value.items()]
        pick.shuffle(items)
        return dict(items)
    if isinstance(value, list):
        return [shuffled(item, pick) for item in value]
    if isinstance(value, str) and value.startswith(("[", "{")):
        return json.dumps(shuffled(json.loads(value), pick))
    return value


def written(directory: Path, pick: random.Random | None = None, first: int | None = None) -> list[str]:
    """The command line that runs the crowd, or the first of it, on the fleet; with `pick` from reordered files."""
    fleet = the_fleet()
    cluster = [*fleet.nodes, *fleet.devices, CLASS, *the_quotas()]
    pods = the_crowd(*PODS)[:first]
    if pick:
        cluster, pods = shuffled(cluster, pick), shuffled(pods, pick)
        pick.shuffle(cluster)
    directory.mkdir()
    for name, items in (("cluster", cluster), ("pods", pods)):
        (directory / f"{name}.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    (directory / "config.yaml").write_text(the_config())
    files = ["--config", "config.yaml", "--cluster", "cluster.json", "-o", "json", "pods.json"]
    return [sys.executable, "-m", "hami_webhook", "simulate", *(str(directory / f) if "." in f else f for f in files)]


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """Of three processes with their own order in sets: all pods, the first of them, and those from reordered files."""
    directory = tmp_path_factory.mktemp("fleet")
    lines = [
        written(directory / "a"),
        written(directory / "b", first=FIRST),
        written(directory / "c", random.Random(7), FIRST),
    ]

    def run(seed: int) -> bytes:
        env = {**os.environ, "PYTHONHASHSEED": str(seed)}
        done = subprocess.run(lines[seed], check=False, capture_output=True, env=env, timeout=300)
        assert (done.returncode, done.stderr) == (0, b"")
        return done.stdout

    with ThreadPoolExecutor() as pool:
        return list(pool.map(run, range(len(lines))))


@pytest.fixture(scope="module")
def result(outputs: list[bytes]) -> JSON:
    found: JSON = json.loads(outputs[0])
    return found


def test_the_same_pods_have_the_same_outcome_in_the_same_order_of_keys(outputs: list[bytes]) -> None:
    """Pods that come later change nothing of those before."""
    every, first = (json.loads(out) for out in outputs[:2])
    assert json.dumps(every["pods"][:FIRST]) == json.dumps(first["pods"])
    assert len(first["pods"]) == FIRST
    assert list(every) == list(first)
    assert [list(quota["used"]) for quota in every["quotas"]] == [list(quota["used"]) for quota in first["quotas"]]


def test_the_order_of_keys_and_of_objects_of_the_cluster_does_not_matter(outputs: list[bytes]) -> None:
    same, other = (json.dumps(json.loads(out), sort_keys=True) for out in outputs[1:])
    assert same == other


def test_the_fleet_has_quotas_of_every_managed_key(result: JSON) -> None:
    vendors = enabled_vendors(load_device_config(the_config(), "test").config)
    assert vendors.quota_keys.keys() == KNOWN
    # KAI has no resources of its own (tests/integrations/test_kai.py)
    assert {scheduler.key for scheduler in vendors.foreign} == SCHEDULERS.keys() - {"kai"} == {"volcano", "koordinator"}
    assert {key for quota in result["quotas"] for key in quota["hard"]} == KNOWN


def test_every_managed_key_was_in_use_and_used_holds_every_debit_and_is_never_above_hard(result: JSON) -> None:
    """The quotas of `wide` count all pods there, and those that wait besides."""
    debits: Counter[str] = Counter()
    for outcome in result["pods"]:
        if outcome["namespace"] == "wide":
            debits.update(outcome["debits"])
    in_use = set()
    for quota in result["quotas"]:
        used, hard = quota["used"], quota["hard"]
        in_use |= {key for key, amount in used.items() if amount}
        # what other schedulers give may cost more than was charged for it, and nobody can refuse it then
        assert all(used[key] <= hard[key] for key in used if key in MANAGED), quota["name"]
        if (quota["namespace"], quota["name"]) == ("wide", "everything"):
            assert all(used[key] >= amount for key, amount in debits.items())
    assert in_use == KNOWN
    assert len(debits) > 20


def test_every_refusal_is_for_quota(result: JSON) -> None:
    refused = [outcome["message"] for outcome in result["pods"] if not outcome["allowed"]]
    assert len(refused) > 30
    assert [text for text in refused if not text.startswith("exceeding resource quota: exceeded quota: ")] == []


def test_no_card_has_more_pods_than_slots_and_no_instance_is_given_twice(result: JSON) -> None:
    fleet = the_fleet()
    slots = {card.uuid: card.slots for card in (*fleet.cards, *fleet.vgpus)}
    pods: dict[str, set[str]] = defaultdict(set)
    instances: dict[str, list[int]] = defaultdict(list)
    for outcome in result["pods"]:
        placement = outcome["placement"] or {"containers": (), "annotations": {}}
        mine: dict[str, set[int]] = defaultdict(set)
        for record in json.loads(placement["annotations"].get("hami.io/vgpu-mig-allocations", "[]")):
            start, size = record["placement"]["start"], record["placement"]["size"]
            mine[record["gpuUUID"]].update(range(start, start + size))
        for uuid, taken in mine.items():
            instances[uuid] += taken
        for container in placement["containers"]:
            for device in container["devices"]:
                pods[device["uuid"]].add(outcome["name"])
    assert {uuid: len(names) for uuid, names in pods.items() if len(names) > slots.get(uuid, 1000)} == {}
    assert instances
    assert all(len(taken) == len(set(taken)) for taken in instances.values())


def test_the_run_has_every_kind_of_outcome(result: JSON) -> None:
    kinds = Counter(
        "refused"
        if not outcome["allowed"]
        else "placed"
        if outcome["placement"]
        else "waits"
        if outcome["failed"]
        else "not ours"
        for outcome in result["pods"]
    )
    assert sum(kinds.values()) == sum(PODS)
    assert kinds["placed"] > 130
    assert min(kinds["refused"], kinds["waits"]) > 20
    assert kinds["not ours"] > 2
    vendors = {
        device["vendor"]
        for outcome in result["pods"]
        if outcome["placement"]
        for container in outcome["placement"]["containers"]
        for device in container["devices"]
    }
    assert vendors == {"volcano", "koordinator", *(family.known_as or family.name for family in FAMILIES)}
    rows = [
        (container["init"], [device["uuid"] for device in container["devices"]])
        for outcome in result["pods"]
        if outcome["placement"]
        for container in outcome["placement"]["containers"]
    ]
    assert any(init and len(uuids) > len(set(uuids)) for init, uuids in rows), "no init container has two of one card"
