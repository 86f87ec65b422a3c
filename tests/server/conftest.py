"""A serving certificate for listeners, and a client's trust in it."""

import ssl

import pytest

from hami_webhook import pki
from hami_webhook.server.tls import CertificateFiles, ReloadingTls

from .sockets import PAIR


@pytest.fixture
def tls(tmp_path):
    pki.write(tmp_path, PAIR, force=True)
    return ReloadingTls(CertificateFiles(tmp_path / "tls.crt", tmp_path / "tls.key"))


@pytest.fixture
def trusting():
    return ssl.create_default_context(cadata=PAIR.ca.certificate.decode())
