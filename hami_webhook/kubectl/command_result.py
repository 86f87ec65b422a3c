"""What a verb of `kubectl hami` has to show."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct

from hami_webhook.cluster.api import Forbidden, Kind
from hami_webhook.kubectl.live import LiveCluster

if TYPE_CHECKING:
    from rich.console import Console


class CommandResult(Struct, frozen=True):
    """A result: its plain values for JSON and YAML, how it is printed as a table, and the exit status.

    `none`: what is said on standard error in place of an empty table.
    """

    values: object
    show: Callable[[Console], None]
    status: int = 0
    none: str = ""


def require(cluster: LiveCluster, kind: Kind, namespace: str = "") -> None:
    """Raises `Forbidden` where nothing of a kind may be seen that all of the answer is made of."""
    unseen = cluster.unseen.get(kind)
    if unseen is not None and not unseen.elsewhere:
        where = f" in namespace {namespace}" if namespace else ""
        raise Forbidden(f"{kind.qualified} can't be listed{where} with your rights")
