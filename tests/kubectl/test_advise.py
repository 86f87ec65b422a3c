"""`kubectl hami advise`, with the history that a Prometheus server answers as recorded."""

from __future__ import annotations

from typing import Any

import pytest
from simulate.files import JSON, pod
from usage.test_history import WEEK, history, used

from .apiserver import ApiServer
from .conftest import Hami
from .test_verbs import DEPLOYED, HELD, SPACES, cluster, placed, with_uid

MIB = 1 << 20
NOTHING_USED = {"p95": None, "most": None, "limit": None, "frees": 0}


def owned(found: JSON, kind: str, name: str, **labels: str) -> JSON:
    """The pod with a controller, and the labels that this gives it."""
    meta = found["metadata"]
    meta["ownerReferences"] = [{"kind": kind, "name": name, "uid": f"uid-{name}", "controller": True}]
    meta["labels"] = {**(meta.get("labels") or {}), **labels}
    return found


def replica(name: str) -> JSON:
    return owned(placed(name), "ReplicaSet", "serve-5d4f", **{"pod-template-hash": "5d4f"})


def advice(hami: Hami, objects: list[JSON], *parts: Any, more: tuple[str, ...] = ()) -> list[JSON]:
    with history(*parts) as (url, _):
        run = hami(ApiServer(objects), "advise", "--prometheus", url, "-o", "json", *more)
    assert (run.status, run.err) == (0, "")
    found: list[JSON] = run.result
    return found


def test_a_workload_gets_limits_by_what_its_busiest_replica_used(hami: Hami) -> None:
    """Memory above all that was used, cores by the 95th percentile; what is freed is of all replicas."""
    objects = cluster(*DEPLOYED, replica("serve-5d4f-a"), replica("serve-5d4f-b"))
    busiest = used("serve-5d4f-b", p95=4000 * MIB, most=5000 * MIB, cores=6, peak=60)
    found = advice(hami, objects, *used("serve-5d4f-a", p95=MIB, most=MIB, cores=1, peak=1, n=48), *busiest)
    (serve,) = [each for each in found if each["kind"] == "Deployment"]
    assert {name: serve[name] for name in ("namespace", "name", "container", "pods", "measured", "why")} == {
        "namespace": "team-a", "name": "serve", "container": "main", "pods": 2, "measured": WEEK, "why": "",
    }  # fmt: skip
    assert serve["memory"] == {"promised": 20000, "p95": 4000, "most": 5000, "limit": 5500, "frees": 2 * 14500}
    assert serve["cores"] == {"promised": 10, "p95": 6, "most": 60, "limit": 7, "frees": 2 * 3}
    assert serve["limits"] == {"nvidia.com/gpumem": 5500, "nvidia.com/gpucores": 7}
    assert found[0] is serve  # what frees the most comes first


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([], {"measured": 0, "limits": {}, "why": "not measured"}),
        (used("busy", n=47), {"measured": 84600, "limits": {}, "why": "not measured for long enough"}),
        (used("busy", p95=0, most=0), {"limits": {}, "why": "used no memory"}),
        (used("busy", most=19000 * MIB, cores=10), {"limits": {}, "why": "uses what it is promised"}),
        (used("busy", most=25000 * MIB, cores=80), {"limits": {}, "why": "uses what it is promised"}),
        (used("busy", cores=0, peak=80), {"limits": {"nvidia.com/gpumem": 1100, "nvidia.com/gpucores": 5}}),
        (used("busy", p95="NaN", cores="NaN"), {"limits": {"nvidia.com/gpumem": 1100}}),
        (used("other", n=336), {"measured": 0, "limits": {}, "why": "not measured"}),
    ],
)
def test_a_limit_is_written_only_for_what_was_measured_and_is_promised_more(
    hami: Hami, parts: list[Any], expected: JSON
) -> None:
    (found,) = advice(hami, cluster(*DEPLOYED), *parts)
    assert {name: found[name] for name in expected} == expected
    if not expected["limits"]:
        assert (found["memory"]["limit"], found["memory"]["frees"], found["cores"]["frees"]) == (None, 0, 0)


def test_cores_that_were_not_measured_of_all_replicas_get_no_limit(hami: Hami) -> None:
    """HAMi's monitor may have a container's memory alone: that isn't a container that computes nothing."""
    objects = cluster(*DEPLOYED, replica("serve-5d4f-a"), replica("serve-5d4f-b"))
    memory = [each for each in used("serve-5d4f-b") if "container_device" not in each[0]]
    found = advice(hami, objects, *used("serve-5d4f-a", cores=1, peak=1), *memory)
    (serve,) = [each for each in found if each["kind"] == "Deployment"]
    assert serve["limits"] == {"nvidia.com/gpumem": 1100}
    assert serve["cores"] == {"promised": 10} | NOTHING_USED


