"""Every vendor's cards in one cluster, 300 pods of every kind: the same bytes twice, and books proved from outside.

What a pod costs is reckoned anew from its manifest (`wants`) and from what was written on it (`books`), never by the
program's own code; then quotas, cards and refusals are checked against that.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hami_webhook.config import load_device_config
from hami_webhook.devices.registry import FOREIGN, Vendors

from . import books, wants
from .books import Books
from .crowd import CLASS, the_crowd
from .families import COREX, FAMILIES, JSON, MANAGED, Card, Charge, Family, amounts, containers, in_units
from .fleet import the_config, the_fleet, the_quotas

PODS = 300
EXCEEDED = re.compile(r"exceeding resource quota: exceeded quota: (\S+), requested: (.*), used: (.*), limited: (.*)")


@dataclass(frozen=True)
class Step:
    """A pod's turn: as it was written, what became of it, and everything as it stood before."""

    manifest: JSON
    outcome: JSON
    cards: Mapping[tuple[str, str], list[int]]
    books: Books

    @property
    def name(self) -> str:
        return str(self.manifest["metadata"]["name"])

    @property
    def namespace(self) -> str:
        return str(self.manifest["metadata"]["namespace"])


class Replay:
    """A run told again pod by pod, with books and cards of its own."""

    def __init__(self, result: JSON, pods: list[JSON]) -> None:
        self.result, self.pods = result, pods
        self.fleet = the_fleet()
        self.nodes = {node["metadata"]["name"]: node for node in self.fleet.nodes}
        self.cards: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0])
        self.books = Books(the_quotas())

    def steps(self) -> Iterator[Step]:
        """Every pod in turn; what it got is entered after it was looked at."""
        for manifest, outcome in zip(self.pods, self.result["pods"], strict=True):
            step = Step(manifest, outcome, self.cards, self.books)
            yield step
            if outcome["allowed"]:
                self.books.add(step.namespace, manifest, self.charge(step))
            for family, uuid, holds in self.held(outcome):
                taken = (holds.slots, holds.memory, holds.cores)
                self.cards[family.name, uuid] = [
                    a + b for a, b in zip(self.cards[family.name, uuid], taken, strict=True)
                ]

    def waiting(self, step: Step) -> Charge:
        return wants.waiting(step.manifest, self.fleet.cards, self.nodes)

    def charge(self, step: Step) -> Charge:
        if step.outcome["placement"]:
            return books.placed(step.manifest, step.outcome["placement"]["annotations"])
        return self.waiting(step)

    def held(self, outcome: JSON) -> Iterator[tuple[Family, str, books.Held]]:
        if outcome["placement"]:
            for family in FAMILIES:
                for uuid, holds in books.held(family, outcome["pod"], outcome["placement"]["annotations"]).items():
                    yield family, uuid, holds


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


def written(directory: Path, pick: random.Random | None = None) -> list[str]:
    """The command line that runs the crowd on the fleet; with `pick` from files in another order."""
    cluster = [*the_fleet().nodes, CLASS, *the_quotas()]
    pods, _ = the_crowd(PODS)
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
    """Of three processes with their own order in sets: twice the same files, then the same in another order."""
    directory = tmp_path_factory.mktemp("fleet")
    lines = [written(directory / "a"), written(directory / "b"), written(directory / "c", random.Random(7))]

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


@pytest.fixture
def replay(result: JSON) -> Replay:
    return Replay(result, the_crowd(PODS)[0])


def test_the_same_files_give_the_same_bytes(outputs: list[bytes]) -> None:
    assert outputs[0] == outputs[1]


def test_the_order_of_keys_and_of_objects_of_the_cluster_does_not_matter(outputs: list[bytes]) -> None:
    same, other = (json.dumps(json.loads(out), sort_keys=True) for out in (outputs[0], outputs[2]))
    assert same == other


