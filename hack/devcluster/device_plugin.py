"""The part that device plugins play towards HAMi: they register cards, answer handshakes and allocate.

What a real plugin hands to a container (devices, libraries, environment) is no part of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from .boards import Offer
from .client import FAILURES, JSON, ApiError, Client

_log = logging.getLogger(__name__)

LOCK = "hami.io/mutex.lock"
PHASE = "hami.io/bind-phase"
ACCOUNT = "system:serviceaccount:hami-system:hami-device-plugin"
"""The account that hami-webhook lets write allocations, unless its settings name others."""
GROUPS = ("system:serviceaccounts", "system:serviceaccounts:hami-system")
REGISTER_SECONDS = 30.0
"""How often HAMi's plugins register."""
_TRIES = 10
_TO_ALLOCATE = "-to-allocate"
_MLU_LOCK = "cambricon.com/dsmlu.lock"
_MLU_ASSIGNED = "CAMBRICON_DSMLU_ASSIGNED"
_ASSIGNED = (
    *(_MLU_ASSIGNED, "CAMBRICON_DSMLU_ASSIGHED", "NEURON_ALLOCATED"),
    *("enflame.com/gcu-assigned", "iluvatar.ai/gpu-assigned"),
)
"""Annotations of vendors' own plugins, "false" until these have allocated."""


def rights() -> list[tuple[str, JSON]]:
    """What plugins may do, as in HAMi's chart: paths and the objects to create there."""
    name, api = "hami-device-plugin", "rbac.authorization.k8s.io"
    verbs = ["get", "list", "watch", "update", "patch"]
    _, _, namespace, account = ACCOUNT.split(":")
    role: JSON = {
        "metadata": {"name": name},
        "rules": [{"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": verbs}],
    }
    binding: JSON = {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": api, "kind": "ClusterRole", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}],
    }
    return [(f"/apis/{api}/v1/clusterroles", role), (f"/apis/{api}/v1/clusterrolebindings", binding)]


class DevicePlugin:
    """A plugin with the identity of `client`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def keep_registered(
        self, node: str, offer: Offer, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        """Register the node's cards, and again and again, until the node is gone."""
        while True:
            try:
                await self.register(node, offer)
            except FAILURES as error:
                if isinstance(error, ApiError) and error.code == 404:
                    return
                _log.warning("%s: its cards can't be registered: %s", node, error)
            await sleep(REGISTER_SECONDS)

    async def register(self, node: str, offer: Offer) -> None:
        alive = {offer.handshake: f"Reported_{datetime.now(UTC):%Y.%m.%d %H:%M:%S}"} if offer.handshake else {}
        annotations = offer.annotations | alive
        if annotations:
            await self._client.patch(f"/api/v1/nodes/{node}", {"metadata": {"annotations": annotations}})

    async def allocate(self, pod: JSON) -> bool:
        """Allocate what a pod that is bound was promised, as kubelet has it done before it starts the containers.

        False if it has been promised nothing. Raises `ApiError`, 404 where the pod or its node is gone.
        """
        meta = pod["metadata"]
        annotations = meta.get("annotations") or {}
        if annotations.get(PHASE) != "allocating":
            return False
        done = {key: ";" for key in annotations if key.endswith(_TO_ALLOCATE)}
        done |= {key: "true" for key in _ASSIGNED if annotations.get(key) == "false"}
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        # the UID, so that a namesake isn't taken for it
        await self._client.patch(path, {"metadata": {"uid": meta["uid"], "annotations": {PHASE: "success", **done}}})
        node, owner = pod["spec"]["nodeName"], f",{meta['namespace']},{meta['name']}"
        await self._release(node, LOCK, lambda held: held.endswith(owner))
        if _MLU_ASSIGNED in annotations:
            await self._release(node, _MLU_LOCK, bool)
        return True

    async def _release(self, node: str, lock: str, is_own: Callable[[str], bool]) -> None:
        path = f"/api/v1/nodes/{node}"
        for _ in range(_TRIES):
            meta = (await self._client.get(path))["metadata"]
            if not is_own((meta.get("annotations") or {}).get(lock, "")):
                return
            released = {"resourceVersion": meta["resourceVersion"], "annotations": {lock: None}}
            try:
                await self._client.patch(path, {"metadata": released})
            except ApiError as error:
                if error.code != 409:
                    raise
            else:
                return
        _log.warning("%s: %s can't be released: others change the node all the time", node, lock)
