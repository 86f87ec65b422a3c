"""Memory as people read it: in Gi, below 1Gi in Mi."""

from __future__ import annotations

_MEBIBYTE = 2**20
_GIBIBYTE = 2**30


def human_memory(size: int, *, at_least: bool = False) -> str:
    """Bytes as `40Gi`, `23.4Gi` or `1000Mi`, with at most one decimal; what is below 1Mi is `0Mi`.

    `at_least` rounds down, so that what is shown is there.
    """
    if size < _GIBIBYTE:
        return f"{size // _MEBIBYTE if at_least else round(size / _MEBIBYTE)}Mi"
    whole, tenth = divmod(size * 10 // _GIBIBYTE if at_least else round(10 * size / _GIBIBYTE), 10)
    return f"{whole}.{tenth}Gi" if tenth else f"{whole}Gi"


def human_amount(amount: int, unit_bytes: int | None) -> str:
    """An amount of units of so many bytes: memory as `human_memory` has it from 1Mi on, other amounts as numbers."""
    size = amount * (unit_bytes or 0)
    return human_memory(size) if size >= _MEBIBYTE else str(amount)


def human_mebibytes(mebibytes: int) -> str:
    """Mebibytes as `human_memory` has them."""
    return human_memory(mebibytes * _MEBIBYTE)


def exact_memory(mebibytes: int) -> str:
    """What a person reads, with what is written in limits: `23.4Gi (24000 MiB)`, `500Mi`."""
    text = human_mebibytes(mebibytes)
    return f"{text} ({mebibytes} MiB)" if text.endswith("Gi") else text


def needed_and_free(needed: int, free: int) -> tuple[str, str]:
    """Two amounts in mebibytes, exact where they would look the same."""
    words = human_mebibytes(needed), human_mebibytes(free)
    return words if len({*words}) == 2 else (exact_memory(needed), exact_memory(free))
