"""A process from its start to its end, in this process and as one of its own."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from admission.clusters import FULL, quota_cluster, spent
from admission.reviews import VENDORS, body, pod, review
from builders import GPU, JSON, MEM
from prometheus_client import generate_latest

from hami_webhook.charging.store import QuotaStore
from hami_webhook.cluster.api import Kind
from hami_webhook.config import ConfigError
from hami_webhook.controller.namespaces import NamespaceAnnotations
from hami_webhook.core_options import options_of
from hami_webhook.kube.objects import Namespace
from hami_webhook.policy.rules import PolicyRules
from hami_webhook.server.policy_reload import PolicySource
from hami_webhook.server.run import limits_of, running
from hami_webhook.server.tls import TlsError
from hami_webhook.terminal import EXTRAS

from .serving import ANYWHERE, AS_JSON, Served, certificates, served, settings_of, trusting

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = "manifests/examples/cluster.yaml"


def test_settings_reach_the_core_and_the_listeners() -> None:
    settings = settings_of(
        *("--allowed-identities", "group:ops,joe", "--own-service-accounts", "ns/own"),
        *("--device-plugin-service-accounts", "ns/plugin", "--force-overwrite-default-scheduler=false"),
        *("--quota-reservation-ttl", "50s", "--node-lock-timeout", "60s", "--quota-charge-timeout", "2s"),
        *("--quota-max-ledger", "7", "--max-request-bytes", "2048", "--max-header-bytes", "4096"),
        *(
            "--request-timeout",
            "9s",
            "--keep-alive",
            "100s",
            "--max-concurrent-requests",
            "3",
            "--shutdown-grace",
            "0s",
        ),
    )
    options, limits = options_of(settings), limits_of(settings)
    accounts = {"system:serviceaccount:ns:own", "system:serviceaccount:ns:plugin", "joe"}
    assert options.rules.trusted_users == accounts
    assert options.rules.trusted_groups == {"ops"}
    assert options.rules.foreign_users == {
        "volcano": {
            "joe",
            "system:serviceaccount:volcano-system:volcano-scheduler",
            "system:serviceaccount:kube-system:volcano-device-plugin",
        },
        "koordinator": {"joe", "system:serviceaccount:koordinator-system:koord-scheduler"},
        "kai": {"joe", "system:serviceaccount:kai-scheduler:binder"},
    }
    assert (options.rules.scheduler_name, options.rules.force_overwrite_default_scheduler) == ("hami-scheduler", False)
    assert (options.bounds.ttl, options.bounds.placement_ttl, options.charge_timeout, options.bounds.most) == (
        50,
        60,
        2,
        7,
    )
    assert (limits.max_request_bytes, limits.max_header_bytes, limits.request_timeout) == (2048, 4096, 9)
    assert (limits.keep_alive, limits.max_concurrent_requests, limits.shutdown_grace) == (100, 3, 0.1)


async def test_the_reconciler_puts_used_right(tmp_path: Path) -> None:
    cluster = await quota_cluster(FULL, {GPU: 9, MEM: 9})
    async with served(tmp_path, cluster):
        await until(lambda: spent(cluster)[GPU] == 0)


async def until(true: Callable[[], object]) -> None:
    for _ in range(500):
        if true():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never came true")


async def test_versions_of_quotas_reach_those_who_take_turns_at_them(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[object] = []
    monkeypatch.setattr(QuotaStore, "shown", lambda store, quota: shown.append(quota))
    async with running(await quota_cluster(FULL), VENDORS, settings_of("--roles=webhook")):
        await until(lambda: shown)


@pytest.mark.parametrize("flag", ["--http_bind", "--metrics-bind-address"])
async def test_a_port_that_is_taken_is_told_with_its_flag(flag: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigError) as caught:
            async with running(await quota_cluster(), VENDORS, settings_of(flag, address)):
                pytest.fail("it runs")
    assert str(caught.value) == f"{flag} {address}: can't be listened on: Address already in use"


async def test_certificates_that_cant_be_used_stop_the_start(tmp_path: Path) -> None:
    flags = ("--cert_file", str(tmp_path / "none.crt"), "--key_file", str(tmp_path / "none.key"))
    with pytest.raises(TlsError, match=r"none\.crt can't be read"):
        async with running(await quota_cluster(), VENDORS, settings_of(*flags)):
            pytest.fail("it runs")


# the policy file

ENFORCING = "policies: [{name: r, enforce: {hami.io/gpu-scheduler-policy: %s}}]\n"


class Watched:
    """A policy file that is looked at by hand."""

    def __init__(self, path: Path, text: str | None = None) -> None:
        self.path = path
        if text is not None:
            path.write_text(text)
        self.source = PolicySource(str(path), VENDORS)
        self.events: list[str] = []
        self.replaced = 0

    def count(self) -> None:
        self.replaced += 1

    async def report(self, problem: str) -> None:
        self.events.append(problem)

    async def settle(self) -> None:
        await self.poll()
        await self.poll()

    async def poll(self) -> None:
        await self.source.poll(self.report, self.count)

    @property
    def enforced(self) -> list[dict[str, str]]:
        rules = self.source.current.matching(Namespace("n", {}, {}), {})
        return [dict(rule.enforce) for rule in rules]


async def test_a_changed_policy_file_comes_into_force(tmp_path: Path) -> None:
    watched = Watched(tmp_path / "policy.yaml", ENFORCING % "binpack")
    await watched.settle()
    assert watched.enforced == [{"hami.io/gpu-scheduler-policy": "binpack"}]
    watched.path.write_text(ENFORCING % "spread")
    await watched.poll()
    assert watched.enforced == [{"hami.io/gpu-scheduler-policy": "binpack"}], "half a file would not count either"
    await watched.poll()
    assert watched.enforced == [{"hami.io/gpu-scheduler-policy": "spread"}]
    assert (watched.source.failures, watched.events, watched.replaced) == (0, [], 2)


@pytest.mark.parametrize("fault", ["policies: [", "policies: [{name: r, wrong: 1}]", b"\xff", None])
async def test_a_policy_file_that_cant_be_used_keeps_the_old_rules_and_is_told_once(
    tmp_path: Path, fault: bytes | str | None, caplog: pytest.LogCaptureFixture
) -> None:
    watched = Watched(tmp_path / "policy.yaml", ENFORCING % "binpack")
    await watched.settle()
    if fault is None:
        watched.path.unlink()
    else:
        watched.path.write_bytes(fault if isinstance(fault, bytes) else fault.encode())
    for _ in range(3):
        await watched.settle()
    assert watched.enforced == [{"hami.io/gpu-scheduler-policy": "binpack"}]
    assert (watched.source.failures, watched.replaced) == (1, 1)
    assert watched.events == [watched.source.problem]
    assert caplog.text.count("the rules before stay in force") == 1
    watched.path.write_text(ENFORCING % "spread")
    await watched.settle()
    assert watched.source.problem is None
    assert watched.enforced == [{"hami.io/gpu-scheduler-policy": "spread"}]


async def test_the_policy_file_is_polled(tmp_path: Path) -> None:
    watched = Watched(tmp_path / "policy.yaml", ENFORCING % "binpack")
    naps = []

    async def sleep(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 3:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await watched.source.watch(5.0, watched.report, watched.count, sleep)
    assert naps == [5.0] * 3
    assert watched.enforced


async def test_a_running_process_takes_a_new_policy_and_tells_of_a_bad_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hami_webhook.server.run._POLICY_POLL", 0.02)
    path = tmp_path / "policy.yaml"
    path.write_text("")
    cluster = await quota_cluster(FULL)
    env = {"POD_NAME": "me", "POD_NAMESPACE": "team-a"}
    me = await cluster.create(
        Kind.PODS, {"metadata": {"name": "me", "namespace": "team-a"}, "spec": {"containers": []}}
    )
    async with served(
        tmp_path / "tls", cluster, "--policy-file", str(path), env=env, policies=PolicyRules.EMPTY
    ) as webhook:

        async def warned() -> list[str]:
            inner = await webhook.review("/mutate", review(pod(gpu=1, mem=3000)))
            warnings: list[str] = inner.get("warnings", [])
            return warnings

        def metrics_of(webhook: Served) -> str:
            return generate_latest(webhook.process.registry).decode()

        assert await warned() == []
        path.write_text(ENFORCING % "binpack")
        await until(lambda: "hami_webhook_policy_rules 1.0" in metrics_of(webhook))
        assert await warned() == ["hami.io/gpu-scheduler-policy set to binpack by policy r"]
        path.write_text("policies: 1")
        await until(lambda: cluster.events)
        (event,) = cluster.events
        assert (event.note.name, event.note.reason, event.note.type) == ("me", "PolicyFileRefused", "Warning")
        assert event.note.uid == me["metadata"]["uid"]  # without it `kubectl describe` doesn't show the event
        metrics = metrics_of(webhook)
        assert "hami_webhook_policy_failures_total 1.0" in metrics
        assert "hami_webhook_policy_rules 1.0" in metrics
        for name in ("tls_reloads_total", "tls_not_after_seconds", "quota_expired_total", "quota_drift_total"):
            assert f"hami_webhook_{name} " in metrics
        assert await warned()


# a process of its own


def clean_environment() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if not key.startswith(("HAMI_", "POD_", "KUBE"))}


@contextmanager
def process(*flags: str, program: Sequence[str] = ("-m", "hami_webhook")) -> Iterator[subprocess.Popen[str]]:
    """`python -m hami_webhook serve …`; whatever happens it is gone afterwards."""
    command = [sys.executable, *program, "serve", *flags]
    env = clean_environment()
    started = subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield started
    finally:
        started.kill()
        started.communicate()


def flags_for(tmp_path: Path, grace: str = "300ms") -> tuple[str, ...]:
    run = (*ANYWHERE, "--shutdown-grace", grace, "--scheduler-name", "hami-scheduler")
    return (*run, *certificates(tmp_path), "--embedded-cluster", CLUSTER)


def ports(started: subprocess.Popen[str], roles: str = "controller, extender, webhook") -> tuple[int, int]:
    """The ports it says it serves on; every line up to there is returned too."""
    lines = []
    assert started.stderr is not None
    for line in started.stderr:
        lines.append(line)
        found = re.search(r"serving (\S.*) on https://127\.0\.0\.1:(\d+), metrics on port (\d+)", line)
        if found:
            assert found[1] == roles
            return int(found[2]), int(found[3])
    raise AssertionError("".join(lines))


@pytest.mark.integration
def test_serve_needs_no_extra(tmp_path: Path) -> None:
    hiding = f"import sys; sys.modules.update(dict.fromkeys({list(EXTRAS)}))"
    program = "-c", f"{hiding}; from hami_webhook.cli import main; sys.exit(main())"
    with process(*flags_for(tmp_path), program=program) as started:
        port, _ = ports(started)
        with httpx.Client(base_url=f"https://127.0.0.1:{port}", verify=trusting()) as client:
            wait_ready(client)


@pytest.mark.integration
@pytest.mark.parametrize(("number", "drains"), [(signal.SIGTERM, True), (signal.SIGINT, False)])
def test_serve_answers_reviews_and_ends_in_peace(tmp_path: Path, number: signal.Signals, drains: bool) -> None:
    with process(*flags_for(tmp_path, "3s")) as started:
        port, metrics = ports(started)
        with httpx.Client(base_url=f"https://127.0.0.1:{port}", verify=trusting()) as client:
            wait_ready(client)

            def send(path: str, obj: JSON) -> JSON:
                answer = client.post(path, content=body(review(obj)), headers=AS_JSON)
                inner: JSON = answer.json()["response"]
                return inner

            assert send("/mutate", pod(gpu=1, mem=3000))["patchType"] == "JSONPatch"
            assert send("/validate", pod(gpu=2, mem=15_000, uid="u1"))["allowed"]
            refused = send("/validate", pod(gpu=1, mem=15_000, uid="u2"))
            assert "exceeded quota: gpu-quota" in refused["status"]["message"]
            assert "hami_gpu_memory_limit_bytes" in httpx.get(f"http://127.0.0.1:{metrics}/metrics").text
            started.send_signal(number)
            if drains:
                statuses = {client.get("/readyz").status_code for _ in range(10)}
                assert 503 in statuses, "readiness fails first"
                assert send("/mutate", pod(gpu=1, mem=3000))["allowed"], "and it still serves"
        assert started.wait(10) == 0
        assert started.stderr is not None
        rest = started.stderr.read()
    assert "Traceback" not in rest
    assert "ERROR" not in rest
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), 1)


def wait_ready(client: httpx.Client) -> None:
    for _ in range(200):
        if client.get("/readyz").status_code == 200:
            return
    raise AssertionError("never ready")


@pytest.mark.integration
@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_the_drain(tmp_path: Path, second: signal.Signals) -> None:
    with process(*flags_for(tmp_path, "10m")) as started:
        ports(started)
        started.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            started.wait(0.3)
        started.send_signal(second)
        assert started.wait(10) == 0
        assert started.stderr is not None
        assert "Traceback" not in started.stderr.read()


@pytest.mark.integration
@pytest.mark.parametrize("roles", ["webhook", "controller, extender"])
def test_with_nothing_in_flight_the_grace_is_not_waited_for(tmp_path: Path, roles: str) -> None:
    brief = (
        "import sys, hami_webhook.cli as cli, hami_webhook.server.run as run; run._LEAVING = 0.5; sys.exit(cli.main())"
    )
    with process(*flags_for(tmp_path, "10m"), "--roles", roles.replace(" ", ""), program=("-c", brief)) as started:
        ports(started, roles)
        started.send_signal(signal.SIGTERM)
        assert started.wait(30) == 0


@pytest.mark.integration
def test_a_request_in_flight_is_finished_after_sigterm(tmp_path: Path) -> None:
    with process(*flags_for(tmp_path, "300ms")) as started:
        port, _ = ports(started)
        content = body(review(pod(gpu=1, mem=3000)))
        head = "POST /mutate HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        head += f"content-length: {len(content)}\r\n\r\n"
        with (
            socket.create_connection(("127.0.0.1", port)) as raw,
            trusting().wrap_socket(raw, server_hostname="127.0.0.1") as secure,
        ):
            secure.sendall(head.encode() + content[:10])
            started.send_signal(signal.SIGTERM)
            secure.settimeout(0.2)
            with pytest.raises((TimeoutError, ssl.SSLWantReadError)):
                secure.recv(1)
            secure.settimeout(5)
            secure.sendall(content[10:])
            assert secure.recv(15).startswith(b"HTTP/1.1 200")
        assert started.wait(10) == 0


def unusable(tmp_path: Path, taken: socket.socket) -> dict[str, tuple[str, ...]]:
    bad = tmp_path / "bad.yaml"
    bad.write_text("kind: [")
    missing = str(tmp_path / "missing")
    return {
        "a bad cluster file": ("--embedded-cluster", str(bad)),
        "a missing cluster file": ("--embedded-cluster", missing),
        "a missing certificate": ("--cert_file", missing),
        "a missing policy file": ("--policy-file", missing),
        "a missing device config": ("--device-config-file", missing),
        "a port in use": ("--http_bind", f"127.0.0.1:{taken.getsockname()[1]}"),
    }


EACH_BY_ITSELF = """
import contextlib, io, json, sys
from hami_webhook.cli import main
for flags in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(["serve", *flags])
    print(json.dumps([status, out.getvalue(), err.getvalue()]))
