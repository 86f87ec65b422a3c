"""Self-managed certificates on the embedded cluster: made once, renewed in time, trusted before they are served."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.x509 import Certificate
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hami_webhook import pki
from hami_webhook.cluster.api import JSON, ClusterError, Kind
from hami_webhook.cluster.memory import MemoryCluster
from hami_webhook.cluster.object_events import ObjectEvents
from hami_webhook.controller.certificates import CertificateTarget, CertRotator, Lifetimes

KINDS = (Kind.MUTATING_WEBHOOKS, Kind.VALIDATING_WEBHOOKS)
DAY = 86400.0
SINCE = "hami.io/next-ca-trusted-since"


class Shown(MemoryCluster):
    """A cluster whose reads may show other fields than what is stored."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(clock)
        self.fields: dict[Kind, JSON] = {}
        self.meta: JSON = {}

    async def get(self, kind: Kind, name: str, namespace: str = "") -> JSON:
        stored = await super().get(kind, name, namespace)
        if kind not in self.fields:
            return stored
        return {**stored, **self.fields[kind], "metadata": {**stored["metadata"], **self.meta}}


class CertificatesEnv:
    """A cluster with both configurations, a clock to turn, the leader, and replicas that mount the Secret."""

    def __init__(self, *, configurations: bool = True) -> None:
        self.now = 1_767_225_600.0
        self.cluster = Shown(lambda: self.now)
        self.mounted: dict[str, pki.KeyPair] = {}
        self.problems: Counter[str] = Counter()
        self._configurations = configurations
        self.keeper = CertRotator(
            self.cluster,
            CertificateTarget("hami-system", "hami-webhook-tls", "hami-webhook", "hami-webhook-admission"),
            clock=lambda: self.now,
            object_events=ObjectEvents(self.cluster, self.problems),
            lifetimes=Lifetimes(timedelta(days=300), timedelta(days=30)),
        )

    async def prepare(self) -> None:
        await self.cluster.ensure_namespace("hami-system")
        if self._configurations:
            for kind in KINDS:
                await self.configure(kind)

    async def serve(self) -> None:
        await self.prepare()
        await self.settled()
        await self.mount("a")

    async def configure(self, kind: Kind) -> None:
        hooks = [{"name": name, "clientConfig": {"service": {"name": "hami-webhook"}}} for name in ("a", "b")]
        await self.cluster.create(kind, {"metadata": {"name": "hami-webhook-admission"}, "webhooks": hooks})

    async def stored(self) -> JSON:
        return await self.cluster.get(Kind.SECRETS, "hami-webhook-tls", "hami-system")

    async def secret(self) -> dict[str, bytes]:
        return {name: base64.b64decode(text) for name, text in (await self.stored())["data"].items()}

    async def spoil(self, **data: bytes | None) -> None:
        """Put something else into the Secret; `ca_crt` stands for `ca.crt`."""
        encoded = {
            name.replace("_", "."): None if value is None else base64.b64encode(value).decode()
            for name, value in data.items()
        }
        await self.cluster.patch(Kind.SECRETS, "hami-webhook-tls", {"data": encoded}, "hami-system")

    async def annotate(self, value: str) -> None:
        patch = {"metadata": {"annotations": {SINCE: value}}}
        await self.cluster.patch(Kind.SECRETS, "hami-webhook-tls", patch, "hami-system")

    async def mount(self, name: str) -> None:
        """Have kubelet bring a replica what the Secret has; a pair that can't be used is never served."""
        data = await self.secret()
        pair = pki.KeyPair(data.get("tls.crt", b""), data.get("tls.key", b""))
        try:
            pki.check_serving(pair, data.get("ca.crt", b""), "hami-webhook", "hami-system")
        except pki.PkiError:
            return
        self.mounted[name] = pair

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
            for name, pair in self.mounted.items():
                leaf = pki.read_certificate(pair.certificate)
                assert any(_signed_by(leaf, authority) for authority in authorities), f"{name} isn't trusted"

    async def pass_time(self, seconds: float) -> None:
        """The leader looks every ten seconds; what is mounted stays trusted throughout."""
        for _ in range(int(seconds / 10)):
            self.now += 10
            await self.keeper.reconcile()
            await self.check_trust()

    async def settled(self) -> dict[str, bytes]:
        """What the Secret has once nothing is due any more."""
        await self.keeper.reconcile()
        await self.keeper.reconcile()
        assert self.keeper.injected
        data = await self.secret()
        now = datetime.fromtimestamp(self.now, UTC)
        pki.check_authority(pki.KeyPair(data["ca.crt"], data["ca.key"]), now)
        serving = pki.KeyPair(data["tls.crt"], data["tls.key"])
        pki.check_serving(serving, data["ca.crt"], "hami-webhook", "hami-system")
        return data

    @property
    def events(self) -> list[tuple[str, str, int]]:
        return [(event.note.reason, event.note.message, event.count) for event in self.cluster.events]


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
def env() -> CertificatesEnv:
    """An environment whose Secret is made, trusted and served by a replica."""
    made = CertificatesEnv()
    asyncio.run(made.serve())
    return made


