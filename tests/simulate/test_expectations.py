"""What is written about a result against what came out: docs/spec/cli.md#test."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tables import in_one_test

from hami_webhook.simulate.expectations import Absent, as_written, differences

SCALARS = st.none() | st.booleans() | st.integers(0, 2) | st.sampled_from(["", "a", "ab"])
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "b", "name", "namespace"]), inner, max_size=3)
        | st.lists(st.fixed_dictionaries({"name": st.sampled_from(["x", "y"])}, optional={"a": inner}), max_size=3)
    ),
    max_leaves=8,
)


@in_one_test(
    ("expected", "actual", "differing", "exactly_differing"),
    [
        ({}, {"a": 1}, [], [("a",)]),
        ({"a": 1}, {"a": 1, "b": 2}, [], [("b",)]),
        ({"a": 1}, {"a": 2}, [("a",)], [("a",)]),
        ({"a": 1}, {"a": True}, [("a",)], [("a",)]),
        ({"a": 0.5, "b": 2}, {"a": 0.5, "b": 2.0}, [], []),
        ({"a": "1"}, {"a": 1}, [("a",)], [("a",)]),
        ({"a": {"b": 1}}, {"a": None}, [("a",)], [("a",)]),
        ({"a": None}, {}, [("a",)], [("a",)]),
        ({"a": []}, {"a": ["x"]}, [("a",)], [("a",)]),
        ({"a": []}, {"a": [{"name": "x"}]}, [("a",)], [("a",)]),
        ({"a": [1, 2]}, {"a": [1, 3]}, [("a", 1)], [("a", 1)]),
        ({"a": [{"b": 1}]}, {"a": [{"b": 1, "c": 2}]}, [], [("a", 0, "c")]),
        ([{"name": "y"}], [{"name": "x"}, {"name": "y"}], [], [()]),
        ([{"name": "y"}, {"name": "x"}], [{"name": "x"}, {"name": "y"}], [], [()]),
        ([{"name": "z"}], [{"name": "x"}], [("z",)], [("z",), ()]),
        ([{"name": "x", "a": 1}], [{"name": "x", "a": 2}], [("x", "a")], [("x", "a")]),
        ([{"name": "x", "namespace": "n", "a": 1}], [{"name": "x", "namespace": "n", "a": 1}], [], []),
        ([{"name": "x", "namespace": "n"}], [{"name": "x", "namespace": "m"}], [("n/x",)], [("n/x",), ()]),
        ([{"name": "x", "a": 1}, {"name": "x", "a": 2}], [{"name": "x", "a": 1}, {"name": "x", "a": 2}], [], []),
        ({"contains": "quota"}, "exceeded quota", [], []),
        ({"contains": "quota"}, "", [()], [()]),
        ({"contains": "quota"}, None, [()], [()]),
        ({"contains": "quota"}, {"contains": "quota"}, [], []),
    ],
)
def test_what_differs_is_named(expected: Any, actual: Any, differing: list[Any], exactly_differing: list[Any]) -> None:
    assert [each.named_path for each in differences(expected, actual, exact=False)] == differing
    assert [each.named_path for each in differences(expected, actual, exact=True)] == exactly_differing


@pytest.mark.parametrize(
    ("expected", "actual", "shown"),
    [
        ({"nodes": "a"}, {"node": "b"}, "nothing of that name (did you mean node?)"),
        ([{"name": "train-l"}], [{"name": "train-1"}], "nothing of that name (did you mean train-1?)"),
        ({"a": 1}, {}, "nothing of that name"),
    ],
)
def test_a_name_that_came_out_as_another_is_proposed(expected: Any, actual: Any, shown: str) -> None:
    (found,) = differences(expected, actual, exact=False)
    assert found.actual == Absent(shown)


@given(VALUES, VALUES)
def test_what_is_written_anew_is_as_expected(expected: Any, actual: Any) -> None:
    assert list(differences(as_written(expected, actual, exact=True), actual, exact=True)) == []
    left = differences(as_written(expected, actual, exact=False), actual, exact=False)
    assert all(isinstance(each.actual, Absent) for each in left), "only names that nothing came out under"


@given(VALUES)
def test_what_came_out_is_written_as_it_is(actual: Any) -> None:
    assert list(differences(actual, actual, exact=True)) == []
    assert as_written({}, actual, exact=True) == actual
    assert as_written(actual, actual, exact=False) == actual
