"""The record of pods, from answers of a Prometheus server that may say anything (docs/room.md#a-recorded-time)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest
from aiohttp import web
from http_server import http_server

from hami_webhook.prometheus import PrometheusError
from hami_webhook.usage.recorded_pods import Record, RecordedContainer, RecordedPod, read_record

RESOURCES = ("nvidia.com/gpu", "nvidia.com/gpumem-percentage", "iluvatar.ai/BI-V100.vMem")
END, HOURS = 1_000_000, 24
SECONDS = HOURS * 3600
START = END - SECONDS
BORN, BOUND, GONE = START + 600, START + 1200, START + 7200
Part = tuple[str, Mapping[str, str], object]

COUNT, FIRST, LAST = "count(", "min_over_time(timestamp(", "max_over_time(timestamp("
CREATED, SCHEDULED = "(max_over_time(kube_pod_created", "(max_over_time(kube_pod_status_scheduled_time"
COMPLETED, CLASS = "(max_over_time(kube_pod_completion_time", "(max_over_time(kube_pod_info"
LIMIT = "resource) (max_over_time(kube_pod_container_resource_limits"
INIT_LIMIT = "resource) (max_over_time(kube_pod_init_container_resource_limits"
THERE = "group by (__name__)"
NEEDED = ("kube_pod_container_resource_limits", "kube_pod_created", "kube_pod_status_scheduled_time")


def labels(pod: str = "p", namespace: str = "team-a", uid: str = "u", **more: str) -> dict[str, str]:
    return {"namespace": namespace, "pod": pod, "uid": uid, **more}


def limit(amount: object = 1, resource: str = "nvidia_com_gpu", container: str = "main", pod: str = "p") -> Part:
    return LIMIT, labels(pod, container=container, resource=resource), amount


INIT: Part = (INIT_LIMIT, labels(container="i", resource="nvidia_com_gpu"), 4)

NO_LIMITS = [limit(amount, container=name) for name, amount in (("b", "NaN"), ("c", -1), ("d", "1e300"))]


def parts(*more: Part, created: object = BORN, scheduled: object = BOUND, last: object = GONE) -> list[Part]:
    """The answers about one pod, and others."""
    return [
        (COUNT, {}, 1),
        (FIRST, labels(), START),
        (LAST, labels(), last),
        (CREATED, labels(), created),
        (SCHEDULED, labels(), scheduled),
        limit(),
        *((THERE, {"__name__": name}, 1) for name in NEEDED),
        *more,
    ]


@contextmanager
def server(found: list[Part]) -> Iterator[str]:
    def answer(request: web.BaseRequest, _: bytes) -> web.Response:
        query = request.query["query"]
        own = query.startswith((COUNT, THERE))
        result = [
            {"metric": dict(of), "value": [0, str(value)]}
            for text, of, value in found
            if (query.startswith(text) if own else text in query)
        ]
        return web.json_response({"status": "success", "data": {"resultType": "vector", "result": result}})

    with http_server(answer) as url:
        yield url


def record(found: list[Part]) -> Record:
    with server(found) as url:
        return read_record(url, RESOURCES, END, SECONDS)


ONE = RecordedPod("team-a", BORN, BOUND, GONE, [RecordedContainer(False, {"nvidia.com/gpu": 1})])


def pod(**changed: object) -> RecordedPod:
    fields: dict[str, object] = {name: getattr(ONE, name) for name in ONE.__struct_fields__}
    return RecordedPod(**(fields | changed))  # type: ignore[arg-type]  # the test's own values


def limits(**amounts: int) -> list[RecordedContainer]:
    return [RecordedContainer(False, {f"nvidia.com/{name}": amount for name, amount in amounts.items()})]


@pytest.mark.parametrize(
    ("why", "found", "expected"),
    [
        ("seen last when it was deleted", parts(), ONE),
        ("seen until the end", parts(last=END - 60), pod(ended=None)),
        ("completed before it was deleted", parts((COMPLETED, labels(), GONE - 60)), pod(ended=GONE - 60)),
        ("never bound", parts(scheduled="NaN"), pod(started=None)),
        ("never seen by a step", parts(last="NaN"), pod(ended=BOUND)),
        ("bound before it was created, by another clock", parts(scheduled=BORN - 5), pod(started=BORN)),
        ("of a class", parts((CLASS, labels(priority_class="high"), 1)), pod(priority_class="high")),
        ("of a class that is none", parts((CLASS, labels(priority_class="../x"), 1)), ONE),
        ("several containers", parts(limit(2, container="b"), INIT),
         pod(containers=[*limits(gpu=2), *limits(gpu=1), RecordedContainer(True, {"nvidia.com/gpu": 4})])),
        ("a percentage", parts(limit(50, "nvidia_com_gpumem_percentage")),
         pod(containers=[RecordedContainer(False, {"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 50})])),
        ("a name with dots", parts(limit(7, "iluvatar_ai_BI_V100_vMem")),
         pod(containers=[RecordedContainer(False, {"nvidia.com/gpu": 1, "iluvatar.ai/BI-V100.vMem": 7})])),
        ("a limit that is none, beside one", parts(*NO_LIMITS),
         pod(containers=[RecordedContainer(False, {})] * 3 + limits(gpu=1))),
        ("a resource that nobody asked for", parts(limit(3, "memory")), ONE),
        ("ended before", parts((COMPLETED, labels(), START - 60), created=START - 600, scheduled=START - 500),
         None),
    ],
)  # fmt: skip
def test_a_pods_times_and_limits(why: str, found: list[Part], expected: RecordedPod | None) -> None:
    assert record(found) == Record(START, END, [] if expected is None else [expected]), why


@pytest.mark.parametrize(
    "found",
    [
        parts(created="NaN"),
        parts(created=-1),
        parts(created=END + 60),
        parts(created=0),
        parts(scheduled=END + 60),
        [*parts(), *(limit(container=f"c{number}") for number in range(100))],
        [each if each[0] != LIMIT else limit("NaN") for each in parts()],
        [(text, {**of, "namespace": "Team A"} if of else of, value) for text, of, value in parts()],
        [(text, {**of, "namespace": "a" * 64} if of else of, value) for text, of, value in parts()],
    ],
)
def test_a_pod_whose_series_make_no_sense_is_left_out_and_the_others_are_not(found: list[Part]) -> None:
    other = labels("q", uid="v")
    good = [(CREATED, other, BORN), (SCHEDULED, other, BOUND), (LAST, other, GONE), limit(pod="q")]
    good[-1] = (LIMIT, {**other, "container": "main", "resource": "nvidia_com_gpu"}, 1)
    made = record([*found, *good])
    assert (made.pods, made.left_out) == ([ONE], 1)


def test_series_of_several_servers_of_a_pod_are_one() -> None:
    """Two replicas of kube-state-metrics, and labels that Prometheus renamed."""
    renamed = {**labels("ksm", "kube-system"), "exported_namespace": "team-a", "exported_pod": "p"}
    again = [
        (text, {**renamed, **of, "namespace": "kube-system", "pod": "ksm"} if of else of, value)
        for text, of, value in parts()
    ]
    assert record([*again, *again]).pods == [ONE]


def test_a_record_that_begins_later_is_shorter() -> None:
    made = record([each if each[0] != FIRST else (FIRST, labels(), START + 3600) for each in parts()])
    assert made.start == START + 3600 - 60


@pytest.mark.parametrize("count", [20_001, "NaN", "+Inf", "1e300"])
def test_too_many_pods_are_refused(count: object) -> None:
    found = [each if each[0] != COUNT else (COUNT, {}, count) for each in parts()]
    with pytest.raises(PrometheusError, match="a replay takes at most 20000: give fewer hours"):
        record(found)


@pytest.mark.parametrize(
    ("there", "said"),
    [
        ((), "no series kube_pod_container_resource_limits, kube_pod_created, kube_pod_status_scheduled_time of"),
        (NEEDED[:2], "has no series kube_pod_status_scheduled_time of"),
        (NEEDED, "no pod of the last 24h had limits"),
    ],
)  # fmt: skip
def test_what_is_missing_is_named(there: tuple[str, ...], said: str) -> None:
    with pytest.raises(PrometheusError, match=said):
        record([(THERE, {"__name__": name}, 1) for name in there])
    if len(there) == 2:  # the pods are there, but none of them was ever scheduled
        with pytest.raises(PrometheusError, match=said):
            record([each for each in parts() if each[0] != SCHEDULED and NEEDED[2] not in each[1].values()])
