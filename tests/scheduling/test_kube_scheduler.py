"""What kube-scheduler leaves to the extender, by the device configuration."""

from __future__ import annotations

import pytest
import yaml

from hami_webhook.config import ConfigError
from hami_webhook.device_config import builtin_device_config, enabled_vendors, load_device_config
from hami_webhook.scheduling.kube_scheduler import fill_in

BASE = """\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: hami-scheduler
extenders:
- urlPrefix: https://other
  managedResources:
  - name: acme.com/fpga
- urlPrefix: http://127.0.0.1:8081
"""


def managed(device_config: str) -> list[object]:
    """The managedResources of each extender, for a device configuration."""
    vendors = enabled_vendors(load_device_config(device_config, "device-config.yaml").config)
    filled = yaml.safe_load(fill_in(BASE, "base.yaml", vendors))
    assert filled["profiles"] == [{"schedulerName": "hami-scheduler"}]
    return [extender.get("managedResources") for extender in filled["extenders"]]


def test_kube_scheduler_leaves_to_us_what_the_configuration_names() -> None:
    device_config = "nvidia: {resourceCountName: hami.io/gpu, resourceMemoryName: hami.io/gpumem}"
    ours = [{"name": name, "ignoredByScheduler": True} for name in ("hami.io/gpu", "hami.io/gpumem")]
    assert managed(device_config) == [[{"name": "acme.com/fpga"}], ours]


def test_kube_scheduler_keeps_counting_what_kubelet_counts_in_the_same_units() -> None:
    vendors = enabled_vendors(builtin_device_config().config)
    assert vendors.own_names - vendors.ignored_by_scheduler == {
        *("mthreads.com/sgpu-memory", "mthreads.com/sgpu-core"),
        *("cambricon.com/mlu.smlu.vmemory", "cambricon.com/mlu.smlu.vcore"),
        "enflame.com/shared-gcu",
    }
    renamed = "mthreads: {resourceCountName: a.io/gpu, resourceMemoryName: a.io/mem, resourceCoreName: a.io/core}"
    assert managed(renamed)[1] == [{"name": "a.io/gpu", "ignoredByScheduler": True}]


def test_without_resources_of_ours_no_pod_is_sent_to_the_extender() -> None:
    assert managed("koordinator: {enabled: true}") == [[{"name": "acme.com/fpga"}]]


@pytest.mark.parametrize(
    ("base", "complaint"),
    [
        ("", "base.yaml: must be a KubeSchedulerConfiguration of kubescheduler.config.k8s.io/v1"),
        ("- a", "base.yaml: must be a KubeSchedulerConfiguration of kubescheduler.config.k8s.io/v1"),
        ("kind: Pod", "base.yaml: must be a KubeSchedulerConfiguration of kubescheduler.config.k8s.io/v1"),
        ("kind: [", "base.yaml:2: is not valid YAML: "),
        ("kind: KubeSchedulerConfiguration", "base.yaml: extenders: 0 have no managedResources; must be 1"),
        ("kind: KubeSchedulerConfiguration\nextenders: {}", "base.yaml: extenders: 0 have no managedResources"),
        ("kind: KubeSchedulerConfiguration\nextenders: [{}, {}]", "base.yaml: extenders: 2 have no managedResources"),
        (BASE.rpartition("- urlPrefix")[0], "base.yaml: extenders: 0 have no managedResources"),
    ],
)
def test_another_configuration_is_refused(base: str, complaint: str) -> None:
    vendors = enabled_vendors(builtin_device_config().config)
    with pytest.raises(ConfigError) as refused:
        fill_in(base, "base.yaml", vendors)
    assert str(refused.value).startswith(complaint)