def test_the_model_knows_every_managed_key(result: JSON) -> None:
    vendors = Vendors.from_config(load_device_config(the_config(), "test").config)
    foreign = {key for scheduler in vendors.foreign for key in scheduler.quota_keys}
    assert vendors.quota_keys.keys() - foreign == MANAGED
    assert FOREIGN.keys() >= {scheduler.key.lower() for scheduler in vendors.foreign}
    assert {key for quota in result["quotas"] for key in quota["hard"]} == MANAGED


def test_the_devices_told_are_those_written(replay: Replay) -> None:
    for step in replay.steps():
        if not step.outcome["placement"]:
            continue
        told = Counter(
            (device["vendor"], device["uuid"], device["memory"])
            for container in step.outcome["placement"]["containers"]
            for device in container["devices"]
        )
        entries = Counter(
            (family.known_as or family.name, entry.uuid, entry.memory)
            for family in FAMILIES
            for row in books.entries(family, step.outcome["placement"]["annotations"])
            for entry in row
        )
        assert told == entries, step.name


def test_every_debit_follows_from_what_was_written(replay: Replay) -> None:
    for step in replay.steps():
        debits = in_units(replay.charge(step)) if step.outcome["placement"] else {}
        assert step.outcome["debits"] == debits, step.name


def test_used_is_the_sum_of_what_pods_are_charged_and_never_above_hard(replay: Replay) -> None:
    for step in replay.steps():
        for where, hard in step.books.hard.items():
            assert all(step.books.used[where][key] <= amount for key, amount in hard.items()), (step.name, where)
    told = {(quota["namespace"], quota["name"]): quota for quota in replay.result["quotas"]}
    assert told.keys() == replay.books.hard.keys()
    for where, quota in told.items():
        assert quota["hard"] == replay.books.hard[where]
        assert quota["used"] == {key: replay.books.used[where][key] for key in quota["hard"]}, where


def test_every_managed_key_was_in_use(result: JSON) -> None:
    used = {key for quota in result["quotas"] for key, amount in quota["used"].items() if amount}
    assert used == MANAGED


def test_no_waiting_pod_is_charged_more_than_any_place_of_it_costs(replay: Replay) -> None:
    """The floor is a floor, but for two vendors' declared amounts: Moore Threads' card of 48 GiB may be smaller (6),
    and a MIG instance has cores of its own (nvidia 7.7); two of one card are one slot for an init container (quota 5).
    """
    for step in replay.steps():
        if step.outcome["placement"]:
            charge, floor = replay.charge(step), replay.waiting(step)
            lower = {key for key in floor if charge.get(key, 0) < floor[key]}
            instances = "hami.io/vgpu-mig-allocations" in step.outcome["placement"]["annotations"]
            known = {"limits.nvidia.com/gpu", "limits.nvidia.com/gpucores"} if instances else set()
            assert lower <= {"limits.mthreads.com/sgpu-memory", *known}, (step.name, lower)


def test_a_pod_is_refused_for_quota_only_if_it_does_not_fit_and_told_the_numbers(replay: Replay) -> None:
    count = 0
    for step in replay.steps():
        found = EXCEEDED.fullmatch(step.outcome["message"])
        if not found and not step.outcome["allowed"]:
            continue  # for its amounts
        asked = replay.waiting(step)
        over = [w for w in step.books.matching(step.namespace, step.manifest) if step.books.over(w, asked)]
        if not found:
            assert not over, f"{step.name} was let in over {over}"
            continue
        count += 1
        assert step.outcome["code"] == 403
        assert over, f"{step.name} fits: {step.outcome['message']}"
        keys = step.books.over(over[0], asked)
        counted = step.books.counted(over[0], asked)
        requested, used, limited = (
            {key: int(amount) for key, _, amount in (part.partition("=") for part in text.split(","))}
            for text in (re.sub(r" \([a-z ]+\)", "", found[2]), found[3], found[4])
        )
        assert found[1] == over[0][1]
        assert requested == {key: counted[key] for key in keys}, step.name
        assert used == {key: step.books.used[over[0]][key] for key in keys}, step.name
        assert limited == {key: step.books.hard[over[0]][key] for key in keys}, step.name
    assert count > 20


