"""Finding the API server: the named kubeconfig, else the default one, else the pod's service account."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.request import getproxies_environment

import yaml
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration

from hami_webhook.cluster.api import ClusterError

_DEFAULT = Path("~/.kube/config").expanduser()


async def connect(kubeconfig: str = "") -> ApiClient:
    """A client for the API server; `kubeconfig` is a path, or empty for the default order. Raises `ClusterError`."""
    configuration = Configuration()
    path = kubeconfig or (str(_DEFAULT) if os.access(_DEFAULT, os.R_OK) else "")
    try:
        if path:
            if not os.access(path, os.R_OK):
                raise ClusterError(f"kubeconfig {path} can't be read; --kubeconfig or KUBECONFIG names another")
            await config.load_kube_config(  # type: ignore[no-untyped-call]  # the client has no types here
                config_file=path, client_configuration=configuration, persist_config=False
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
    return ApiClient(configuration)
