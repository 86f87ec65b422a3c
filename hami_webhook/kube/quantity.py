"""Exact `resource.Quantity` arithmetic.

The grammar, the rounding to nano units, the cap of binary values and the canonical text are those of
k8s.io/apimachinery/pkg/api/resource. Values are exact rationals; whole numbers stay Python integers.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from enum import Enum
from fractions import Fraction
from functools import lru_cache, total_ordering

from hami_webhook.kube.message_text import shown

MAX_INT64 = 2**63 - 1
_NANO = 10**9
_MAX_TEXT = 128
_MAX_EXPONENT = 1000

_GRAMMAR = re.compile(
    r"(?P<sign>[+-]?)(?P<whole>[0-9]*)(?:\.(?P<fraction>[0-9]*))?"
    r"(?P<suffix>Ki|Mi|Gi|Ti|Pi|Ei|[numkMGTPE]|[eE][+-]?[0-9]+)?",
    re.ASCII,
)
_DECIMAL_SUFFIX = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY_SUFFIX = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL_NAME = {power: suffix for suffix, power in _DECIMAL_SUFFIX.items()} | {0: ""}
_BINARY_NAME = {power: suffix for suffix, power in _BINARY_SUFFIX.items()} | {0: ""}


class Format(Enum):
    """How a quantity was written, which its canonical text keeps."""

    DECIMAL_SI = "DecimalSI"
    BINARY_SI = "BinarySI"
    DECIMAL_EXPONENT = "DecimalExponent"


class QuantityError(ValueError):
    """The text is no Kubernetes quantity."""


@total_ordering
@dataclass(frozen=True, slots=True, eq=False)
class Quantity:
    """An exact amount. Two quantities are equal if their values are, however they were written."""

    value: Fraction
    format: Format = field(default=Format.DECIMAL_SI)

    @classmethod
    def parse(cls, text: object) -> Quantity:
        """The quantity that `text` (a string, or a JSON number) denotes; raises `QuantityError`."""
        if isinstance(text, bool) or not isinstance(text, str | int | float):
            raise QuantityError(f"{shown(text)} is not a quantity")
        if isinstance(text, int):
            return cls(Fraction(text))
        written = repr(text) if isinstance(text, float) else text
        match = _GRAMMAR.fullmatch(written) if len(written) <= _MAX_TEXT else None
        if match is None or not (match["whole"] or match["fraction"]):
            raise QuantityError(f"{_short(written)} is not a quantity")
        fraction = match["fraction"] or ""
        value = Fraction(int((match["whole"] or "0") + fraction), 10 ** len(fraction))
        suffix = match["suffix"] or ""
        form = Format.DECIMAL_SI
        if suffix in _BINARY_SUFFIX:
            value *= 1 << _BINARY_SUFFIX[suffix]
            form = Format.BINARY_SI
        elif suffix in _DECIMAL_SUFFIX:
            value *= Fraction(10) ** _DECIMAL_SUFFIX[suffix]
        elif suffix:
            exponent = int(suffix[1:])
            if abs(exponent) > _MAX_EXPONENT:
                raise QuantityError(f"{_short(written)} has an exponent beyond ±{_MAX_EXPONENT}")
            value *= Fraction(10) ** exponent
            form = Format.DECIMAL_EXPONENT
        value = Fraction(math.ceil(value * _NANO), _NANO)
        if form is Format.BINARY_SI:
            value = min(value, Fraction(MAX_INT64))
            if 0 < value < 1:
                form = Format.DECIMAL_SI
        return cls(-value if match["sign"] == "-" else value, form)

    def whole(self) -> int | None:
        """The value as an integer, or None if it has a fraction."""
        return self.value.numerator if self.value.denominator == 1 else None

    def ceil(self) -> int:
        """The value rounded up to an integer, as Kubernetes' `Value()` does (away from zero below zero)."""
        return math.ceil(self.value) if self.value >= 0 else math.floor(self.value)

    def __eq__(self, other: object) -> bool:
        return self.value == other.value if isinstance(other, Quantity) else NotImplemented

    def __lt__(self, other: Quantity) -> bool:
        return self.value < other.value

    def __hash__(self) -> int:
        return hash(self.value)

    def __str__(self) -> str:
        """The canonical text: no fraction, the largest suffix that keeps the mantissa whole."""
        if self.format is Format.BINARY_SI and abs(self.value) >= 1024 and self.value.denominator == 1:
            mantissa = self.value.numerator
            power = 0
            while mantissa % 1024 == 0 and power < 60:
                mantissa //= 1024
                power += 10
            return f"{mantissa}{_BINARY_NAME[power]}"
        if self.value == 0:
            return "0"
        power = 0
        mantissa, denominator = self.value.numerator, self.value.denominator
        while denominator != 1:
            power -= 3
            scaled = self.value * Fraction(10) ** -power
            mantissa, denominator = scaled.numerator, scaled.denominator
        while mantissa % 1000 == 0:
            mantissa //= 1000
            power += 3
        if self.format is Format.DECIMAL_EXPONENT or power > 18:
            return f"{mantissa}e{power}" if power else str(mantissa)
        return f"{mantissa}{_DECIMAL_NAME[power]}"


def parse_whole(text: object) -> int | None:
    """The integer `text` denotes, or None if it is no quantity or has a fraction; `2k` is 2000."""
    if text is None:
        return None
    if isinstance(text, str) and text.isascii() and text.isdigit() and len(text) < 19:
        return int(text)
    if type(text) is int and abs(text) < 10**18:
        return text
    if isinstance(text, str) and len(text) < 19:
        return _whole(text)
    try:
        return Quantity.parse(text).whole()
    except QuantityError:
        return None


@lru_cache(maxsize=4096)
def _whole(text: str) -> int | None:
    """As `parse_whole`: the same few amounts come again and again, and the API server writes 2000 as `2k`."""
    try:
        return Quantity.parse(text).whole()
    except QuantityError:
        return None


def is_binary(text: object) -> bool:
    """Whether `text` is a quantity with a binary suffix, such as `16Gi`."""
    try:
        return Quantity.parse(text).format is Format.BINARY_SI
    except QuantityError:
        return False


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")
