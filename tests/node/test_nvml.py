"""The probe of links on real machines' topologies, by a libnvidia-ml.so.1 that is compiled here."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from .machines import (
    DGX_A100,
    DGX_H100,
    FAILING,
    FOUR_A100_PCIE,
    L40S,
    ONE_SIDED,
    Card,
    Machine,
    compile_library,
    environment,
)

pytestmark = pytest.mark.integration

CARDS = """
import dataclasses, json
from hami_webhook.node.nvml import read_cards
print(json.dumps([dataclasses.asdict(card) for card in read_cards()]))
"""
PROBE = """
import json
from hami_webhook.node.pair_scores import pair_scores
from hami_webhook.node.nvml import ProbeError, probe
try:
    print(json.dumps(pair_scores(probe())))
except ProbeError as error:
    print(json.dumps(str(error)))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("gcc") is None:
        pytest.skip("gcc compiles the library that stands in for NVIDIA's; `apt-get install gcc libc6-dev` has it")
    found = tmp_path_factory.mktemp("nvml")
    compile_library(found)
    return found


def probed(folder: Path, machine: Machine) -> tuple[list[list[int]], list[list[str]]]:
    """The pair scores as a table, and the pairs that don't agree."""
    run = subprocess.run(
        [sys.executable, "-c", PROBE], env=environment(folder, machine), check=True, capture_output=True, text=True
    )
    scores, asymmetric = json.loads(run.stdout)
    uuids = [f"GPU-{index}" for index in range(machine.gpus)]
    assert list(scores) == uuids
    return [[scores[x].get(y, 0) for y in uuids] for x in uuids], asymmetric


@pytest.mark.parametrize(
    ("machine", "first_row"),
    [
        (DGX_A100, [0, 1240, 1210, 1210, 1210, 1210, 1210, 1210]),
        (DGX_H100, [0, 1820, 1820, 1820, 1810, 1810, 1810, 1810]),
        (FOUR_A100_PCIE, [0, 1220, 10, 10]),
        (L40S, [0, 50, 20, 20, 10, 10, 10, 10]),
    ],
    ids=["DGX A100", "DGX H100", "4 x A100 PCIe with bridges", "L40S"],
)
def test_the_pair_scores_of_real_machines(folder: Path, machine: Machine, first_row: list[int]) -> None:
    table, asymmetric = probed(folder, machine)
    assert table[0] == first_row
    assert asymmetric == []
    assert table == [list(column) for column in zip(*table, strict=True)]
    assert all(sorted(row) == sorted(first_row) for row in table)


def test_what_of_the_cards_is_used(folder: Path) -> None:
    cards = (
        Card(7 << 30, 93, 41, 66, 254_321),
        Card(name="H100 MIG"),
        Card(utilisation=5, memory_controller=2, temperature=40, milliwatts=9000, name="GH200 480GB"),
        Card(memory=-2),
        Card(0, 0, 0, 30, 60_000),
    )
    machine = replace(DGX_A100, gpus=5, cards=cards)
    run = subprocess.run(
        [sys.executable, "-c", CARDS], env=environment(folder, machine), check=True, capture_output=True, text=True
    )
    assert [tuple(card.values()) for card in json.loads(run.stdout)] == [
        (0, "GPU-0", "A100-SXM4-40GB", 7 << 30, 93, 41, 66, 254.321),
        (1, "GPU-1", "H100 MIG", None, None, None, None, None),
        (2, "GPU-2", "GH200 480GB", None, 5, 2, 40, 9.0),
        (4, "GPU-4", "A100-SXM4-40GB", 0, 0, 0, 30, 60.0),
    ], "the lost one is left out"


def test_links_that_only_one_side_has_score_nothing(folder: Path) -> None:
    assert probed(folder, ONE_SIDED) == ([[0, 0], [0, 0]], [["GPU-0", "GPU-1"]])


def test_a_failure_of_nvml_is_told(folder: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", PROBE], env=environment(folder, FAILING), check=True, capture_output=True, text=True
    )
    assert json.loads(run.stdout) == "Unknown Error"


def test_a_machine_without_the_library_is_told(tmp_path: Path) -> None:
    without = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    run = subprocess.run([sys.executable, "-c", PROBE], env=without, check=True, capture_output=True, text=True)
    assert json.loads(run.stdout) == "NVML Shared Library Not Found"
