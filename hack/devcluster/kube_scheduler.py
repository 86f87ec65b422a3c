"""kube-scheduler with the manifests' own configuration; only addresses and the login are the dev cluster's."""

from __future__ import annotations

from pathlib import Path

import yaml

from hack.devcluster.plane import ControlPlane
from hami_webhook.device_config import builtin_device_config, enabled_vendors
from hami_webhook.scheduling.kube_scheduler import fill_in

_CONFIGURATION = Path(__file__).parents[2] / "manifests" / "scheduler" / "kube-scheduler.yaml"


def configure(plane: ControlPlane, path: Path, extender: int, *without: str) -> Path:
    """Write the configuration for an extender at a port of loopback, without these of its verbs."""
    vendors = enabled_vendors(builtin_device_config().config)
    document = yaml.safe_load(fill_in(_CONFIGURATION.read_text(), _CONFIGURATION.name, vendors))
    document["clientConnection"] = {"kubeconfig": str(plane.scheduler_kubeconfig)}
    document["leaderElection"] = {"leaderElect": False}
    (asked,) = document["extenders"]
    asked["urlPrefix"] = f"http://127.0.0.1:{extender}"
    for verb in without:
        del asked[verb]
    path.write_text(yaml.safe_dump(document))
    return path
