"""The flags of `simulate` that change the cluster's nodes (docs/room.md#other-nodes) and its time, without what reads a
cluster.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from msgspec import Struct

from hami_webhook.kube.objects import parse_time
from hami_webhook.terminal import UsageError, number_in

_MOST_NODES, _LONGEST_NAME = 1000, 200
_MOST_HOURS = 168
_LATEST = 32503680000.0
"""The year 3000, in Unix seconds."""


class AddedNodes(Struct, frozen=True):
    """So many nodes; `name` is that of the node that they are like, or begins their names."""

    count: int
    name: str


class NodeChange(Struct, frozen=True):
    """What the flags say; `template` is the name of a file."""

    added: AddedNodes | None = None
    like: str = ""
    template: str = ""
    remove: Sequence[str] = ()
    waiting: bool = False

    def __bool__(self) -> bool:
        return self != NodeChange()

    @classmethod
    def of(cls, arguments: argparse.Namespace, files: Sequence[str]) -> NodeChange:
        """Raises `UsageError` for flags that don't go together, with each other or with the names of other `files`."""
        found = cls(arguments.add, arguments.like, arguments.template, tuple(arguments.remove), arguments.waiting)
        if found.like and found.template:
            raise UsageError("give --like or --template, not both")
        if (found.like or found.template) and found.added is None:
            raise UsageError("--like and --template say what --add adds: give --add COUNTxNAME, too")
        if [*files, found.template].count("-") > 1:
            raise UsageError("standard input (-) can be read only once")
        return found


def add_node_flags(verb: argparse.ArgumentParser) -> None:
    """The flags of both commands."""
    verb.add_argument(
        "--add", type=_added, metavar="COUNTxNODE", help="add so many nodes like this one, such as 4xgpu-1"
    )
    verb.add_argument(
        "--like", default="", metavar="NODE", help="the node that they are like, if --add only names them"
    )
    verb.add_argument("--template", default="", metavar="FILE", help="YAML or JSON of the Node that they are like")
    verb.add_argument("--remove", action="append", default=[], metavar="NODE", help="remove a node; may be repeated")
    verb.add_argument("--waiting", action="store_true", help="try the pods of the cluster that wait for cards")
    verb.add_argument(
        "--replay",
        type=_hours,
        metavar="HOURS",
        help="waits and use of the last HOURS, as recorded, and with the nodes of today or those of the flags above",
    )
    verb.add_argument(
        "--prometheus",
        default="",
        metavar="URL",
        help="the server that has the record for --replay, from kube-state-metrics",
    )


def replay_hours(arguments: argparse.Namespace, files: Sequence[str]) -> int:
    """The hours of `--replay`, 0 without it. Raises `UsageError` for flags that don't go together."""
    if arguments.replay is None:
        if arguments.prometheus:
            raise UsageError("--prometheus says where --replay reads: give --replay HOURS, too")
        return 0
    if not arguments.prometheus:
        raise UsageError("--replay needs --prometheus URL, such as http://prometheus.monitoring:9090")
    if files or arguments.waiting:
        raise UsageError("--replay takes the pods of the record: give neither files of pods nor --waiting")
    return int(arguments.replay)


def _hours(text: str) -> int:
    if (hours := number_in(text, 1, _MOST_HOURS)) is None:
        raise argparse.ArgumentTypeError(f"must be a number of hours from 1 to {_MOST_HOURS}, not {text[:100]!r}")
    return hours


def _added(text: str) -> AddedNodes:
    count, _, name = text.partition("x")
    number = number_in(count, 1, _MOST_NODES)
    if number is None or not _is_name(name):
        raise argparse.ArgumentTypeError(
            f"must be a number from 1 to {_MOST_NODES}, x, and the name of a node in lower case, not {text[:100]!r}"
        )
    return AddedNodes(number, name)


def _is_name(text: str) -> bool:
    """Whether a node may have it, and numbers after it; the API server has the last word."""
    return (
        0 < len(text) <= _LONGEST_NAME
        and text.isascii()
        and text == text.lower()
        and text.replace("-", "a").replace(".", "a").isalnum()
    )


def time_of(flag: str, text: str | None) -> float | None:
    """Unix seconds of a flag with a time, None if it isn't given. Raises `UsageError`.

    Times of other centuries are refused: the starts and periods that follow from them may be in no calendar.
    """
    try:
        at = parse_time(text) if text else None
    except (ValueError, OverflowError):
        at = -1.0
    if at is not None and not 0 < at < _LATEST:
        raise UsageError(f"{flag} must be an RFC 3339 time such as 2026-01-31T12:00:00Z, of 1970 to 2999, not {text!r}")
    return at
