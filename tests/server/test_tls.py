"""Certificates replaced on disk while the server runs, as a client over real TLS sees it."""

import asyncio
import http.client
import logging
import os
import shutil
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Self

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID
from starlette.types import Receive, Scope, Send

from hami_webhook import pki
from hami_webhook.pki import KeyPair
from hami_webhook.server.limits import ListenerLimits
from hami_webhook.server.listener import Listener
from hami_webhook.server.tls import CertificateFiles, ReloadingTls, TlsError

NOW = datetime.now(UTC)
CA = pki.authority(now=NOW)
LIMITS = ListenerLimits(shutdown_grace=0.2, header_read_timeout=2)


def serving(
    key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | None = None, usage: x509.ObjectIdentifier | None = None
) -> KeyPair:
    """A serving certificate of CA with the given kind of key and extended usage."""
    pair = pki.issue(CA, "w", "n", now=NOW)
    if key is None:
        return pair
    issued = pki.read_certificate(pair.certificate)
    signer = serialization.load_pem_private_key(CA.key, password=None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    builder = x509.CertificateBuilder(
        issued.issuer, issued.subject, key.public_key(), x509.random_serial_number(), NOW, NOW + timedelta(days=1)
    )
    for extension in issued.extensions:
        value: x509.ExtensionType = extension.value
        if usage is not None and isinstance(value, x509.ExtendedKeyUsage):
            value = x509.ExtendedKeyUsage([usage])
        if isinstance(value, x509.SubjectKeyIdentifier):
            value = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        builder = builder.add_extension(value, extension.critical)
    certificate = builder.sign(signer, hashes.SHA256())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return pki.KeyPair(certificate.public_bytes(serialization.Encoding.PEM), private)


def serial(pair: KeyPair) -> int:
    return pki.read_lifetime(pair.certificate).serial


@dataclass
class Folder:
    """The files a server reads."""

    path: Path

    @property
    def files(self) -> CertificateFiles:
        return CertificateFiles(self.path / "tls.crt", self.path / "tls.key")

    def put(self, pair: KeyPair) -> None:
        (self.path / "tls.key").write_bytes(pair.key)
        (self.path / "tls.crt").write_bytes(pair.certificate)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


async def answer_ok(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


@asynccontextmanager
async def listening(tls: ReloadingTls) -> AsyncIterator[Listener]:
    listener = Listener(answer_ok, host="127.0.0.1", port=0, limits=LIMITS, tls=tls)
    await listener.start()
    try:
        yield listener
    finally:
        await listener.drain_and_stop()


def trusting(
    ca: KeyPair = CA, *, version: ssl.TLSVersion | None = None, client: tuple[Path, Path] | None = None
) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=ca.certificate.decode())
    if version is not None:
        context.minimum_version = context.maximum_version = version
    if client is not None:
        context.load_cert_chain(*client)
    return context


class Client:
    """One keep-alive HTTPS connection, used from a thread."""

    def __init__(self, port: int, context: ssl.SSLContext | None = None, server_name: str = "127.0.0.1") -> None:
        self.context = context or trusting()
        self.server_name = server_name
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        self.wrapped: ssl.SSLSocket | None = None

    def _get(self) -> tuple[int, int]:
        if self.connection.sock is None or self.wrapped is None:
            raw = socket.create_connection((self.connection.host, self.connection.port), self.connection.timeout)
            self.wrapped = self.context.wrap_socket(raw, server_hostname=self.server_name)
            self.connection.sock = self.wrapped
        self.connection.request("GET", "/")
        response = self.connection.getresponse()
        response.read()
        certificate = self.wrapped.getpeercert(binary_form=True)
        assert certificate is not None
        return response.status, x509.load_der_x509_certificate(certificate).serial_number

    async def get(self) -> tuple[int, int]:
        """Status, and serial number of the certificate this connection was made with."""
        return await asyncio.to_thread(self._get)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()


async def served(port: int, context: ssl.SSLContext | None = None, server_name: str = "127.0.0.1") -> int:
    with Client(port, context, server_name) as client:
        return (await client.get())[1]


class TestReload:
    @pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
    @pytest.mark.parametrize("server_name", ["w.n.svc", "127.0.0.1"])
    async def test_an_open_connection_goes_on_and_a_new_one_sees_the_new_certificate(
        self, folder: Folder, version: ssl.TLSVersion, server_name: str
    ) -> None:
        old, new = serving(), serving()
        folder.put(old)
        tls = ReloadingTls(folder.files)
        async with listening(tls) as listener:
            with Client(listener.port, trusting(version=version), server_name) as client:
                assert await client.get() == (200, serial(old))
                folder.put(new)
                assert tls.reload_if_changed()
                assert await client.get() == (200, serial(old))
                assert await served(listener.port, trusting(version=version), server_name) == serial(new)
        assert (tls.reloads, tls.failures, tls.problem) == (1, 0, None)
        assert tls.leaf == pki.read_lifetime(new.certificate)

    @pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
    @pytest.mark.parametrize("server_name", ["w.n.svc", "::1"])
    async def test_the_kind_of_key_may_change_both_ways(
        self, folder: Folder, version: ssl.TLSVersion, server_name: str
    ) -> None:
        pairs = [
            serving(rsa.generate_private_key(65537, 2048)),
            serving(),
            serving(rsa.generate_private_key(65537, 2048)),
        ]
        folder.put(pairs[0])
        tls = ReloadingTls(folder.files)
        async with listening(tls) as listener:
            for pair in pairs:
                folder.put(pair)
                tls.reload_if_changed()
                assert await served(listener.port, trusting(version=version), server_name) == serial(pair)
        assert tls.reloads == 2

    async def test_a_session_of_the_old_certificate_is_not_resumed(self, folder: Folder) -> None:
        folder.put(serving())

        def visit(
            port: int, context: ssl.SSLContext, session: ssl.SSLSession | None = None
        ) -> tuple[ssl.SSLSession | None, bool | None]:
            raw = socket.create_connection(("127.0.0.1", port), timeout=5)
            with context.wrap_socket(raw, server_hostname="localhost", session=session) as wrapped:
                wrapped.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
                wrapped.recv(1000)
                return wrapped.session, wrapped.session_reused

        tls = ReloadingTls(folder.files)
        context = trusting(version=ssl.TLSVersion.TLSv1_2)
        async with listening(tls) as listener:
            session, _ = await asyncio.to_thread(visit, listener.port, context)
            assert (await asyncio.to_thread(visit, listener.port, context, session))[1]
            folder.put(serving())
            tls.reload_if_changed()
            assert not (await asyncio.to_thread(visit, listener.port, context, session))[1]

    def test_nothing_changed_is_not_a_reload_even_when_touched(self, folder: Folder) -> None:
        folder.put(serving())
        tls = ReloadingTls(folder.files)
        context = tls.context
        os.utime(folder.files.cert, (1, 1))
        assert not tls.reload_if_changed()
        assert tls.context is context
        assert tls.reloads == 0

    def test_a_change_that_keeps_time_and_size_is_seen(self, folder: Folder) -> None:
        folder.put(serving())
        tls = ReloadingTls(folder.files)
        before = folder.files.cert.stat()
        folder.put(serving())
        for path in folder.files.paths():
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert tls.reload_if_changed()

    def test_the_link_kubernetes_swaps_is_seen(self, tmp_path: Path) -> None:
        """tls.crt -> ..data/tls.crt, ..data -> ..2030_01; an update renames a new ..data over the old."""
        old, new = serving(), serving()
        for name, pair in (("..1", old), ("..2", new)):
            (tmp_path / name).mkdir()
            Folder(tmp_path / name).put(pair)
        (tmp_path / "..data").symlink_to("..1")
        for name in ("tls.crt", "tls.key"):
            (tmp_path / name).symlink_to(f"..data/{name}")
        tls = ReloadingTls(Folder(tmp_path).files)
        (tmp_path / "..data_tmp").symlink_to("..2")
        (tmp_path / "..data_tmp").replace(tmp_path / "..data")
        shutil.rmtree(tmp_path / "..1")
        assert tls.reload_if_changed()
        assert tls.leaf.serial == serial(new)

    def test_watching_looks_after_every_interval(self, folder: Folder) -> None:
        old, new = serving(), serving()
        folder.put(old)
        tls = ReloadingTls(folder.files)
        slept = []

        async def sleep(seconds: float) -> None:
            slept.append((seconds, tls.leaf.serial))
            if len(slept) == 2:
                folder.put(new)
            if len(slept) == 4:
                raise asyncio.CancelledError

        with pytest.raises(asyncio.CancelledError):
            asyncio.run(tls.watch(10.0, sleep))
        assert slept == [(10.0, serial(old))] * 2 + [(10.0, serial(new))] * 2


class TestBrokenFiles:
    @pytest.mark.parametrize(
        ("damage", "message"),
        [
            (lambda f: f.key.write_bytes(serving().key), "not a usable pair: key values mismatch"),
            (lambda f: f.cert.write_bytes(f.cert.read_bytes()[:200]), "no readable PEM certificate"),
            (lambda f: f.key.write_bytes(f.key.read_bytes()[:100]), "not a usable pair"),
            (lambda f: f.key.write_bytes(b""), "not a usable pair"),
            (lambda f: f.cert.unlink(), "tls.crt can't be read: No such file or directory"),
            (lambda f: f.key.unlink(), "not a usable pair: No such file or directory"),
            (lambda f: (f.key.unlink(), f.key.mkdir()), "not a usable pair"),
        ],
    )
    def test_keep_the_certificate_before_and_are_told_once(
        self,
        folder: Folder,
        damage: Callable[[CertificateFiles], object],
        message: str,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        old, new = serving(), serving()
        folder.put(old)

        async def scenario() -> None:
            tls = ReloadingTls(folder.files)
            async with listening(tls) as listener:
                damage(folder.files)
                assert [tls.reload_if_changed() for _ in range(3)] == [False] * 3
                assert await served(listener.port) == serial(old)
                assert message in (tls.problem or "")
                assert (tls.reloads, tls.failures) == (0, 1)
                if folder.files.key.is_dir():
                    folder.files.key.rmdir()
                folder.put(new)
                assert tls.reload_if_changed()
                assert await served(listener.port) == serial(new)
                assert (tls.reloads, tls.failures, tls.problem) == (1, 1, None)

        with caplog.at_level(logging.WARNING):
            asyncio.run(scenario())
        warned = [record.getMessage() for record in caplog.records]
        assert len(warned) == 1
        assert message in warned[0]
        assert "PRIVATE" not in warned[0]

    def test_a_pair_that_comes_in_two_steps_is_taken_when_whole(self, folder: Folder) -> None:
        folder.put(serving())
        tls = ReloadingTls(folder.files)
        new = serving()
        folder.files.key.write_bytes(new.key)
        assert not tls.reload_if_changed()
        folder.files.cert.write_bytes(new.certificate)
        assert tls.reload_if_changed()

    def test_at_the_start_they_are_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(TlsError, match=r"tls\.crt can't be read: No such file"):
            ReloadingTls(Folder(tmp_path).files)

    def test_an_encrypted_key_is_an_error_and_no_question_on_the_terminal(self, folder: Folder) -> None:
        folder.put(serving())
        key = serialization.load_pem_private_key(folder.files.key.read_bytes(), password=None)
        folder.files.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.BestAvailableEncryption(b"word"),
            )
        )
        with pytest.raises(TlsError, match="the key is encrypted"):
            ReloadingTls(folder.files)


