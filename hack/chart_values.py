"""The values of the Helm chart (`manifests/chart/values.yaml`), from which its `values.schema.json` is rendered.

There are no defaults here: values.yaml has them all. So a value that somebody sets to null is refused as missing
before a template stumbles over it.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from hami_webhook.config.setting_values import CARD_POLICIES
from hami_webhook.policy.file import WrittenRule
from hami_webhook.policy.selectors import WrittenSelector

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"

Name = Annotated[str, Field(pattern=rf"^{_SUBDOMAIN}$", max_length=253)]
"""As names of objects and schedulers are: a DNS-1123 subdomain."""
OptionalName = Annotated[str, Field(pattern=rf"^({_SUBDOMAIN})?$", max_length=253)]
Registry = Annotated[str, Field(pattern=r"^([A-Za-z0-9.-]+(:[0-9]+)?(/[a-z0-9._-]+)*)?$")]
Repository = Annotated[str, Field(pattern=r"^[a-z0-9]+([._/-]+[a-z0-9]+)*$")]
Tag = Annotated[str, Field(pattern=r"^([A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?$")]
PullPolicy = Literal["Always", "IfNotPresent", "Never"]
Quantity = (
    Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$")]
    | Annotated[float, Field(ge=0)]
)
Quantities = dict[str, Quantity]
Replicas = Annotated[int, Field(ge=1, le=100)]
ServiceAccount = Annotated[str, Field(pattern=rf"^{_LABEL}/{_SUBDOMAIN}$")]
UserName = Annotated[str, Field(pattern=r"^[^\s,*]+$", max_length=253)]
_IPV4 = r"[0-9]{1,3}(\.[0-9]{1,3}){3}/([0-9]|[12][0-9]|3[0-2])"
_IPV6 = r"[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*/([0-9]|[1-9][0-9]|1[01][0-9]|12[0-8])"
Cidr = Annotated[str, Field(pattern=rf"^({_IPV4}|{_IPV6})$")]
Interval = Annotated[str, Field(pattern=r"^[0-9]+(ms|s|m|h)$")]
NodePolicy = Literal["", "binpack", "spread"]
_CARD_POLICY = "|".join(map(re.escape, CARD_POLICIES))
CardPolicies = Annotated[str, Field(pattern=rf"^(({_CARD_POLICY})(,({_CARD_POLICY}))*)?$")]
Argument = Annotated[str, Field(pattern=r"^-")]


class _Values(BaseModel):
    model_config = ConfigDict(extra="forbid", alias_generator=to_camel)


class Global(BaseModel):
    """Values that a parent chart hands to every chart below it, so there may be more of them."""

    model_config = ConfigDict(alias_generator=to_camel)

    image_registry: Registry
    image_pull_secrets: list[Name]
    image_tag: Tag


class Image(_Values):
    registry: Registry
    repository: Repository
    tag: Tag
    pull_policy: PullPolicy


class Switch(_Values):
    enabled: bool


class Devices(_Values):
    ascend: Switch
    iluvatar: Switch


class DropIn(_Values):
    enabled: bool
    scheduler_service_account: ServiceAccount
    device_plugin_service_account: ServiceAccount


class Claims(_Values):
    enabled: bool
    pod_failure_policy: Literal["Fail", "Ignore"]
    mode: Literal["off", "labelled", "convert"]


class StampedKinds(_Values):
    api_groups: list[str] = Field(min_length=1)
    api_versions: list[str] = ["*"]
    resources: list[Annotated[str, Field(pattern=r"^[a-z0-9]+$")]] = Field(min_length=1)


class SubmittedBy(_Values):
    enabled: bool
    controllers: list[UserName]
    portals: list[UserName]
    workloads: list[StampedKinds]
    namespace_selector: WrittenSelector


class PlaceholderImage(_Values):
    registry: Registry
    repository: Repository
    tag: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$")]


class Placeholders(_Values):
    enabled: bool
    max: int = Field(ge=1, le=100)
    max_per_group: int = Field(ge=1, le=100)
    timeout: Interval
    image: PlaceholderImage


class ResourceClaim(_Values):
    name: Name
    request: str = ""


class Resources(_Values):
    requests: Quantities = {}
    limits: Quantities = {}
    claims: list[ResourceClaim] = []


class Toleration(_Values):
    key: str = ""
    operator: Literal["Exists", "Equal", "Lt", "Gt"] = "Equal"
    value: str = ""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""
    toleration_seconds: int = 0


class Affinity(_Values):
    node_affinity: dict[str, Any] = {}
    pod_affinity: dict[str, Any] = {}
    pod_anti_affinity: dict[str, Any] = {}


class Placed(_Values):
    """Where pods run."""

    priority_class_name: OptionalName
    node_selector: dict[str, str]
    tolerations: list[Toleration]
    affinity: Affinity


class Replicated(Placed):
    """Where the pods of a Deployment run, and how many."""

    replicas: Replicas


class Component(Replicated):
    resources: Resources
    extra_args: list[Argument]


class NodeMonitor(_Values):
    enabled: bool
    hook_path: Annotated[str, Field(pattern=r"^(/[A-Za-z0-9._-]+)+$")]
    priority_feedback: bool


class NodeProbe(Placed):
    enabled: bool
    monitor: NodeMonitor
    resources: Resources
    extra_args: list[Argument]
    runtime_class_name: OptionalName


class Usage(Placed):
    enabled: bool
    resources: Resources
    extra_args: list[Argument]


class DefaultSchedulerPolicy(_Values):
    node_scheduler_policy: NodePolicy
    gpu_scheduler_policy: CardPolicies


class KubeScheduler(_Values):
    image: Image
    resources: Resources
    extra_args: list[Argument]


class Extender(_Values):
    resources: Resources
    extra_args: list[Argument]


class AdmissionWebhook(_Values):
    failure_policy: Literal["Fail", "Ignore"]
    reinvocation_policy: Literal["IfNeeded", "Never"]
    whitelist_namespaces: list[Annotated[str, Field(pattern=rf"^{_LABEL}$", max_length=63)]]
    namespace_selector: WrittenSelector
    object_selector: WrittenSelector


class Scheduler(Replicated):
    leader_elect: bool
    default_scheduler_policy: DefaultSchedulerPolicy
    force_overwrite_default_scheduler: bool
    preemption: Literal["off", "dry-run", "on"]
    kube_scheduler: KubeScheduler
    extender: Extender
    admission_webhook: AdmissionWebhook
    cert_manager: Switch


class Prometheus(_Values):
    namespace_selector: WrittenSelector
    pod_selector: WrittenSelector


class Labelled(Switch):
    labels: dict[str, str]


class Monitor(Labelled):
    interval: Interval


class Rule(Labelled):
    runbooks: Annotated[str, Field(min_length=1, pattern=r"[^/]$")]


class Values(_Values):
    """Values of the chart hami-webhook."""

    scheduler_name: Name
    global_: Annotated[Global, Field(alias="global")]
    image: Image
    device_config: dict[str, Any] | str | None = None
    policies: list[WrittenRule]
    devices: Devices
    api_server_cidrs: Annotated[list[Cidr], Field(alias="apiServerCIDRs")]
    device_plugin_service_accounts: list[ServiceAccount]
    drop_in: DropIn
    claims: Claims
    submitted_by: SubmittedBy
    placeholders: Placeholders
    webhook: Component
    controller: Component
    node: NodeProbe
    usage: Usage
    scheduler: Scheduler
    prometheus: Prometheus
    service_monitor: Monitor
    pod_monitor: Monitor
    prometheus_rule: Rule
    dashboards: Labelled
