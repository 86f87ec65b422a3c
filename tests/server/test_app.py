"""The routes over real HTTPS: docs/spec/core.md#11, docs/spec/quota.md#4."""

from __future__ import annotations

import asyncio
import base64
import itertools
import time
from collections.abc import AsyncIterator
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from admission.clusters import FULL, Hung, core_on, ledger, quota_cluster
from admission.reviews import body, cpu, handler_of, patched, pod, review
from builders import GPU, JSON
from prometheus_client import CollectorRegistry, generate_latest
from starlette.types import ASGIApp, Message

from hami_webhook.admission.review import Answer, Review
from hami_webhook.cluster.api import Forbidden, Kind
from hami_webhook.server.app import LARGE, Sources, application, review_routes
from hami_webhook.server.limits import ListenerLimits, TooManyRequests
from hami_webhook.server.request_metrics import new_registry

from .serving import AS_JSON, served
from .test_metrics import labelled, samples


@pytest.mark.parametrize("path", ["/mutate", "/validate", "/webhook"])
async def test_every_path_answers_reviews(tmp_path: Path, path: str) -> None:
    async with served(tmp_path, await quota_cluster(FULL)) as webhook:
        inner = await webhook.review(path, review(pod(gpu=1, mem=3000, uid="u")))
        assert inner["allowed"]
        operations = orjson.loads(base64.b64decode(inner.get("patch", "W10=")))
        assert bool(operations) == (path != "/validate")
        assert webhook.process.core.charger.counts.writes == (path != "/mutate")


async def test_a_pod_goes_the_way_the_api_server_sends_it(tmp_path: Path) -> None:
    cluster = await quota_cluster({GPU: 1})
    async with served(tmp_path, cluster) as webhook:
        obj = pod(gpu=1, mem=3000)
        inner = await webhook.review("/mutate", review(obj))
        operations = orjson.loads(base64.b64decode(inner["patch"]))
        stored = patched(obj, Answer(operations))
        stored["metadata"]["uid"] = "u1"
        assert (await webhook.review("/validate", review(stored)))["allowed"]
        assert ledger(cluster) == {"u1": {GPU: 1}}
        refused = await webhook.review("/validate", review(pod("second", gpu=1, mem=3000, uid="u2"), version="v1beta1"))
        assert refused["status"] == {
            "status": "Failure",
            "reason": "Forbidden",
            "code": 403,
            "message": "exceeding resource quota: exceeded quota: gpu-quota, requested: limits.nvidia.com/gpu=1, "
            "used: limits.nvidia.com/gpu=1, limited: limits.nvidia.com/gpu=1",
            "details": {"kind": "pods", "name": "second"},
        }


async def test_a_dry_run_that_asks_for_it_learns_where_its_review_came_from(tmp_path: Path) -> None:
    async with served(tmp_path, await quota_cluster()) as webhook:

        async def warnings(asks: bool, *, dry_run: bool) -> list[str]:
            made = pod(gpu=1, mem=3000, uid="u")
            made["metadata"]["annotations"] = {"hami.io/report-review-source": "true"} if asks else {}
            item = review(made)
            item["request"]["dryRun"] = dry_run
            inner = await webhook.review("/validate", item)
            assert inner["allowed"]
            given: list[str] = inner.get("warnings", [])
            return given

        assert await warnings(True, dry_run=True) == ["[review-source] the review came from 127.0.0.1"]
        assert await warnings(False, dry_run=True) == await warnings(True, dry_run=False) == []


async def test_routes_and_methods(tmp_path: Path) -> None:
    async with served(tmp_path, await quota_cluster()) as webhook:
        for path in ("/mutate", "/validate", "/webhook", "/quotas", "/names"):
            for method in ("GET", "PUT", "DELETE", "PATCH", "HEAD"):
                answer = await webhook.client.request(method, path)
                assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
        for path in ("/healthz", "/readyz", "/metrics"):
            assert (await webhook.client.post(path)).status_code == 405
            assert (await webhook.client.get(path)).status_code == 200
        for path in ("/", "/nothing", "/webhook/", "/healthz/", "/webhook/x", "//webhook", "/docs"):
            assert (await webhook.client.get(path)).status_code == 404
            assert (await webhook.client.post(path, content=b"{}")).status_code == 404
        for path in ("/healthz", "/readyz"):
            assert (await webhook.client.get(path)).content == b""


