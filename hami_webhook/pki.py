"""The certificate authority and the serving certificate of the webhook.

The API server trusts the authority through a webhook configuration's ``caBundle`` and connects with the server name
``<service>.<namespace>.svc`` (https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/).
Everything here is a pure function of its arguments except `write`. The profile of the certificates is RFC 5280's.
"""

import ipaddress
import os
import re
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from hami_webhook.command_error import CommandError

CA_CERTIFICATE: Final = "ca.crt"
CA_KEY: Final = "ca.key"
SERVING_CERTIFICATE: Final = "tls.crt"
SERVING_KEY: Final = "tls.key"

CA_LIFETIME: Final = timedelta(days=3652)
SERVING_LIFETIME: Final = timedelta(days=365)
RENEWAL_FRACTION: Final = 1 / 3

# A node whose clock runs a little late must accept a certificate made just now.
_BACKDATE: Final = timedelta(minutes=5)
_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


class PkiError(CommandError):
    """A certificate, key or name that can't be used, or a folder that can't be written. The text is one sentence."""


@dataclass(frozen=True, slots=True)
class KeyPair:
    """One certificate and its private key, both PEM; the key is unencrypted PKCS #8 and kept out of ``repr``."""

    certificate: bytes
    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Pair:
    """An authority and the serving certificate it signed."""

    ca: KeyPair
    serving: KeyPair

    def files(self) -> dict[str, bytes]:
        """File name (also the key in a Secret of type ``kubernetes.io/tls``) to PEM."""
        return {
            CA_CERTIFICATE: self.ca.certificate,
            CA_KEY: self.ca.key,
            SERVING_CERTIFICATE: self.serving.certificate,
            SERVING_KEY: self.serving.key,
        }


@dataclass(frozen=True, slots=True)
class Lifetime:
    """The validity of a certificate (both times in UTC) and its serial number."""

    not_before: datetime
    not_after: datetime
    serial: int

    def remaining(self, now: datetime) -> float:
        """The share of the validity that is left at ``now``: 1 or more before its start, 0 or less after its end."""
        life = self.not_after - self.not_before
        return (self.not_after - now) / life if life > timedelta(0) else 0.0


def generate(
    service: str,
    namespace: str,
    *,
    now: datetime,
    extra_names: Sequence[str] = (),
) -> Pair:
    """A new authority and a serving certificate for a Service.

    ``now`` is aware of its time zone. ``extra_names`` are DNS names (``*.`` in front is allowed) or IP addresses.
    Raises `PkiError` for a name no certificate may carry.
    """
    ca = authority(now=now)
    return Pair(ca, issue(ca, service, namespace, now=now, extra_names=extra_names))


