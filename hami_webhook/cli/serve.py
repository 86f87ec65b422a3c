"""The verb `serve`."""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Coroutine

import uvloop

from hami_webhook import logs
from hami_webhook.cli.inputs import bundle_of, device_config, policy_rules
from hami_webhook.config import resolve
from hami_webhook.config.setting_values import NODE_ROLE, USAGE_ROLE
from hami_webhook.device_config import enabled_vendors
from hami_webhook.terminal import UsageError


def serve(arguments: argparse.Namespace) -> int:
    """Serve until a signal; the exit status."""
    settings = resolve(arguments, os.environ)
    logs.set_up(settings.log_format, settings.verbosity)
    for warning in settings.warnings:
        logging.warning("%s", warning)
    if settings.ignored_sections:
        logging.info("device-config.yaml: %s ignored, not enabled by flag", ", ".join(settings.ignored_sections))
    if NODE_ROLE in settings.roles:
        if arguments.embedded_cluster:
            raise UsageError("--roles node monitors the GPUs of a node: it needs a cluster, not --embedded-cluster")
        import pynvml  # type: ignore[import-untyped]  # noqa: F401  NVIDIA's binding has no types; it is missed here

        from hami_webhook.server.node_process import become_node

        become_node(settings)
    if USAGE_ROLE in settings.roles:
        from hami_webhook.server.serve_usage import serve_usage

        if arguments.embedded_cluster:
            raise UsageError("--roles usage serves a part of an API server's API: it has none with --embedded-cluster")
        return _run(serve_usage(settings))
    config = device_config(settings.device_config_file).config
    vendors = enabled_vendors(config.without(settings.ignored_sections))
    policies = policy_rules(settings.policy_file, vendors)
    if arguments.embedded_cluster:
        from hami_webhook.server.serve_kubernetes import serve_embedded

        serving = serve_embedded(bundle_of(arguments.embedded_cluster), vendors, settings, policies)
    else:
        from hami_webhook.server.serve_kubernetes import serve_kubernetes

        serving = serve_kubernetes(vendors, settings, policies)
    return _run(serving)


def _run(serving: Coroutine[None, None, None]) -> int:
    """The exit status."""
    try:
        uvloop.run(serving)
    except* OSError as group:
        raise UsageError(f"can't listen: {group.exceptions[0]}") from group
    return 0
