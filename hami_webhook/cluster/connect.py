"""Finding the API server: the named kubeconfig, else the default one, else the pod's service account."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.request import getproxies_environment

import yaml
from msgspec import Struct

from hami_webhook.light_imports import aiohttp  # it comes before the client

# isort: split
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.client.exceptions import ApiException
from kubernetes.aio.config import kube_config

from hami_webhook.cluster.api import ClusterError, Unavailable
from hami_webhook.kube.yaml_reader import Loader

CONNECTIONS_OF_A_READ = 2
"""Open at a time where a cluster is read once and nothing is watched: a handshake takes as long as 200 pods."""
_DEFAULT = Path("~/.kube/config").expanduser()
_OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
"""Where a pod reads which namespace it is in."""
_load = partial(yaml.load, Loader=Loader)
# the client's own parser takes 3.5 ms for each KB of a kubeconfig
_yaml = SimpleNamespace(safe_load=_load, safe_dump=yaml.safe_dump)
kube_config.yaml = _yaml  # type: ignore[assignment,attr-defined]  # the client leaves no choice of a parser


class _Client(ApiClient):
    """The client, with failures of TLS as those of any other connection."""

    async def call_api(self, *request: Any, **more: Any) -> Any:
        try:
            return await super().call_api(*request, **more)
        except ApiException as error:
            raise Unavailable(f"the API server can't be asked: {error}") from error


async def connect(kubeconfig: str = "", context: str = "", connections: int | None = None) -> ApiClient:
    """A client for the API server. Raises `ClusterError`.

    `kubeconfig` is a path, or several as KUBECONFIG has them, or empty for the default order; `context` is one of its
    contexts, or empty for the current one. `connections` is how many are open at a time at most, None: as many as the
    client's default; a watch keeps one for as long as it lasts.
    """
    configuration = Configuration()
    if connections is not None:
        configuration.connection_pool_maxsize = connections
    path = _readable(kubeconfig)
    try:
        if path:
            await config.load_kube_config(  # type: ignore[no-untyped-call]  # the client has no types here
                config_file=path,
                context=context or _current_context(path),
                client_configuration=configuration,
                persist_config=False,
            )
        else:
            config.load_incluster_config(configuration)  # type: ignore[no-untyped-call]  # as above
    except config.ConfigException as error:
        where = f"kubeconfig {path} can't be used" if path else "no kubeconfig, and not in a pod of a cluster"
        raise ClusterError(f"{where}: {error}") from error
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError) as error:
        why = " ".join(str(error).split())
        raise ClusterError(f"kubeconfig {path} can't be used: {why}") from error
    configuration.retries = None
    # with it, every request looks for proxies and a .netrc in a thread of its own
    configuration.client_session_kwargs = {"trust_env": bool(getproxies_environment())}
    return _Client(configuration)


class ContextNames(Struct, frozen=True):
    """What a context of a kubeconfig names; empty where there is no kubeconfig, as in a pod."""

    namespace: str
    cluster: str = ""
    user: str = ""


def names_of(kubeconfig: str = "", context: str = "") -> ContextNames:
    """What a context names; the namespace is `default` if it names none, as for kubectl. Raises `ClusterError`."""
    path = _readable(kubeconfig)
    if not path:
        return ContextNames(_OWN_NAMESPACE.read_text().strip() if _OWN_NAMESPACE.exists() else "default")
    try:
        contexts, _ = config.list_kube_config_contexts(path)  # type: ignore[no-untyped-call]  # as above
        context = context or _current_context(path) or ""
    except (config.ConfigException, OSError, ValueError, KeyError, TypeError, yaml.YAMLError) as error:
        raise ClusterError(f"kubeconfig {path} can't be used: {' '.join(str(error).split())}") from error
    chosen = next((each for each in contexts if each["name"] == context), None)
    if chosen is None:
        names = ", ".join(sorted(each["name"] for each in contexts))
        raise ClusterError(f"kubeconfig {path} has no context {context!r}; it has {names}")
    named = chosen["context"]
    return ContextNames(
        str(named.get("namespace") or "default"), str(named.get("cluster") or ""), str(named.get("user") or "")
    )


def _readable(kubeconfig: str) -> str:
    """The kubeconfig to use, empty where there is none."""
    if kubeconfig:
        if not any(os.access(path, os.R_OK) for path in kubeconfig.split(os.pathsep)):
            raise ClusterError(f"kubeconfig {kubeconfig} can't be read; --kubeconfig or KUBECONFIG names another")
        return kubeconfig
    if _DEFAULT.exists() and not os.access(_DEFAULT, os.R_OK):
        raise ClusterError(f"kubeconfig {_DEFAULT} can't be read; --kubeconfig or KUBECONFIG names another")
    return str(_DEFAULT) if _DEFAULT.exists() else ""


def _current_context(kubeconfig: str) -> str | None:
    """The current context of the first file that has one, as kubectl takes it; the client takes the last one's."""
    for path in kubeconfig.split(os.pathsep):
        if os.access(path, os.R_OK):
            content = _load(Path(path).read_text())
            if isinstance(content, dict) and content.get("current-context"):
                return str(content["current-context"])
    return None


def unreachable(error: Unavailable) -> str:
    """That nobody answers at an API server's address, in a sentence; empty if that isn't why it is unavailable."""
    cause = error.__cause__
    if not isinstance(cause, aiohttp.ClientConnectorError):
        return ""
    number = cause.os_error.errno
    why = os.strerror(number) if number is not None and number > 0 else cause.os_error.strerror or "no connection"
    return (
        f"the API server at {cause.host}:{cause.port} can't be reached ({why.lower()}): is it running, and is this the "
        "right one? --kubeconfig and --context name another"
    )