def test_every_other_refusal_is_one_that_was_meant(replay: Replay) -> None:
    _, refused = the_crowd(PODS)
    for step in replay.steps():
        words = refused.get(step.name, "")
        if words:
            assert not step.outcome["allowed"], step.name
            assert words in step.outcome["message"], step.name
        elif not step.outcome["allowed"]:
            assert EXCEEDED.fullmatch(step.outcome["message"]), step.outcome["message"]


def test_no_card_is_over_its_slots_memory_or_cores(replay: Replay) -> None:
    for _ in replay.steps():
        pass
    known = {(card.family, card.uuid): card for card in replay.fleet.cards}
    for key, (slots, memory, cores) in replay.cards.items():
        card = known[key]
        total = 2**card.cores - 1 if card.family == "AWSNeuron" else card.cores
        fits = (slots <= card.slots, memory <= card.memory or not card.memory)
        if card.family in ("Biren", "Vastai", "Metax-GPU", "GCU"):
            fits = (slots <= card.slots, True)
        if card.family == "Enflame-DRS":
            total = 102  # six times 17 percent
        assert (*fits, cores <= total) == (True, True, True), key


def test_no_share_of_a_card_is_given_twice(replay: Replay) -> None:
    """MIG placements, Neuron cores, whole cards; one size of vXPU slice a card, and one mode of an Enflame card."""
    instances: dict[str, list[int]] = defaultdict(list)
    neurons: dict[str, int] = defaultdict(int)
    alone: Counter[str] = Counter()
    sizes: dict[str, set[int]] = defaultdict(set)
    modes: dict[tuple[str, str], set[str]] = defaultdict(set)
    for step in replay.steps():
        if not step.outcome["placement"]:
            continue
        notes = step.outcome["placement"]["annotations"]
        mine: dict[str, set[int]] = defaultdict(set)
        for record in json.loads(notes.get("hami.io/vgpu-mig-allocations", "[]")):
            start, size = record["placement"]["start"], record["placement"]["size"]
            mine[record["gpuUUID"]].update(range(start, start + size))
        for uuid, taken in mine.items():
            instances[uuid] += taken
        for family in FAMILIES:
            entries = [entry for row in books.entries(family, notes) for entry in row]
            for uuid in {entry.uuid for entry in entries}:
                mask = 0
                for entry in entries:
                    mask |= entry.cores if entry.uuid == uuid else 0
                if family.name == "AWSNeuron":
                    assert not neurons[uuid] & mask, (step.name, uuid)
                    neurons[uuid] |= mask
                if family.name in ("kunlun", "Metax-GPU", "GCU", "Biren", "Vastai"):
                    alone[uuid] += 1
                if family.name == "XPU":
                    sizes[uuid] |= {entry.memory for entry in entries if entry.uuid == uuid}
                if family.known_as == "Enflame":
                    node, _, index = uuid.rpartition("-")
                    modes[node.removesuffix("-drs"), index].add(family.name)
    assert instances
    assert neurons
    assert all(len(taken) == len(set(taken)) for taken in instances.values())
    assert all(count == 1 for count in alone.values())
    assert all(len(found) == 1 for found in sizes.values())
    assert all(len(found) == 1 for found in modes.values())


RULES_OF_THEIR_OWN = {"nvidia.com/numa-bind", "huawei.com/vnpu-mode"}
PLAIN = {family.name for family in FAMILIES} - {
    # their cards are chosen by rules of their own, or share with few
    *("Metax-SGPU", "XPU", "kunlun", "Enflame-DRS", "Enflame-shared", "AWSNeuron", "Ascend910C", "Ascend910B3"),
}


