"""aiohttp, and the Kubernetes client for who imports this before it, without what isn't used of them.

That is 250 modules and 12 MB of the client, its synchronous half included, and the certificates of the system, which
aiohttp reads for connections that name no others: a third of a command's start.
"""

import os
from importlib.util import find_spec, module_from_spec
from sys import modules

_CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR")
_PACKAGES = ("kubernetes", "kubernetes.aio", "kubernetes.aio.utils")
"""Those whose own code does nothing but import more."""

_before = {name: os.environ.get(name) for name in _CERTIFICATES}
os.environ.update(dict.fromkeys(_CERTIFICATES, os.devnull))
try:
    import aiohttp as aiohttp
finally:
    for _name, _value in _before.items():
        os.environ.pop(_name)
        if _value is not None:
            os.environ[_name] = _value

for _name in _PACKAGES:
    if _name not in modules and (_spec := find_spec(_name)) is not None:
        modules[_name] = module_from_spec(_spec)
