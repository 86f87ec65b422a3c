"""The authority and the serving certificate: what they say, who accepts them, and how they reach the disk."""

import ipaddress
import socket
import ssl
import stat
import threading
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import TypeVar

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from hypothesis import given
from hypothesis import strategies as st
from tables import in_one_test

from hami_webhook import pki
from hami_webhook.pki import KeyPair, PkiError

Extension = TypeVar("Extension", bound=x509.ExtensionType)
PrivateKey = ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey | rsa.RSAPrivateKey
NOW = datetime(2030, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
PAIR = pki.generate("hami-webhook", "kube-gpu", now=NOW)
NAMES = [
    "hami-webhook",
    "hami-webhook.kube-gpu",
    "hami-webhook.kube-gpu.svc",
    "hami-webhook.kube-gpu.svc.cluster.local",
    "localhost",
]


def own_authority(
    key: PrivateKey,
    *,
    ca: bool = True,
    subject_key: bool = True,
    valid: timedelta = timedelta(days=1),
    basic: bool = True,
) -> KeyPair:
    """An authority somebody else made, with the given peculiarities."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "theirs")])
    builder = x509.CertificateBuilder(name, name, key.public_key(), 7, NOW - timedelta(hours=1), NOW + valid)
    if basic:
        builder = builder.add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
    if subject_key:
        builder = builder.add_extension(x509.SubjectKeyIdentifier(b"theirs"), critical=False)
    algorithm = None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    return KeyPair(builder.sign(key, algorithm).public_bytes(serialization.Encoding.PEM), private_pem(key))


def private_pem(key: PrivateKey, encryption: serialization.KeySerializationEncryption | None = None) -> bytes:
    encryption = encryption or serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)


def extension(pem: bytes, kind: type[Extension]) -> tuple[Extension, bool]:
    found = pki.read_certificate(pem).extensions.get_extension_for_class(kind)
    return found.value, found.critical


def handshake(ca_pem: bytes, serving: KeyPair, folder: Path, server_name: str) -> Mapping[str, object] | None:
    """Python's own verification of chain, dates and name, over a socket pair."""
    (folder / "crt").write_bytes(serving.certificate)
    (folder / "key").write_bytes(serving.key)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "crt", folder / "key")
    client = ssl.create_default_context(cadata=ca_pem.decode())
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    near, far = socket.socketpair()

    def serve() -> None:
        try:
            server.wrap_socket(far, server_side=True).close()
        except OSError:
            far.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with near, client.wrap_socket(near, server_hostname=server_name) as wrapped:
            return wrapped.getpeercert()
    finally:
        thread.join()


