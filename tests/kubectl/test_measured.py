"""What pods really use, beside what they were promised, by the API `usage.hami.io` and by Prometheus."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import pytest
from aiohttp import web
from http_server import http_server
from simulate.files import JSON, MEM
from usage.test_exporters import prometheus as exported
from usage.test_samples import TEXT

from hami_webhook.usage.samples import read_text

from .apiserver import ApiServer
from .conftest import Hami
from .test_verbs import DEPLOYED, cluster, placed

MIB = 1 << 20
CONTAINER = "gpu"


def used(name: str, namespace: str, memory: int, seconds: float | None) -> JSON:
    """The object of a pod that uses so many MiB and half of GPU-1, and computed so many seconds ago."""
    device = {"uuid": "GPU-1", "memoryBytes": memory * MIB, "coresPercent": 50}
    container: JSON = {"name": CONTAINER, "devices": [device]}
    if seconds is not None:
        container["lastUsed"] = datetime.fromtimestamp(time.time() - seconds, UTC).isoformat()
    meta = {"name": name, "namespace": namespace}
    return {"kind": "PodUsage", **AT, "metadata": meta, "containers": [container]}


AT = {"apiVersion": "usage.hami.io/v1alpha1", "timestamp": "2026-01-01T00:00:00Z"}
NEVER = {"kind": "PodUsage", **AT, "metadata": {"name": "never", "namespace": "team-a"}}
CARD = {"uuid": "GPU-1", "memoryBytes": 900 * MIB, "coresPercent": 60, "temperatureCelsius": 41.0, "powerWatts": 80.5}
NODE = {"kind": "NodeUsage", **AT, "metadata": {"name": "n1"}, "cards": [CARD]}


def measured(*more: JSON) -> list[JSON]:
    own = [used("busy", "team-a", 700, 7200), used("other", "team-b", 100, 1), NODE]
    return cluster(*DEPLOYED, *own, *more)


def test_nodes_cards_pods_and_quotas_have_what_is_really_used(hami: Hami) -> None:
    api = ApiServer(measured())
    (node,) = hami(api, "nodes", "-o", "json").result
    assert (node["in_use"]["memory"], node["in_use"]["cores"]) == (900, 60)
    card = hami(api, "cards", "-o", "json").result[0]
    assert (card["temperature"], card["power"]) == (41.0, 80.5)
    assert time.time() - card["in_use"]["idle_since"] < 60  # the last that any pod on it computed
    busy = next(each for each in hami(api, "pods", "-o", "json").result if each["name"] == "busy")
    assert busy["in_use"]["memory"] == 700
    assert 7200 <= time.time() - busy["in_use"]["idle_since"] < 7300
    (found,) = hami(api, "quota", "-o", "json").result
    assert {key["key"]: key["measured"] for key in found["keys"]}[MEM] == 700


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["nodes"], ["USED MEMORY", "900Mi", "in use"]),
        (["cards", "-o", "wide"], ["USED CORES", "°C", "41", "80"]),
        (["pods"], ["IDLE", "700Mi", "120m"]),
        (["quota"], ["REALLY USED", "700Mi"]),
        (["quota", "gpu-quota"], ["USED MEMORY", "120m"]),
    ],
)
def test_tables_have_columns_for_it_where_it_is_known(hami: Hami, arguments: list[str], expected: list[str]) -> None:
    run = hami(ApiServer(measured()), *arguments)
    assert (run.status, run.err) == (0, "")
    assert [text for text in expected if text not in run.out] == [], run.out


def test_a_tenant_sees_its_own_pods_use_with_the_rights_of_its_namespace(hami: Hami) -> None:
    run = hami(ApiServer(measured(), only="team-a"), "pods", "-o", "wide")
    assert "700Mi" in run.out
    assert "usage" not in run.err


def test_without_the_right_or_the_api_one_line_says_what_it_takes(hami: Hami) -> None:
    path = "/apis/usage.hami.io/v1alpha1/pods"
    run = hami(ApiServer(measured(), lacking={path}), "pods", "-A", "-o", "wide")
    assert (run.status, len(run.err.splitlines())) == (0, 1)
    assert "You need list of pods.usage.hami.io" in run.err
    assert hami(ApiServer(measured(), lacking={path}), "pods", "-A").err == ""


@pytest.mark.parametrize("spoilt", [{"containers": "x"}, {"containers": [{"devices": []}]}, {"metadata": None}])
def test_an_answer_that_is_none_costs_its_columns_alone(hami: Hami, spoilt: JSON) -> None:
    meta = {"name": "spoilt", "namespace": "team-a"}
    run = hami(ApiServer(measured({"kind": "PodUsage", **AT, "metadata": meta, **spoilt})), "pods")
    assert run.status == 0
    assert "busy" in run.out
    assert run.err.startswith("kubectl hami: the measured use of pods isn't known: usage.hami.io")


@contextmanager
def prometheus(text: str, status: int = 200) -> Iterator[str]:
    found = [
        {"metric": {"__name__": each.name} | dict(each.labels), "value": [0, str(each.value)]}
        for each in read_text(text)
    ]
    body = json.dumps({"status": "success", "data": {"resultType": "vector", "result": found}}).encode()
    with http_server(lambda request, _: web.Response(status=status, body=body)) as url:
        yield url


def test_prometheus_says_it_where_the_api_is_not_served(hami: Hami) -> None:
    text = (
        TEXT.replace('pod="p"', 'pod="busy"')
        .replace("GPU-0", "GPU-1")
        .replace("power_usage_watts", "utilization_ratio")
    )
    with prometheus(text.replace(" 61.5", " 0")) as url:
        run = hami(ApiServer(cluster(*DEPLOYED, placed("never"))), "pods", "-o", "json", "--prometheus", url)
    assert run.err == ""
    uses = {pod["name"]: pod["in_use"] for pod in run.result}
    assert (uses["busy"]["memory"], uses["waiting"]) == (5, None)
    assert uses["never"] == {"memory": 0, "cores": 0, "idle_since": 1767225600.0}  # since it was created


def test_nodes_and_cards_have_the_temperature_power_and_model_that_an_exporter_says(hami: Hami) -> None:
    """And nothing is taken for used, as no monitor says what is."""
    labels = {"UUID": "GPU-1", "modelName": "NVIDIA A100"}
    api = ApiServer(cluster(*DEPLOYED))
    with exported(("DCGM_FI_DEV_GPU_TEMP", labels, 61), ("DCGM_FI_DEV_POWER_USAGE", labels, 250)) as url:
        card = hami(api, "cards", "-o", "json", "--prometheus", url).result[0]
        table = hami(api, "cards", "-o", "wide", "--prometheus", url).out
    assert (card["temperature"], card["power"], card["measured_model"]) == (61.0, 250.0, "NVIDIA A100")
    assert card["in_use"] is None
    assert [text for text in ("61", "250") if text not in table] == [], table


@pytest.mark.parametrize(
    ("text", "status", "why"),
    [("", 200, "it has no metrics of a node's monitor"), (TEXT, 503, "Service Unavailable")],
)
def test_a_prometheus_that_says_nothing_is_told_of_in_a_line(hami: Hami, text: str, status: int, why: str) -> None:
    with prometheus(text, status) as url:
        run = hami(ApiServer(cluster(*DEPLOYED)), "pods", "--prometheus", url)
    assert run.status == 0
    assert len(run.err.splitlines()) == 1
    assert why in run.err


def test_who_holds_cards_and_does_not_use_them_comes_by_namespace(hami: Hami) -> None:
    api = ApiServer(measured(placed("never"), NEVER, placed("unmeasured")))
    first, second = hami(api, "idle", "-A", "-o", "json").result
    assert (first["namespace"], first["holding"], first["cards"], first["unknown"]) == ("team-a", 3, 2, 1)
    assert [pod["name"] for pod in first["idle"]] == ["busy", "never"]
    assert first["frees"][MEM] == 40000
    assert (second["namespace"], second["idle"], second["frees"]) == ("team-b", [], {})
    assert [pod["name"] for pod in hami(api, "idle", "--idle-for", "2h30m", "-o", "json").result[0]["idle"]] == [
        "never"
    ]


def test_a_table_of_the_idle_has_the_longest_first(hami: Hami) -> None:
    run = hami(ApiServer(measured(placed("never"), NEVER)), "idle", "-A")
    assert run.err == ""
    lines = [line.split() for line in run.out.splitlines() if line]
    assert lines[1] == [
        "team-a",
        "2",
        "2",
        "0",
        "2",
        "nvidia.com/gpu=2,",
        "nvidia.com/gpucores=20,",
        "nvidia.com/gpumem=39.1Gi",
    ]
    assert [line[1] for line in lines[-2:]] == ["never", "busy"]


def test_without_figures_a_line_says_what_it_takes(hami: Hami) -> None:
    run = hami(ApiServer(cluster(*DEPLOYED)), "idle")
    assert "the cluster doesn't serve usage.hami.io" in run.err
    assert run.out.split()[-6:] == ["team-a", "0", "1", "1", "0", "-"]


def test_what_is_no_duration_is_refused(hami: Hami) -> None:
    run = hami(ApiServer(cluster()), "idle", "--idle-for=1h2")
    assert run.status == 2
    assert "must be a duration such as 30m" in run.err
