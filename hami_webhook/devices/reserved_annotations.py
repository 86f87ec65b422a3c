"""The scheduler-owned pod annotations of every vendor, enabled or not: users may not set them.

Source: docs/spec/node-registration.md#4; what follows from it is in docs/spec/security.md#1. Keys are
case-sensitive. A chip of `device-config.yaml` may have a common word of its own: what that adds below `hami.io/` is
covered here, but below `huawei.com/` only words that begin with `Ascend` are; for any other word ask the enabled
vendors for their keys too (`Vendors.owned_annotations`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

OWNED_LABELS = frozenset({"hami.io/vgpu-node"})
"""The scheduler-owned pod labels."""

_COMMON = ("hami.io/vgpu-node", "hami.io/vgpu-time", "hami.io/bind-time", "hami.io/bind-phase")

_NVIDIA = ("hami.io/vgpu-mig-allocations",)
_METAX = ("metax-tech.com/gpu-devices-allocated", "metax-tech.com/predicate-time")
_KUNLUN = ("hami.io/kunlun-allocated", "BAIDU_COM_DEVICE_IDX")
_AWS_NEURON = (
    "AWS_NEURON_IDS",
    "NEURON_ALLOC_TIME",
    "NEURON_ALLOCATED",
    "NEURON_RESOURCE_TYPE",
    "aws.amazon.com/predicate-node",
)
_ENFLAME = (
    "enflame.com/gcu-assigned",
    "enflame.com/gcu-assigned-time",
    "enflame.com/gcu-assigned-id",
    "enflame.com/gcu-assigned-index",
    "enflame.com/gcu-assigned-minor",
    "enflame.com/gcu-request-size",
    "assigned-containers",
)
_ASCEND = ("predicate-time",)
# Cambricon's plugin misspells its key, so both spellings are written; the last key the plugin writes itself.
_CAMBRICON = (
    "CAMBRICON_DSMLU_ASSIGNED",
    "CAMBRICON_DSMLU_ASSIGHED",
    "CAMBRICON_DSMLU_PROFILE",
    "CAMBRICON_DSMLU_PROFILE_INSTANCE",
)
_ILUVATAR = ("iluvatar.ai/gpu-assigned", "iluvatar.ai/predicate-time")
# mthreads.com/request-gpu-num is not among them: admission itself writes, corrects or removes it.
_MTHREADS = ("mthreads.com/gpu-index", "mthreads.com/predicate-node", "mthreads.com/predicate-time")
_AMD = ("hami.io/amd-cu-allocated",)

PLUGIN_KEPT = frozenset(_AMD)
"""Those that no placement writes: the device plugin keeps them itself, so none removes them either."""

_EXACT = frozenset(
    (
        *_COMMON,
        *_NVIDIA,
        *_METAX,
        *_KUNLUN,
        *_AWS_NEURON,
        *_ENFLAME,
        *_ASCEND,
        *_CAMBRICON,
        *_ILUVATAR,
        *_MTHREADS,
        *_AMD,
    )
)

_PATTERNS = re.compile(
    r"hami\.io/.+-devices-(?:to-allocate|allocated)"  # every vendor's pair, and every chip's
    r"|huawei\.com/Ascend[-A-Za-z0-9_.]*"  # a chip's JSON of templates
    r"|iluvatar\.ai/predicate-gpu-idx-[0-9]+"  # one for each container
)


def is_scheduler_owned(key: str) -> bool:
    """Whether only the scheduler, the device plugins and our own controller may write the annotation `key`."""
    return key in _EXACT or _PATTERNS.fullmatch(key) is not None


def owned_expression(more: Iterable[str] = ()) -> str:
    """A regular expression, for RE2 and `re` alike, of the keys that `is_scheduler_owned` and of `more` besides."""
    exact = sorted(key.replace(".", r"\.") for key in {*_EXACT, *more} if not _PATTERNS.fullmatch(key))
    return f"^({'|'.join([*exact, _PATTERNS.pattern])})$"


def owned_in(annotations: Iterable[str]) -> list[str]:
    """The scheduler-owned keys among `annotations`, sorted."""
    return sorted(key for key in annotations if is_scheduler_owned(key))