def authority(*, now: datetime, lifetime: timedelta = CA_LIFETIME) -> KeyPair:
    """A new self-signed ECDSA P-256 authority that may sign serving certificates but no further authorities."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name("hami-webhook CA")
    not_before, not_after = _span(now, lifetime)
    public = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    certificate = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number(), not_before, not_after)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(sign_certificates=True), critical=True)
        .add_extension(public, critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(public), critical=False)
        .sign(key, hashes.SHA256())
    )
    return _key_pair(certificate, key)


def issue(
    ca: KeyPair,
    service: str,
    namespace: str,
    *,
    now: datetime,
    extra_names: Sequence[str] = (),
    lifetime: timedelta = SERVING_LIFETIME,
) -> KeyPair:
    """A new serving certificate, with a new key, signed by an existing authority; it never outlives the authority.

    Raises `PkiError` when ``ca`` can't be read, is no authority, is not valid at ``now``, or its key is another's.
    """
    issuer, issuer_key = _signer(ca, now)
    names = [_general_name(name) for name in serving_names(service, namespace, extra_names)]
    key = ec.generate_private_key(ec.SECP256R1())
    not_before, not_after = _span(now, lifetime)
    certificate = (
        x509.CertificateBuilder(
            issuer_name=issuer.subject,
            subject_name=_name(service),
            public_key=key.public_key(),
            serial_number=x509.random_serial_number(),
            not_valid_before=max(not_before, issuer.not_valid_before_utc),
            not_valid_after=min(not_after, issuer.not_valid_after_utc),
        )
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(sign_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(_authority_key_identifier(issuer), critical=False)
        .sign(issuer_key, hashes.SHA256())
    )
    return _key_pair(certificate, key)


def serving_names(service: str, namespace: str, extra_names: Sequence[str] = ()) -> list[str]:
    """Every name of the Service inside the cluster, the loopback names, then the extra ones; each once, in order."""
    for what, label in (("service", service), ("namespace", namespace)):
        if not _LABEL.fullmatch(label):
            raise PkiError(f"{what} {label!r} is not a DNS label: lower-case letters, digits and '-', at most 63")
    qualified = f"{service}.{namespace}"
    own = [service, qualified, f"{qualified}.svc", f"{qualified}.svc.cluster.local", "localhost", "127.0.0.1", "::1"]
    return list(dict.fromkeys([*own, *(name.strip().lower() for name in extra_names)]))


def read_certificate(pem: bytes) -> x509.Certificate:
    """The first certificate of a PEM text: in a serving chain, the leaf. Raises `PkiError` when there is none."""
    return _certificates(pem)[0]


def read_lifetime(pem: bytes) -> Lifetime:
    """When the first certificate of a PEM text is valid. Raises `PkiError` when there is none."""
    certificate = read_certificate(pem)
    return Lifetime(certificate.not_valid_before_utc, certificate.not_valid_after_utc, certificate.serial_number)


def needs_renewal(certificate_pem: bytes, now: datetime, fraction: float = RENEWAL_FRACTION) -> bool:
    """Whether less than ``fraction`` (between 0 and 1) of the certificate's whole life is left at ``now``.

    Raises `PkiError` when the PEM holds no certificate.
    """
    if not 0 < fraction < 1:
        raise ValueError(f"fraction is a share of the lifetime between 0 and 1, not {fraction}")
    return read_lifetime(certificate_pem).remaining(now) < fraction


def ca_bundle(*pems: bytes) -> bytes:
    """One PEM of all authorities in the given PEM texts, each once, in order of appearance: a ``caBundle``.

    During a rotation it holds the old authority and the new. Raises `PkiError` when one text holds no certificate.
    """
    certificates = dict.fromkeys(certificate for pem in pems for certificate in _certificates(pem))
    return b"".join(certificate.public_bytes(serialization.Encoding.PEM) for certificate in certificates)


def check_authority(ca: KeyPair, now: datetime) -> None:
    """Raise `PkiError` unless `issue` can sign with the authority at ``now``."""
    _signer(ca, now)


def check_serving(serving: KeyPair, authority_pem: bytes, service: str, namespace: str) -> None:
    """Raise `PkiError` unless the pair is one that the authority signed for the Service. Its validity isn't checked."""
    certificate, issuer = read_certificate(serving.certificate), read_certificate(authority_pem)
    _check_key(serving, certificate)
    try:
        certificate.verify_directly_issued_by(issuer)
    except (InvalidSignature, ValueError, TypeError) as error:
        raise PkiError("the authority did not sign the serving certificate") from error
    _check_name(certificate, service, namespace)


def check_names(serving: KeyPair, service: str, namespace: str) -> None:
    """Raise `PkiError` unless the pair is one for the Service, by any authority. Its validity isn't checked."""
    certificate = read_certificate(serving.certificate)
    _check_key(serving, certificate)
    _check_name(certificate, service, namespace)


def valid_authorities(pem: bytes, now: datetime) -> list[bytes]:
    """Each certificate of a PEM text that is an authority valid at ``now``, as PEM; of an unreadable text none."""
    try:
        found = _certificates(pem)
    except PkiError:
        return []
    valid = [
        each for each in found if _is_authority(each) and each.not_valid_before_utc <= now < each.not_valid_after_utc
    ]
    return [each.public_bytes(serialization.Encoding.PEM) for each in valid]


