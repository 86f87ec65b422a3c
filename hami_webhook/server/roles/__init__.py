"""The roles of a process: webhook, controller and extender, each what it brings to the process that has it.

A role is built from the core and the settings, and reaches into no other role. `server/run.py` merges what the roles
name: what isn't named here isn't run. The role node is a process of its own (`serve_node.py`), and so are the pages of
`kubectl hami ui`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector
from starlette.routing import Route

from hami_webhook.assembly import Core
from hami_webhook.config import Settings
from hami_webhook.config.go_syntax import ListenAddress
from hami_webhook.controller.informers import SharedInformers
from hami_webhook.server.limits import ListenerLimits
from hami_webhook.server.listener import Listener
from hami_webhook.state.caches import Subscriber
from hami_webhook.usage.api import PodUsages

Loop = Callable[[], Awaitable[None]]
"""Runs until it is cancelled, or until it has nothing more to do."""


@dataclass(frozen=True, slots=True)
class OwnListener:
    """A listener besides the process's own, its address, and the flag that gave it."""

    listener: Listener
    flag: str
    address: ListenAddress


@dataclass(frozen=True, slots=True)
class Role:
    """`routes` of the main listener, `listeners` of its own, `loops` by the name that their failures are counted under,
    `collectors` of metrics, and `subscribers` to changes, notified in this order.
    """

    routes: Sequence[Route] = ()
    listeners: Sequence[OwnListener] = ()
    loops: Mapping[str, Loop] = field(default_factory=dict)
    collectors: Sequence[Collector] = ()
    subscribers: Sequence[Subscriber] = ()


@dataclass(frozen=True, slots=True)
class Shared:
    """What all roles of a process are built from.

    `quotas_in_memory`: quotas are kept by every process for itself, as their status can't be written. `usages` is None
    where the cluster can't be asked what was measured.
    """

    core: Core
    informers: SharedInformers
    settings: Settings
    limits: ListenerLimits
    registry: CollectorRegistry
    quotas_in_memory: bool = False
    usages: PodUsages | None = None
