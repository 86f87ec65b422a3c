"""TLS for the listeners: a certificate read from files and replaced without a restart.

The API server calls a webhook over TLS only, and certificates in a Secret volume are renewed while the process runs. A
listener reads `ReloadingTls.context` for every connection that it accepts. So a new certificate counts from the next
connection on, whatever its key type and whether or not the client names the server, and neither sessions nor trusted
client authorities of the old one live on; open connections keep what they have.
"""

import asyncio
import hashlib
import logging
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from hami_webhook.command_error import CommandError
from hami_webhook.pki import Lifetime, PkiError, read_lifetime

logger: Final = logging.getLogger(__name__)

# For TLS 1.2; TLS 1.3 has its own short list. Forward secrecy and authenticated encryption only.
_CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"


class TlsError(CommandError):
    """Certificate files that can't be used. The text is one sentence and holds nothing of a key."""


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """Where the PEM files are: leaf first in ``cert``, its unencrypted key, and the CAs of clients.

    With ``client_ca`` every client has to present a certificate one of its authorities signed; without, none has to.
    """

    cert: Path
    key: Path
    client_ca: Path | None = None

    def paths(self) -> tuple[Path, ...]:
        return (self.cert, self.key) if self.client_ca is None else (self.cert, self.key, self.client_ca)


class ReloadingTls:
    """The newest usable server context of some certificate files. Raises `TlsError` when they can't be used at first.

    Belongs to one event loop or thread. A set of files that can't be used later on changes nothing but `failures`,
    which counts such sets, and `problem`, which says why; one warning is in the log, and the context before stays in
    use. `context` is for the next connection, and not to be kept; `leaf` is the certificate that it serves. `reloads`
    counts the changed sets that were taken into use.
    """

    def __init__(self, files: CertificateFiles) -> None:
        self._files = files
        self._seen = _fingerprint(files)
        self.context, self.leaf = _load(files)
        self.problem: str | None = None
        self.reloads = 0
        self.failures = 0

    def reload_if_changed(self) -> bool:
        """Read the files; take them into use if their content changed. True when a new context was taken.

        Content is compared, not times: Secret volumes swap a symbolic link, and a copy may keep its time. It is read
        before it is loaded, so that a change in between is seen the next time.
        """
        fingerprint = _fingerprint(self._files)
        if fingerprint == self._seen:
            return False
        self._seen = fingerprint
        try:
            self.context, self.leaf = _load(self._files)
        except TlsError as error:
            self.failures += 1
            self.problem = str(error)
            logger.warning("TLS certificate not reloaded, the one before stays in use: %s", error)
            return False
        self.reloads += 1
        self.problem = None
        logger.info("TLS certificate reloaded, valid to %s", self.leaf.not_after.isoformat())
        return True

    async def watch(
        self, interval: float = 2.0, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    ) -> NoReturn:
        """`reload_if_changed` every ``interval`` seconds, until cancelled."""
        while True:
            await sleep(interval)
            self.reload_if_changed()


def _fingerprint(files: CertificateFiles) -> tuple[str, ...]:
    """What the files hold, without keeping the key: a digest of each, or why it can't be read."""
    return tuple(_digest(path) for path in files.paths())


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        return f"unreadable: {error.strerror}"


def _load(files: CertificateFiles) -> tuple[ssl.SSLContext, Lifetime]:
    leaf = _read_leaf(files.cert)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(_CIPHERS)
    context.set_alpn_protocols(["http/1.1"])
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE | ssl.OP_NO_COMPRESSION
    try:
        context.load_cert_chain(files.cert, files.key, password=_refuse_password)
    except (OSError, ValueError) as error:
        raise TlsError(f"{files.cert} and {files.key} are not a usable pair: {_reason(error)}") from error
    if files.client_ca is not None:
        try:
            context.load_verify_locations(cafile=files.client_ca)
        except (OSError, ValueError) as error:
            raise TlsError(f"{files.client_ca} holds no usable client authority: {_reason(error)}") from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context, leaf


def _read_leaf(path: Path) -> Lifetime:
    try:
        return read_lifetime(path.read_bytes())
    except OSError as error:
        raise TlsError(f"{path} can't be read: {_reason(error)}") from error
    except PkiError as error:
        raise TlsError(f"{path} can't be used: {error}") from error


def _refuse_password() -> str:
    """OpenSSL would otherwise ask for a password on the terminal, and wait."""
    raise ValueError("the key is encrypted")


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "not readable as PEM").replace("_", " ").lower()
    return getattr(error, "strerror", None) or str(error)
