"""Starting the process of the role `node`: one on each node, so it imports little of what the command line needs.

The command line becomes that process once it has read its settings, which it hands on. Memory is why: 90 MiB otherwise,
of which the monitor uses half.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, NoReturn

import msgspec

if TYPE_CHECKING:
    from hami_webhook.config import Settings


class NodeSettings(msgspec.Struct, frozen=True):
    """What the role needs of the settings, as `Settings` has it. `host` and `port`: where metrics are served."""

    node_name: str
    pod_namespace: str
    kubeconfig: str
    kube_timeout: float
    host: str
    port: int
    legacy_metrics: bool
    hook_path: str
    resync_interval: float
    priority_feedback: bool
    verbosity: int
    log_format: str

    @classmethod
    def of(cls, settings: Settings) -> NodeSettings:
        where = settings.metrics_bind_address
        named = {name: getattr(settings, name) for name in cls.__struct_fields__ if name not in ("host", "port")}
        return cls(**named, host=where.host, port=where.port)


def become_node(settings: Settings) -> NoReturn:
    """Become the process of the role `node`, under this process's number."""
    text = msgspec.json.encode(NodeSettings.of(settings)).decode()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", "hami_webhook.server.serve_node", text])  # noqa: S606  no shell
