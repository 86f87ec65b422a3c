"""LabelSelectors match as Kubernetes matches them; what isn't one is refused."""

from typing import Any

import pytest
from pydantic import ValidationError
from tables import in_one_test

from hami_webhook.kube.selectors import LabelSelector, Requirement
from hami_webhook.policy.selectors import EVERYTHING, WrittenSelector

TIER = {"tier": "research"}


@in_one_test(
    ("requirement", "labels", "holds"),
    [
        (Requirement("tier", "In", ("research", "test")), TIER, True),
        (Requirement("tier", "In", ("test",)), TIER, False),
        (Requirement("tier", "In", ("",)), {}, False),
        (Requirement("tier", "In", ("",)), {"tier": ""}, True),
        (Requirement("tier", "NotIn", ("test",)), TIER, True),
        (Requirement("tier", "NotIn", ("research",)), TIER, False),
        (Requirement("tier", "NotIn", ("research",)), {}, True),
        (Requirement("tier", "Exists"), TIER, True),
        (Requirement("tier", "Exists"), {"tier": ""}, True),
        (Requirement("tier", "Exists"), {}, False),
        (Requirement("tier", "DoesNotExist"), TIER, False),
        (Requirement("tier", "DoesNotExist"), {}, True),
    ],
)
def test_one_requirement(requirement: Requirement, labels: dict[str, str], holds: bool) -> None:
    assert requirement.holds(labels) is holds
    assert LabelSelector((requirement,)).matches(labels) is holds


def test_all_requirements_must_hold_and_none_hold_for_everything() -> None:
    both = LabelSelector((Requirement("tier", "Exists"), Requirement("old", "DoesNotExist")))
    assert both.matches(TIER)
    assert not both.matches({**TIER, "old": "yes"})
    assert EVERYTHING.matches({})
    assert EVERYTHING.matches(TIER)


def test_labels_and_expressions_are_read_together() -> None:
    written = WrittenSelector.model_validate(
        {
            "matchLabels": {"example.com/tier": "research", "empty": ""},
            "matchExpressions": [
                {"key": "zone", "operator": "NotIn", "values": ["a", "b"]},
                {"key": "gpu", "operator": "Exists"},
                {"key": "old", "operator": "DoesNotExist", "values": []},
            ],
        }
    )
    assert written.selector() == LabelSelector(
        (
            Requirement("example.com/tier", "In", ("research",)),
            Requirement("empty", "In", ("",)),
            Requirement("zone", "NotIn", ("a", "b")),
            Requirement("gpu", "Exists"),
            Requirement("old", "DoesNotExist"),
        )
    )
    assert WrittenSelector.model_validate({}).selector() == EVERYTHING


@in_one_test(
    ("written", "sentence"),
    [
        ({"matchLabels": {"a b": "x"}}, "must be a label's key such as tier or example.com/tier, found the text"),
        ({"matchLabels": {"/a": "x"}}, "must be a label's key"),
        ({"matchLabels": {"a": True}}, "must be text, found true; put it in quotes"),
        ({"matchLabels": {"a": "x y"}}, "must be a label's value (at most 63 letters, digits, -, _ or .), found"),
        ({"matchLabels": {"a": "x" * 64}}, "must be a label's value"),
        ({"matchExpressions": [{"key": 1, "operator": "Exists"}]}, "must be a label's key"),
        ({"matchExpressions": [{"key": "a", "operator": "in"}]}, "must be In, NotIn, Exists or DoesNotExist, found"),
        (
            {"matchExpressions": [{"key": "a", "operator": "In"}]},
            "In must have at least one item in values, found none",
        ),
        ({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": []}]}, "NotIn must have at least one item"),
        (
            {"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]},
            "Exists must have no values, found 1",
        ),
        ({"matchExpressions": [{"key": "a", "operator": "DoesNotExist", "values": ["b"]}]}, "must have no values"),
        ({"matchExpressions": [{"key": "a", "operator": "In", "values": [1]}]}, "must be text, found 1"),
    ],
)
def test_what_is_no_selector_is_refused(written: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValidationError) as refused:
        WrittenSelector.model_validate(written)
    assert [error["msg"] for error in refused.value.errors() if sentence in error["msg"]]
