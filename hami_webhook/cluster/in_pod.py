"""A client for the API server of the cluster that this process is a pod of, in a fifth of the memory.

`kubernetes.aio` takes 23 MiB before its first request. That is much where there is one process on each node, which
needs nothing of it but to send requests with the pod's own token.
"""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
from yarl import URL

from hami_webhook.cluster.api import ClusterError
from hami_webhook.light_imports import aiohttp

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TOKEN_AGE = 60.0
"""Seconds after which the token is read again, which kubelet renews."""


class PodClient:
    """A `kubernetes.Client` with the token and the CA in a folder."""

    def __init__(self, host: str, port: str, folder: Path = SERVICE_ACCOUNT) -> None:
        self._server = f"https://{f'[{host}]' if ':' in host else host}:{port}"
        self._token_file = folder / "token"
        self._tls = ssl.create_default_context(cafile=folder / "ca.crt")
        self._session: aiohttp.ClientSession | None = None
        self._token, self._token_read = "", 0.0

    @classmethod
    def here(cls, environment: Mapping[str, str] = os.environ, folder: Path = SERVICE_ACCOUNT) -> PodClient | None:
        """The client of this pod, None if this process isn't in one. Raises `ClusterError`."""
        host, port = environment.get("KUBERNETES_SERVICE_HOST", ""), environment.get("KUBERNETES_SERVICE_PORT", "")
        if not (host and port and folder.exists()):
            return None
        try:
            return cls(host, port, folder)
        except OSError as error:
            raise ClusterError(f"the pod's service account can't be used: {folder / 'ca.crt'}: {error}") from error

    async def param_serialize(
        self,
        method: str,
        resource_path: str,
        *,
        query_params: Sequence[tuple[str, str]],
        header_params: Mapping[str, str],
        auth_settings: Sequence[str],
    ) -> tuple[Any, ...]:
        url = URL(f"{self._server}{resource_path}", encoded=True).with_query(list(query_params))
        return method, str(url), {**header_params, "Authorization": f"Bearer {self._read_token()}"}, None, None

    async def call_api(
        self, method: str, url: str, headers: Mapping[str, str], body: Any, *, _request_timeout: aiohttp.ClientTimeout
    ) -> Any:
        if self._session is None:
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=self._tls))
        response = await self._session.request(
            method,
            URL(url, encoded=True),
            headers={"Content-Type": "application/json", **headers},
            data=None if body is None else orjson.dumps(body),
            timeout=_request_timeout,
            allow_redirects=False,
        )
        return SimpleNamespace(response=response)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    def _read_token(self) -> str:
        """The token; that of before where it can't be read. Raises `ClusterError` without any."""
        if not self._token or time.monotonic() - self._token_read >= _TOKEN_AGE:
            try:
                self._token = self._token_file.read_text().strip()
            except OSError as error:
                if not self._token:
                    raise ClusterError(f"the pod's token can't be read: {error}") from error
            self._token_read = time.monotonic()
        return self._token
