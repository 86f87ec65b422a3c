"""The table of tests and lines by layer: what counts for which layer."""

from __future__ import annotations

from pathlib import Path

import pytest

from hack.test_layers import ROOT, counted, layer_of, table

QUOTA = """\
import pytest


def test_of_a_rule():
    assert True


@pytest.mark.integration
def test_of_a_program():
    assert True


class TestGroup:
    @given(numbers())
    @settings()
    def test_of_an_invariant(self):
        assert True
"""


def test_a_function_counts_for_its_layer_and_the_rest_of_its_file_for_the_file(tmp_path: Path) -> None:
    write(tmp_path, "quota/test_rules.py", QUOTA)
    write(tmp_path, "server/test_run.py", "pytestmark = [pytest.mark.integration]\n\n\ndef test_run():\n    pass\n")
    tests, lines = counted(tmp_path)
    assert tests == {"unit: quota": 1, "integration": 2, "property": 1}
    assert lines == {"unit: quota": 10, "integration": 5, "property": 4, "unit: server": 3}


@pytest.mark.parametrize(
    ("path", "layer"),
    [
        ("conftest.py", "unit: shared"),
        ("quota/test_ledger.py", "unit: quota"),
        ("fuzz/test_fuzz.py", "property"),
        ("cluster/contract_reads.py", "conformance"),
        ("devices/test_conformance_fit.py", "conformance"),
        ("packaging/test_explore.py", "explorer"),
        ("website/test_site.py", "image and site"),
        ("e2e/test_bursts.py", "end-to-end"),
    ],
)
def test_the_layer_of_a_file(path: str, layer: str) -> None:
    assert layer_of(Path(path)) == layer


def test_every_line_is_in_one_row(tmp_path: Path) -> None:
    write(tmp_path, "quota/test_rules.py", QUOTA)
    *rows, total = ([int(cell.replace(",", "")) for cell in row.split("|")[2:-1]] for row in table(tmp_path, ROOT)[2:])
    assert [sum(column) for column in zip(*rows, strict=True)] == total
    assert total[:2] == [3, len(QUOTA.splitlines())]


def write(root: Path, path: str, text: str) -> None:
    file = root / "tests" / path
    file.parent.mkdir(parents=True)
    file.write_text(text)
