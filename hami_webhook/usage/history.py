"""What containers used over a time, from the history that a Prometheus server has of the nodes' monitors."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from msgspec import Struct

from hami_webhook.prometheus import query
from hami_webhook.usage.samples import CORES, MEMORY, Sample, makes_sense

Container = tuple[str, str, str]
"""A namespace, a pod of it, and a container of that."""

_LABELS = ("namespace", "pod", "container")
_BY = ", ".join((*_LABELS, *(f"exported_{name}" for name in _LABELS)))
_STEPS = 336
"""Into so many steps the time is divided, to see for how much of it there are figures: half an hour of a week."""
_SHORTEST_STEP = 60
_MEBIBYTE = 1 << 20


class ContainerHistory(Struct, frozen=True):
    """What a container used of the card of which it used the most: memory in MiB, cores in percent of a card.

    `seconds`: for how long that was measured. `…_p95`: 95 % of the samples have at most so much. None isn't known.
    """

    seconds: int
    memory_p95: int
    memory_most: int
    cores_p95: int | None
    cores_most: int | None


def read_history(prometheus: str, seconds: int, namespace: str = "") -> Mapping[Container, ContainerHistory]:
    """What the server at a URL has of the containers of a namespace, or of all, in so many seconds before now.

    What makes no sense is left out. Raises `PrometheusError`.
    """
    step = max(_SHORTEST_STEP, seconds // _STEPS)
    range_, steps = f"[{seconds}s]", f"[{seconds}s:{step}s]"

    def ask(text: str, metric: str, over: str) -> dict[Container, float]:
        of = _selected(metric, namespace)
        parts = [f"max by ({_BY}) ({text.format(f'{each}{over}')})" for each in of]
        return dict(_values(prometheus, " or ".join(parts)))

    # by container before it is counted: a monitor that restarts, or is scraped twice, has series beside each other
    counted = ask("count_over_time({})", f"max by ({_BY}) ({MEMORY}%s)", steps)
    p95, most = "quantile_over_time(0.95, {})", "max_over_time({})"
    memory_p95, memory_most = ask(p95, MEMORY + "%s", range_), ask(most, MEMORY + "%s", range_)
    cores_p95, cores_most = ask(p95, CORES + "%s", range_), ask(most, CORES + "%s", range_)
    return {
        container: ContainerHistory(
            min(seconds, round(counted.get(container, 0)) * step),
            _up(memory_p95.get(container, largest) / _MEBIBYTE),
            _up(largest / _MEBIBYTE),
            _up_if_known(cores_p95.get(container)),
            _up_if_known(cores_most.get(container)),
        )
        for container, largest in memory_most.items()
    }


def _selected(metric: str, namespace: str) -> list[str]:
    """The metric of a namespace's containers, whether or not Prometheus renamed their labels; or of all."""
    if not namespace:
        return [metric % ""]
    return [metric % f"{{{label}={json.dumps(namespace)}}}" for label in ("namespace", "exported_namespace")]


def _values(prometheus: str, text: str) -> Iterator[tuple[Container, float]]:
    for labels, value in query(prometheus, text):
        sample = Sample("", labels, value)
        if makes_sense(value):
            yield (sample.label("namespace"), sample.label("pod"), sample.label("container")), value


def _up(value: float) -> int:
    return -int(-value // 1)


def _up_if_known(value: float | None) -> int | None:
    return None if value is None else _up(value)