def write(directory: Path, pair: Pair, *, force: bool) -> list[Path]:
    """Write ``ca.crt``, ``ca.key``, ``tls.crt`` and ``tls.key``; returns their paths.

    Keys are readable by their owner alone. A missing folder is made, open to its owner alone. Every file is complete
    before any is put in place, so a full disk leaves the old ones. Raises `PkiError` when a file exists and ``force``
    is false, or when the folder can't be made or written.
    """
    files = {directory / name: content for name, content in pair.files().items()}
    staged: dict[Path, Path] = {}
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        existing = [path.name for path in files if os.path.lexists(path)]
        if existing and not force:
            raise PkiError(f"{directory} already has {', '.join(existing)}: use --force to replace them")
        for path, content in files.items():
            staged[path] = _stage(path, content)
        # Keys first: a process that watches the certificate finds its key in place.
        for path in sorted(staged, key=lambda path: path.suffix != ".key"):
            staged[path].replace(path)
    except OSError as error:
        raise PkiError(f"certificates can't be written to {directory}: {error.strerror or error}") from error
    finally:
        _discard(staged.values())
    return list(files)


def _stage(path: Path, content: bytes) -> Path:
    """A complete temporary file next to ``path``, with the mode the final one shall have."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
            os.fchmod(stream.fileno(), 0o600 if path.suffix == ".key" else 0o644)
    except OSError:
        _discard([Path(name)])
        raise
    return Path(name)


def _discard(temporary: Iterable[Path]) -> None:
    for path in temporary:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def _check_key(serving: KeyPair, certificate: x509.Certificate) -> None:
    if _private_key(serving.key, "the serving key").public_key() != certificate.public_key():
        raise PkiError("the serving key does not belong to its certificate")


def _check_name(certificate: x509.Certificate, service: str, namespace: str) -> None:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        dns_names = names.get_values_for_type(x509.DNSName)
    except (ValueError, TypeError) as error:
        raise PkiError("the names of the serving certificate can't be read") from error
    except x509.ExtensionNotFound:
        dns_names = []
    name = f"{service}.{namespace}.svc"
    if name not in dns_names:
        raise PkiError(f"the serving certificate is not for {name}")


def _certificates(pem: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem)
    except (ValueError, x509.InvalidVersion) as error:
        raise PkiError("the text holds no readable PEM certificate") from error


def _private_key(pem: bytes, what: str) -> ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey:
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise PkiError(f"{what} is not a readable, unencrypted PEM private key") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey):
        raise PkiError(f"{what} is neither ECDSA nor RSA")
    return key


def _is_authority(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except (x509.ExtensionNotFound, ValueError):
        return False


def _signer(ca: KeyPair, now: datetime) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey]:
    certificate = read_certificate(ca.certificate)
    key = _private_key(ca.key, "the authority's key")
    if key.public_key() != certificate.public_key():
        raise PkiError("the authority's key does not belong to its certificate")
    if not _is_authority(certificate):
        raise PkiError("the certificate to sign with is not an authority")
    if not certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc:
        raise PkiError(
            f"the authority is valid from {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} "
            f"to {certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC, not now"
        )
    return certificate, key


def _authority_key_identifier(issuer: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    try:
        identifier = issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    except x509.ExtensionNotFound:
        identifier = x509.SubjectKeyIdentifier.from_public_key(issuer.public_key())
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier)


def _span(now: datetime, lifetime: timedelta) -> tuple[datetime, datetime]:
    if now.tzinfo is None:
        raise ValueError("now must be aware of its time zone")
    if lifetime <= timedelta(0):
        raise PkiError(f"a lifetime must be positive, not {lifetime}")
    moment = now.astimezone(UTC).replace(microsecond=0)
    try:
        return moment - _BACKDATE, moment + lifetime
    except OverflowError:
        raise PkiError(f"a lifetime of {lifetime} ends beyond the year 9999") from None


def _general_name(name: str) -> x509.GeneralName:
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        labels = name.removeprefix("*.").split(".")
        if len(name) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
            raise PkiError(f"{name!r} is neither a DNS name nor an IP address") from None
        return x509.DNSName(name)
    if isinstance(address, ipaddress.IPv6Address) and address.scope_id is not None:
        raise PkiError(f"{name!r} has a zone, which no certificate can carry")
    return x509.IPAddress(address)


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _key_usage(*, sign_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not sign_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=sign_certificates,
        crl_sign=sign_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _key_pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> KeyPair:
    return KeyPair(
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )
