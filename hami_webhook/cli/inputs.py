"""What several verbs read first: the device configuration, policy rules, and the objects of a cluster."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from hami_webhook.cluster.loading import Bundle
from hami_webhook.config import LoadedDeviceConfig, read_text
from hami_webhook.device_config import builtin_device_config, read_device_config
from hami_webhook.devices.registry import Vendors
from hami_webhook.policy.file import PolicyFile
from hami_webhook.policy.rules import PolicyRules
from hami_webhook.simulate.manifests import read_cluster_files
from hami_webhook.terminal import print_warnings


def warn(warnings: Iterable[str]) -> None:
    """Print warnings on standard error."""
    print_warnings("hami-webhook", warnings)


def device_config(path: str | None) -> LoadedDeviceConfig:
    """The device configuration in a file, or what HAMi's chart renders; its warnings are printed."""
    loaded = read_device_config(path) if path else builtin_device_config()
    warn(loaded.warnings)
    return loaded


def policy_rules(path: str | None, vendors: Vendors) -> PolicyRules:
    """The rules in a file; none without one."""
    return PolicyFile.parse(read_text(path), path, vendors.governed) if path else PolicyRules.EMPTY


def bundle_of(paths: Sequence[str]) -> Bundle:
    """The objects in files; the warnings about them are printed."""
    bundle, warnings = read_cluster_files(paths, sys.stdin.buffer)
    warn(warnings)
    return bundle