class TestCertificates:
    def test_the_authority_signs_certificates_but_no_authorities(self) -> None:
        basic, critical = extension(PAIR.ca.certificate, x509.BasicConstraints)
        assert (basic.ca, basic.path_length, critical) == (True, 0, True)
        usage, critical = extension(PAIR.ca.certificate, x509.KeyUsage)
        assert usage.key_cert_sign
        assert usage.crl_sign
        assert not usage.digital_signature
        assert critical

    def test_the_serving_certificate_serves_and_nothing_else(self) -> None:
        basic, critical = extension(PAIR.serving.certificate, x509.BasicConstraints)
        assert (basic.ca, critical) == (False, True)
        usage, critical = extension(PAIR.serving.certificate, x509.KeyUsage)
        assert (usage.digital_signature, usage.key_cert_sign, critical) == (True, False, True)
        extended, _ = extension(PAIR.serving.certificate, x509.ExtendedKeyUsage)
        assert list(extended) == [ExtendedKeyUsageOID.SERVER_AUTH]

    def test_key_identifiers_tie_the_chain(self) -> None:
        authority_key, _ = extension(PAIR.ca.certificate, x509.SubjectKeyIdentifier)
        issuer_key, _ = extension(PAIR.serving.certificate, x509.AuthorityKeyIdentifier)
        assert issuer_key.key_identifier == authority_key.digest

    def test_the_service_and_the_loopback_are_named_with_extra_names_told_apart(self) -> None:
        pair = pki.generate("w", "n", now=NOW, extra_names=["Hooks.example.org", "*.a.b", "10.0.0.7", "fd00::7", "w"])
        names, _ = extension(pair.serving.certificate, x509.SubjectAlternativeName)
        assert names.get_values_for_type(x509.DNSName) == [
            *("w", "w.n", "w.n.svc", "w.n.svc.cluster.local", "localhost"),
            *("hooks.example.org", "*.a.b"),
        ]
        assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == [
            *("127.0.0.1", "::1", "10.0.0.7", "fd00::7"),
        ]

    def test_valid_from_five_minutes_ago_for_ten_years_and_one(self) -> None:
        moment = NOW.replace(microsecond=0)
        ca, serving = (pki.read_lifetime(pair.certificate) for pair in (PAIR.ca, PAIR.serving))
        assert ca.not_before == serving.not_before == moment - timedelta(minutes=5)
        assert (ca.not_after, serving.not_after) == (moment + pki.CA_LIFETIME, moment + pki.SERVING_LIFETIME)

    def test_any_time_zone_means_the_same_moment(self) -> None:
        shifted = pki.generate("w", "n", now=NOW.astimezone(timezone(timedelta(hours=9))))
        assert pki.read_lifetime(shifted.ca.certificate).not_after == pki.read_lifetime(PAIR.ca.certificate).not_after

    def test_keys_are_p256_and_serials_differ(self) -> None:
        key = serialization.load_pem_private_key(PAIR.serving.key, password=None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        assert key.curve.name == "secp256r1"
        assert len({pki.read_lifetime(pki.authority(now=NOW).certificate).serial for _ in range(3)}) == 3

    def test_a_key_does_not_show_in_repr(self) -> None:
        assert "PRIVATE" not in repr(PAIR)

    @pytest.mark.parametrize("name", [*NAMES, "127.0.0.1", "::1"])
    def test_python_verifies_chain_and_name_strictly(self, name: str, tmp_path: Path) -> None:
        pair = pki.generate("hami-webhook", "kube-gpu", now=datetime.now(UTC))
        certificate = handshake(pair.ca.certificate, pair.serving, tmp_path, name)
        assert certificate is not None
        assert certificate["issuer"] == ((("commonName", "hami-webhook CA"),),)

    def test_python_refuses_another_name_and_another_authority(self, tmp_path: Path) -> None:
        pair, other = (pki.generate("w", "n", now=datetime.now(UTC)) for _ in range(2))
        with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
            handshake(pair.ca.certificate, pair.serving, tmp_path, "w.other.svc")
        with pytest.raises(ssl.SSLCertVerificationError):
            handshake(other.ca.certificate, pair.serving, tmp_path, "w.n.svc")

    @in_one_test(
        ("service", "namespace", "extra", "expected"),
        [
            ("W", "n", (), "service 'W'"),
            ("w", "n.x", (), "namespace 'n.x'"),
            ("w", "", (), "namespace ''"),
            ("w" * 64, "n", (), "service"),
            ("w", "n", ["a b"], "'a b' is neither"),
            ("w", "n", [""], "'' is neither"),
            ("w", "n", ["[::1]"], "neither"),
            ("w", "n", ["bücher.example"], "neither"),
            ("w", "n", ["a.*.b"], "neither"),
            ("w", "n", [".".join(["a" * 60] * 5)], "neither"),
            ("w", "n", ["fe80::1%eth0"], "zone"),
        ],
    )
    def test_names_no_certificate_may_carry_are_refused(
        self, service: str, namespace: str, extra: Sequence[str], expected: str
    ) -> None:
        with pytest.raises(PkiError, match=expected):
            pki.generate(service, namespace, now=NOW, extra_names=extra)

    @given(st.text(max_size=30))
    def test_any_text_as_extra_name_is_carried_or_refused(self, text: str) -> None:
        try:
            names = pki.issue(PAIR.ca, "w", "n", now=NOW, extra_names=[text])
        except PkiError:
            return
        carried, _ = extension(names.certificate, x509.SubjectAlternativeName)
        dns = carried.get_values_for_type(x509.DNSName)
        addresses = carried.get_values_for_type(x509.IPAddress)
        wanted = text.strip().lower()
        assert wanted in dns or ipaddress.ip_address(wanted) in addresses

    def test_longest_service_and_namespace_fit(self) -> None:
        names = pki.serving_names("s" * 63, "n" * 63)
        assert pki.generate("s" * 63, "n" * 63, now=NOW).serving.certificate
        assert max(map(len, names)) < 253

    def test_impossible_lifetimes_are_told(self) -> None:
        with pytest.raises(PkiError, match="positive"):
            pki.authority(now=NOW, lifetime=timedelta(0))
        with pytest.raises(PkiError, match="9999"):
            pki.authority(now=NOW, lifetime=timedelta(days=365 * 9000))
        with pytest.raises(ValueError, match="time zone"):
            pki.authority(now=NOW.replace(tzinfo=None))


class TestIssue:
    def test_a_serving_certificate_is_renewed_from_the_same_authority(self) -> None:
        later = NOW + timedelta(days=300)
        renewed = pki.issue(PAIR.ca, "hami-webhook", "kube-gpu", now=later, extra_names=["x.example"])
        certificate = pki.read_certificate(renewed.certificate)
        certificate.verify_directly_issued_by(pki.read_certificate(PAIR.ca.certificate))
        assert renewed.key != PAIR.serving.key
        assert certificate.not_valid_after_utc == later.replace(microsecond=0) + pki.SERVING_LIFETIME

    def test_it_does_not_outlive_the_authority(self) -> None:
        late = NOW + pki.CA_LIFETIME - timedelta(days=10)
        renewed = pki.issue(PAIR.ca, "w", "n", now=late)
        assert pki.read_lifetime(renewed.certificate).not_after == pki.read_lifetime(PAIR.ca.certificate).not_after

    @pytest.mark.parametrize("subject_key", [True, False])
    def test_an_rsa_authority_made_elsewhere_signs_too(self, subject_key: bool) -> None:
        ca = own_authority(rsa.generate_private_key(65537, 2048), subject_key=subject_key)
        leaf = pki.issue(ca, "w", "n", now=NOW)
        pki.read_certificate(leaf.certificate).verify_directly_issued_by(pki.read_certificate(ca.certificate))
        identifier, _ = extension(leaf.certificate, x509.AuthorityKeyIdentifier)
        assert (identifier.key_identifier == b"theirs") is subject_key

    @pytest.mark.parametrize(
        ("ca", "expected"),
        [
            (KeyPair(b"nothing", PAIR.ca.key), "no readable PEM certificate"),
            (KeyPair(PAIR.ca.certificate, b"nothing"), "not a readable"),
            (KeyPair(PAIR.ca.certificate, PAIR.serving.key), "does not belong"),
            (PAIR.serving, "not an authority"),
            (own_authority(ec.generate_private_key(ec.SECP256R1()), basic=False), "not an authority"),
            (own_authority(ed25519.Ed25519PrivateKey.generate()), "neither ECDSA nor RSA"),
            (own_authority(ec.generate_private_key(ec.SECP256R1()), valid=timedelta(0)), "valid from .* not now"),
            (
                KeyPair(
                    PAIR.ca.certificate,
                    private_pem(
                        ec.generate_private_key(ec.SECP256R1()), serialization.BestAvailableEncryption(b"word")
                    ),
                ),
                "unencrypted",
            ),
        ],
    )
    def test_an_authority_that_can_not_sign_is_refused_with_the_reason(self, ca: KeyPair, expected: str) -> None:
        with pytest.raises(PkiError, match=expected):
            pki.issue(ca, "w", "n", now=NOW)


class TestRenewal:
    @pytest.mark.parametrize(
        ("day", "due"), [(-1, False), (0, False), (243, False), (244, True), (365, True), (400, True)]
    )
    def test_is_due_when_less_than_a_third_is_left(self, day: int, due: bool) -> None:
        assert pki.needs_renewal(PAIR.serving.certificate, NOW + timedelta(days=day)) is due

    def test_the_fraction_is_the_caller_s(self) -> None:
        late = NOW + timedelta(days=300)
        assert not pki.needs_renewal(PAIR.serving.certificate, late, 0.1)
        with pytest.raises(ValueError, match="between 0 and 1"):
            pki.needs_renewal(PAIR.serving.certificate, late, 1.5)

    def test_the_leaf_of_a_chain_is_read(self) -> None:
        chain = PAIR.serving.certificate + PAIR.ca.certificate
        assert pki.read_lifetime(chain) == pki.read_lifetime(PAIR.serving.certificate)

    def test_no_certificate_is_told(self) -> None:
        with pytest.raises(PkiError):
            pki.needs_renewal(b"", NOW)


def test_a_bundle_has_every_authority_once_in_order() -> None:
    old, new = PAIR.ca.certificate, pki.authority(now=NOW).certificate
    assert pki.ca_bundle(old + new, b"a comment\n" + new, old) == old + new
    with pytest.raises(PkiError):
        pki.ca_bundle(old, b"")


class TestWrite:
    def test_four_files_keys_for_the_owner_alone(self, tmp_path: Path) -> None:
        folder = tmp_path / "deep" / "certs"
        paths = pki.write(folder, PAIR, force=False)
        assert [path.name for path in paths] == ["ca.crt", "ca.key", "tls.crt", "tls.key"]
        assert {path.name: path.read_bytes() for path in paths} == PAIR.files()
        assert [stat.S_IMODE(path.stat().st_mode) for path in paths] == [0o644, 0o600, 0o644, 0o600]
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert sorted(folder.iterdir()) == sorted(paths)

    def test_existing_files_are_named_and_kept(self, tmp_path: Path) -> None:
        (tmp_path / "tls.key").write_text("mine")
        (tmp_path / "ca.crt").symlink_to("nowhere")
        with pytest.raises(PkiError, match=r"already has ca\.crt, tls\.key: use --force"):
            pki.write(tmp_path, PAIR, force=False)
        assert (tmp_path / "tls.key").read_text() == "mine"
        assert not (tmp_path / "tls.crt").exists()

    def test_force_replaces_them_and_keeps_the_folder(self, tmp_path: Path) -> None:
        tmp_path.chmod(0o755)
        (tmp_path / "README.md").write_text("kept")
        (tmp_path / "tls.key").write_text("old")
        (tmp_path / "tls.key").chmod(0o644)
        pki.write(tmp_path, PAIR, force=True)
        assert (tmp_path / "tls.key").read_bytes() == PAIR.serving.key
        assert stat.S_IMODE((tmp_path / "tls.key").stat().st_mode) == 0o600
        assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755
        assert (tmp_path / "README.md").read_text() == "kept"

    @pytest.mark.parametrize("where", ["file", "file/below", "n" * 300])
    def test_a_path_that_is_no_folder_is_told(self, where: str, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(PkiError, match="can't be written to"):
            pki.write(tmp_path / where, PAIR, force=True)

    def test_a_file_that_can_not_be_replaced_leaves_no_debris(self, tmp_path: Path) -> None:
        (tmp_path / "tls.crt").mkdir()
        with pytest.raises(PkiError, match="can't be written to"):
            pki.write(tmp_path, PAIR, force=True)
        assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]

    def test_a_disk_that_fills_up_leaves_the_old_files(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        pki.write(tmp_path, PAIR, force=False)
        synced = []

        def fill_up(descriptor: int) -> None:
            synced.append(descriptor)
            if len(synced) == 3:
                raise OSError(28, "No space left on device")

        monkeypatch.setattr("os.fsync", fill_up)
        with pytest.raises(PkiError, match="No space left on device"):
            pki.write(tmp_path, pki.generate("w", "n", now=NOW), force=True)
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == PAIR.files()

    def test_a_relative_folder_will_do(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        assert pki.write(Path("certs"), PAIR, force=False)[0] == Path("certs/ca.crt")


class TestWhatIsUsable:
    def test_a_pair_is_usable(self) -> None:
        pki.check_authority(PAIR.ca, NOW)
        pki.check_serving(PAIR.serving, PAIR.ca.certificate, "hami-webhook", "kube-gpu")
        assert pki.valid_authorities(PAIR.ca.certificate, NOW) == [PAIR.ca.certificate]

    @pytest.mark.parametrize(
        ("serving", "authority", "message"),
        [
            (PAIR.serving, b"x", "holds no readable PEM certificate"),
            (KeyPair(PAIR.serving.certificate, b"x"), PAIR.ca.certificate, "the serving key is not a readable"),
            (KeyPair(PAIR.serving.certificate, PAIR.ca.key), PAIR.ca.certificate, "does not belong to its certificate"),
            (PAIR.serving, pki.authority(now=NOW).certificate, "the authority did not sign the serving certificate"),
            (PAIR.ca, PAIR.ca.certificate, "the serving certificate is not for hami-webhook.kube-gpu.svc"),
        ],
        ids=["no authority", "no key", "another's key", "another's", "no names"],
    )
    def test_a_pair_that_the_api_server_would_refuse_is_none(
        self, serving: KeyPair, authority: bytes, message: str
    ) -> None:
        with pytest.raises(PkiError, match=message):
            pki.check_serving(serving, authority, "hami-webhook", "kube-gpu")

    def test_only_valid_authorities_of_a_text_count(self) -> None:
        short = pki.authority(now=NOW, lifetime=timedelta(days=1))
        text = short.certificate + PAIR.serving.certificate + PAIR.ca.certificate
        assert pki.valid_authorities(text, NOW) == [short.certificate, PAIR.ca.certificate]
        assert pki.valid_authorities(text, NOW + timedelta(days=2)) == [PAIR.ca.certificate]
        assert pki.valid_authorities(b"garbage", NOW) == []

    def test_a_certificate_without_a_life_has_none_left(self) -> None:
        assert pki.Lifetime(NOW, NOW, 1).remaining(NOW) == 0