async def test_the_secret_is_made_marked_and_trusted() -> None:
    env = CertificatesEnv()
    await env.prepare()
    for injected in (False, True):
        await env.keeper.reconcile()
        assert env.keeper.injected is injected
    assert await env.bundles() == {(await env.secret())["ca.crt"]}
    stored = await env.stored()
    assert stored["type"] == "kubernetes.io/tls"
    assert stored["metadata"]["labels"] == {"app.kubernetes.io/managed-by": "hami-webhook"}
    assert env.events == []


async def test_a_serving_certificate_is_renewed_with_the_same_authority(env: CertificatesEnv) -> None:
    first, authority = env.mounted["a"], (await env.secret())["ca.crt"]
    for _ in range(40):
        env.now += DAY
        await env.keeper.reconcile()
        await env.mount("a")
        await env.check_trust()
    assert env.mounted["a"] != first
    assert (await env.secret())["ca.crt"] == authority
    assert pki.read_lifetime(env.mounted["a"].certificate).not_after > datetime.fromtimestamp(env.now, UTC)


async def test_an_authority_is_replaced_without_a_moment_of_distrust(env: CertificatesEnv) -> None:
    """One replica gets the new pair late; the former authority stays trusted until it expires, without its key."""
    await env.mount("late")
    old = (await env.secret())["ca.crt"]
    env.now += 210 * DAY
    # the serving pairs have run out long ago here; what matters is who trusts whom
    for _ in range(30):
        await env.pass_time(10)
        await env.mount("a")
        await env.check_trust()
    data = await env.secret()
    assert data["ca.crt"] != old
    assert data["old.crt"] == old
    assert set(data) == {"ca.crt", "ca.key", "tls.crt", "tls.key", "old.crt"}
    (bundle,) = await env.bundles()
    assert _split(bundle) == [old, data["ca.crt"]]
    await env.mount("late")
    env.now += 80 * DAY
    await env.pass_time(30)
    assert "old.crt" in await env.secret()
    env.now += 11 * DAY
    await env.pass_time(30)
    assert await env.bundles() == {(await env.secret())["ca.crt"]}
    assert "old.crt" not in await env.secret()
    assert env.events == []


async def test_the_next_authority_signs_thirty_seconds_after_both_configurations_trust_it(env: CertificatesEnv) -> None:
    env.now += 210 * DAY
    before = await env.secret()
    await env.keeper.reconcile()
    announced = (await env.secret())["next.crt"]
    await env.keeper.reconcile()
    (bundle,) = await env.bundles()
    assert _split(bundle) == [before["ca.crt"], announced]
    assert SINCE not in (await env.stored())["metadata"].get("annotations", {})
    await env.keeper.reconcile()
    assert (await env.stored())["metadata"]["annotations"][SINCE] == str(int(env.now))
    env.now += 29
    await env.keeper.reconcile()
    assert (await env.secret())["ca.crt"] == before["ca.crt"]
    env.now += 1
    await env.keeper.reconcile()
    assert (await env.secret())["ca.crt"] == announced


async def test_nothing_is_renewed_before_a_configuration_is_there() -> None:
    env = CertificatesEnv(configurations=False)
    await env.prepare()
    await env.keeper.reconcile()
    env.now += 290 * DAY
    before = await env.secret()
    await env.keeper.reconcile()
    assert await env.secret() == before
    await env.configure(Kind.VALIDATING_WEBHOOKS)
    await env.keeper.reconcile()
    await env.keeper.reconcile()
    assert "next.crt" in await env.secret()


async def test_a_secret_of_somebody_else_is_reported_once_and_left_alone() -> None:
    env = CertificatesEnv()
    await env.prepare()
    meta = {"name": "hami-webhook-tls", "namespace": "hami-system"}
    await env.cluster.create(Kind.SECRETS, {"metadata": meta, "data": {"tls.crt": "eA=="}})
    for _ in range(3):
        with pytest.raises(pki.PkiError, match=r"hami-system/hami-webhook-tls isn't ours; delete it"):
            await env.keeper.reconcile()
    assert (await env.stored())["data"] == {"tls.crt": "eA=="}
    message = "Secret hami-system/hami-webhook-tls isn't ours; delete it, and the controller creates another"
    assert env.events == [("CertificateSecretForeign", message, 1)]
    assert env.problems == {"CertificateSecretForeign": 1}


