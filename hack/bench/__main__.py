"""`python -m hack.bench [NAME…]`: all benchmarks, or some."""

from __future__ import annotations

from hack.bench import (
    calls,
    charge,
    claims,
    clients,
    filter,
    links,
    metrics,
    monitor,
    placing,
    queue,
    search,
    start,
    ui,
    webhook,
    week,
)
from hack.bench.figures import run

run(
    {
        "webhook": webhook.measure,
        "calls": calls.measure,
        "filter": filter.measure,
        "charge": charge.measure,
        "claims": claims.measure,
        "clients": clients.measure,
        "placing": placing.measure,
        "queue": queue.measure,
        "links": links.measure,
        "search": search.measure,
        "metrics": metrics.measure,
        "monitor": monitor.measure,
        "start": start.measure,
        "ui": ui.measure,
        "week": week.measure,
    },
    __doc__,
)
