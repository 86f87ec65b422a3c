"""Self-managed certificates on the embedded cluster: made once, renewed in time, trusted before they are served."""

from __future__ import annotations

import asyncio
import base64
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.x509 import Certificate

from hami_webhook import pki
from hami_webhook.cluster.api import JSON, Kind
from hami_webhook.cluster.memory import MemoryCluster
from hami_webhook.controller.certificates import CertificateKeeper, Lifetimes, Place

KINDS = (Kind.MUTATING_WEBHOOKS, Kind.VALIDATING_WEBHOOKS)
DAY = 86400.0


class Scene:
    """A cluster with both configurations, a clock to turn, and replicas that keep their certificates."""

    def __init__(self, folder: Path, *, configurations: bool = True) -> None:
        self.now = 1_767_225_600.0
        self.folder = folder
        self.cluster = MemoryCluster(lambda: self.now)
        self.alive: set[str] = set()
        self._configurations = configurations

    async def prepare(self) -> None:
        await self.cluster.ensure_namespace("hami-system")
        if self._configurations:
            for kind in KINDS:
                await self.configure(kind)

    async def configure(self, kind: Kind) -> None:
        hooks = [{"name": name, "clientConfig": {"service": {"name": "hami-webhook"}}} for name in ("a", "b")]
        await self.cluster.create(kind, {"metadata": {"name": "hami-webhook-admission"}, "webhooks": hooks})

    def replica(self, name: str) -> CertificateKeeper:
        self.alive.add(name)
        return CertificateKeeper(
            self.cluster,
            Place("hami-system", "hami-webhook-tls", "hami-webhook", "hami-webhook-admission", name),
            self.folder / name,
            clock=lambda: self.now,
            alive=self.alive.__contains__,
            lifetimes=Lifetimes(timedelta(days=300), timedelta(days=30)),
        )

    async def secret(self) -> dict[str, bytes]:
        stored = await self.cluster.get(Kind.SECRETS, "hami-webhook-tls", "hami-system")
        return {name: base64.b64decode(text) for name, text in stored["data"].items()}

    def served(self, name: str) -> bytes:
        return (self.folder / name / "tls.crt").read_bytes()

    async def bundles(self) -> set[bytes]:
        found: set[bytes] = set()
        for kind in KINDS:
            hooks: list[JSON] = (await self.cluster.get(kind, "hami-webhook-admission"))["webhooks"]
            found |= {base64.b64decode(hook["clientConfig"].get("caBundle", "")) for hook in hooks}
        return found

    async def check_trust(self) -> None:
        """Every pair that a replica serves is signed by an authority that every webhook trusts."""
        for bundle in await self.bundles():
            authorities = [pki.read_certificate(pem) for pem in _split(bundle)]
            for name in self.alive:
                leaf = pki.read_certificate(self.served(name))
                assert any(_signed_by(leaf, authority) for authority in authorities), f"{name} isn't trusted"


def _split(bundle: bytes) -> list[bytes]:
    end = b"-----END CERTIFICATE-----\n"
    return [part + end for part in bundle.split(end) if part.strip()]


def _signed_by(leaf: Certificate, authority: Certificate) -> bool:
    try:
        leaf.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_replicas_that_start_at_once_serve_one_pair(scene: Scene) -> None:
    async def run() -> None:
        await scene.prepare()
        replicas = [scene.replica(name) for name in ("a", "b", "c")]
        await asyncio.gather(*(replica.fetch() for replica in replicas))
        assert len({scene.served(name) for name in ("a", "b", "c")}) == 1
        await replicas[0].tend()
        await replicas[0].tend()
        assert replicas[0].injected
        assert await scene.bundles() == {(await scene.secret())["ca.crt"]}
        await scene.check_trust()

    asyncio.run(run())


def test_a_serving_certificate_is_renewed_with_the_same_authority(scene: Scene) -> None:
    async def run() -> None:
        await scene.prepare()
        replica = scene.replica("a")
        await replica.fetch()
        first, authority = scene.served("a"), (await scene.secret())["ca.crt"]
        for _ in range(40):
            scene.now += DAY
            await replica.tend()
            await replica.fetch()
            await scene.check_trust()
        assert scene.served("a") != first
        assert (await scene.secret())["ca.crt"] == authority
        assert pki.read_lifetime(scene.served("a")).not_after > datetime.fromtimestamp(scene.now, UTC)

    asyncio.run(run())


def test_an_authority_is_replaced_without_a_moment_of_distrust(scene: Scene) -> None:
    """One replica is slow to take the new pair; the old authority stays trusted until it has, or is gone."""

    async def run() -> None:
        await scene.prepare()
        quick, slow = scene.replica("quick"), scene.replica("slow")
        for replica in (quick, slow):
            await replica.fetch()
        old = (await scene.secret())["ca.crt"]
        scene.now += 210 * DAY
        # the serving pairs have run out long ago here; what matters is who trusts whom
        for _ in range(30):
            scene.now += 10
            await quick.tend()
            await scene.check_trust()
            await quick.fetch()
            await scene.check_trust()
        assert (await scene.secret())["ca.crt"] != old
        (bundle,) = await scene.bundles()
        assert _split(bundle) == [old, (await scene.secret())["ca.crt"]]
        await slow.fetch()
        for _ in range(5):
            await quick.tend()
            await scene.check_trust()
        assert await scene.bundles() == {(await scene.secret())["ca.crt"]}
        assert "old.crt" not in await scene.secret()

    asyncio.run(run())


def test_a_replica_that_is_gone_keeps_no_authority_alive(scene: Scene) -> None:
    async def run() -> None:
        await scene.prepare()
        quick, gone = scene.replica("quick"), scene.replica("gone")
        for replica in (quick, gone):
            await replica.fetch()
        scene.alive.discard("gone")
        scene.now += 210 * DAY
        for _ in range(30):
            scene.now += 10
            await quick.tend()
            await quick.fetch()
        assert "old.crt" not in await scene.secret()

    asyncio.run(run())


def test_nothing_is_renewed_before_a_configuration_is_there(tmp_path: Path) -> None:
    async def run() -> None:
        scene = Scene(tmp_path, configurations=False)
        await scene.prepare()
        replica = scene.replica("a")
        await replica.fetch()
        scene.now += 290 * DAY
        before = await scene.secret()
        await replica.tend()
        assert await scene.secret() == before
        await scene.configure(Kind.VALIDATING_WEBHOOKS)
        await replica.tend()
        await replica.tend()
        assert "next.crt" in await scene.secret()

    asyncio.run(run())


def test_a_secret_of_somebody_else_is_told_of(scene: Scene) -> None:
    async def run() -> None:
        await scene.prepare()
        meta = {"name": "hami-webhook-tls", "namespace": "hami-system"}
        await scene.cluster.create(Kind.SECRETS, {"metadata": meta, "data": {"tls.crt": "eA=="}})
        with pytest.raises(pki.PkiError, match=r"lacks ca.crt, ca.key, tls.key; delete it"):
            await scene.replica("a").fetch()

    asyncio.run(run())