def served(replay: Replay, step: Step, family: Family, want: wants.Want, card: Card) -> tuple[int, int] | None:
    """MiB and cores that a container would get of the card as it stands; None if the card won't do."""
    notes = step.manifest["metadata"].get("annotations", {})
    mode = notes.get("nvidia.com/vgpu-mode")
    if not wants.eligible(family, card, step.manifest, replay.nodes) or not card.healthy:
        return None
    if card.uuid == "mixed-2-fine0" or card.mode == "mig" or (mode and card.mode not in mode):
        return None
    slots, memory, cores = step.cards.get((family.name, card.uuid), (0, 0, 0))
    needs = want.memory if isinstance(want.memory, int) else want.memory(card)
    share = want.cores
    if family.name == "AMD":
        share = max(1, want.cores * card.cores // 100)
    elif family.name == "Mthreads" and (want.count > 1 or (needs, share) == (49152, 16)):
        needs = card.memory
    elif want.count > 1 and family.name in ("DCU", "MLU", "Iluvatar", *COREX):
        if needs > card.memory:
            return None
        needs = card.memory
    fits = slots < card.slots and memory + needs <= card.memory and cores + share <= card.cores
    if family.name in ("Biren", "Vastai", "Metax-GPU", "GCU"):
        fits = slots < card.slots
    spent = share == 0 and cores == card.cores and card.family not in ("AMD", "Biren", "Vastai", "Metax-GPU", "GCU")
    alone = share == card.cores and slots > 0 and family.name != "AMD"
    return (needs, want.cores) if fits and not spent and not alone else None


def test_a_node_that_failed_really_has_no_room(replay: Replay) -> None:
    """Of pods with one container and a plain choice of cards: no node has them free, or quota forbids the cheapest."""
    for_quota = checked = 0
    for step in replay.steps():
        if not step.outcome["failed"] or "initContainers" in step.manifest["spec"]:
            continue
        notes = step.manifest["metadata"].get("annotations", {})
        asked = [
            (family, want)
            for family in FAMILIES
            for _, container in containers(step.manifest)
            if (want := wants.want(family, container, step.manifest))
        ]
        if len(asked) != 1 or asked[0][0].name not in PLAIN or notes.keys() & RULES_OF_THEIR_OWN:
            continue
        if "mutex" in notes.get("hami.io/gpu-scheduler-policy", ""):
            continue
        ((family, want),) = asked
        checked += 1
        for node, why in step.outcome["failed"].items():
            here = [card for card in replay.fleet.cards if card.node == node]
            able = sorted(cost for card in here if (cost := served(replay, step, family, want, card)))
            if len(able) < want.count:
                continue
            cheapest = able[: want.count]
            memory, cores = sum(cost[0] for cost in cheapest), sum(cost[1] for cost in cheapest)
            charge = amounts(family, want.count, memory, cores)
            before = replay.waiting(step)
            over = [
                w for w in step.books.matching(step.namespace, step.manifest) if _over(step.books, w, charge, before)
            ]
            assert over, f"{step.name} would fit on {node}: {why}"
            assert "ResourceQuotaNotFit" in why
            for_quota += 1
    assert checked > 80
    assert for_quota > 3


def _over(held: Books, where: tuple[str, str], charge: Charge, before: Charge) -> list[str]:
    """As `Books.over`, for a pod that waits no more but isn't entered yet."""
    return [
        key
        for key in held.over(where, charge)
        if held.counted(where, charge)[key] > held.counted(where, before).get(key, 0)
    ]


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
    assert sum(kinds.values()) == PODS
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
    assert vendors == {family.known_as or family.name for family in FAMILIES}
    rows = [
        (container["init"], [device["uuid"] for device in container["devices"]])
        for outcome in result["pods"]
        if outcome["placement"]
        for container in outcome["placement"]["containers"]
    ]
    assert any(init and len(uuids) > len(set(uuids)) for init, uuids in rows), "no init container has two of one card"
