"""What every process says of itself, whatever its roles: its build, events and failures of loops (docs/metrics.md)."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from hami_webhook import __version__
from hami_webhook.build_info import build_info
from hami_webhook.server.exposition import Family

_BUILD = Family(
    "hami_build_info",
    "Build of this process.",
    ("version", "revision", "build_date", "go_version", "compiler", "platform"),
)
_PROBLEMS = Family("hami_webhook_problems", "Events recorded about objects.", ("reason",), is_counter=True)
_FAILURES = Family(
    "hami_webhook_loop_failures", "Unexpected exceptions that loops survived.", ("loop",), is_counter=True
)


@dataclass(frozen=True, eq=False)  # a registry needs its collectors hashable
class BuildCollector(Collector):
    """`problems` are events by reason, `failures` exceptions by loop."""

    problems: Counter[str]
    failures: Counter[str]

    def collect(self) -> Iterator[Metric]:
        """Every metric."""
        build = (__version__, *build_info(), "", platform.python_implementation(), platform.platform())
        yield _BUILD.of([(build, 1)])
        yield _PROBLEMS.of(((reason,), number) for reason, number in sorted(self.problems.items()))
        yield _FAILURES.of(((loop,), number) for loop, number in sorted(self.failures.items()))
