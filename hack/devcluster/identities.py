"""The certificates of a control plane: one authority, a serving certificate, a client certificate per identity."""

from __future__ import annotations

import base64
import ipaddress
import json
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_LIFE = timedelta(days=30)
_PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


class Authority:
    """A certificate authority whose files are in a folder: those that are there, or new ones."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.certificate, key = folder / "ca.crt", folder / "ca.key"
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "dev-cluster CA")])
        if key.exists():
            self._key: _PrivateKey = _private_key(key)
            return
        # kube-apiserver verifies a client's certificate at each request: RSA signatures take much less of its time
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        certificate = (
            self._builder(self._name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        key.touch(mode=0o600)
        key.write_bytes(_pem(self._key))

    def serving(self, name: str, names: Iterable[str]) -> tuple[Path, Path]:
        """A serving certificate for DNS names and IP addresses: the files of certificate and key."""
        return self._issue(name, name, (), list(names))

    def client(self, file: str, user: str, *groups: str) -> tuple[Path, Path]:
        """A client certificate of a user in groups: the files of certificate and key."""
        return self._issue(file, user, groups, [])

    def service_account_key(self) -> tuple[Path, Path]:
        """The key pair that service account tokens are signed with: private and public."""
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        private, public = self.folder / "sa.key", self.folder / "sa.pub"
        private.write_bytes(_pem(key))
        public.write_bytes(
            key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        )
        return private, public

    def kubeconfig(self, file: str, server: str, user: str, *groups: str) -> Path:
        """A kubeconfig of a user with a client certificate of this authority; everything is inside the one file."""
        certificate, key = self.client(file, user, *groups)
        path = self.folder / f"{file}.kubeconfig"
        login = {"client-certificate-data": _encoded(certificate), "client-key-data": _encoded(key)}
        path.write_text(json.dumps(kubeconfig(server, self.certificate.read_bytes(), login), indent=1))
        path.chmod(0o600)
        return path

    def _issue(self, file: str, name: str, groups: Iterable[str], names: list[str]) -> tuple[Path, Path]:
        key = ec.generate_private_key(ec.SECP256R1())
        parts = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
        subject = x509.Name([*parts, x509.NameAttribute(NameOID.COMMON_NAME, name)])
        usage = ExtendedKeyUsageOID.SERVER_AUTH if names else ExtendedKeyUsageOID.CLIENT_AUTH
        builder = self._builder(subject, key.public_key()).add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName([_general(n) for n in names]), critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        paths = self.folder / f"{file}.crt", self.folder / f"{file}.key"
        paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        paths[1].write_bytes(_pem(key))
        paths[1].chmod(0o600)
        return paths

    def _builder(
        self, subject: x509.Name, public: ec.EllipticCurvePublicKey | rsa.RSAPublicKey
    ) -> x509.CertificateBuilder:
        now = datetime.now(UTC).replace(microsecond=0)
        subject_id = x509.SubjectKeyIdentifier.from_public_key(public)
        issuer_id = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        return (
            x509.CertificateBuilder(
                self._name, subject, public, x509.random_serial_number(), now - timedelta(hours=1), now + _LIFE
            )
            .add_extension(subject_id, critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer_id), critical=False)
        )


def kubeconfig(server: str, ca: bytes, user: dict[str, str]) -> dict[str, object]:
    """A kubeconfig with one cluster and one user."""
    cluster = {"server": server, "certificate-authority-data": base64.b64encode(ca).decode()}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "dev", "cluster": cluster}],
        "users": [{"name": "dev", "user": user}],
        "contexts": [{"name": "dev", "context": {"cluster": "dev", "user": "dev"}}],
        "current-context": "dev",
    }


def _private_key(path: Path) -> _PrivateKey:
    found = serialization.load_pem_private_key(path.read_bytes(), None)
    assert isinstance(found, _PrivateKey)
    return found


def _encoded(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem(key: _PrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
