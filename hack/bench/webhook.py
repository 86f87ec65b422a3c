"""`python -m hack.bench.webhook`: the server over HTTPS with keep-alive, loaded from another process.

The baseline is the same stack (listener, TLS, HTTP, routing, reading the body) with a constant review for an answer, in
the same process: an ordinary starlette endpoint.

Processor time is the least of the rounds, which are taken in turns.

Memory is the process's resident set while no two reviews are equal, beside what it was after the first tenth of them.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import statistics
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import orjson
import uvloop
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from hack.bench import load
from hack.bench.figures import Figure, Goal, run, show_progress
from hack.bench.load import Load, Outcome, Plan
from hack.bench.objects import JSON, NAMESPACE, SCHEDULER, gpu, node, pod_with, review
from hack.bench.processes import resident
from hami_webhook import pki
from hami_webhook.cluster.api import Kind
from hami_webhook.cluster.memory import MemoryCluster
from hami_webhook.config import Settings, add_flags, resolve
from hami_webhook.device_config import builtin_device_config, enabled_vendors
from hami_webhook.server.bodies import read_body
from hami_webhook.server.limits import ListenerLimits
from hami_webhook.server.listener import Listener
from hami_webhook.server.run import Running, running
from hami_webhook.server.tls import CertificateFiles, ReloadingTls

SECONDS = {"smallest": 0.2, "usual": 0.5, "large": 1.0}
ROUNDS = {"smallest": 1, "usual": 9, "large": 31}
REVIEWS = {"smallest": 500, "usual": 100_000, "large": 1_000_000}
"""Of different pods, over which memory is measured."""
CONNECTIONS = 16


def measure(size: str) -> Sequence[Figure]:
    return uvloop.run(_measured(size))


async def _measured(size: str) -> list[Figure]:
    generator = Load()
    with tempfile.TemporaryDirectory(prefix="hami-webhook-bench-") as folder:
        files = _certificates(Path(folder))
        cluster = MemoryCluster(time.time)
        await cluster.ensure_namespace(NAMESPACE)
        await cluster.create(Kind.NODES, node(0))
        vendors = enabled_vendors(builtin_device_config().config)
        constant = Listener(
            Starlette(routes=[Route("/constant", _constant, methods=["POST"])]),
            host="127.0.0.1",
            port=0,
            limits=LIMITS,
            tls=ReloadingTls(files),
        )
        async with running(cluster, vendors, _settings(files)) as process:
            await process.informers.wait_synced()
            await constant.start()
            background = asyncio.create_task(_bookmarking(cluster))
            try:
                figures = await _figures(generator, process, constant.port, Path(folder) / pki.CA_CERTIFICATE, size)
            finally:
                background.cancel()
                await constant.drain_and_stop()
                generator.stop()
    return figures


async def _figures(generator: Load, process: Running, constant: int, authority: Path, size: str) -> list[Figure]:
    served = process.main.port
    different = review(_different())
    kinds: dict[str, tuple[str, bytes, float | None]] = {
        "nothing managed": ("/mutate", review(pod_with("p", {"cpu": "1", "memory": "1Gi"})), 0.85),
        "plain GPU": ("/mutate", review(pod_with("p", gpu())), None),
        "different pods": ("/mutate", different, 0.45),
        "different pods, mutated and validated at once": ("/webhook", different, 0.45),
    }
    figures = []
    for kind, (path, body, goal) in kinds.items():
        show_progress(f"webhook: {kind}")

        async def loaded(port: int, path: str, seconds: float, body: bytes = body) -> Outcome:
            plan = Plan(port, str(authority), path, body.decode(), CONNECTIONS, seconds)
            return await asyncio.to_thread(generator.run, plan)

        rates: list[list[float]] = [[], []]
        costs: list[list[float]] = [[], []]
        for _ in range(ROUNDS[size]):
            for place, (port, at) in enumerate(((served, path), (constant, "/constant"))):
                before = time.process_time()
                outcome = await loaded(port, at, SECONDS[size])
                costs[place].append(1e6 * (time.process_time() - before) / outcome.answered)
                rates[place].append(outcome.rate)
        own, base = map(statistics.median, rates)
        bound = Goal(at_least=goal) if goal else None
        figures.append(Figure("webhook", kind, own, "per second", "constant answer", base, bound))
        cost, base_cost = map(min, costs)  # what else runs only adds
        little = Goal(at_most=2.0) if kind in ("plain GPU", "different pods") and size != "smallest" else None
        figures.append(Figure("webhook", f"{kind}, CPU", cost, "µs each", "constant answer", base_cost, little))
    plan = Plan(served, str(authority), "/webhook", different.decode(), CONNECTIONS, SECONDS[size])
    return [*figures, await _memory(generator, plan, REVIEWS[size])]


async def _memory(generator: Load, plan: Plan, reviews: int) -> Figure:
    """What this process keeps of so many reviews."""
    answered, early = 0, 0.0
    while answered < reviews:
        answered += (await asyncio.to_thread(generator.run, plan)).answered
        show_progress(f"webhook: {answered} of {reviews} reviews, {resident('self'):.1f} MiB")
        if not early and answered >= reviews / 10:
            early = resident("self")
    name = f"memory after {reviews} reviews of different pods"
    return Figure("webhook", name, resident("self"), "MiB", "after a tenth", early, Goal(at_most=1.03))


def _different() -> JSON:
    """A pod of which no two that are sent have the same name, labels or environment."""
    pod = pod_with(load.UID, gpu())
    pod["metadata"]["labels"]["job"] = load.UID
    pod["spec"]["containers"][0]["env"] = [{"name": "RUN", "value": load.UID}]
    return pod


async def _bookmarking(cluster: MemoryCluster) -> None:
    """A sign of life from every watch, as API servers give one every two minutes."""
    while True:
        await asyncio.sleep(120)
        cluster.bookmark()


LIMITS = ListenerLimits()
ANSWER = orjson.dumps(
    {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": {
            "uid": "6c1f6e1a-3b0c-4b0f-9f57-0d6b3f6a1c11",
            "allowed": True,
            "status": {"code": 200},
            "patchType": "JSONPatch",
            "patch": base64.b64encode(b'[{"op":"add","path":"/spec/schedulerName","value":"x"}]').decode(),
        },
    }
)


async def _constant(request: Request) -> Response:
    await read_body(request, LIMITS)
    return Response(ANSWER, media_type="application/json")


def _certificates(folder: Path) -> CertificateFiles:
    pair = pki.generate("hami-webhook", "hami-system", now=datetime.now(UTC), extra_names=("127.0.0.1",))
    pki.write(folder, pair, force=True)
    return CertificateFiles(folder / pki.SERVING_CERTIFICATE, folder / pki.SERVING_KEY)


def _settings(files: CertificateFiles) -> Settings:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_flags(parser)
    flags = ["--http_bind", "127.0.0.1:0", "--metrics-bind-address", "127.0.0.1:0", "--roles", "webhook"]
    flags += ["--cert_file", str(files.cert), "--key_file", str(files.key), "--scheduler-name", SCHEDULER]
    return resolve(parser.parse_args([*flags, "--shutdown-grace", "100ms"]), {})


if __name__ == "__main__":
    run({"webhook": measure}, __doc__)
