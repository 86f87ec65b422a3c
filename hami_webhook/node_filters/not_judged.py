"""The plugins of kube-scheduler that may refuse a pod and aren't evaluated, because we don't read their input."""

from __future__ import annotations

from collections.abc import Iterator

from hami_webhook.kube import scheduling_wire as scheduling
from hami_webhook.node_filters.pod_info import PodInfo
from hami_webhook.node_filters.result import NotJudged

_VOLUMES = "VolumeBinding, VolumeZone, VolumeRestrictions, NodeVolumeLimits"


def plugins_not_judged(pod: PodInfo) -> Iterator[NotJudged]:
    """The plugins that the pod's own spec concerns."""
    spec = pod.spec
    volumes = spec.volumes or ()
    if any(each.persistent_volume_claim or each.ephemeral for each in volumes):
        yield NotJudged(_VOLUMES, "whether its persistent volumes can be used on a node isn't known here")
    elif any(map(_is_limited, volumes)):
        yield NotJudged("VolumeRestrictions, NodeVolumeLimits", "the volumes that a node can attach aren't known here")
    if spec.resource_claims:
        yield NotJudged("DynamicResources", "the devices of its ResourceClaims aren't known here")
    containers = (*(spec.init_containers or ()), *(spec.containers or ()))
    if (spec.host_network and spec.host_users is False) or any(map(_restarts_all, containers)):
        yield NotJudged("NodeDeclaredFeatures", "which features a node's kubelet declares isn't known here")


def _is_limited(volume: scheduling.Volume) -> bool:
    return any(getattr(volume, name) is not None for name in volume.__struct_fields__)


def _restarts_all(container: scheduling.Container) -> bool:
    return any(rule.action == "RestartAllContainers" for rule in container.restart_policy_rules or ())
