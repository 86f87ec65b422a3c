"""The file that names more kinds that pods are made of. Source: docs/spec/cli.md#workloads."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from hami_webhook.config import parse_yaml, read_text
from hami_webhook.config.fields import Flag, Text, checked, refuse
from hami_webhook.config.yaml_source import refusal, validated
from hami_webhook.kube.message_text import found
from hami_webhook.simulate.workload_kinds import (
    BUILTIN,
    FIELD,
    LONGEST_PATH,
    PATH,
    Count,
    PodSource,
    WorkloadKind,
    WorkloadTable,
)

_KIND, _GROUP = r"[A-Z][A-Za-z0-9]{0,62}", r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?)?"


def _matching(pattern: str, longest: int, wanted: str) -> BeforeValidator:
    fits = re.compile(pattern).fullmatch

    def check(value: object) -> object:
        if not isinstance(value, str) or len(value) > longest or not fits(value):
            refuse(f"must be {wanted}, found {found(value)}")
        return value

    return checked(check, type="string", pattern=f"^{pattern}$", maxLength=longest)


_Field = Annotated[str, _matching(FIELD, LONGEST_PATH, "a field such as template or spec.template")]
_Path = Annotated[str, _matching(PATH, LONGEST_PATH, "a path such as spec, spec.workers[] or spec.replicaSpecs.*")]
_Kind = Annotated[str, _matching(_KIND, 63, "a kind such as RayCluster")]
_Group = Annotated[str, _matching(_GROUP, 253, "an API group such as ray.io, or empty for the core one")]


class _WrittenPart(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class WrittenPods(_WrittenPart):
    """Some of a kind's pods."""

    at: _Path = "spec"
    template: _Field | None = None
    pod_spec: Flag = Field(default=False, alias="podSpec")
    containers: tuple[_Field, ...] = ()
    replicas: tuple[_Field, ...] = ()

    def source(self) -> PodSource:
        template = self.template or ("" if self.pod_spec or self.containers else "template")
        return PodSource(
            self.at,
            template=(template,) if template else (),
            pod_spec=self.pod_spec,
            containers=self.containers,
            container="main" if self.containers else "",
            counts=tuple([Count(field) for field in self.replicas]),
        )


class WrittenKind(_WrittenPart):
    """A kind, with what pods are made of it."""

    api_group: _Group = Field(alias="apiGroup")
    kind: _Kind
    pods: tuple[WrittenPods, ...] = ()
    not_served: Text = Field(default="", alias="notServed")


class WorkloadFile(_WrittenPart):
    """The whole file."""

    workloads: tuple[WrittenKind, ...]


def read_workload_table(path: str | None) -> WorkloadTable:
    """The known kinds and those of a file, if there is one. Raises ConfigError with every fault."""
    return BUILTIN if path is None else parse_workload_table(read_text(path), path)


def parse_workload_table(text: str, source: str) -> WorkloadTable:
    """The known kinds and those of a text; `source` is what messages call it. Raises ConfigError with every fault."""
    file = parse_yaml(text, source)
    written = validated(file, WorkloadFile)
    faults = [
        (("workloads", index), "must have pods, or notServed with the reason")
        for index, kind in enumerate(written.workloads)
        if not (kind.pods or kind.not_served)
    ]
    if faults:
        raise refusal(file, faults)
    return WorkloadTable(
        {
            (each.api_group, each.kind): WorkloadKind(
                tuple([pods.source() for pods in each.pods]), not_served=each.not_served
            )
            for each in written.workloads
        }
    )