"""
"""One process for several starts, as most of a start is importing."""


@pytest.mark.integration
def test_what_cant_be_used_is_told_in_one_line_with_status_2(tmp_path: Path) -> None:
    good = flags_for(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        wrong = unusable(tmp_path, taken)
        starts = json.dumps([[*good, *flags] for flags in wrong.values()])
        command, env = [sys.executable, "-c", EACH_BY_ITSELF, starts], clean_environment()
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=True, timeout=300)
    for what, line in zip(wrong, done.stdout.splitlines(), strict=True):
        status, out, err = json.loads(line)
        assert (status, out) == (2, ""), (what, err)
        message = [line for line in err.splitlines() if "warning:" not in line and "WARNING" not in line]
        assert len(message) == 1, (what, err)
        assert message[0].startswith("hami-webhook: "), what


async def test_a_replica_of_the_webhook_records_no_event_and_never_leads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no right to either: a refused policy file is in its log and counted, the event is the controller's."""
    monkeypatch.setattr("hami_webhook.server.run._POLICY_POLL", 0.02)
    path = tmp_path / "policy.yaml"
    path.write_text("policies: 1")
    cluster = await quota_cluster(FULL)
    env = {"POD_NAME": "me", "POD_NAMESPACE": "team-a"}
    flags = ("--policy-file", str(path), "--roles", "webhook")
    async with served(tmp_path / "tls", cluster, *flags, env=env, policies=PolicyRules.EMPTY) as webhook:
        await until(lambda: "policy_failures_total 1.0" in generate_latest(webhook.process.registry).decode())
        assert "hami_webhook_leader" not in generate_latest(webhook.process.registry).decode()
    assert cluster.events == []


async def test_a_loop_that_fails_is_counted_and_the_process_serves_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: NamespaceAnnotations) -> None:
        raise KeyError("metadata")

    cluster = await quota_cluster(FULL)
    monkeypatch.setattr("hami_webhook.controller.namespaces.NamespaceAnnotations.audit", fail)
    async with served(tmp_path, cluster) as webhook:
        failures = 'hami_webhook_loop_failures_total{loop="namespace annotations"} 1.0'
        await until(lambda: failures in generate_latest(webhook.process.registry).decode())
        assert (await webhook.review("/mutate", review(pod(gpu=1, mem=3000))))["allowed"]
    assert "namespace annotations failed; starting it again in 1 s" in caplog.text