async def test_a_secret_that_an_earlier_version_made_is_ours(env: CertificatesEnv) -> None:
    patch: JSON = {"metadata": {"labels": None, "annotations": {"serving.hami.io/hami-webhook-0": "1"}}}
    await env.cluster.patch(Kind.SECRETS, "hami-webhook-tls", patch, "hami-system")
    await env.keeper.reconcile()
    await env.spoil(tls_key=b"garbage")
    await env.settled()
    assert "labels" in (await env.stored())["metadata"]


OTHER = pki.generate("other", "hami-system", now=datetime.fromtimestamp(1_767_225_600.0, UTC))


@pytest.mark.parametrize(
    ("spoilt", "message"),
    [
        ({"tls_key": None}, "the serving key is not a readable, unencrypted PEM private key"),
        ({"tls_crt": b"garbage"}, "the text holds no readable PEM certificate"),
        ({"tls_crt": None, "tls_key": None}, "the text holds no readable PEM certificate"),
        ({"tls_key": OTHER.serving.key}, "the serving key does not belong to its certificate"),
        (
            {"tls_crt": OTHER.serving.certificate, "tls_key": OTHER.serving.key},
            "the authority did not sign the serving certificate",
        ),
    ],
    ids=["no key", "garbage", "none", "another's key", "another's pair"],
)
async def test_a_spoilt_serving_pair_is_signed_anew_by_the_same_authority(
    env: CertificatesEnv, spoilt: dict[str, bytes | None], message: str
) -> None:
    before = await env.secret()
    await env.spoil(**spoilt)
    await env.keeper.reconcile()
    after = await env.settled()
    assert after["ca.crt"] == before["ca.crt"]
    assert after["tls.crt"] != before["tls.crt"]
    await env.check_trust()
    assert env.events == [("CertificateUnusable", f"tls.crt and tls.key: {message}", 1)]
    await env.spoil(**spoilt)
    await env.keeper.reconcile()
    await env.settled()
    assert env.problems == {"CertificateUnusable": 2}


async def test_a_pair_for_another_service_is_replaced(env: CertificatesEnv) -> None:
    data = await env.secret()
    now = datetime.fromtimestamp(env.now, UTC)
    pair = pki.issue(pki.KeyPair(data["ca.crt"], data["ca.key"]), "other", "hami-system", now=now)
    await env.spoil(tls_crt=pair.certificate, tls_key=pair.key)
    await env.settled()
    assert env.events[0][1].endswith("the serving certificate is not for hami-webhook.hami-system.svc")


@pytest.mark.parametrize(
    "spoilt",
    [
        {"ca_key": None},
        {"ca_key": b"garbage"},
        {"ca_key": OTHER.ca.key},
        {"ca_crt": None},
        {"ca_crt": b"garbage", "ca_key": b"garbage"},
        {"ca_crt": OTHER.ca.certificate, "ca_key": OTHER.ca.certificate},
        {"ca_crt": OTHER.serving.certificate, "ca_key": OTHER.serving.key},
    ],
    ids=["no key", "garbage key", "another's key", "no certificate", "garbage", "another's", "no authority"],
)
async def test_an_authority_that_can_sign_no_more_is_succeeded_in_order_while_its_pair_is_trusted(
    env: CertificatesEnv, spoilt: dict[str, bytes | None]
) -> None:
    before = await env.secret()
    await env.spoil(**spoilt)
    await env.keeper.reconcile()
    data = await env.secret()
    assert data["ca.crt"] == before["ca.crt"], "the bundles still have it"
    assert data["tls.crt"] == before["tls.crt"]
    assert "next.crt" in data
    await env.pass_time(20)
    assert (await env.secret())["tls.crt"] == before["tls.crt"]
    await env.pass_time(40)
    after = await env.settled()
    assert after["ca.crt"] == data["next.crt"]
    assert after["old.crt"] == before["ca.crt"]
    assert set(after) == {"ca.crt", "ca.key", "tls.crt", "tls.key", "old.crt"}
    reasons = [(reason, message.partition(":")[0]) for reason, message, _ in env.events]
    assert set(reasons) == {("CertificateUnusable", "ca.crt and ca.key")}
    assert all(count == 1 for _, _, count in env.events)


