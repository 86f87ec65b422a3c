"""Quantities, against the tables and rules of k8s.io/apimachinery/pkg/api/resource."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tables import in_one_test

from hami_webhook.kube.quantity import MAX_INT64, Format, Quantity, QuantityError, parse_whole

SI, BINARY, EXPONENT = Format.DECIMAL_SI, Format.BINARY_SI, Format.DECIMAL_EXPONENT


@in_one_test(
    ("text", "value", "form", "canonical"),
    [
        ("0", 0, SI, "0"),
        ("0n", 0, SI, "0"),
        ("0Ki", 0, BINARY, "0"),
        ("0e7", 0, EXPONENT, "0"),
        ("-0", 0, SI, "0"),
        ("000", 0, SI, "0"),
        ("5n", Fraction(5, 10**9), SI, "5n"),
        ("4u", Fraction(4, 10**6), SI, "4u"),
        ("3m", Fraction(3, 1000), SI, "3m"),
        ("9", 9, SI, "9"),
        ("8k", 8000, SI, "8k"),
        ("7M", 7 * 10**6, SI, "7M"),
        ("6G", 6 * 10**9, SI, "6G"),
        ("5T", 5 * 10**12, SI, "5T"),
        ("2P", 2 * 10**15, SI, "2P"),
        ("1E", 10**18, SI, "1E"),
        ("1Ki", 1024, BINARY, "1Ki"),
        ("7Mi", 7 << 20, BINARY, "7Mi"),
        ("6Gi", 6 << 30, BINARY, "6Gi"),
        ("5Ti", 5 << 40, BINARY, "5Ti"),
        ("4Pi", 4 << 50, BINARY, "4Pi"),
        ("3Ei", 3 << 60, BINARY, "3Ei"),
        ("1e3", 1000, EXPONENT, "1e3"),
        ("1E3", 1000, EXPONENT, "1e3"),
        ("1E+3", 1000, EXPONENT, "1e3"),
        ("1e-3", Fraction(1, 1000), EXPONENT, "1e-3"),
        ("12e2", 1200, EXPONENT, "1200"),
        ("1e4", 10**4, EXPONENT, "10e3"),
        ("100e-1", 10, EXPONENT, "10"),
        (".5", Fraction(1, 2), SI, "500m"),
        ("5.", 5, SI, "5"),
        ("+1", 1, SI, "1"),
        ("-1", -1, SI, "-1"),
        ("-1.5", Fraction(-3, 2), SI, "-1500m"),
        ("-2Ki", -2048, BINARY, "-2Ki"),
        ("0.5", Fraction(1, 2), SI, "500m"),
        ("0.0005k", Fraction(1, 2), SI, "500m"),
        ("100.035k", 100035, SI, "100035"),
        ("4000", 4000, SI, "4k"),
        ("12288", 12288, SI, "12288"),
        ("1001000", 1001000, SI, "1001k"),
        ("1000E", 10**21, SI, "1e21"),
        ("0.5Mi", 512 << 10, BINARY, "512Ki"),
        ("1.5Ki", 1536, BINARY, "1536"),
        ("0.5Ki", 512, BINARY, "512"),
        ("1000Ki", 1000 << 10, BINARY, "1000Ki"),
        ("1024Ki", 1 << 20, BINARY, "1Mi"),
        ("0.9765625Ki", 1000, BINARY, "1k"),
        ("1.0001Ki", Fraction(10241024, 10**4), BINARY, "1024102400u"),
        ("0.0001Ki", Fraction(1024, 10**4), SI, "102400u"),
        # rounded up, away from zero, to nano
        ("0.1n", Fraction(1, 10**9), SI, "1n"),
        ("1.1n", Fraction(2, 10**9), SI, "2n"),
        ("-0.1n", Fraction(-1, 10**9), SI, "-1n"),
        ("1e-20", Fraction(1, 10**9), EXPONENT, "1e-9"),
        # only binary values are capped
        ("8Ei", MAX_INT64, BINARY, "9223372036854775807"),
        ("-8Ei", -MAX_INT64, BINARY, "-9223372036854775807"),
        ("9223372036854775808", 2**63, SI, "9223372036854775808"),
        ("100E", 10**20, SI, "100E"),
    ],
)
def test_parse_and_canonical_text(text: str, value: Fraction | int, form: Format, canonical: str) -> None:
    quantity = Quantity.parse(text)
    assert quantity.value == value
    assert quantity.format is form
    assert str(quantity) == canonical


@pytest.mark.parametrize(
    ("number", "canonical"),
    [(0, "0"), (4000, "4k"), (-7, "-7"), (1.5, "1500m"), (1e16, "10e15"), (1e-7, "100e-9"), (2**70, str(2**70))],
)
def test_json_numbers(number: float, canonical: str) -> None:
    assert str(Quantity.parse(number)) == canonical


@in_one_test(
    "text",
    [
        *("", " ", "+", "-", ".", "+.", "-.", "e3", "1e", "1e+", "1E-", "1e3.5", "1 ", " 1", "1 Ki", "1_000", "1,5"),
        *("1K", "1ki", "1KI", "1kI", "1mi", "1i", ".5i", "-3.01i", "0.1am", "aoeu", "1.1.M", "1+1.0M", "1.1.1"),
        *(
            "--1",
            "+-1",
            "1-",
            "0x10",
            "1n1",
            "1kk",
            "1MiB",
            "1B",
            "1e3k",
            "1e1001",
            "1e-1001",
            "٣",
            "1\n",
            "NaN",
            "inf",
        ),
        *("1" * 129, "k" * 1000, True, False, None, [], {}, b"1", float("nan"), float("inf"), 1 + 0j),
    ],
)
def test_what_is_no_quantity(text: Any) -> None:
    with pytest.raises(QuantityError) as caught:
        Quantity.parse(text)
    assert len(str(caught.value)) < 100
    assert parse_whole(text) is None


@pytest.mark.parametrize(
    ("left", "right"),
    [("1", "1000m"), ("4k", "4000"), ("4k", "4e3"), ("1Ki", "1024"), ("0", "0Ki"), ("-0", "0"), ("1E3", "1k")],
)
def test_equal_values_are_equal_however_written(left: str, right: str) -> None:
    assert Quantity.parse(left) == Quantity.parse(right)
    assert hash(Quantity.parse(left)) == hash(Quantity.parse(right))
    assert Quantity.parse(left) != left


@pytest.mark.parametrize(
    ("text", "whole", "ceiling"),
    [
        ("5", 5, 5),
        ("1500m", None, 2),
        ("-1500m", None, -2),
        ("1000m", 1, 1),
        ("1n", None, 1),
        ("1Gi", 1 << 30, 1 << 30),
    ],
)
def test_whole_and_ceil(text: str, whole: int | None, ceiling: int) -> None:
    quantity = Quantity.parse(text)
    assert quantity.whole() == whole
    assert quantity.ceil() == ceiling
    assert type(quantity.ceil()) is int


@in_one_test(
    ("text", "whole"),
    [
        *(("0", 0), ("007", 7), ("2k", 2000), ("2.0", 2), ("1500m", None), ("-3", -3), (5, 5), (5.0, 5), (0.5, None)),
        *(("9" * 18, 10**18 - 1), ("9" * 19, 10**19 - 1), ("٣", None)),
    ],
)
def test_parse_whole(text: object, whole: int | None) -> None:
    found = parse_whole(text)
    assert found == whole
    assert type(found) is type(whole)


SUFFIXES = ("", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_digits = st.text("0123456789", min_size=1, max_size=12)
_suffix = st.sampled_from(SUFFIXES) | st.builds("{}{}".format, st.sampled_from(("e", "E", "e+")), st.integers(0, 30))
_texts = st.builds(
    "{}{}{}{}".format, st.sampled_from(("", "+", "-")), _digits, st.builds(".{}".format, _digits) | st.just(""), _suffix
)


@given(_digits, _digits, st.sampled_from([s for s in SUFFIXES if not s.endswith("i")]))
def test_decimal_values_are_exact_up_to_nano(whole: str, fraction: str, suffix: str) -> None:
    power = dict(zip(SUFFIXES, (0, -9, -6, -3, 3, 6, 9, 12, 15, 18), strict=False))[suffix]
    exact = Fraction(f"{whole}.{fraction}") * Fraction(10) ** power
    found = Quantity.parse(f"{whole}.{fraction}{suffix}").value
    assert 0 <= found - exact < Fraction(1, 10**9)
    if (exact * 10**9).denominator == 1:
        assert found == exact


@given(_texts, _texts)
def test_order_is_that_of_the_rationals(left: str, right: str) -> None:
    one, two = Quantity.parse(left), Quantity.parse(right)
    assert (one < two, one == two, one > two) == (one.value < two.value, one.value == two.value, one.value > two.value)


@given(st.integers())
def test_integers_stay_integers(number: int) -> None:
    assert Quantity.parse(number).whole() == number
    assert parse_whole(number) == number
