"""aiohttp, and the Kubernetes client for who imports this before it, without what isn't used of them.

That is 250 modules and 12 MB of the client, its synchronous half included, and the certificates of the system, which
aiohttp reads for connections that name no others: a third of a command's start.
"""

import os

from hami_webhook.light_imports import defer

_CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR")

_before = {name: os.environ.get(name) for name in _CERTIFICATES}
os.environ.update(dict.fromkeys(_CERTIFICATES, os.devnull))
try:
    import aiohttp as aiohttp
finally:
    for _name, _value in _before.items():
        os.environ.pop(_name)
        if _value is not None:
            os.environ[_name] = _value

for _name in ("kubernetes", "kubernetes.aio", "kubernetes.aio.utils"):
    defer(_name)
