"""A run of the fleet replayed pod by pod, with accounts and cards that are computed without the program."""

from __future__ import annotations

import json
import random
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import expected_charges, gpu_shares, vgpus, wants
from .crowd import CLASS, the_crowd
from .expected_charges import QuotaAccount
from .families import FAMILIES, JSON, Charge, Family
from .fleet import the_config, the_fleet, the_quotas

PODS = (320, 140)
"""Ours, and other schedulers'."""


@dataclass(frozen=True)
class Step:
    """A pod's turn: as it was written, what became of it, and everything as it stood before."""

    manifest: JSON
    outcome: JSON
    cards: Mapping[tuple[str, str], list[int]]
    vgpus: Mapping[str, vgpus.State]
    gpus: Mapping[tuple[str, int], gpu_shares.Used]
    accounts: QuotaAccount

    @property
    def name(self) -> str:
        return str(self.manifest["metadata"]["name"])

    @property
    def namespace(self) -> str:
        return str(self.manifest["metadata"]["namespace"])

    @property
    def notes(self) -> Mapping[str, str]:
        """What placement wrote on it."""
        found: Mapping[str, str] = (self.outcome["placement"] or {}).get("annotations", {})
        return found


class Replay:
    """A run replayed pod by pod, with its own accounts and cards; `charged` has the waiting charges of pods."""

    def __init__(self, result: JSON, pods: list[JSON]) -> None:
        self.result, self.pods = result, pods
        self.fleet = the_fleet()
        self.nodes = {node["metadata"]["name"]: node for node in self.fleet.nodes}
        self.cards: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0])
        self.vgpus: dict[str, vgpus.State] = defaultdict(vgpus.State)
        self.gpus: dict[tuple[str, int], gpu_shares.Used] = {}
        self.accounts, self.charged = QuotaAccount(the_quotas()), QuotaAccount(the_quotas())

    def steps(self) -> Iterator[Step]:
        """Every pod in turn; what it got is entered after it was looked at."""
        for manifest, outcome in zip(self.pods, self.result["pods"], strict=True):
            step = Step(manifest, outcome, self.cards, self.vgpus, self.gpus, self.accounts)
            yield step
            if outcome["allowed"]:
                self.accounts.add(step.namespace, manifest, self.charge(step))
                self.charged.add(step.namespace, manifest, self.waiting(step))
            self._enter(step)

    def waiting(self, step: Step) -> Charge:
        ours = wants.waiting(step.manifest, self.fleet.cards, self.nodes)
        return ours | self._waiting_vgpus(step) | gpu_shares.waiting(step.manifest, self.fleet.gpus)

    def charge(self, step: Step) -> Charge:
        """What the pod costs: of each scheduler what it got, or what it waits for."""
        if not step.outcome["placement"]:
            return self.waiting(step)
        ours = expected_charges.placed(step.manifest, step.notes)
        theirs = vgpus.placed(step.notes, self.fleet.vgpus) or self._waiting_vgpus(step)
        shares = gpu_shares.placed(step.notes) or gpu_shares.waiting(step.manifest, self.fleet.gpus)
        return ours | theirs | shares

    def _waiting_vgpus(self, step: Step) -> Charge:
        return vgpus.waiting(step.manifest, self.fleet.vgpus)

    def _enter(self, step: Step) -> None:
        for family, uuid, claims in self.held(step.outcome):
            taken = (claims.slots, claims.memory, claims.cores)
            self.cards[family.name, uuid] = [a + b for a, b in zip(self.cards[family.name, uuid], taken, strict=True)]
        for entry in (entry for row in vgpus.entries(step.notes, self.fleet.vgpus) for entry in row):
            self.vgpus[entry.uuid].add(entry, vgpus.pod_group(step.manifest))
        for share in gpu_shares.shares(step.notes):
            where = step.outcome["placement"]["node"], share.minor
            core, memory, ratio = self.gpus.get(where, (0, 0, 0))
            self.gpus[where] = core + share.core, memory + share.memory, ratio + share.ratio

    def held(self, outcome: JSON) -> Iterator[tuple[Family, str, expected_charges.LockValue]]:
        if outcome["placement"]:
            for family in FAMILIES:
                for uuid, claims in expected_charges.held(
                    family, outcome["pod"], outcome["placement"]["annotations"]
                ).items():
                    yield family, uuid, claims


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
    pods = the_crowd(*PODS)[0][:first]
    if pick:
        cluster, pods = shuffled(cluster, pick), shuffled(pods, pick)
        pick.shuffle(cluster)
    directory.mkdir()
    for name, items in (("cluster", cluster), ("pods", pods)):
        (directory / f"{name}.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    (directory / "config.yaml").write_text(the_config())
    files = ["--config", "config.yaml", "--cluster", "cluster.json", "-o", "json", "pods.json"]
    return [sys.executable, "-m", "hami_webhook", "simulate", *(str(directory / f) if "." in f else f for f in files)]
