"""The promises of the security page that no other module's tests name: sections 1, 2, 4 and 6, over real HTTPS.

Forged allocations, updates and amounts are in tests/admission (test_security_1_…, test_security_2_…); slow clients,
TLS versions, header sizes and concurrency are in test_listener.py and test_tls.py.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import socket
import ssl
import warnings
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from admission.clusters import FULL, ledger, quota_cluster, spent
from admission.reviews import cpu, patched, pod, review, update
from builders import GPU, JSON, MEM, container

from hami_webhook import pki
from hami_webhook.admission.review import Answer
from hami_webhook.cluster.api import Kind
from hami_webhook.logs import JsonFormatter
from hami_webhook.policy.rules import PolicyRule, PolicyRules

from .serving import PAIR, served, settings_of, trusting

SECRET = "hunter2-do-not-log"


async def test_security_1_the_allowed_identities_come_from_configuration_with_safe_defaults(tmp_path: Path) -> None:
    env = {"POD_NAMESPACE": "hami-system"}
    old = pod(gpu=1, mem=3000, nodeName="n1")
    new = pod(gpu=1, mem=3000, nodeName="n1", annotations={"hami.io/bind-phase": "success"})
    async with served(tmp_path, await quota_cluster(), "--allowed-identities", "joe,group:ops", env=env) as webhook:

        async def allowed(user: str, *groups: str) -> bool:
            inner = await webhook.review("/validate", update(old, new, user, *groups))
            return inner["allowed"] is True

        account, system = "system:serviceaccount:hami-system:", "system:serviceaccount:kube-system:"
        # those of HAMi's own manifests for Ascend, Hygon and AMD
        plugins = ("hami-ascend", "dcu-device-plugin", "hcu-device-plugin", "amd-gpu-device-plugin")
        for user, groups in (
            *((system + plugin, ()) for plugin in plugins),
            (account + "hami-scheduler", ()),
            (account + "hami-device-plugin", ()),
            ("system:node:n1", ("system:nodes",)),
            ("joe", ()),
            ("anybody", ("ops",)),
        ):
            assert await allowed(user, *groups), user
        for user, groups in (
            ("alice", ()),
            ("ops", ()),
            ("kubernetes-admin", ("system:masters",)),
            ("system:serviceaccount:default:hami-scheduler", ()),
            ("system:serviceaccount:default:hami-ascend", ()),
            ("system:node:n2", ("system:nodes",)),
        ):
            assert not await allowed(user, *groups), user


def test_security_1_without_a_namespace_of_our_own_accounts_of_kube_system_alone_are_trusted_by_default() -> None:
    assert {user.split(":")[2] for user in settings_of().trusted_users} == {"kube-system"}
    assert settings_of().trusted_groups == frozenset()


async def test_security_2_no_label_on_the_pod_opts_out_of_the_charge(tmp_path: Path) -> None:
    cluster = await quota_cluster(FULL)
    async with served(tmp_path, cluster) as webhook:
        obj = pod(gpu=1, mem=3000, uid="u1", labels={"hami.io/webhook": "ignore"})
        assert (await webhook.review("/validate", review(obj)))["allowed"]
    assert ledger(cluster) == {"u1": {GPU: 1, MEM: 3000}}


async def test_security_2_namespace_policy_is_tightened_never_loosened(tmp_path: Path) -> None:
    cluster = await quota_cluster(FULL)
    policies = PolicyRules((PolicyRule("r", enforce={"hami.io/gpu-scheduler-policy": "spread"}),))
    namespace = {"metadata": {"name": "bounded", "annotations": {"nvidia.com/use-gpuuuid": "GPU-a,GPU-b"}}}
    await cluster.create(Kind.NAMESPACES, namespace)
    async with served(tmp_path, cluster, policies=policies) as webhook:

        async def through(path: str, **annotations: str) -> Any:
            """The pod's annotations after the review, or the code of its refusal."""
            notes = {"nvidia.com/use-gpuuuid": annotations["uuids"]} if "uuids" in annotations else {}
            notes |= {"hami.io/gpu-scheduler-policy": annotations["policy"]} if "policy" in annotations else {}
            obj = pod(gpu=1, mem=3000, annotations=notes, uid="u")
            obj["metadata"]["namespace"] = "bounded"
            inner = await webhook.review(path, review(obj, namespace="bounded"))
            if not inner["allowed"]:
                return inner["status"]["code"]
            operations = orjson.loads(base64.b64decode(inner.get("patch", "W10=")))
            return patched(obj, Answer(operations))["metadata"].get("annotations", {})

        spread = {"hami.io/gpu-scheduler-policy": "spread"}
        assert await through("/mutate") == {"nvidia.com/use-gpuuuid": "GPU-a,GPU-b", **spread}
        assert await through("/mutate", uuids="GPU-b,GPU-c") == {"nvidia.com/use-gpuuuid": "GPU-b", **spread}
        assert await through("/mutate", uuids="GPU-c") == 403
        assert (await through("/mutate", policy="binpack"))["hami.io/gpu-scheduler-policy"] == "spread"
        # The same where mutation was skipped.
        assert await through("/validate") == 403
        assert await through("/validate", uuids="GPU-a,GPU-c", policy="spread") == 403
        assert await through("/validate", uuids="GPU-a", policy="binpack") == 403
        assert isinstance(await through("/validate", uuids="GPU-a", policy="spread"), dict)


