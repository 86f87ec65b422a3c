"""A hundred nodes and four hundred pods of mixed kinds: accounts checked from outside."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from builders import card, container, node

from .files import CORES, GPU, JSON, MEM, PROFILES, listed, pod, quota

pytestmark = pytest.mark.integration

NAMESPACES = ("team-a", "team-b", "team-c")
TOPOLOGY = {"hami.io/gpu-scheduler-policy": "topology-aware"}


def a_cluster(pick: random.Random) -> list[JSON]:
    nodes = []
    for number in range(100):
        name = f"node-{number:03}"
        uuids = [f"{name}-gpu{index}" for index in range(8)]
        kind: JSON = {"count": 7, "mode": "mig", "migProfiles": PROFILES} if number % 20 == 0 else {}
        memory = 40960 if kind else pick.choice((24576, 40960))
        cards = [card(uuid, memory, index=i, numa=i // 4, **kind) for i, uuid in enumerate(uuids)]
        scores = {
            x: {y: 200 if i // 4 == j // 4 else 10 for j, y in enumerate(uuids) if i != j} for i, x in enumerate(uuids)
        }
        nodes.append(node(name, *cards, scores=scores))
    hard: JSON = {GPU: "150", MEM: "2000000", CORES: "6000"}
    return [*nodes, *(quota(namespace=namespace, **hard) for namespace in NAMESPACES), quota("second", mem="1500000")]


def some_pods(pick: random.Random) -> Iterator[JSON]:
    for number in range(400):
        with_limits: JSON = {"gpu": 1, "mem": pick.randrange(200, 9000)}
        more: JSON = {}
        inits: list[JSON] = []
        apps = [container("main", **with_limits)]
        match number % 11:
            case 0:
                apps = [container("main", gpu=2, mem=2000, cores=pick.choice((10, 30)))]
            case 1:
                apps = [container("main", gpu=1, percent=pick.choice((5, 25, 50)))]
            case 2:
                apps = [container("main", gpu=1)]
            case 3:
                apps, more = [container("main", gpu=4, mem=5000, cores=20)], {"annotations": TOPOLOGY}
            case 4:
                inits = [container("load", gpu=2, mem=6000), container("side", gpu=1, mem=300, restartPolicy="Always")]
                apps = [
                    container("a", **with_limits),
                    container("log", cpu="1"),
                    container("b", gpu=1, mem=1000, cores=5),
                ]
            case 5:
                apps = [container("main", cpu="2")]
            case 6:
                more = {"schedulerName": "volcano"}
            case 7:
                more = {"annotations": {"nvidia.com/use-gputype": "H100"}}
            case 8:
                apps, more = [container("main", gpu=2, mem=9000)], {"annotations": {"nvidia.com/vgpu-mode": "mig"}}
            case 9:
                apps = [container("main", gpu=pick.choice((-1, "1500m")), mem=10)]
        yield pod(f"pod-{number:03}", *apps, init=inits, namespace=pick.choice(NAMESPACES), **more)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    directory, pick = tmp_path_factory.mktemp("large"), random.Random(20260101)
    cluster, pods = directory / "cluster.json", directory / "pods.json"
    cluster.write_text(json.dumps(listed(*a_cluster(pick))))
    pods.write_text(json.dumps(listed(*some_pods(pick))))
    return cluster, pods


@pytest.fixture(scope="module")
def output(files: tuple[Path, Path]) -> bytes:
    """The JSON of the real command line."""
    cluster, pods = files
    command = [sys.executable, "-m", "hami_webhook", "simulate", "--cluster", str(cluster), "-o", "json", str(pods)]
    done = subprocess.run(command, capture_output=True, check=True)
    assert done.stderr == b""
    return done.stdout


def effective(rows: list[tuple[str, int]]) -> int:
    """max(apps + sidecars, each init container with the sidecars before it)."""
    apps = sum(amount for kind, amount in rows if kind == "app")
    sidecars = [amount if kind == "sidecar" else 0 for kind, amount in rows]
    peaks = [amount + sum(sidecars[:i]) for i, (kind, amount) in enumerate(rows) if kind == "init"]
    return max([apps + sum(sidecars), *peaks])


def kinds(manifest: JSON) -> list[str]:
    inits = [
        "sidecar" if c.get("restartPolicy") == "Always" else "init" for c in manifest["spec"].get("initContainers", [])
    ]
    return [*inits, *("app" for _ in manifest["spec"]["containers"])]


def held(outcome: JSON) -> dict[str, tuple[int, int, int]]:
    """What a placed pod holds of each card: slots, MiB, cores, derived from the placement alone."""
    rows: dict[str, list[tuple[str, int, int, int]]] = defaultdict(list)
    for kind, message in zip(kinds(outcome["pod"]), outcome["placement"]["containers"], strict=True):
        mine: dict[str, list[int]] = {}
        for device in message["devices"]:
            sums = mine.setdefault(device["uuid"], [0, 0, 0])
            sums[0] = 1 if kind == "init" else sums[0] + 1
            sums[1] += device["memory"]
            sums[2] += device["cores"]
        for uuid, sums in mine.items():
            rows[uuid].append((kind, sums[0], sums[1], sums[2]))
    return {
        uuid: (
            effective([(kind, slots) for kind, slots, _, _ in found]),
            effective([(kind, memory) for kind, _, memory, _ in found]),
            effective([(kind, cores) for kind, _, _, cores in found]),
        )
        for uuid, found in rows.items()
    }


def test_every_debit_follows_from_its_placement_and_the_sums_are_the_quotas_used(output: bytes) -> None:
    result = json.loads(output)
    sums: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    placed = 0
    for outcome in result["pods"]:
        if outcome["placement"]:
            placed += 1
            cards = held(outcome).values()
            amounts = {key: sum(one[i] for one in cards) for i, key in enumerate((GPU, MEM, CORES))}
            assert outcome["debits"] == {key: amount for key, amount in amounts.items() if amount}, outcome["name"]
        else:
            assert outcome["debits"] == {}
            amounts = waiting(outcome["pod"]) if outcome["allowed"] else {}
        for key, amount in amounts.items():
            sums[outcome["namespace"]][key] += amount
    assert 150 < placed < 400
    for found in result["quotas"]:
        assert found["used"] == {key: sums[found["namespace"]][key] for key in found["hard"]}
        assert all(found["used"][key] <= found["hard"][key] for key in found["hard"])
    assert len(result["quotas"]) == 4


def waiting(manifest: JSON) -> dict[str, int]:
    """The declared charge of a pod without a place; only pods that declare their memory wait in this run."""
    limits = [c["resources"]["limits"] for c in manifest["spec"]["containers"]]
    counts = [int(one.get("nvidia.com/gpu", 0)) for one in limits]
    each = [int(one.get("nvidia.com/gpumem", 0)) for one in limits]
    assert all(memory for count, memory in zip(counts, each, strict=True) if count)
    return {GPU: sum(counts), MEM: sum(count * memory for count, memory in zip(counts, each, strict=True))}


def test_no_card_is_ever_over_its_slots_memory_or_cores(files: tuple[Path, Path], output: bytes) -> None:
    cards: dict[str, JSON] = {}
    for item in json.loads(files[0].read_text())["items"]:
        if item["kind"] == "Node":
            for one in json.loads(item["metadata"]["annotations"]["hami.io/node-nvidia-register"]):
                cards[one["id"]] = one
    totals: dict[str, list[int]] = {uuid: [0, 0, 0] for uuid in cards}
    slices: dict[str, list[int]] = defaultdict(list)
    for outcome in json.loads(output)["pods"]:
        if not outcome["placement"]:
            continue
        for uuid, amounts in held(outcome).items():
            assert uuid.startswith(outcome["placement"]["node"])
            totals[uuid] = [before + more for before, more in zip(totals[uuid], amounts, strict=True)]
        mine: dict[str, set[int]] = defaultdict(set)  # what an init container leaves, an app container may take
        for record in json.loads(outcome["placement"]["annotations"].get("hami.io/vgpu-mig-allocations", "[]")):
            place = record["placement"]
            mine[record["gpuUUID"]].update(range(place["start"], place["start"] + place["size"]))
        for uuid, taken in mine.items():
            slices[uuid] += taken
    for uuid, (slots, memory, cores) in totals.items():
        one = cards[uuid]
        assert (slots <= one["count"], memory <= one["devmem"], cores <= one["devcore"]) == (True, True, True), uuid
    assert slices
    assert all(len(taken) == len(set(taken)) for taken in slices.values())


def test_the_run_has_every_kind_of_outcome(output: bytes) -> None:
    outcomes: list[dict[str, Any]] = json.loads(output)["pods"]
    assert len(outcomes) == 400
    message = {
        outcome["message"].partition(":")[0].partition(" value")[0] for outcome in outcomes if not outcome["allowed"]
    }
    assert message == {"exceeding resource quota", "invalid nvidia.com/gpu"}
    assert sum(outcome["allowed"] and bool(outcome["failed"]) and not outcome["placement"] for outcome in outcomes) > 20
    assert sum(outcome["allowed"] and not outcome["failed"] and not outcome["placement"] for outcome in outcomes) > 50
    assert any(
        d["profile"] for o in outcomes if o["placement"] for c in o["placement"]["containers"] for d in c["devices"]
    )