async def test_readiness_waits_for_the_caches_and_ends_with_leaving(tmp_path: Path) -> None:
    cluster = await quota_cluster(FULL)
    opened = asyncio.Event()

    async def wait(step: str) -> None:
        if step == "list:before":
            await opened.wait()

    cluster.pause = wait
    async with served(tmp_path, cluster, sync=False) as webhook:
        answer = await webhook.client.get("/readyz")
        assert (answer.status_code, answer.text) == (503, "caches are not synced yet\n")
        assert "\nhami_scheduler_cache_synced 0.0\n" in (await webhook.client.get("/metrics")).text
        assert (await webhook.client.get("/healthz")).status_code == 200
        inner = await webhook.review("/validate", review(pod(gpu=1, mem=3000, uid="u")))
        assert inner["status"]["code"] == 503
        assert inner["status"]["details"]["retryAfterSeconds"] == 1
        assert (await webhook.review("/validate", review(pod("p", cpu(), uid="u"))))["allowed"]
        opened.set()
        await webhook.process.informers.wait_synced()
        assert (await webhook.client.get("/readyz")).status_code == 200
        assert "\nhami_scheduler_cache_synced 1.0\n" in (await webhook.client.get("/metrics")).text
        webhook.process.leave()
        answer = await webhook.client.get("/readyz")
        assert (answer.status_code, answer.text) == (503, "shutting down\n")
        assert answer.headers["connection"] == "close"
        assert (await webhook.client.get("/healthz")).status_code == 200
        assert (await webhook.review("/validate", review(pod(gpu=1, mem=3000, uid="u"))))["allowed"], "it still serves"


async def test_readiness_tells_of_conditions_that_cannot_be_put_right_and_does_not_fail(tmp_path: Path) -> None:
    cluster = await quota_cluster()
    opened = [{"name": "validate.webhook.hami.io", "matchConditions": [], "failurePolicy": "Fail"}]
    configuration = {"metadata": {"name": "hami-webhook-admission"}, "webhooks": opened}
    await cluster.create(Kind.VALIDATING_WEBHOOKS, configuration)

    async def forbid(step: str) -> None:
        if step == "patch:before":
            raise Forbidden("may not patch")

    cluster.pause = forbid
    async with served(tmp_path, cluster, "--roles", "controller") as webhook:
        while not (answer := await webhook.client.get("/readyz")).text:  # noqa: ASYNC110 the loop has no event for it
            await asyncio.sleep(0.005)
        assert answer.status_code == 200
        assert (
            "matchConditions of validate.webhook.hami.io differ from those of the device configuration" in answer.text
        )
        metrics = (await webhook.client.get("/metrics")).text.splitlines()
        assert "hami_webhook_wrong_webhook_configurations 1.0" in metrics
        assert webhook.process.core.problems["WebhookConditionsDiffer"] == 1


async def test_the_metrics_server_is_plain_and_knows_no_reviews(tmp_path: Path) -> None:
    async with served(tmp_path, await quota_cluster()) as webhook, httpx.AsyncClient() as client:
        url = f"http://127.0.0.1:{webhook.process.metrics.port}"
        answer = await client.get(f"{url}/metrics")
        assert answer.headers["content-type"].startswith("text/plain")
        assert b"hami_build_info" in answer.content
        assert (await client.get(f"{url}/readyz")).status_code == 200
        assert (await client.post(f"{url}/webhook", content=b"{}")).status_code == 404


