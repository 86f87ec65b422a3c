"""Kubernetes' LabelSelector (`meta/v1`): how it matches labels.

All requirements must hold; a selector without any matches everything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, cast, get_args

from msgspec import Struct

from hami_webhook.kube import wire

Operator = Literal["In", "NotIn", "Exists", "DoesNotExist"]


class Requirement(Struct, frozen=True):
    """One expression of a selector; `values` is empty for Exists and DoesNotExist."""

    key: str
    operator: Operator
    values: tuple[str, ...] = ()

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Whether `labels` satisfy the expression. A label that isn't there satisfies NotIn."""
        match self.operator:
            case "In":
                return self.key in labels and labels[self.key] in self.values
            case "NotIn":
                return self.key not in labels or labels[self.key] not in self.values
            case "Exists":
                return self.key in labels
            case "DoesNotExist":
                return self.key not in labels


class LabelSelector(Struct, frozen=True):
    """Requirements that must all hold."""

    requirements: tuple[Requirement, ...] = ()

    @classmethod
    def from_wire(cls, selector: wire.LabelSelectorObject) -> LabelSelector:
        """A selector from its JSON. Raises `MalformedObject`."""
        requirements = [Requirement(key, "In", (label,)) for key, label in (selector.match_labels or {}).items()]
        for each in selector.match_expressions or ():
            if each.operator not in get_args(Operator):
                text = f"operator must be one of {', '.join(get_args(Operator))}, not {each.operator}"
                raise wire.MalformedObject(text)
            requirements.append(Requirement(each.key, cast("Operator", each.operator), each.values or ()))
        return cls(tuple(requirements))

    def matches(self, labels: Mapping[str, str]) -> bool:
        return all(requirement.holds(labels) for requirement in self.requirements)
