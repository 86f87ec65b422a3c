"""Self-managed certificates: one Secret with the authority and the serving pair, trusted by both configurations.

Every replica reads the Secret and writes the pair into its own folder, where the server picks it up; the first makes
it. The leader renews it, and keeps the `caBundle`s right. A new authority is trusted before anything is served with it,
and the old one until no replica serves its pair any longer:

1. `next.crt`, `next.key` appear in the Secret; the bundles hold the old authority and the next one.
2. 30 s after both configurations read back so, the next one becomes `ca.crt` and signs a new pair; the old one stays as
   `old.crt`.
3. When every replica has reported the new pair's serial number, `old.crt` goes, and leaves the bundles.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from hami_webhook import pki
from hami_webhook.cluster.api import JSON, AlreadyExists, Cluster, ClusterError, Conflict, Kind, NotFound

logger = logging.getLogger(__name__)

EVERY = 10.0
"""Seconds between two looks at the Secret."""
_SETTLE = 30.0
"""Seconds after which every API server surely trusts what both configurations say (quota chapter 3.7)."""
_TRUSTED_SINCE = "hami.io/next-ca-trusted-since"
_SERVED_BY = "serving.hami.io/"
_CONFIGURATIONS = (Kind.MUTATING_WEBHOOKS, Kind.VALIDATING_WEBHOOKS)


@dataclass(frozen=True, slots=True)
class Place:
    """Where things are: the Secret, the Service the pair is for, the configurations' name, and who this replica is."""

    namespace: str
    secret: str
    service: str
    configuration: str
    replica: str


@dataclass(frozen=True, slots=True)
class Lifetimes:
    authority: timedelta = pki.CA_LIFETIME
    serving: timedelta = pki.SERVING_LIFETIME