async def test_without_the_webhook_role_no_reviews_are_taken(tmp_path: Path) -> None:
    async with served(tmp_path, await quota_cluster(), "--roles", "controller") as webhook:
        assert (await webhook.client.post("/webhook", content=b"{}")).status_code == 404
        assert (await webhook.client.get("/readyz")).status_code == 200


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("version", ["v1", "v1beta1"])
async def test_a_body_beyond_the_limit_gets_413_inside_a_review_with_the_uid_of_the_request(
    tmp_path: Path, chunked: bool, version: str
) -> None:
    start = (
        f'{{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/{version}","request":{{"uid":"7-a","x":"'.encode()
    )
    large = start + b"a" * (3 << 20) + b'"}}'

    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(large), 1 << 18):
            yield large[start : start + (1 << 18)]

    async with served(tmp_path, await quota_cluster(), "--max-request-bytes", "3145728") as webhook:
        answer = await webhook.client.post("/webhook", content=chunks() if chunked else large, headers=AS_JSON)
        assert answer.status_code == 200
        assert answer.json()["apiVersion"] == f"admission.k8s.io/{version}"
        assert answer.json()["response"]["uid"] == "7-a"
        status = answer.json()["response"]["status"]
        assert (status["code"], status["reason"]) == (413, "RequestEntityTooLarge")
        amounts = (
            "more than the 3145728 bytes allowed" if chunked else f"{len(large)} bytes, more than the 3145728 allowed"
        )
        assert status["message"] == (
            f"the review of this pod is too large: the request body has {amounts} by --max-request-bytes"
        )


async def test_a_body_beyond_the_limit_that_is_no_review_gets_413_without_a_uid(tmp_path: Path) -> None:
    async with served(tmp_path, await quota_cluster(), "--max-request-bytes", "2000") as webhook:
        answer = await webhook.client.post("/webhook", content=b"a" * 3000, headers=AS_JSON)
        assert (answer.json()["response"]["uid"], answer.json()["response"]["status"]["code"]) == ("", 413)


@pytest.mark.parametrize(
    ("cidrs", "code"),
    [("127.0.0.1/32", 200), ("10.0.0.0/8,127.0.0.0/8", 200), ("fd00::/8,::1/128", 403), ("127.0.0.2/32", 403)],
)
async def test_reviews_are_accepted_from_api_servers_only_and_probes_from_anywhere(
    tmp_path: Path, cidrs: str, code: int
) -> None:
    cluster = await quota_cluster(FULL)
    async with served(tmp_path, cluster, "--api-server-cidrs", cidrs) as webhook:
        for path in ("/mutate", "/validate", "/webhook"):
            written = review(pod(path[1:], gpu=1, mem=3000, uid="u"))
            answer = await webhook.client.post(path, content=body(written), headers=AS_JSON)
            assert answer.status_code == code
            if code == 403:
                sentence = "reviews are accepted from --api-server-cidrs only, and 127.0.0.1 isn't in them\n"
                assert answer.text == sentence
        for path in ("/healthz", "/readyz", "/metrics"):
            assert (await webhook.client.get(path)).status_code == 200
        assert bool(ledger(cluster)) is (code == 200)


@pytest.mark.parametrize(
    ("networks", "address", "accepted"),
    [
        ((), "anything", True),
        (("10.0.0.0/8",), "10.1.2.3", True),
        (("10.0.0.0/8",), "11.1.2.3", False),
        (("10.0.0.0/8",), "::ffff:10.1.2.3", True),
        (("10.0.0.0/8",), "::ffff:11.1.2.3", False),
        (("fe80::/10",), "fe80::1%eth0", True),
        (("10.0.0.0/8", "fd00::/8"), "fd12::1", True),
        (("10.0.0.0/8",), "fd12::1", False),
    ],
)
def test_an_address_is_looked_up_in_networks_of_its_own_family(
    networks: tuple[str, ...], address: str, accepted: bool
) -> None:
    assert Sources(tuple(map(ip_network, networks))).accepts(address) is accepted


