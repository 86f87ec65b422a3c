"""What several verbs read first: the device configuration, policy rules, and the objects of a cluster."""

from __future__ import annotations

import argparse
import functools
import os
import sys
from collections.abc import Callable, Iterable, Sequence

from hami_webhook.cluster.api import ClusterError
from hami_webhook.cluster.loading import Bundle
from hami_webhook.config import LoadedDeviceConfig, read_text
from hami_webhook.device_config import builtin_device_config, read_device_config
from hami_webhook.devices.registry import Vendors
from hami_webhook.policy.file import PolicyFile
from hami_webhook.policy.rules import PolicyRules
from hami_webhook.simulate.manifests import ReadingRules, read_cluster_files
from hami_webhook.simulate.workload_file import read_workload_table
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


def reading_rules(arguments: argparse.Namespace) -> ReadingRules:
    """How the objects of files are read: the kinds of `--workloads`, and the namespace as kubectl has it."""
    table = read_workload_table(arguments.workloads)
    return ReadingRules(table, _namespace_of(arguments), arguments.namespace or "")


def _namespace_of(arguments: argparse.Namespace) -> Callable[[], str]:
    """The namespace of objects that name none: that of `-n`, else of the kubeconfig's context, as for kubectl.

    It raises `ClusterError` for a kubeconfig that can't be used, if a flag names it.
    """
    if arguments.namespace:
        return lambda: str(arguments.namespace)
    return functools.cache(lambda: _namespace_of_context(arguments.kubeconfig))


def _namespace_of_context(kubeconfig: str | None) -> str:
    path = kubeconfig or os.environ.get("KUBECONFIG", "")
    # imported here: it takes twice as long to start with the client
    from hami_webhook.cluster.connect import names_of

    try:
        namespace = names_of(path).namespace
    except ClusterError as error:
        if kubeconfig:
            raise
        warn([f"{error}; objects without a namespace are taken to be in default"])
        return "default"
    if namespace != "default":
        warn([f"objects without a namespace are taken to be in {namespace}, that of the context; -n names another"])
    return namespace


def bundle_of(paths: Sequence[str], rules: ReadingRules | None = None) -> Bundle:
    """The objects in files; the warnings about them are printed."""
    bundle, warnings = read_cluster_files(paths, sys.stdin.buffer, rules)
    warn(warnings)
    return bundle
