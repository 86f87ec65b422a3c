"""The extender over real HTTP: who is let in, what a request may be, what it says (core 7.1, security 3)."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
from admission.clusters import quota_cluster
from builders import card, node, pod
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID
from scheduling.extender_env import ExtenderEnv
from starlette.applications import Starlette

from hami_webhook import pki
from hami_webhook.config import ConfigError
from hami_webhook.config.settings import Settings
from hami_webhook.scheduling.extender import Extender
from hami_webhook.server.extender_app import MAX_BODY, ExtenderApp
from hami_webhook.server.limits import ListenerLimits
from hami_webhook.server.listener import Listener
from hami_webhook.server.request_metrics import RequestMetrics, new_registry
from hami_webhook.server.tls import CertificateFiles, ReloadingTls

from .serving import certificates, served, settings_of, trusting
from .test_tls import CA
from .test_tls import serving as issued

LIMITS = ListenerLimits(max_request_bytes=MAX_BODY, shutdown_grace=0.2)
PATHS = ("/filter", "/filter-simulation", "/prioritize", "/bind", "/preempt")
EMPTY = {"Nodes": None, "NodeNames": None, "FailedNodes": None, "FailedAndUnresolvableNodes": None, "Error": ""}


def app_of(extender: Extender, token_file: str = "") -> ExtenderApp:
    requests = RequestMetrics(new_registry(), "hami_webhook_extender", "extender request")
    return ExtenderApp(extender, LIMITS, requests, token_file)


@asynccontextmanager
async def connected(
    env: ExtenderEnv | None = None, *, token_file: str = "", tls: ReloadingTls | None = None
) -> AsyncIterator[httpx.AsyncClient]:
    extender = (env or ExtenderEnv("single")).extender
    application = app_of(extender, token_file).application()
    listener = Listener(application, host="127.0.0.1", port=0, limits=LIMITS, tls=tls)
    await listener.start()
    url = f"{'https' if tls else 'http'}://127.0.0.1:{listener.port}"
    try:
        async with httpx.AsyncClient(base_url=url, timeout=10, verify=trusting()) as client:
            yield client
    finally:
        await listener.drain_and_stop()


async def two_nodes() -> ExtenderEnv:
    env = ExtenderEnv("single")
    await env.add(node("n", card("G", 8000)), node("m", card("M", 8000)), pod("p", gpu=1, mem=1000))
    return env


def binding(env: ExtenderEnv, **other: str) -> dict[str, str]:
    return {"PodName": "p", "PodNamespace": "default", "PodUID": env.read("p").uid, "Node": "n", **other}


async def test_a_pod_goes_through_filter_and_bind() -> None:
    env = await two_nodes()
    async with connected(env) as client:
        sent = {"Pod": env.raw("p"), "Nodes": None, "NodeNames": ["n", "m", "gone"]}
        answer = await client.post("/filter", json=sent)
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "application/json"
        gone = {"gone": "node unregistered"}
        assert answer.json() == {
            **EMPTY,
            "NodeNames": ["m"],
            "FailedNodes": gone,
            "FailedAndUnresolvableNodes": gone,
        }
        answer = await client.post("/bind", json=binding(env, Node="m"))
        assert (answer.status_code, answer.json()) == (200, {"Error": ""})
    assert env.read("p").node_name == "m"


async def test_grades_are_a_list_of_hosts() -> None:
    env = ExtenderEnv("cooperative")
    await env.add(node("n", card("G", 8000)), pod("p", gpu=1, mem=1000))
    async with connected(env) as client:
        sent = {"Pod": env.raw("p"), "NodeNames": ["n", "x"]}
        await client.post("/filter", json=sent)
        answer = await client.post("/prioritize", json=sent)
        assert answer.json() == [{"Host": "n", "Score": 10}, {"Host": "x", "Score": 0}]
        assert (await client.post("/prioritize", json={})).json() == []


async def test_a_simulation_needs_whole_nodes() -> None:
    env = await two_nodes()
    async with connected(env) as client:
        sent = {"Pod": env.raw("p"), "Nodes": {"items": [node("z", card("Z", 8000))]}}
        answer = (await client.post("/filter-simulation", json=sent)).json()
        assert [item["metadata"]["name"] for item in answer["Nodes"]["items"]] == ["z"]
        answer = (await client.post("/filter-simulation", json={"Pod": env.raw("p"), "NodeNames": ["n"]})).json()
        assert answer["Error"] == "a simulation needs whole nodes: extender args missing nodes"


async def test_what_is_wrong_is_told_with_status_200_and_a_missing_body_with_400() -> None:
    async with connected() as client:
        for path in PATHS:
            answer = await client.post(path)
            assert (answer.status_code, answer.text) == (400, "the request has no body\n"), path
        for path in ("/filter", "/filter-simulation", "/bind"):
            answer = await client.post(path, content=b"{")
            assert answer.status_code == 200
            assert answer.json()["Error"], path
        for body in (b"{}", b'{"Pod":null}', b"[]"):
            assert (await client.post("/filter", content=body)).json()["Error"].startswith("extender args m")


async def test_32_mib_are_taken_and_more_is_too_large() -> None:
    env = await two_nodes()
    async with connected(env) as client:
        body = json.dumps({"Pod": env.raw("p"), "NodeNames": ["n"]}).encode()
        answer = await client.post("/filter", content=body + b" " * (MAX_BODY - len(body)))
        assert (answer.status_code, answer.json()["NodeNames"]) == (200, ["n"])
        answer = await client.post("/filter", content=b" " * (MAX_BODY + 1))
        assert answer.status_code == 413
        assert "too large" in answer.text


async def test_without_the_token_nobody_is_let_in_and_nothing_changes(tmp_path: Path) -> None:
    env = await two_nodes()
    file = tmp_path / "token"
    file.write_text("secret\n")
    async with connected(env, token_file=str(file)) as client:
        sent = json.dumps({"Pod": env.raw("p"), "NodeNames": ["n"]})
        before = env.raw("p")
        for value in (None, "", "secret", "Bearer", "Bearer wrong", "Basic secret", "Bearer sécret"):
            headers: dict[bytes, bytes] = {} if value is None else {b"authorization": value.encode("latin-1")}
            for path in PATHS:
                answer = await client.post(path, content=sent, headers=headers)
                assert answer.status_code == 401, value
                assert answer.headers["www-authenticate"] == "Bearer"
        assert env.raw("p") == before
        assert env.registry.get_sample_value("hami_webhook_extender_filtered_total") == 0
        assert (await client.get("/healthz")).status_code == 200
        for right in ("Bearer secret", "bearer  secret"):
            answer = await client.post("/filter", content=sent, headers={"authorization": right})
            assert answer.json()["NodeNames"] == ["n"]
        file.write_text("other")
        assert (await client.post("/filter", content=sent, headers={"authorization": right})).status_code == 401
        for emptied in ("", " \n"):
            file.write_text(emptied)
            answer = await client.post("/filter", content=sent, headers={"authorization": "Bearer"})
            assert answer.status_code == 401, "an empty file is no token"
        file.unlink()
        assert (await client.post("/filter", content=sent, headers={"authorization": right})).status_code == 401


async def test_a_client_certificate_is_required_if_that_is_asked_for(tmp_path: Path) -> None:
    authority = tmp_path / "clients.crt"
    authority.write_bytes(CA.certificate)
    certificates(tmp_path / "own")
    own = CertificateFiles(tmp_path / "own" / pki.SERVING_CERTIFICATE, tmp_path / "own" / pki.SERVING_KEY, authority)
    env = await two_nodes()

    def context(pair: pki.KeyPair | None) -> ssl.SSLContext:
        trusted = trusting()
        if pair is not None:
            (tmp_path / "client.crt").write_bytes(pair.certificate)
            (tmp_path / "client.key").write_bytes(pair.key)
            trusted.load_cert_chain(tmp_path / "client.crt", tmp_path / "client.key")
        return trusted

    key = ec.generate_private_key(ec.SECP256R1())
    known = issued(key, ExtendedKeyUsageOID.CLIENT_AUTH)
    stranger = pki.generate("scheduler", "kube-system", now=datetime.now(UTC)).serving
    async with connected(env, tls=ReloadingTls(own)) as usual:
        for refused in (None, stranger):
            async with httpx.AsyncClient(base_url=usual.base_url, verify=context(refused), timeout=5) as client:
                with pytest.raises((httpx.ReadError, httpx.ConnectError, httpx.RemoteProtocolError)):
                    await client.post("/bind", json=binding(env))
        async with httpx.AsyncClient(base_url=usual.base_url, verify=context(known)) as client:
            answer = await client.post("/filter", json={"Pod": env.raw("p"), "NodeNames": ["n"]})
            assert answer.json()["NodeNames"] == ["n"]


async def test_a_whole_process_asks_for_the_certificate_and_the_token_it_is_told_to(tmp_path: Path) -> None:
    (tmp_path / "clients.crt").write_bytes(CA.certificate)
    (tmp_path / "token").write_text("secret")
    guarded = ("--extender-client-ca-file", str(tmp_path / "clients.crt"))
    async with served(tmp_path / "a", await quota_cluster(), *guarded) as env:
        assert env.process.extender is not None
        port = env.process.extender.port
        for url in (f"http://127.0.0.1:{port}", f"https://127.0.0.1:{port}"):
            async with httpx.AsyncClient(base_url=url, verify=trusting(), timeout=5) as client:
                with pytest.raises((httpx.ReadError, httpx.ConnectError, httpx.RemoteProtocolError)):
                    await client.post("/bind", content=b"{}")
    async with (
        served(tmp_path / "b", await quota_cluster(), "--extender-token-file", str(tmp_path / "token")) as env,
        httpx.AsyncClient(base_url=env.extender_url, timeout=5) as client,
    ):
        assert (await client.post("/bind", content=b"{}")).status_code == 401
        answer = await client.post("/bind", content=b"{}", headers={"authorization": "Bearer secret"})
        assert answer.json()["Error"].startswith("extender binding args must name")


@pytest.mark.parametrize(
    ("address", "status"),
    [
        ("127.0.0.1", 200),
        ("127.9.9.9", 200),
        ("::1", 200),
        ("::ffff:127.0.0.1", 200),
        ("10.1.2.3", 403),
        ("::ffff:10.1.2.3", 403),
        ("fd00::1", 403),
        ("fe80::1%eth0", 403),
        ("0.0.0.0", 403),
    ],
)
async def test_on_the_main_server_who_connects_from_elsewhere_is_refused(address: str, status: int) -> None:
    env = await two_nodes()
    routes = app_of(env.extender).routes(loopback_only=True)
    transport = httpx.ASGITransport(Starlette(routes=[*routes]), client=(address, 4711))
    async with httpx.AsyncClient(transport=transport, base_url="http://pod") as client:
        for path in PATHS:
            answer = await client.post(path, json={})
            assert answer.status_code == status, path
            if status == 403:
                assert f"{path} is answered on loopback only, and {address} isn't; " in answer.text
        await client.post("/filter", json={"Pod": env.raw("p"), "NodeNames": ["n"]})
        await client.post("/bind", json=binding(env))
    await env.recorded()
    assert env.read("p").node_name == ("n" if status == 200 else "")


async def test_a_kube_scheduler_beside_the_process_may_send_to_the_main_server(tmp_path: Path) -> None:
    async with served(tmp_path / "a", await quota_cluster(), "--extender-bind-address=") as env:
        assert env.process.extender is None
        answer = await env.client.post("/bind", content=b"{}")
        assert answer.json()["Error"].startswith("extender binding args must name")
    # with a token for the extender, the main server wants it as well
    (tmp_path / "token").write_text("secret")
    async with served(tmp_path / "b", await quota_cluster(), "--extender-token-file", str(tmp_path / "token")) as env:
        assert (await env.client.post("/bind", content=b"{}")).status_code == 401
        answer = await env.client.post("/bind", content=b"{}", headers={"authorization": "Bearer secret"})
        assert answer.status_code == 200
    # with an authority for the extender's clients it can't
    (tmp_path / "clients.crt").write_bytes(CA.certificate)
    guarded = ("--extender-client-ca-file", str(tmp_path / "clients.crt"))
    async with served(tmp_path / "c", await quota_cluster(), *guarded) as env:
        assert (await env.client.post("/bind", content=b"{}")).status_code == 404
    async with served(tmp_path / "d", await quota_cluster(), "--roles", "webhook,controller") as env:
        assert (await env.client.post("/bind", content=b"{}")).status_code == 404


async def test_where_hamis_next_chart_gives_the_extender_an_address_it_alone_answers_and_over_tls(
    tmp_path: Path,
) -> None:
    async with served(tmp_path, await quota_cluster(), "--extender-bind=127.0.0.1:0") as env:
        assert env.process.extender is not None
        address = f"127.0.0.1:{env.process.extender.port}"
        answer = await env.client.post(f"https://{address}/bind", content=b"{}")
        assert answer.json()["Error"].startswith("extender binding args must name")
        with pytest.raises(httpx.TransportError):
            await env.client.post(f"http://{address}/bind", content=b"{}")
        assert (await env.client.post("/bind", content=b"{}")).status_code == 404


def test_the_door_is_on_loopback_unless_it_is_guarded(tmp_path: Path) -> None:
    def is_loopback(settings: Settings) -> bool:
        assert settings.extender_bind_address is not None
        return settings.extender_bind_address.is_loopback

    assert is_loopback(settings_of())
    everywhere = ("--extender-bind-address", "0.0.0.0:9443", "--roles", "webhook,extender")
    with pytest.raises(ConfigError, match="must be loopback, or come with"):
        settings_of(*everywhere)
    token = tmp_path / "token"
    token.write_text("secret")
    assert not is_loopback(settings_of(*everywhere, "--extender-token-file", str(token)))
