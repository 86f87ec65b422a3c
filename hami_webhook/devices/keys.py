"""The quota keys and annotation keys of a vendor."""

from __future__ import annotations

import re
from enum import Enum
from typing import Protocol

from msgspec import Struct

MEBIBYTE = 2**20
"""Bytes."""
_BRACKETS = re.compile(r"\[.*?\]")


class Dimension(Enum):
    """What a quota key counts."""

    COUNT = "count"
    MEMORY = "memory"
    CORES = "cores"


class QuotaKey(Struct, frozen=True):
    """A managed key `limits.<resource>`; for memory, `factor` is the MiB per unit.

    `memory_is_percentage`: the key counts a percentage of cards' memory, not MiB. `binary_is_bytes`: a hard with a
    binary suffix (`16Gi`) means bytes, and used is then shown in bytes.
    """

    name: str
    dimension: Dimension
    factor: int = 1
    binary_is_bytes: bool = False
    memory_is_percentage: bool = False


class DeviceKeys(Struct, frozen=True):
    """A vendor's annotation keys: what placement writes, and the lists users select devices with.

    Where a vendor has alias keys, all are read and the first is written; an empty tuple means the vendor has none.
    `choices`: annotations with one of several values. With `folds_choices`, case and surrounding blanks don't matter,
    and a missing value equals an empty one. `general`: whether HAMi's choices for all vendors apply to this vendor.
    `twin` is the backend of cards of the same make under other names; empty for none.
    """

    allocated: str
    to_allocate: str = ""
    extra: tuple[str, ...] = ()
    use_uuid: tuple[str, ...] = ()
    nouse_uuid: tuple[str, ...] = ()
    use_type: tuple[str, ...] = ()
    nouse_type: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    folds_choices: bool = False
    general: bool = True
    twin: str = ""

    @classmethod
    def usual(
        cls,
        devices: str,
        *,
        uuid: str = "",
        model: str = "",
        extra: tuple[str, ...] = (),
        choices: tuple[str, ...] = (),
        twin: str = "",
    ) -> DeviceKeys:
        """The keys of a vendor whose device lists are `hami.io/<devices>-devices-…`.

        `uuid` and `model` each name an allow list and a deny list; brackets enclose the deny list's addition:
        `acme.com/[no]use-uuid`.
        """
        return cls(
            allocated=f"hami.io/{devices}-devices-allocated",
            to_allocate=f"hami.io/{devices}-devices-to-allocate",
            extra=extra,
            use_uuid=_allow(uuid),
            nouse_uuid=_deny(uuid),
            use_type=_allow(model),
            nouse_type=_deny(model),
            choices=choices,
            twin=twin,
        )

    @property
    def owned(self) -> tuple[str, ...]:
        """The scheduler-owned keys: users may not set them."""
        return tuple(key for key in (self.allocated, self.to_allocate, *self.extra) if key)

    @property
    def lists(self) -> tuple[str, ...]:
        """The keys of the lists that users select devices with."""
        return (*self.use_uuid, *self.nouse_uuid, *self.use_type, *self.nouse_type)


class ReservedKeys(Struct, frozen=True):
    """Annotations that only scheduler and device plugin write, besides those of `DeviceKeys`.

    `pattern` is a regular expression of more, which RE2 must know too; empty for none. `of_chips`: a Python regular
    expression of all keys that any chip may have, for callers without the configuration. `kept`: keys that a placement
    doesn't remove, because the device plugin maintains them.
    """

    keys: tuple[str, ...] = ()
    pattern: str = ""
    of_chips: str = ""
    kept: tuple[str, ...] = ()

    @property
    def all_keys(self) -> tuple[str, ...]:
        """Those of them that are spelt out."""
        return (*self.keys, *self.kept)


NO_KEYS = DeviceKeys("", general=False)
"""No annotation at all."""


class PolicyTarget(Protocol):
    """A vendor or scheduler to whose pods policy applies: its name in rules, and its annotation keys."""

    @property
    def key(self) -> str: ...
    @property
    def keys(self) -> DeviceKeys: ...


def _allow(pair: str) -> tuple[str, ...]:
    return (_BRACKETS.sub("", pair, count=1),) if pair else ()


def _deny(pair: str) -> tuple[str, ...]:
    return (pair.replace("[", "", 1).replace("]", "", 1),) if pair else ()
