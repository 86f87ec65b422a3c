"""The amounts that quotas have in text, as whole numbers in their units."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from hami_webhook.kube.quantity import Quantity, QuantityError, is_binary
from hami_webhook.kube.quota_fields import Lending


def rounded(written: Mapping[str, Any], keys: Iterable[str], *, up: bool) -> dict[str, int]:
    """The amounts of the keys as integers; limits are rounded down, as a fraction of a unit can't be used."""
    texts = ((key, written[key]) for key in keys)
    return {key: _bounds(text if isinstance(text, str) else repr(text))[up] for key, text in texts}


def nominal_of(lending: Lending, hard: Mapping[str, int]) -> dict[str, int]:
    """What a quota has of its own; never more than hard."""
    own = rounded(lending.nominal, [key for key in lending.nominal if key in hard], up=False)
    return {key: max(0, min(amount, hard[key])) for key, amount in own.items()}


@lru_cache(maxsize=4096)
def _bounds(text: str) -> tuple[int, int]:
    """An amount rounded down and up; 0 for what is none.

    The same amounts come again with each version of a quota, and reading them was two thirds of reading it.
    """
    try:
        quantity = Quantity.parse(text)
    except QuantityError:
        return 0, 0
    return quantity.value.numerator // quantity.value.denominator, quantity.ceil()


def same_unit(written: Mapping[str, Any], hard: Mapping[str, Any]) -> list[str]:
    """Return the keys of `hard` whose amounts are written in bytes in both, or in neither."""
    return [key for key in hard if key in written and is_binary(str(written[key])) == is_binary(str(hard[key]))]
