"""The values of the Helm chart hami-daemon (`manifests/hami-daemon/values.yaml`): see `chart_values.py`."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from hack.chart_values import Affinity, OptionalName, PullPolicy, Resources, Tag, Toleration

Repository = Annotated[str, Field(pattern=r"^[a-z0-9.-]+(:[0-9]+)?(/[a-z0-9._-]+)*$")]
"""The registry, if any, is in it, as in Koordinator's chart."""


class _Values(BaseModel):
    model_config = ConfigDict(extra="forbid", alias_generator=to_camel)


class CoreImage(_Values):
    repository: Repository
    tag: Annotated[Tag, Field(min_length=1)]


class MonitorImage(_Values):
    repository: Repository
    tag: Tag


class HamiCore(_Values):
    libvgpu_so_version: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    image: CoreImage
    image_pull_policy: PullPolicy
    resources: Resources


class VgpuMonitor(_Values):
    enabled: bool
    image: MonitorImage
    image_pull_policy: PullPolicy
    legacy_metrics: bool
    resources: Resources
    runtime_class_name: OptionalName


class Daemon(_Values):
    affinity: Affinity
    tolerations: list[Toleration]
    hami_core: HamiCore
    vgpu_monitor: VgpuMonitor


class DaemonValues(_Values):
    """Values of the chart hami-daemon."""

    daemon: Daemon
