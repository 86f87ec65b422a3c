"""Imports that leave out what isn't used."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from hami_webhook import pki

pytestmark = pytest.mark.integration

PROGRAM = """
import hami_webhook.cluster.connect, os, ssl, sys
print(len(ssl.create_default_context().get_ca_certs()), "urllib3" in sys.modules, os.environ.get("SSL_CERT_DIR"))
"""


def test_connections_that_name_no_authority_trust_what_the_system_does(tmp_path: Path) -> None:
    trusted = tmp_path / "trusted.crt"
    trusted.write_bytes(pki.authority(now=datetime.now(UTC)).certificate)
    environment = {name: value for name, value in os.environ.items() if name != "SSL_CERT_DIR"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**environment, "SSL_CERT_FILE": str(trusted)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["1", "False", "None"]