async def test_an_authority_whose_pair_is_lost_too_is_replaced_at_once_and_what_was_trusted_stays_trusted(
    env: CertificatesEnv,
) -> None:
    """A replica goes on with the last pair that it could use."""
    before = await env.secret()
    await env.spoil(ca_crt=b"x", ca_key=b"y", tls_crt=b"z", tls_key=None)
    await env.keeper.reconcile()
    await env.check_trust()
    after = await env.settled()
    assert after["ca.crt"] != before["ca.crt"]
    assert after["old.crt"] == before["ca.crt"]
    await env.check_trust()
    await env.mount("a")
    await env.check_trust()
    assert [count for _, _, count in env.events] == [1]


async def test_an_authority_that_has_expired_is_replaced_at_once(env: CertificatesEnv) -> None:
    before = await env.secret()
    env.now += 301 * DAY
    await env.keeper.reconcile()
    after = await env.settled()
    assert after["ca.crt"] != before["ca.crt"]
    assert "old.crt" not in after
    assert await env.bundles() == {after["ca.crt"]}


async def test_a_secret_that_was_deleted_is_made_anew_and_nothing_of_before_is_trusted(env: CertificatesEnv) -> None:
    before = await env.secret()
    await env.cluster.delete(Kind.SECRETS, "hami-webhook-tls", "hami-system")
    await env.keeper.reconcile()
    after = await env.settled()
    assert await env.bundles() == {after["ca.crt"]} != {before["ca.crt"]}
    assert env.events == []


@pytest.mark.parametrize("value", ["garbage", "", "-1", "1e400", "9" * 400, "nan", "1767312000"])
async def test_an_absurd_annotation_is_written_anew(env: CertificatesEnv, value: str) -> None:
    """The last is a day ahead."""
    if value == "1767312000":
        assert int(value) == 1_767_225_600 + DAY
    await env.annotate(value)
    await env.keeper.reconcile()
    assert SINCE not in ((await env.stored())["metadata"].get("annotations") or {})
    env.now += 210 * DAY
    for _ in range(3):
        await env.keeper.reconcile()
    await env.annotate("garbage")
    await env.keeper.reconcile()
    assert (await env.stored())["metadata"]["annotations"][SINCE] == str(int(env.now))
    await env.pass_time(30)
    assert "old.crt" in await env.settled()
    assert env.problems == {"CertificateUnusable": 2}


async def test_a_next_authority_and_a_former_one_that_are_unusable_go(env: CertificatesEnv) -> None:
    await env.spoil(next_crt=OTHER.ca.certificate, next_key=b"garbage", old_crt=b"garbage")
    await env.keeper.reconcile()
    after = await env.settled()
    assert set(after) == {"ca.crt", "ca.key", "tls.crt", "tls.key"}
    assert [message.partition(":")[0] for _, message, _ in env.events] == ["next.crt and next.key"]


ANY: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=8), below, max_size=3),
    max_leaves=6,
)
PEM = st.sampled_from(
    [OTHER.ca.certificate, OTHER.ca.key, OTHER.serving.certificate, OTHER.serving.key, OTHER.ca.certificate * 2, b"x"]
)
VALUE = PEM.map(lambda pem: base64.b64encode(pem).decode()) | ANY
NAMES = ("ca.crt", "ca.key", "tls.crt", "tls.key", "next.crt", "next.key", "old.crt")
DATA = st.dictionaries(st.sampled_from(NAMES), VALUE)
HOOKS = ANY | st.lists(
    st.fixed_dictionaries({}, optional={"clientConfig": ANY | st.fixed_dictionaries({"caBundle": VALUE})})
)
NOTES = ANY | st.fixed_dictionaries({SINCE: ANY})


@settings(suppress_health_check=list(HealthCheck))
@given(data=DATA | ANY, notes=NOTES, labels=ANY, hooks=HOOKS, version=st.none() | ANY)
def test_whatever_the_objects_hold_only_retryable_errors_come_and_then_it_works_again(
    data: Any, notes: Any, labels: Any, hooks: Any, version: Any
) -> None:
    async def body() -> None:
        env = CertificatesEnv()
        await env.serve()
        env.cluster.meta = {"annotations": notes, "labels": labels, "resourceVersion": version, "uid": version}
        env.cluster.fields = {kind: {"webhooks": hooks} for kind in KINDS} | {Kind.SECRETS: {"data": data}}
        for _ in range(3):
            env.now += 10
            with contextlib.suppress(ClusterError, pki.PkiError):
                await env.keeper.reconcile()
        env.cluster.fields = {}
        await env.keeper.reconcile()
        await env.settled()

    asyncio.run(body())