def doors(handler: Any, registry: CollectorRegistry | None = None, **limits: Any) -> ASGIApp:
    """The routes of reviews around a handler, or around what has the methods of one that the test calls."""
    return application(review_routes(handler, ListenerLimits(**limits), registry=registry or new_registry()))


async def post(webhook: ASGIApp, path: str, written: JSON, **params: str) -> JSON:
    transport = httpx.ASGITransport(app=webhook, raise_app_exceptions=True)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        answer = await client.post(path, content=body(written), headers=AS_JSON, params=params)
        inner: JSON = answer.json()["response"]
        return inner


@pytest.mark.parametrize(
    ("text", "left"),
    [("10s", 9.0), ("30s", 29.0), ("2s", 1.0), ("1s", 0.1), ("1500ms", 0.5), (None, None), ("", None), ("soon", None)],
)
async def test_the_charge_gets_the_time_the_api_server_waits_less_one_second(
    text: str | None, left: float | None
) -> None:
    seen = []

    class Timed:
        async def mutate(self, review: Review, time_left: float | None = None) -> Answer:
            return Answer()

        async def webhook(self, review: Review, time_left: float | None) -> Answer:
            seen.append(time_left)
            return Answer()

        validate = webhook

    params = {} if text is None else {"timeout": text}
    for path in ("/validate", "/webhook"):
        await post(doors(Timed()), path, review(pod("p", cpu())), **params)
    assert seen == [pytest.approx(left)] * 2 if left else seen == [None, None]


@pytest.mark.parametrize("path", ["/mutate", "/validate", "/webhook"])
async def test_a_cluster_that_hangs_is_not_waited_for_longer_than_the_api_server_waits(path: str) -> None:
    inner = await post(doors(core_on(Hung()).admission), path, review(pod(gpu=1, mem=3000, uid="u")), timeout="600ms")
    assert (inner["status"]["code"], inner["status"]["details"]["retryAfterSeconds"]) == (503, 1)
    assert "didn't answer in time" in inner["status"]["message"]
    assert (await post(doors(core_on(Hung()).admission), path, review(pod("p", cpu(), uid="u"))))["allowed"]


async def test_a_hanging_quota_is_refused_by_the_charge_itself() -> None:
    core = core_on(Hung())
    core.caches.put(Kind.NAMESPACES, {"metadata": {"name": "team-a"}})
    inner = await post(doors(core.admission), "/validate", review(pod(gpu=1, mem=3000, uid="u")), timeout="1s")
    assert inner["status"]["message"].startswith("quota: can't charge namespace team-a now: no answer")
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    await asyncio.sleep(0.01)


async def test_security_4_time_per_request_is_bounded_even_if_nobody_says_so() -> None:
    webhook = doors(core_on(Hung()).admission, request_timeout=0.05)
    assert (await post(webhook, "/mutate", review(pod(gpu=1, mem=3000))))["status"]["code"] == 503


async def test_a_crash_inside_is_a_polite_500_that_says_nothing_of_the_inside(caplog: pytest.LogCaptureFixture) -> None:
    class Crashing:
        async def mutate(self, review: Review, time_left: float | None = None) -> None:
            raise RuntimeError("secret detail")

        webhook = validate = mutate

    registry = new_registry()
    webhook = doors(Crashing(), registry)
    inner = await post(webhook, "/mutate", review(pod("p", cpu())))
    assert (inner["allowed"], inner["status"]["code"]) == (False, 500)
    assert "secret" not in inner["status"]["message"]
    assert "RuntimeError" in caplog.text
    assert registry.get_sample_value("hami_webhook_reviews_total", {"path": "/mutate", "code": "500"}) == 1