class TestClients:
    def with_client_ca(self, folder: Folder, ca: KeyPair) -> CertificateFiles:
        (folder.path / "client-ca.crt").write_bytes(ca.certificate)
        return CertificateFiles(folder.files.cert, folder.files.key, folder.path / "client-ca.crt")

    def client_files(
        self, folder: Folder, usage: x509.ObjectIdentifier = ExtendedKeyUsageOID.CLIENT_AUTH
    ) -> tuple[Path, Path]:
        pair = serving(ec.generate_private_key(ec.SECP256R1()), usage)
        (folder.path / "client.crt").write_bytes(pair.certificate)
        (folder.path / "client.key").write_bytes(pair.key)
        return folder.path / "client.crt", folder.path / "client.key"

    def test_older_than_tls_1_2_is_refused(self, folder: Folder) -> None:
        folder.put(serving())
        context = ReloadingTls(folder.files).context
        assert context.minimum_version == ssl.TLSVersion.TLSv1_2
        assert all("DHE" in cipher["name"] or cipher["name"].startswith("TLS_") for cipher in context.get_ciphers())

    @pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
    async def test_need_a_certificate_when_an_authority_is_given(self, folder: Folder, version: ssl.TLSVersion) -> None:
        folder.put(serving())
        client = self.client_files(folder)
        tls = ReloadingTls(self.with_client_ca(folder, CA))
        async with listening(tls) as listener:
            assert await served(listener.port, trusting(version=version, client=client)) == tls.leaf.serial
            with pytest.raises(OSError):
                await served(listener.port, trusting(version=version))
            assert listener.failed_handshakes == 1

    async def test_a_serving_certificate_does_not_make_a_client(self, folder: Folder) -> None:
        folder.put(serving())
        client = self.client_files(folder, ExtendedKeyUsageOID.SERVER_AUTH)
        async with listening(ReloadingTls(self.with_client_ca(folder, CA))) as listener:
            with pytest.raises(OSError):
                await served(listener.port, trusting(client=client))

    async def test_the_authority_is_reloaded_too(self, folder: Folder) -> None:
        folder.put(serving())
        client = self.client_files(folder)
        tls = ReloadingTls(self.with_client_ca(folder, pki.authority(now=NOW)))
        async with listening(tls) as listener:
            with pytest.raises(OSError):
                await served(listener.port, trusting(client=client))
            self.with_client_ca(folder, CA)
            assert tls.reload_if_changed()
            assert await served(listener.port, trusting(client=client)) == tls.leaf.serial

    def test_an_authority_that_can_not_be_read_is_an_error(self, folder: Folder) -> None:
        folder.put(serving())
        files = self.with_client_ca(folder, CA)
        (folder.path / "client-ca.crt").write_text("nothing")
        with pytest.raises(TlsError, match=r"client-ca\.crt holds no usable client authority"):
            ReloadingTls(files)
