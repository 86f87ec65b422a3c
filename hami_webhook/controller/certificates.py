"""Self-managed certificates: one Secret with the authority and the serving pair, trusted by both configurations.

The leader alone writes the Secret and the `caBundle`s. Replicas of the webhook mount the Secret, so that they serve a
new certificate only after kubelet has updated the volume. A new authority is therefore trusted before it signs
anything, and a former one stays trusted until it expires:

1. `next.crt`, `next.key` appear in the Secret; the bundles hold the authority and the next one.
2. 30 s after both configurations read back so, the next one becomes `ca.crt` and signs a new pair. The former one stays
   in the bundles as part of `old.crt`; its key is dropped, so it signs nothing any more.

Unusable content is replaced and reported by an event: a serving pair is signed again at once; an authority whose key is
lost is replaced in the order above as long as the pair it signed is trusted, else at once. A deleted Secret is created
again, and former authorities aren't trusted any longer.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from hami_webhook import pki
from hami_webhook.cluster.api import JSON, AlreadyExists, Cluster, ClusterError, Conflict, Kind, NotFound
from hami_webhook.cluster.object_events import ObjectEvents
from hami_webhook.controller.webhooks import CONFIGURATIONS, webhooks_of
from hami_webhook.kube.event_reasons import EventReason
from hami_webhook.loops import News, Sleep, repeat

logger = logging.getLogger(__name__)

EVERY = 10.0
"""Seconds between two reconciliations of the Secret."""
_SETTLE = 30.0
"""Seconds after which every API server trusts the bundles of both configurations (docs/spec/quota.md#3.7)."""
_TRUSTED_SINCE = "hami.io/next-ca-trusted-since"
_MANAGED_BY = {"app.kubernetes.io/managed-by": "hami-webhook"}
_NEXT, _NEXT_KEY, _FORMER = "next.crt", "next.key", "old.crt"


@dataclass(frozen=True, slots=True)
class CertificateTarget:
    """The Secret, the Service that the pair is for, and the configurations' name."""

    namespace: str
    secret: str
    service: str
    configuration: str


@dataclass(frozen=True, slots=True)
class Lifetimes:
    authority: timedelta = pki.CA_LIFETIME
    serving: timedelta = pki.SERVING_LIFETIME


@dataclass(slots=True)
class _Repairs:
    """The faults of a Secret, and the data and annotations to write; None deletes."""

    faults: list[str] = field(default_factory=list)
    data: dict[str, bytes | None] = field(default_factory=dict)
    annotations: dict[str, str | None] = field(default_factory=dict)


class CertRotator:
    """Reconciles the Secret and the bundles.

    A Secret is ours if it has our label or an authority's key, which cert-manager's never have; any other Secret of
    this name is reported and left alone.
    """

    def __init__(
        self,
        cluster: Cluster,
        target: CertificateTarget,
        *,
        clock: Callable[[], float],
        object_events: ObjectEvents,
        lifetimes: Lifetimes | None = None,
    ) -> None:
        self._cluster = cluster
        self._target = target
        self._clock = clock
        self._object_events = object_events
        self._lifetimes = lifetimes or Lifetimes()
        self._news = News(logger, "certificates: ")
        self.injected = False
        """Whether both configurations trusted the authority when the leader last looked."""

    async def lead(self, sleep: Sleep = asyncio.sleep) -> None:
        """Reconcile until cancelled, as the leader."""
        await repeat(self._attempt, EVERY, sleep)

    async def _attempt(self) -> bool:
        """Reconcile once and log what fails, once for as long as it stays the same; False after a conflict."""
        problem, conflict = "", False
        try:
            await self.reconcile()
        except Conflict:
            conflict = True
        except (ClusterError, pki.PkiError) as error:
            problem = str(error)
        self._news.say(problem)
        return not conflict

    async def reconcile(self) -> None:
        """Repair the Secret, inject the bundles, then renew what is due. Raises `ClusterError`, `PkiError`."""
        secret = await self._read_or_create()
        configurations = [(kind, found) for kind in CONFIGURATIONS if (found := await self._configuration(kind))]
        repairs = self._repairs(secret, [found for _, found in configurations])
        await self._report(secret, "CertificateUnusable", "; ".join(repairs.faults))
        if repairs.data or repairs.annotations:
            secret = await self._write(secret, repairs.data, repairs.annotations)
        data = _data(secret)
        authorities = [data[name] for name in (_FORMER, pki.CA_CERTIFICATE, _NEXT) if name in data]
        bundle = pki.ca_bundle(*authorities)
        injected = [await self._inject(kind, found, bundle) for kind, found in configurations]
        self.injected = bool(injected) and all(injected)
        changes = self._next_changes(data, _texts(secret, "annotations")) if self.injected else None
        if changes is not None:
            await self._write(secret, *changes)

    def _repairs(self, secret: JSON, configurations: Iterable[JSON]) -> _Repairs:
        """What is unusable in the Secret, and its replacement."""
        data, now, target = _data(secret), self._now(), self._target
        found = _Repairs()
        ca = pki.KeyPair(data.get(pki.CA_CERTIFICATE, b""), data.get(pki.CA_KEY, b""))
        serving = pki.KeyPair(data.get(pki.SERVING_CERTIFICATE, b""), data.get(pki.SERVING_KEY, b""))
        former = pki.valid_authorities(data.get(_FORMER, b""), now)
        if _FORMER in data and b"".join(former) != data[_FORMER]:
            found.data[_FORMER] = b"".join(former) or None  # expired authorities are removed without a report
        succession = _NEXT in data or _NEXT_KEY in data
        if succession:
            fault = _fault(pki.check_authority, pki.KeyPair(data.get(_NEXT, b""), data.get(_NEXT_KEY, b"")), now)
            if fault:
                succession = False
                found.faults.append(f"{_NEXT} and {_NEXT_KEY}: {fault}")
                found.data |= {_NEXT: None, _NEXT_KEY: None}
        since = _texts(secret, "annotations").get(_TRUSTED_SINCE)
        if since is not None and not 0 <= _seconds(since) <= self._clock() + _SETTLE:
            found.faults.append(f"annotation {_TRUSTED_SINCE}: {since[:40]!r} must be seconds since 1970, in the past")
            found.annotations[_TRUSTED_SINCE] = None
        fault = _fault(pki.check_authority, ca, now)
        if not fault:
            fault = _fault(pki.check_serving, serving, ca.certificate, target.service, target.namespace)
            if fault:
                found.faults.append(f"{pki.SERVING_CERTIFICATE} and {pki.SERVING_KEY}: {fault}")
                found.data |= self._signed(ca, now)
            return found
        found.faults.append(f"{pki.CA_CERTIFICATE} and {pki.CA_KEY}: {fault}")
        trusted = [each for bundle in _bundles(configurations) for each in pki.valid_authorities(bundle, now)]
        issuers = [*pki.valid_authorities(ca.certificate, now), *trusted]
        issuer = next((i for i in issuers if not _fault(_check_served, serving, i, target, now)), None)
        if issuer is None:
            new = pki.authority(now=now, lifetime=self._lifetimes.authority)
            known = b"".join(dict.fromkeys([*former, *trusted]))
            found.data |= {**self._signed(new, now), _NEXT: None, _NEXT_KEY: None, _FORMER: known or None}
            return found
        if issuer != ca.certificate:
            found.data[pki.CA_CERTIFICATE] = issuer
        if not succession:
            found.data |= self._next_authority(now)
        return found

    def _next_changes(
        self, data: Mapping[str, bytes], annotations: Mapping[str, str]
    ) -> tuple[dict[str, bytes | None], dict[str, str | None]] | None:
        """The next changes of a usable Secret's data and annotations, None if none are due."""
        now = self._now()
        ca = pki.KeyPair(data[pki.CA_CERTIFICATE], data.get(pki.CA_KEY, b""))
        if _NEXT in data:
            since = annotations.get(_TRUSTED_SINCE)
            if since is None:
                return {}, {_TRUSTED_SINCE: str(int(self._clock()))}
            if self._clock() - _seconds(since) < _SETTLE:
                return None
            new = pki.KeyPair(data[_NEXT], data[_NEXT_KEY])
            logger.warning("certificates: serving with the new authority from now on")
            former = pki.valid_authorities(data.get(_FORMER, b"") + ca.certificate, now)
            removed = {_NEXT: None, _NEXT_KEY: None, _FORMER: b"".join(former) or None}
            return {**self._signed(new, now), **removed}, {_TRUSTED_SINCE: None}
        if pki.needs_renewal(ca.certificate, now):
            logger.warning("certificates: the authority nears its end; a new one is announced")
            return self._next_authority(now), {}
        if pki.needs_renewal(data[pki.SERVING_CERTIFICATE], now):
            logger.warning("certificates: the serving certificate nears its end and is renewed")
            return dict(self._signed(ca, now)), {}
        return None

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock(), UTC)

    def _signed(self, ca: pki.KeyPair, now: datetime) -> dict[str, bytes]:
        serving = pki.issue(ca, self._target.service, self._target.namespace, now=now, lifetime=self._lifetimes.serving)
        return pki.Pair(ca, serving).files()

    def _next_authority(self, now: datetime) -> dict[str, bytes | None]:
        new = pki.authority(now=now, lifetime=self._lifetimes.authority)
        return {_NEXT: new.certificate, _NEXT_KEY: new.key}

    async def _read_or_create(self) -> JSON:
        """Our Secret. Raises `PkiError` for one that isn't ours."""
        target = self._target
        try:
            secret = await self._cluster.get(Kind.SECRETS, target.secret, target.namespace)
        except NotFound:
            now = self._now()
            made = {
                "apiVersion": "v1",
                "kind": "Secret",
                "type": "kubernetes.io/tls",
                "metadata": {"name": target.secret, "namespace": target.namespace, "labels": dict(_MANAGED_BY)},
                "data": _encoded(self._signed(pki.authority(now=now, lifetime=self._lifetimes.authority), now)),
            }
            try:
                secret = await self._cluster.create(Kind.SECRETS, made)
            except AlreadyExists:
                secret = await self._cluster.get(Kind.SECRETS, target.secret, target.namespace)
        ours = pki.CA_KEY in _data(secret) or _MANAGED_BY.items() <= _texts(secret, "labels").items()
        problem = f"Secret {target.namespace}/{target.secret} isn't ours; delete it, and the controller creates another"
        await self._report(secret, "CertificateSecretForeign", "" if ours else problem)
        if not ours:
            raise pki.PkiError(problem)
        return secret

    async def _report(self, secret: JSON, reason: EventReason, problem: str) -> None:
        target, uid = self._target, str(secret["metadata"].get("uid", ""))
        await self._object_events.warn("Secret", target.namespace, target.secret, uid, reason, problem)

    async def _write(
        self, secret: JSON, data: Mapping[str, bytes | None], annotations: Mapping[str, str | None]
    ) -> JSON:
        meta: JSON = {"resourceVersion": secret["metadata"].get("resourceVersion"), "labels": dict(_MANAGED_BY)}
        if annotations:
            meta["annotations"] = dict(annotations)
        patch: JSON = {"metadata": meta}
        if data:
            patch["data"] = _encoded(data)
        return await self._cluster.patch(Kind.SECRETS, self._target.secret, patch, self._target.namespace)

    async def _configuration(self, kind: Kind) -> JSON | None:
        try:
            return await self._cluster.get(kind, self._target.configuration)
        except NotFound:
            return None

    async def _inject(self, kind: Kind, found: JSON, bundle: bytes) -> bool:
        """Write the bundle into a configuration; True if it has it already."""
        encoded = base64.b64encode(bundle).decode()
        changed = []
        for hook in webhooks_of(found):
            client = hook.get("clientConfig")
            changed.append(
                {**hook, "clientConfig": {**(client if isinstance(client, dict) else {}), "caBundle": encoded}}
            )
        if changed == webhooks_of(found):
            return True
        meta = {"resourceVersion": found["metadata"].get("resourceVersion")}
        await self._cluster.patch(kind, self._target.configuration, {"metadata": meta, "webhooks": changed})
        return False