async def test_security_4_clients_are_verified_if_that_is_asked_for(tmp_path: Path) -> None:
    clients = pki.authority(now=datetime.now(UTC))
    (tmp_path / "clients.crt").write_bytes(clients.certificate)
    flags = ("--client-ca-file", str(tmp_path / "clients.crt"))
    async with served(tmp_path / "tls", await quota_cluster(), *flags) as webhook:
        with pytest.raises((httpx.ReadError, httpx.ConnectError, httpx.RemoteProtocolError)):
            await webhook.client.get("/healthz")
        assert webhook.process.main.failed_handshakes == 1


async def test_security_4_tls_before_1_2_is_refused(tmp_path: Path) -> None:
    async with served(tmp_path, await quota_cluster()) as webhook:
        port = webhook.process.main.port

        def handshake(version: ssl.TLSVersion) -> str | None:
            context = trusting(PAIR.ca)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                context.minimum_version = context.maximum_version = version
            with (
                socket.create_connection(("127.0.0.1", port)) as raw,
                context.wrap_socket(raw, server_hostname="127.0.0.1") as secure,
            ):
                return secure.version()

        assert await asyncio.to_thread(handshake, ssl.TLSVersion.TLSv1_2) == "TLSv1.2"
        assert await asyncio.to_thread(handshake, ssl.TLSVersion.TLSv1_3) == "TLSv1.3"
        with pytest.raises((ssl.SSLError, OSError)):
            await asyncio.to_thread(handshake, ssl.TLSVersion.TLSv1_1)


@pytest.mark.parametrize("level", [logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR])
async def test_security_4_logs_carry_no_env_values_and_no_whole_pods(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, level: int
) -> None:
    caplog.set_level(level)
    env = [{"name": "PASSWORD", "value": SECRET}, {"name": "CUDA_TASK_PRIORITY", "value": SECRET}]
    extra: JSON = {"env": env, "args": [SECRET], "command": [SECRET]}
    priority = {GPU: 1, "nvidia.com/priority": 1}
    cluster = await quota_cluster(FULL)
    objects = [
        pod("p", container(gpu=1, mem=3000, **extra), uid="u1"),
        pod("p", cpu(**extra)),
        pod("p", {"name": "whole", "resources": {"limits": priority}, **extra}, uid="u2"),
        pod("p", container(gpu=1, mem=3000, **extra), nodeName="n1"),
        pod("p", container(gpu="1500m", mem=3000, **extra)),
        pod("p", container(gpu=1, mem=10**6, **extra), uid="u3"),
        pod("p", container(gpu=1, mem=3000, **extra), schedulerName="volcano", uid="u4"),
        pod("p", container(gpu=1, mem=3000, **extra), annotations={"hami.io/bind-phase": SECRET}),
        pod("p", container(gpu=1, mem=3000, **{**extra, "env": {"PASSWORD": SECRET}}), uid="u5"),
        pod("p", {**container(gpu=1, mem=3000, **extra), "name": 1}),
        {**pod("p", container(gpu=1, mem=3000, **extra)), "spec": [SECRET]},
    ]
    async with served(tmp_path, cluster) as webhook:
        for obj in objects:
            for path in ("/mutate", "/validate", "/webhook"):
                await webhook.review(path, review(obj))
        await webhook.review("/validate", update(objects[0], objects[3]))
        await webhook.client.post("/validate", content=SECRET.encode(), headers={"content-type": "application/json"})
    ours = [record for record in caplog.records if record.name.startswith("hami_webhook")]
    assert ours or level > logging.INFO, "the test would see what is logged"
    text = "\n".join(JsonFormatter().format(record) for record in caplog.records)
    assert SECRET not in text
    assert "PASSWORD" not in text


async def test_security_4_a_secret_in_the_environment_is_not_told_in_answers_either(tmp_path: Path) -> None:
    async with served(tmp_path, await quota_cluster(FULL)) as webhook:
        obj = pod("p", container(gpu=1, mem=3000, env={"PASSWORD": SECRET}), uid="u")
        inner = await webhook.review("/webhook", review(obj))
        assert SECRET not in orjson.dumps(inner).decode()


async def test_security_4_malformed_reviews_change_nothing(tmp_path: Path) -> None:
    cluster = await quota_cluster(FULL)
    async with served(tmp_path, cluster) as webhook:
        for written in ({}, review(None), review([]), review(pod("p", {"name": "c", "resources": {"limits": [GPU]}}))):
            for path in ("/mutate", "/validate", "/webhook"):
                inner = await webhook.review(path, written)
                assert (inner["allowed"], inner["status"]["code"]) == (False, 400)
        assert webhook.process.core.charger.counts.writes == 0
    assert (spent(cluster), ledger(cluster)) == ({GPU: 0, MEM: 0}, {})


async def test_security_6_readiness_needs_certificates_and_caches(tmp_path: Path) -> None:
    # A process without usable certificates never starts (test_run.py); one without caches isn't ready (test_app.py).
    async with served(tmp_path, await quota_cluster()) as webhook:
        assert (await webhook.client.get("/readyz")).status_code == 200
        webhook.process.leave()
        assert (await webhook.client.get("/readyz")).status_code == 503
