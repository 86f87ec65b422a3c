"""Tests of the port to a cluster: one contract for every implementation, and what each has of its own."""

import pytest

pytest.register_assert_rewrite(f"{__name__}.contract_reads", f"{__name__}.contract_writes")
