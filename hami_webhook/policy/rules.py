"""The rules of the policy file as values: which pods a rule matches, and what it requires of them."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Annotated, ClassVar, Self

from msgspec import Struct
from pydantic import BaseModel, ConfigDict, Field, model_validator

from hami_webhook.config.fields import NAME, checked, is_qualified, one_of, refuse
from hami_webhook.devices.pod_preferences import GPU_POLICY, NODE_POLICY, WEIGHTS
from hami_webhook.kube.message_text import found
from hami_webhook.kube.names import SUBDOMAIN, is_label_value
from hami_webhook.kube.objects import Namespace
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


GENERAL_CHOICES = (GPU_POLICY, NODE_POLICY, WEIGHTS)
"""The choice keys that apply to every vendor's cards."""

NAMESPACE = "namespace"
"""The name of the Namespace's own annotations in `Changes.rules`; no rule may have it."""


class DeviceBounds(Struct, frozen=True):
    """A rule's lists for one vendor's cards; an empty allow list is no constraint."""

    allow_uuids: tuple[str, ...] = ()
    deny_uuids: tuple[str, ...] = ()
    allow_types: tuple[str, ...] = ()
    deny_types: tuple[str, ...] = ()


class PolicyRule(Struct, frozen=True):
    """One rule of the policy file. No namespaces: every one; `devices` has bounds by backend key. `deny_env` are the
    environment variables that no container of a pod with cards may set.
    """

    name: str
    namespaces: tuple[str, ...] = ()
    namespace_selector: LabelSelector = EVERYTHING
    pod_selector: LabelSelector = EVERYTHING
    default: Mapping[str, str] = {}
    enforce: Mapping[str, str] = {}
    devices: Mapping[str, DeviceBounds] = {}
    scheduler_name: str | None = None
    deny_env: frozenset[str] = frozenset()

    def matches(self, namespace: Namespace, pod_labels: Mapping[str, str]) -> bool:
        """Whether the rule matches pods with these labels in this namespace: all its parts must match."""
        return (
            (not self.namespaces or any(fnmatchcase(namespace.name, glob) for glob in self.namespaces))
            and self.namespace_selector.matches(namespace.labels)
            and self.pod_selector.matches(pod_labels)
        )


class PolicyRules(Struct, frozen=True):
    """The rules of the policy file, in its order."""

    rules: tuple[PolicyRule, ...] = ()
    EMPTY: ClassVar[PolicyRules]

    def matching(self, namespace: Namespace, pod_labels: Mapping[str, str]) -> tuple[PolicyRule, ...]:
        return tuple([rule for rule in self.rules if rule.matches(namespace, pod_labels)])


PolicyRules.EMPTY = PolicyRules()