async def test_answers_are_counted_by_path_and_code() -> None:
    registry = new_registry()
    webhook = doors(handler_of(), registry)
    await post(webhook, "/mutate", review(pod(gpu=1, mem=3000)))
    await post(webhook, "/mutate", review(pod(gpu=1, mem=3000, nodeName="n")))
    await post(webhook, "/validate", {})
    found = samples(generate_latest(registry))
    assert found["hami_webhook_reviews_total"] == {
        labelled(path="/mutate", code="200"): 1,
        labelled(path="/mutate", code="403"): 1,
        labelled(path="/validate", code="400"): 1,
    }
    assert found["hami_webhook_review_seconds_count"] == {labelled(path="/mutate"): 2, labelled(path="/validate"): 1}


async def test_a_review_that_the_listener_refuses_counts_as_one_without_a_verdict() -> None:
    registry = new_registry()
    webhook = doors(handler_of(), registry)

    async def beyond_the_limit() -> Message:
        raise TooManyRequests

    async def send(message: Message) -> None:
        raise AssertionError("the listener answers")

    scope = {"type": "http", "method": "POST", "path": "/validate", "client": ("127.0.0.1", 1), "headers": []}
    with pytest.raises(TooManyRequests):
        await webhook(scope, beyond_the_limit, send)
    found = samples(generate_latest(registry))
    assert found["hami_webhook_reviews_total"] == {labelled(path="/validate", code="503"): 1}
    assert found["hami_webhook_review_refusals_total"] == {labelled(reason="unavailable"): 1}


class Slices:
    """A handler whose every review of a large pod keeps the event loop for some time, and notes when."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.began: list[float] = []

    async def mutate(self, review: Review, time_left: float | None = None) -> Answer:
        assert review.object.metadata is not None
        if len((review.object.metadata.annotations or {}).get("pad", "")) > LARGE:
            self.began.append(time.monotonic())
            until = self.began[-1] + self.seconds
            while time.monotonic() < until:
                pass
        return Answer()

    validate = webhook = mutate


async def test_large_reviews_are_worked_on_one_at_a_time_with_pauses_in_which_others_are_answered() -> None:
    slices = Slices(0.05)
    webhook = doors(slices)
    padded = review(pod("p", cpu(), annotations={"pad": "x" * (LARGE + 1)}))
    large = [asyncio.create_task(post(webhook, "/mutate", padded)) for _ in range(6)]
    while not slices.began:  # noqa: ASYNC110
        await asyncio.sleep(0)
    answered = 0
    while len(slices.began) < 5:
        assert (await post(webhook, "/mutate", review(pod("p", cpu()))))["allowed"]
        answered += 1
        await asyncio.sleep(0)
    assert answered > 5, "small reviews are answered in between, more than one per pause"
    assert [answer["allowed"] for answer in await asyncio.gather(*large)] == [True] * 6
    gaps = [after - before for before, after in itertools.pairwise(slices.began)]
    assert min(gaps) > 0.09, "as long a pause as the work took"


async def test_large_reviews_beyond_the_memory_for_them_are_refused_for_now() -> None:
    slices = Slices(0.01)
    webhook = doors(slices, max_request_bytes=100_000)
    padded = review(pod("p", cpu(), annotations={"pad": "x" * 80_000}))
    answers = await asyncio.gather(*(post(webhook, "/mutate", padded) for _ in range(5)))
    # the first is answered before the second arrives
    assert [answer["allowed"] for answer in answers] == [True, True, True, False, False]
    status = answers[3]["status"]
    assert (status["code"], status["details"]["retryAfterSeconds"]) == (503, 1)
    assert status["message"] == "too many large pods are being reviewed; try again"
    assert (await post(webhook, "/mutate", padded))["allowed"], "memory is free again"


async def test_a_large_review_does_not_wait_longer_than_the_api_server() -> None:
    webhook = doors(Slices(0.5))
    padded = review(pod("p", cpu(), annotations={"pad": "x" * (LARGE + 1)}))
    answers = await asyncio.gather(*(post(webhook, "/mutate", padded, timeout="1800ms") for _ in range(3)))
    # half a second of the deadline is kept back; the second waits for half a second, the third would for one and a half
    assert [answer["allowed"] for answer in answers] == [True, True, False]
    assert answers[2]["status"]["code"] == 503
