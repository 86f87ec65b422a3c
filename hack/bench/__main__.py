"""`python -m hack.bench [NAME…]`: all benchmarks, or some; `--json FILE` for comparing two commits."""

from __future__ import annotations

from hack.bench import (
    calls,
    charge,
    claims,
    clients,
    explain,
    filter,
    links,
    metrics,
    monitor,
    placing,
    preemption,
    queue,
    search,
    simulate,
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
        "preemption": preemption.measure,
        "queue": queue.measure,
        "links": links.measure,
        "search": search.measure,
        "metrics": metrics.measure,
        "monitor": monitor.measure,
        "start": start.measure,
        "simulate": simulate.measure,
        "explain": explain.measure,
        "ui": ui.measure,
        "week": week.measure,
    },
    __doc__,
)
