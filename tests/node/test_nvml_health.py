"""The health of GPUs, by a libnvidia-ml.so.1 that is compiled here."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from .machines import DGX_A100, Card, compile_library, environment, set_health

pytestmark = pytest.mark.integration

LOOKS = """
import dataclasses, json, sys
from hami_webhook.node.nvml import CardHealthProbe
probe = CardHealthProbe()
for line in sys.stdin:
    cards = [(card.uuid, sorted(card.causes), sorted(card.xids), card.needs_recovery) for card in probe()]
    print(json.dumps(cards), flush=True)
    if line == "close\\n":
        probe.close()
"""
WELL, QUIET = "0 0 0 0", "0 0 0 -1"
Look = tuple[str, list[str], list[int], bool | None]


class Machine:
    """Two GPUs, and a process that asks for their health."""

    def __init__(self, folder: Path, process: subprocess.Popen[str]) -> None:
        self.folder = folder
        self._process = process

    def look(self, *lines: str, xids: Sequence[tuple[int, int]] = (), then: str = "") -> list[Look]:
        set_health(self.folder, *lines, xids=xids)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{then}\n")
        self._process.stdin.flush()
        return [
            (uuid, causes, found, needs) for uuid, causes, found, needs in json.loads(self._process.stdout.readline())
        ]


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    if shutil.which("gcc") is None:
        pytest.skip("gcc compiles the library that stands in for NVIDIA's; `apt-get install gcc libc6-dev` has it")
    compile_library(tmp_path)
    own = environment(tmp_path, replace(DGX_A100, gpus=2))
    command = [sys.executable, "-c", LOOKS]
    with subprocess.Popen(command, env=own, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Machine(tmp_path, process)
        assert process.stdin is not None
        process.stdin.close()


def test_what_a_card_shows_is_its_own_and_goes_when_it_is_well(machine: Machine) -> None:
    well: Look = ("GPU-1", [], [], False)
    assert machine.look(WELL, WELL) == [("GPU-0", [], [], False), well]
    assert machine.look("0 2 0 0", WELL) == [("GPU-0", ["ecc-double-bit"], [], False), well]
    assert machine.look("0 0 64 0", WELL) == [("GPU-0", ["thermal-slowdown"], [], False), well]
    assert machine.look("0 0 0 1", WELL) == [("GPU-0", [], [], True), well]
    assert machine.look(WELL, QUIET) == [("GPU-0", [], [], False), ("GPU-1", [], [], None)]


def test_a_card_that_is_slow_for_other_causes_is_well(machine: Machine) -> None:
    """Idle, at its limit of power, or slowed down by software before it is too hot."""
    assert machine.look(f"0 0 {0x1 | 0x4 | 0x20} 0", WELL)[0] == ("GPU-0", [], [], False)


def test_errors_are_told_once_and_those_of_applications_never(machine: Machine) -> None:
    errors = [(1, 79), (0, 13), (0, 31), (0, 43), (0, 45), (0, 68), (0, 109), (1, 119)]
    assert [card[2] for card in machine.look(WELL, WELL, xids=errors)] == [[], [79, 119]]
    assert [card[2] for card in machine.look(WELL, WELL, xids=errors)] == [[], []]
    assert [card[2] for card in machine.look(WELL, WELL, xids=[*errors, (0, 95)])] == [[95], []]


def test_a_lost_card_is_left_out_until_it_is_back(machine: Machine) -> None:
    def found(*lines: str, then: str = "") -> list[str]:
        return [card[0] for card in machine.look(*lines, then=then)]

    assert found(WELL, WELL) == ["GPU-0", "GPU-1"]
    assert found(WELL, "1 0 0 0") == ["GPU-0"]
    assert found(WELL, WELL, then="close") == ["GPU-0", "GPU-1"]
    assert found(WELL, WELL) == ["GPU-0", "GPU-1"], "NVML is opened anew"


def test_the_driver_s_samples_say_which_cards_computed_since_the_last_look(tmp_path: Path) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("gcc compiles the library that stands in for NVIDIA's; `apt-get install gcc libc6-dev` has it")
    compile_library(tmp_path)
    cards = (Card(utilisation=3), Card(utilisation=0), Card(utilisation=-1))
    own = environment(tmp_path, replace(DGX_A100, gpus=3, cards=cards))
    look = "[card.computed for card in probe()]"
    program = f"from hami_webhook.node.nvml import CardHealthProbe as P; probe = P(); print({look}, {look})"
    done = subprocess.run([sys.executable, "-c", program], env=own, capture_output=True, text=True, check=True)
    assert done.stdout.split("] ") == ["[True, False, None", "[True, False, None]\n"]