def test_cores_without_a_limit_stay_without(hami: Hami) -> None:
    notes = {**HELD, "hami.io/vgpu-devices-allocated": "GPU-1,NVIDIA,20000,0:;"}
    free = with_uid(pod("free", gpu=1, mem=20000, namespace="team-a", annotations=notes, nodeName="n1"))
    found = {each["name"]: each for each in advice(hami, cluster(*DEPLOYED, free), *used("free"))}
    assert found["free"]["limits"] == {"nvidia.com/gpumem": 1100}
    assert found["free"]["cores"] == {"promised": 0, "p95": 30, "most": 90, "limit": None, "frees": 0}


def test_each_container_of_a_pod_gets_its_own(hami: Hami) -> None:
    two = placed("two")
    two["spec"]["containers"].append({**two["spec"]["containers"][0], "name": "second"})
    two["metadata"]["annotations"]["hami.io/vgpu-devices-allocated"] = (
        "GPU-1,NVIDIA,8000,10:GPU-2,NVIDIA,6000,10:;GPU-1,NVIDIA,4000,10:;"
    )
    found = {
        each["container"]: each for each in advice(hami, cluster(*DEPLOYED, two), *used("two")) if each["name"] == "two"
    }
    assert (found["main"]["memory"]["promised"], found["main"]["memory"]["frees"]) == (8000, 6900 + 4900)
    assert (found["second"]["memory"], found["second"]["why"]) == ({"promised": 4000} | NOTHING_USED, "not measured")


def test_pods_without_cards_or_with_notes_that_cannot_be_read_get_no_row(hami: Hami) -> None:
    broken = placed("broken")
    broken["metadata"]["annotations"]["hami.io/vgpu-devices-allocated"] = "no cards"
    found = advice(hami, cluster(*DEPLOYED, broken), more=("-A",))
    assert [(each["namespace"], each["kind"], each["name"]) for each in found] == [
        ("team-a", "Pod", "busy"), ("team-b", "Pod", "other"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([], ["Prometheus has no history of these pods in the last 7d. It needs to scrape the nodes' monitors"]),
        (
            used("busy"),
            ["By the last 7d, the limits would free 18.5Gi. Nothing was changed: write them into the workloads."],
        ),
        (used("busy", most=19000 * MIB), ["By the last 7d, no limit is to be written."]),
        (
            used("busy", n=2),
            ["no limit is to be written.", "measured for less than 24h get no limit: wait, or give a shorter --since."],
        ),
    ],
)
def test_a_table_ends_with_the_span_and_the_sum(hami: Hami, parts: list[Any], expected: list[str]) -> None:
    with history(*parts) as (url, _):
        run = hami(ApiServer(cluster(*DEPLOYED)), "advise", "--prometheus", url)
    assert (run.status, run.err) == (0, "")
    assert [text for text in expected if text not in run.out] == [], run.out
    assert "Pod/busy" in run.out


def test_a_tenant_sees_only_its_pods_whatever_the_history_has(hami: Hami) -> None:
    with history(*used("busy"), *used("other")) as (url, _):
        run = hami(ApiServer(cluster(*DEPLOYED), only="team-a"), "advise", "-A", "--prometheus", url)
    assert run.status == 0
    assert "busy" in run.out
    assert "other" not in run.out


def test_where_no_pod_holds_cards_the_server_is_not_asked(hami: Hami) -> None:
    with history() as (url, asked):
        run = hami(ApiServer([*DEPLOYED, *SPACES]), "advise", "--prometheus", url)
    assert (run.status, asked) == (0, [])
    assert "No resources found: no pod in namespace team-a holds cards by its limits." in run.err


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ((), "the following arguments are required: --prometheus"),
        (("--prometheus", "prometheus:9090"), "must be a URL such as http://prometheus.monitoring:9090"),
        (("--prometheus", "http://127.0.0.1:9"), "can't be reached"),
        (("--prometheus", "http://127.0.0.1:9", "--since", "5m"), "must be from 10m to 365d, not '5m'"),
        (("--prometheus", "http://127.0.0.1:9", "--since", "366d"), "must be from 10m to 365d, not '366d'"),
        (("--prometheus", "http://127.0.0.1:9", "--since", "long"), "must be a duration such as 30m, 1h30m or 2d"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_a_sentence(hami: Hami, arguments: tuple[str, ...], why: str) -> None:
    run = hami(ApiServer(cluster(*DEPLOYED)), "advise", *arguments)
    assert run.status == 2
    assert why in run.err
