"""A pod that keeps the webhook's connections occupied: API server and probes are served all the same."""

from __future__ import annotations

import http.client
import json
import ssl
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hack.devcluster.plane import ControlPlane

from .deployment import Deployment, Kubectl
from .objects import namespace, pod, quota
from .tenants import tenant

ATTACKER = "127.0.0.2"
IDLE, HALF_SENT = 5_000, 300


@contextmanager
def flooded(port: int, source: str, idle: int, half_sent: int, *more: str) -> Iterator[None]:
    """Keep connections of a port occupied from an address, in a process of its own, until the block ends."""
    program = str(Path(__file__).with_name("flood.py"))
    command = [sys.executable, program, str(port), source, str(idle), str(half_sent), *more]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as flood:
        assert flood.stdout is not None
        try:
            assert flood.stdout.readline() == "held\n"
            yield
            assert flood.poll() is None
        finally:
            flood.kill()


def probed(port: int, *, tls: bool = False) -> float:
    """Seconds that a probe on a connection of its own took."""
    began = time.monotonic()
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            "127.0.0.1", port, timeout=20, context=context
        )
    else:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request("GET", "/readyz")
        assert connection.getresponse().status == 200
    finally:
        connection.close()
    return time.monotonic() - began


def admissions(program: Deployment, user: Kubectl, space: str, name: str, count: int) -> list[float]:
    """Seconds that each of some pods took to be created, for which the API server has to connect anew."""
    taken = []
    for number in range(count):
        program.balancer.break_connections()
        text = json.dumps(pod(space, f"{name}-{number}", gpu=1, gpumem=100))
        began = time.monotonic()
        user("create", "-f", "-", stdin=text)
        taken.append(time.monotonic() - began)
    return taken


@pytest.mark.parametrize("source", [ATTACKER, "127.0.0.1"])
def test_connections_held_by_a_client_keep_neither_the_api_server_nor_probes_out(
    program: Deployment, plane: ControlPlane, tmp_path: Path, source: str
) -> None:
    """From an address of its own, and from the one that the API server has too."""
    space = namespace(program.kubectl)
    user = tenant(program.kubectl, plane, tmp_path, space)
    program.kubectl.apply(quota(space, gpu=100))
    (main,) = program.balancer.backends
    metrics = program.ports["hami-webhook-0"]
    before = admissions(program, user, space, "before", 8)
    refused = program.metric("hami-webhook-0", "hami_webhook_refused_total")
    with flooded(main, source, IDLE, HALF_SENT), flooded(metrics, source, 1_000, 50, "--plain"):
        during = admissions(program, user, space, "during", 8)
        probes = [probed(metrics) for _ in range(8)]
        connections = [probed(main, tls=True) for _ in range(8)]
        now_refused = program.metric("hami-webhook-0", "hami_webhook_refused_total")
        assert now_refused > refused, "the flood is above the limit"
    assert statistics.median(during) < statistics.median(before) + 1
    assert statistics.median(connections) < 1
    assert statistics.median(probes) < 1
    assert program.kubectl.used(space) == {"gpu": "16"}
