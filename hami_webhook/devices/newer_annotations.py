"""Read the pod annotations that HAMi introduced in 2.11 (docs/spec/core.md#2.5)."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Final

import orjson

from hami_webhook.devices.codecs import parse_bool
from hami_webhook.kube.message_text import quoted

OVERWRITE_ENV: Final = "hami.io/overwrite-env"
OVERWRITE_ENV_CONTAINERS: Final = "hami.io/overwrite-env-containers"
NUMA_ALIGNMENT: Final = "hami.io/numa-alignment"
MIG_PREFERENCE: Final = "nvidia.com/mig-profile-preference"
AMD_NUMA_BIND: Final = "amd.com/numa-bind"

_SERVED = (OVERWRITE_ENV, OVERWRITE_ENV_CONTAINERS, MIG_PREFERENCE, AMD_NUMA_BIND)
KEYS: Final = frozenset((*_SERVED, NUMA_ALIGNMENT))


def overwrites_env(annotations: Mapping[str, str], container: str, *, usual: bool) -> bool:
    """Return whether to hide cards from a container that requests none: by its own annotation, its pod's, or the
    default `usual`.
    """
    of_container = _by_container(annotations.get(OVERWRITE_ENV_CONTAINERS, "")) or {}
    for said in (of_container.get(container), annotations.get(OVERWRITE_ENV)):
        meant = None if said is None else parse_bool(said)
        if meant is not None:
            return meant
    return usual


@functools.lru_cache(maxsize=16)
def _by_container(text: str) -> Mapping[str, str] | None:
    """The texts by container that an annotation has; None if it is no JSON object of texts."""
    try:
        found = orjson.loads(text or "{}")
    except orjson.JSONDecodeError:
        return None
    return found if isinstance(found, dict) and all(isinstance(said, str) for said in found.values()) else None


def warnings_of(annotations: Mapping[str, str], *, is_2_11: bool) -> list[str]:
    """A sentence for each of these annotations that has no effect, or not the one that it seems to have."""
    written = KEYS.intersection(annotations)
    found = []
    if NUMA_ALIGNMENT in written:
        found.append(
            f"{NUMA_ALIGNMENT} isn't served: cards aren't chosen again for the NUMA node that kubelet takes; "
            "nvidia.com/numa-bind keeps a container's cards on one"
        )
    if not is_2_11:
        return found + [
            f"{key} has no effect: HAMi has it since 2.11, and the device configuration's hami.version is 2.10"
            for key in _SERVED
            if key in written
        ]
    for key in (OVERWRITE_ENV, AMD_NUMA_BIND):
        if key in written and parse_bool(annotations[key]) is None:
            found.append(f"{key}: {quoted(annotations[key])} is neither true nor false, and ignored")
    if OVERWRITE_ENV_CONTAINERS in written:
        by_container = _by_container(annotations[OVERWRITE_ENV_CONTAINERS])
        if by_container is None:
            found.append(f'{OVERWRITE_ENV_CONTAINERS} is ignored: write a JSON object such as {{"main": "false"}}')
        elif unknown := [name for name, said in by_container.items() if parse_bool(said) is None]:
            found.append(
                f"{OVERWRITE_ENV_CONTAINERS}: that of {quoted(unknown[0])} is neither true nor false, and ignored"
            )
    return found
