"""Every vendor's cards in one cluster, 440 pods of every kind: the same outcome twice, and independent accounts.

What a pod costs is computed from its manifest (`wants`) and its annotations (`expected_charges`), never by the
program's own code; then quotas, cards and refusals are checked against that.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor

import pytest

from hami_webhook.device_config import enabled_vendors, load_device_config
from hami_webhook.integrations import SCHEDULERS

from . import expected_charges, gpu_shares, vgpus, wants
from .crowd import the_crowd
from .expected_charges import QuotaAccount
from .families import COREX, FAMILIES, JSON, MANAGED, MIB, Card, Charge, Family, amounts, containers, in_units
from .fleet import the_config
from .replay import PODS, Replay, Step, written

pytestmark = pytest.mark.integration

FIRST = 110
"""A quarter of the pods: as many as a second run needs to show that it is the same."""
KNOWN = MANAGED.union(vgpus.KEYS, gpu_shares.KEYS)
EXCEEDED = re.compile(
    r"exceeding resource quota: exceeded quota: (\S+), requested: (.*), used: (.*), limited: ([^ ]*)(?: .*)?"
)


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


@pytest.fixture
def replay(result: JSON) -> Replay:
    return Replay(result, the_crowd(*PODS)[0])


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


def test_the_model_knows_every_managed_key(result: JSON) -> None:
    vendors = enabled_vendors(load_device_config(the_config(), "test").config)
    assert vendors.quota_keys.keys() == KNOWN
    # KAI has no resources of its own (tests/integrations/test_kai.py)
    assert {scheduler.key for scheduler in vendors.foreign} == SCHEDULERS.keys() - {"kai"} == {"volcano", "koordinator"}
    assert {key for quota in result["quotas"] for key in quota["hard"]} == KNOWN


def test_the_devices_told_are_those_written(replay: Replay) -> None:
    for step in replay.steps():
        if not step.outcome["placement"]:
            continue
        reported = Counter(
            (device["vendor"], device["uuid"], device["memory"])
            for container in step.outcome["placement"]["containers"]
            for device in container["devices"]
        )
        entries = Counter(
            (family.known_as or family.name, entry.uuid, entry.memory)
            for family in FAMILIES
            for row in expected_charges.entries(family, step.notes)
            for entry in row
        )
        entries.update(
            ("volcano", entry.uuid, entry.mebibytes)
            for row in vgpus.entries(step.notes, replay.fleet.vgpus)
            for entry in row
        )
        entries.update(
            ("koordinator", share.id or f"minor-{share.minor}", share.memory // MIB)
            for share in gpu_shares.shares(step.notes)
        )
        assert reported == entries, step.name


def test_every_debit_follows_from_what_was_written(replay: Replay) -> None:
    for step in replay.steps():
        debits = in_units(replay.charge(step)) if step.outcome["placement"] else {}
        assert step.outcome["debits"] == debits, step.name


def test_used_is_the_sum_of_what_pods_are_charged_and_never_above_hard(replay: Replay) -> None:
    """What other schedulers give may cost more than was charged for it, and nobody can refuse it then."""
    for step in replay.steps():
        for where, hard in step.accounts.hard.items():
            used = {key: (step.accounts if key in MANAGED else replay.charged).used[where][key] for key in hard}
            assert all(used[key] <= amount for key, amount in hard.items()), (step.name, where)
    reported = {(quota["namespace"], quota["name"]): quota for quota in replay.result["quotas"]}
    assert reported.keys() == replay.accounts.hard.keys()
    for where, quota in reported.items():
        assert quota["hard"] == replay.accounts.hard[where]
        assert quota["used"] == {key: replay.accounts.used[where][key] for key in quota["hard"]}, where


def test_every_managed_key_was_in_use(result: JSON) -> None:
    used = {key for quota in result["quotas"] for key, amount in quota["used"].items() if amount}
    assert used == KNOWN


def test_no_waiting_pod_is_charged_more_than_any_place_of_it_costs(replay: Replay) -> None:
    """The floor is a floor, but for two vendors' declared amounts: Moore Threads' card of 48 GiB may be smaller (6),
    and a MIG instance has cores of its own (docs/spec/nvidia.md#7.7); two of one card are one slot for an init
    container (docs/spec/quota.md#5).
    """
    for step in replay.steps():
        if step.outcome["placement"]:
            charge, floor = replay.charge(step), replay.waiting(step)
            lower = {key for key in floor if charge.get(key, 0) < floor[key]}
            instances = "hami.io/vgpu-mig-allocations" in step.notes
            known = {"limits.nvidia.com/gpu", "limits.nvidia.com/gpucores"} if instances else set()
            assert lower <= {"limits.mthreads.com/sgpu-memory", *known}, (step.name, lower)


def test_a_pod_is_refused_for_quota_only_if_it_does_not_fit_and_told_the_numbers(replay: Replay) -> None:
    count: Counter[str] = Counter()
    for step in replay.steps():
        found = EXCEEDED.fullmatch(step.outcome["message"])
        if not found and not step.outcome["allowed"]:
            continue  # for its amounts
        requested = replay.waiting(step)
        over = [w for w in step.accounts.matching(step.namespace, step.manifest) if step.accounts.over(w, requested)]
        if not found:
            assert not over, f"{step.name} was let in over {over}"
            continue
        assert step.outcome["code"] == 403
        assert over, f"{step.name} fits: {step.outcome['message']}"
        keys = step.accounts.over(over[0], requested)
        counted = step.accounts.counted(over[0], requested)
        requested, used, limited = (
            {key: int(amount) for key, _, amount in (part.partition("=") for part in text.split(","))}
            for text in (re.sub(r" \([a-z ]+\)", "", found[2]), found[3], found[4])
        )
        assert found[1] == over[0][1]
        count[found[1]] += 1
        assert requested == {key: counted[key] for key in keys}, step.name
        assert used == {key: step.accounts.used[over[0]][key] for key in keys}, step.name
        assert limited == {key: step.accounts.hard[over[0]][key] for key in keys}, step.name
    assert count.total() > 30
    assert min(count["of-volcano"], count["of-koordinator"]) > 3


def test_every_other_refusal_is_one_that_was_meant(replay: Replay) -> None:
    _, refused = the_crowd(*PODS)
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
        notes = step.notes
        mine: dict[str, set[int]] = defaultdict(set)
        for record in json.loads(notes.get("hami.io/vgpu-mig-allocations", "[]")):
            start, size = record["placement"]["start"], record["placement"]["size"]
            mine[record["gpuUUID"]].update(range(start, start + size))
        for uuid, taken in mine.items():
            instances[uuid] += taken
        for family in FAMILIES:
            entries = [entry for row in expected_charges.entries(family, notes) for entry in row]
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


def test_volcanos_pods_go_where_its_rules_say(replay: Replay) -> None:
    """Every pod: to the first node that has the cards, the last of them; one that waits finds none anywhere."""
    outcomes: Counter[str] = Counter()
    for step in replay.steps():
        if not step.outcome["allowed"] or step.outcome["pod"]["spec"].get("schedulerName") != "volcano":
            continue
        wanted = [ask for _, ask in vgpus.charge_requests(step.manifest, replay.fleet.vgpus)]
        found = {}
        for name in sorted(replay.nodes):
            here = [card for card in replay.fleet.vgpus if card.node == name]
            selector = step.manifest["spec"].get("nodeSelector", {}).items()
            if selector <= replay.nodes[name]["metadata"]["labels"].items():
                found[name] = vgpus.choice(step.manifest, wanted, here, step.vgpus)
        first = next((name for name, rows in found.items() if rows), None)
        if first is None:
            assert not step.outcome["placement"], step.name
            assert step.outcome["failed"].keys() == replay.nodes.keys()
            outcomes["waits"] += 1
            continue
        assert step.outcome["placement"], f"{step.name} fits on {first}: {step.outcome['failed']}"
        assert step.outcome["placement"]["node"] == first, step.name
        rows = found[first]
        assert rows is not None
        assert vgpus.entries(step.notes, replay.fleet.vgpus) == rows, step.name
        outcomes["mig" if rows[0][0].group else "plain"] += 1
    assert outcomes["plain"] > 15
    assert min(outcomes["mig"], outcomes["waits"]) > 2, outcomes


def test_no_card_of_other_schedulers_is_over_what_it_has(replay: Replay) -> None:
    """That no instance is given twice, and a card is cut in one way, is seen as they are entered."""
    for _ in replay.steps():
        pass
    cards = {card.uuid: card for card in replay.fleet.vgpus}
    for uuid, state in replay.vgpus.items():
        fits = state.slots <= cards[uuid].slots, state.memory <= cards[uuid].memory, state.cores <= 100
        assert (*fits, cards[uuid].healthy) == (True, True, True, True), uuid
        assert bool(state.taken) == (cards[uuid].mode == "mig"), uuid
    gpus = {(gpu.node, gpu.minor): gpu for gpu in replay.fleet.gpus}
    for where, (core, memory, ratio) in replay.gpus.items():
        fits = core <= 100, memory <= gpus[where].memory, ratio <= 100
        assert (*fits, gpus[where].healthy) == (True, True, True, True), where
    assert {where[0] for where in replay.gpus} == {"koord-a10", "koord-a100", "koord-h100", "koord-old"}
    assert {cards[uuid].node for uuid in replay.vgpus} > {"volcano-mig30", "volcano-mig40", "volcano-mig80"}


def test_a_node_that_koordinator_left_out_has_no_room(replay: Replay) -> None:
    outcomes: Counter[bool] = Counter()
    for step in replay.steps():
        if not step.outcome["allowed"] or step.outcome["pod"]["spec"].get("schedulerName") != "koord-scheduler":
            continue
        want = gpu_shares.want(step.manifest)
        assert want is not None, step.name
        rooms = {
            name: gpu_shares.has_room(
                step.manifest,
                want,
                replay.nodes[name],
                [gpu for gpu in replay.fleet.gpus if gpu.node == name],
                step.gpus,
                name in replay.fleet.honoring,
            )
            for name in step.outcome["failed"]
        }
        assert not any(rooms.values()), (step.name, step.outcome["failed"], rooms)
        outcomes[step.outcome["placement"] is not None] += 1
    assert outcomes[True] > 12
    assert outcomes[False] > 2


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
    elif want.count > 1 and family.name in ("DCU", "HCU", "MLU", "Iluvatar", *COREX):
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
        requested = [
            (family, want)
            for family in FAMILIES
            for _, container in containers(step.manifest)
            if (want := wants.want(family, container, step.manifest))
        ]
        if len(requested) != 1 or requested[0][0].name not in PLAIN or notes.keys() & RULES_OF_THEIR_OWN:
            continue
        if "mutex" in notes.get("hami.io/gpu-scheduler-policy", ""):
            continue
        ((family, want),) = requested
        checked += 1
        for node, why in step.outcome["failed"].items():
            if family.name == "Mthreads" and why == "Insufficient mthreads.com/sgpu-memory":
                continue  # kube-scheduler counts a whole card as 48 GiB, whatever it has
            here = [card for card in replay.fleet.cards if card.node == node]
            able = sorted(cost for card in here if (cost := served(replay, step, family, want, card)))
            if len(able) < want.count:
                continue
            cheapest = able[: want.count]
            memory, cores = sum(cost[0] for cost in cheapest), sum(cost[1] for cost in cheapest)
            charge = amounts(family, want.count, memory, cores)
            before = replay.waiting(step)
            over = [
                w
                for w in step.accounts.matching(step.namespace, step.manifest)
                if _over(step.accounts, w, charge, before)
            ]
            assert over, f"{step.name} would fit on {node}: {why}"
            assert "ResourceQuotaNotFit" in why
            for_quota += 1
    assert checked > 80
    assert for_quota > 3


def _over(held: QuotaAccount, where: tuple[str, str], charge: Charge, before: Charge) -> list[str]:
    """As `QuotaAccount.over`, for a pod that waits no more but isn't entered yet."""
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
