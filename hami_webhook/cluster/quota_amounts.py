"""The amounts of a ResourceQuota as the API server stores them, for `cluster/memory.py`."""

from __future__ import annotations

import re

from hami_webhook.kube.quantity import Quantity, QuantityError

_COUNTED = ("pods", "services", "services.nodeports", "services.loadbalancers", "resourcequotas", "secrets")
_INTEGER_QUOTA_KEYS = frozenset((*_COUNTED, "replicationcontrollers", "configmaps", "persistentvolumeclaims"))
_COMPUTE = ("cpu", "memory", "ephemeral-storage")
_STANDARD_QUOTA_KEYS = _INTEGER_QUOTA_KEYS.union(
    _COMPUTE, ("requests.storage",), (f"{part}.{name}" for part in ("requests", "limits") for name in _COMPUTE)
)
_QUALIFIED_NAME = re.compile(r"[a-z0-9][-a-z0-9.]{0,252}/[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


class BadAmount(ValueError):
    """A quota's amounts that the API server would refuse: `args` are the path, the value and the reason."""


def canonical(path: str, amounts: object) -> dict[str, str]:
    """A quota's amounts in canonical text; raises `BadAmount` where the API server's validation would."""
    if not isinstance(amounts, dict):
        raise BadAmount(path, amounts, "must be an object")
    canonical = {}
    for name, text in amounts.items():
        place = f"{path}[{name}]"
        hugepages = name.startswith(("hugepages-", "requests.hugepages-"))
        if not (_QUALIFIED_NAME.fullmatch(name) or name in _STANDARD_QUOTA_KEYS or hugepages):
            raise BadAmount(place, name, "must be a standard resource for quota")
        try:
            amount = Quantity.parse(text)
        except QuantityError as error:
            raise BadAmount(place, text, str(error)) from error
        if amount.value < 0:
            raise BadAmount(place, text, "must be greater than or equal to 0")
        extended = "/" in name and "kubernetes.io/" not in name and not name.startswith("requests.")
        if (extended or name in _INTEGER_QUOTA_KEYS) and amount.whole() is None:
            raise BadAmount(place, text, "must be an integer")
        canonical[name] = str(amount)
    return canonical
