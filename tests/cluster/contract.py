"""The contract suite: every case, for each implementation of the cluster port to run through `parametrize`."""

from __future__ import annotations

from . import contract_reads, contract_writes
from .harness import CASES, Case, Harness

__all__ = ["CASES", "Case", "Harness", "contract_reads", "contract_writes"]
