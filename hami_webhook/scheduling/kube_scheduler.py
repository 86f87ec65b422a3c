"""The configuration of the kube-scheduler in front of the extender: what it leaves to us follows from the vendors."""

from __future__ import annotations

from typing import Any

import yaml

from hami_webhook.config import ConfigError, parse_yaml
from hami_webhook.devices.registry import Vendors

KIND = "KubeSchedulerConfiguration"


def fill_in(text: str, source: str, vendors: Vendors) -> str:
    """A KubeSchedulerConfiguration with the `managedResources` of its extender, the one that has none yet.

    Where the vendors have no resources the extender is left out, as one without `managedResources` gets every pod.
    `source` is what messages call the text. Raises `ConfigError`.
    """
    document: Any = parse_yaml(text, source).value
    if not isinstance(document, dict) or document.get("kind") != KIND:
        raise ConfigError([f"{source}: must be a {KIND} of kubescheduler.config.k8s.io/v1"])
    found = document.get("extenders")
    extenders: list[Any] = found if isinstance(found, list) else []
    ours = [each for each in extenders if isinstance(each, dict) and "managedResources" not in each]
    if len(ours) != 1:
        raise ConfigError([f"{source}: extenders: {len(ours)} have no managedResources; must be 1, which gets ours"])
    names = sorted(vendors.ignored_by_scheduler)
    if names:
        ours[0]["managedResources"] = [{"name": name, "ignoredByScheduler": True} for name in names]
    else:
        extenders.remove(ours[0])
    filled: str = yaml.safe_dump(document, sort_keys=False)
    return filled