def _check_served(serving: pki.KeyPair, authority: bytes, target: CertificateTarget, now: datetime) -> None:
    """Raise `PkiError` unless the API server accepts the pair now if it trusts the authority."""
    pki.check_serving(serving, authority, target.service, target.namespace)
    if pki.read_lifetime(serving.certificate).remaining(now) <= 0:
        raise pki.PkiError("the serving certificate has expired")


def _fault(check: Callable[..., None], *arguments: object) -> str:
    """The complaint of a check, empty if there is none."""
    try:
        check(*arguments)
    except pki.PkiError as error:
        return str(error)
    return ""


def _seconds(text: str) -> int:
    """Whole seconds as text; -1 for any other text."""
    return int(text) if text.isdecimal() and len(text) <= 12 else -1


def _bundles(configurations: Iterable[JSON]) -> list[bytes]:
    """The `caBundle`s of all webhooks, each once."""
    clients = (hook.get("clientConfig") for found in configurations for hook in webhooks_of(found))
    return list(dict.fromkeys(_decoded(client.get("caBundle")) for client in clients if isinstance(client, dict)))


def _data(secret: JSON) -> dict[str, bytes]:
    found = secret.get("data")
    return {name: _decoded(text) for name, text in found.items()} if isinstance(found, dict) else {}


def _decoded(text: Any) -> bytes:
    """Base64 decoded; empty for anything else."""
    try:
        return base64.b64decode(text, validate=True)
    except (ValueError, TypeError):
        return b""


def _texts(secret: JSON, field_name: str) -> dict[str, str]:
    """The labels or annotations."""
    found = secret["metadata"].get(field_name)
    return {key: str(value) for key, value in found.items()} if isinstance(found, dict) else {}


def _encoded(data: Mapping[str, bytes | None]) -> dict[str, str | None]:
    return {name: None if value is None else base64.b64encode(value).decode() for name, value in data.items()}
