"""Kubernetes' LabelSelector (`meta/v1`, `kube/selectors.py`) read from a file."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from hami_webhook.config.fields import NAME, checked, is_qualified, one_of, refuse
from hami_webhook.kube.message_text import found
from hami_webhook.kube.names import SUBDOMAIN, is_label_value
from hami_webhook.kube.selectors import LabelSelector, Operator, Requirement

EVERYTHING = LabelSelector()


def _label_key(value: object) -> str:
    if not isinstance(value, str) or not is_qualified(value):
        refuse(f"must be a label's key such as tier or example.com/tier, found {found(value)}")
    return value


def _label_value(value: object) -> str:
    if not isinstance(value, str):
        refuse(f"must be text, found {found(value)}; put it in quotes")
    if not is_label_value(value):
        refuse(f"must be a label's value (at most 63 letters, digits, -, _ or .), found {found(value)}")
    return value


LabelKey = Annotated[str, checked(_label_key, type="string", pattern=f"^({SUBDOMAIN}/)?{NAME}$")]


LabelValue = Annotated[str, checked(_label_value, type="string", pattern=f"^({NAME})?$", maxLength=63)]


class WrittenExpression(BaseModel):
    """One item of `matchExpressions` in a file."""

    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid")

    key: LabelKey
    operator: Annotated[Operator, one_of("In", "NotIn", "Exists", "DoesNotExist")]
    values: tuple[LabelValue, ...] = ()

    @model_validator(mode="after")
    def _values_fit_the_operator(self) -> Self:
        if self.operator in ("In", "NotIn") and not self.values:
            refuse(f"{self.operator} must have at least one item in values, found none")
        if self.operator in ("Exists", "DoesNotExist") and self.values:
            refuse(f"{self.operator} must have no values, found {len(self.values)}")
        return self


class WrittenSelector(BaseModel):
    """A LabelSelector in a file."""

    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid")

    match_labels: dict[LabelKey, LabelValue] = Field(default={}, alias="matchLabels")
    match_expressions: tuple[WrittenExpression, ...] = Field(default=(), alias="matchExpressions")

    def selector(self) -> LabelSelector:
        """The selector; a label to match is an `In` with one value."""
        return LabelSelector(
            (
                *(Requirement(key, "In", (value,)) for key, value in self.match_labels.items()),
                *(Requirement(item.key, item.operator, item.values) for item in self.match_expressions),
            )
        )
