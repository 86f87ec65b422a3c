"""Amounts as people say them."""

from __future__ import annotations

import pytest

from hami_webhook.devices.keys import MEBIBYTE
from hami_webhook.kube.human_memory import human_amount, needed_and_free
from hami_webhook.kubectl.tables import amounts_text


@pytest.mark.parametrize(
    ("amount", "unit_bytes", "text"),
    [
        (4, 0, "4"),
        (16384, MEBIBYTE, "16Gi"),
        (20000, MEBIBYTE, "19.5Gi"),
        (1023, MEBIBYTE, "1023Mi"),
        (0, MEBIBYTE, "0"),
        (40 << 30, 1, "40Gi"),
        (1000, 1, "1000"),
        (400, 256 * MEBIBYTE, "100Gi"),
        (327680, MEBIBYTE, "320Gi"),
    ],
)
def test_memory_is_said_in_gi_and_counts_are_numbers(amount: int, unit_bytes: int, text: str) -> None:
    assert human_amount(amount, unit_bytes) == text


def test_amounts_that_look_the_same_are_said_exactly() -> None:
    assert needed_and_free(24000, 12000) == ("23.4Gi", "11.7Gi")
    assert needed_and_free(24000, 23990) == ("23.4Gi (24000 MiB)", "23.4Gi (23990 MiB)")
    assert needed_and_free(500, 499) == ("500Mi", "499Mi")


def test_costs_are_said_by_resource() -> None:
    units = {"limits.nvidia.com/gpumem": MEBIBYTE}
    costs = {"limits.nvidia.com/gpu": 2, "limits.nvidia.com/gpumem": 24000}
    assert amounts_text(costs, units.get) == "nvidia.com/gpu=2, nvidia.com/gpumem=23.4Gi"
    assert amounts_text({}, units.get) == "-"