class CertificateKeeper:
    """Keeps the files, the Secret and the bundles. `alive` says whether a pod of our namespace is still there."""

    def __init__(
        self,
        cluster: Cluster,
        place: Place,
        folder: Path,
        *,
        clock: Callable[[], float],
        alive: Callable[[str], bool],
        lifetimes: Lifetimes | None = None,
        settle: float = _SETTLE,
    ) -> None:
        self._cluster = cluster
        self._place = place
        self._folder = folder
        self._clock = clock
        self._alive = alive
        self._lifetimes = lifetimes or Lifetimes()
        self._settle = settle
        self._written: bytes | None = None
        self.injected = False
        """Whether both configurations trusted the authority when the leader last looked."""

    async def fetch(self) -> None:
        """Have the Secret's pair in the folder, making the Secret if need be. Raises `ClusterError`, `PkiError`."""
        secret = await self._read_or_make()
        data = _data(secret)
        certificate = data[pki.SERVING_CERTIFICATE]
        if certificate != self._written:
            pki.write_serving(self._folder, pki.KeyPair(certificate, data[pki.SERVING_KEY]))
            self._written = certificate
        await self._report(secret, certificate)

    async def follow(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """`fetch` now and then, until cancelled: what every replica does."""
        while True:
            await sleep(EVERY)
            try:
                await self.fetch()
            except (ClusterError, pki.PkiError) as error:
                logger.warning("certificates: %s", error)

    async def lead(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Renew and inject, until cancelled: what the leader does."""
        while True:
            try:
                await self.tend()
            except Conflict:
                continue
            except (ClusterError, pki.PkiError) as error:
                logger.warning("certificates: %s", error)
            await sleep(EVERY)

    async def tend(self) -> None:
        """One step of what is due: the bundles first, then the Secret."""
        secret = await self._read_or_make()
        data = _data(secret)
        authorities = [data[name] for name in ("old.crt", pki.CA_CERTIFICATE, "next.crt") if name in data]
        injected = [await self._inject(kind, pki.ca_bundle(*authorities)) for kind in _CONFIGURATIONS]
        self.injected = True in injected and False not in injected
        changes = self._due(data, secret["metadata"].get("annotations") or {}) if self.injected else None
        if changes is not None:
            await self._write(secret, *changes)

    def _due(
        self, data: Mapping[str, bytes], notes: Mapping[str, str]
    ) -> tuple[dict[str, bytes | None], dict[str, str | None]] | None:
        """What the Secret's data and annotations become next, None if all is well."""
        now = datetime.fromtimestamp(self._clock(), UTC)
        ca = pki.KeyPair(data[pki.CA_CERTIFICATE], data[pki.CA_KEY])
        if "next.crt" in data:
            since = notes.get(_TRUSTED_SINCE)
            if since is None:
                return {}, {_TRUSTED_SINCE: str(int(self._clock()))}
            if self._clock() - float(since) < self._settle:
                return None
            new = pki.KeyPair(data["next.crt"], data["next.key"])
            logger.warning("certificates: serving with the new authority from now on")
            gone = {"next.crt": None, "next.key": None, "old.crt": ca.certificate}
            return {**self._signed(new, now), **gone}, {_TRUSTED_SINCE: None}
        if "old.crt" in data:
            serial = str(pki.read_lifetime(data[pki.SERVING_CERTIFICATE]).serial)
            reported = {key: key.removeprefix(_SERVED_BY) for key in notes if key.startswith(_SERVED_BY)}
            if any(notes[key] != serial and self._alive(replica) for key, replica in reported.items()):
                return None
            logger.warning("certificates: every replica serves the new pair; the old authority is dropped")
            left: dict[str, str | None] = {key: None for key in reported if notes[key] != serial}
            return {"old.crt": None}, left
        if pki.needs_renewal(ca.certificate, now):
            logger.warning("certificates: the authority nears its end; a new one is announced")
            new = pki.authority(now=now, lifetime=self._lifetimes.authority)
            return {"next.crt": new.certificate, "next.key": new.key}, {}
        if pki.needs_renewal(data[pki.SERVING_CERTIFICATE], now):
            logger.warning("certificates: the serving certificate nears its end and is renewed")
            return dict(self._signed(ca, now)), {}
        return None

    def _signed(self, ca: pki.KeyPair, now: datetime) -> dict[str, bytes]:
        serving = pki.issue(ca, self._place.service, self._place.namespace, now=now, lifetime=self._lifetimes.serving)
        return pki.Pair(ca, serving).files()

    async def _read_or_make(self) -> JSON:
        """The Secret, complete. Raises `PkiError` for one that somebody else made of something else."""
        place = self._place
        try:
            secret = await self._cluster.get(Kind.SECRETS, place.secret, place.namespace)
        except NotFound:
            now = datetime.fromtimestamp(self._clock(), UTC)
            ca = pki.authority(now=now, lifetime=self._lifetimes.authority)
            made = {
                "apiVersion": "v1",
                "kind": "Secret",
                "type": "kubernetes.io/tls",
                "metadata": {"name": place.secret, "namespace": place.namespace},
                "data": _encoded(self._signed(ca, now)),
            }
            try:
                secret = await self._cluster.create(Kind.SECRETS, made)
            except AlreadyExists:
                secret = await self._cluster.get(Kind.SECRETS, place.secret, place.namespace)
        missing = {pki.CA_CERTIFICATE, pki.CA_KEY, pki.SERVING_CERTIFICATE, pki.SERVING_KEY} - _data(secret).keys()
        if missing:
            raise pki.PkiError(
                f"Secret {place.namespace}/{place.secret} lacks {', '.join(sorted(missing))}; "
                "delete it, and it is made anew"
            )
        return secret

    async def _report(self, secret: JSON, certificate: bytes) -> None:
        """Say in the Secret which pair this replica serves."""
        key, serial = _SERVED_BY + self._place.replica, str(pki.read_lifetime(certificate).serial)
        if not self._place.replica or (secret["metadata"].get("annotations") or {}).get(key) == serial:
            return
        await self._cluster.patch(
            Kind.SECRETS, self._place.secret, {"metadata": {"annotations": {key: serial}}}, self._place.namespace
        )

    async def _write(self, secret: JSON, data: Mapping[str, bytes | None], notes: Mapping[str, str | None]) -> None:
        meta: JSON = {"resourceVersion": secret["metadata"]["resourceVersion"]}
        if notes:
            meta["annotations"] = dict(notes)
        patch: JSON = {"metadata": meta}
        if data:
            patch["data"] = _encoded(data)
        await self._cluster.patch(Kind.SECRETS, self._place.secret, patch, self._place.namespace)

    async def _inject(self, kind: Kind, bundle: bytes) -> bool | None:
        """Have a configuration trust the bundle; whether it read back so. None if there is none of this kind."""
        try:
            found = await self._cluster.get(kind, self._place.configuration)
        except NotFound:
            return None
        wanted = base64.b64encode(bundle).decode()
        webhooks = found.get("webhooks") or []
        if all(hook["clientConfig"].get("caBundle") == wanted for hook in webhooks):
            return True
        changed = [{**hook, "clientConfig": {**hook["clientConfig"], "caBundle": wanted}} for hook in webhooks]
        version = {"resourceVersion": found["metadata"]["resourceVersion"]}
        await self._cluster.patch(kind, self._place.configuration, {"metadata": version, "webhooks": changed})
        return False


def _data(secret: JSON) -> dict[str, bytes]:
    return {name: base64.b64decode(text) for name, text in (secret.get("data") or {}).items()}


def _encoded(data: Mapping[str, bytes | None]) -> dict[str, str | None]:
    return {name: None if value is None else base64.b64encode(value).decode() for name, value in data.items()}
