"""The table of DRS profiles, how a request finds its profile there, and the annotation that lists both cards and table.

Source: docs/spec/enflame.md#3 (DRS) and 6. Every GB is 1024 MiB.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from hami_webhook.devices.codecs import lower_keys, parse_json
from hami_webhook.devices.model import FixedMemory, RegistrationError
from hami_webhook.devices.registration import check_number
from hami_webhook.kube.message_text import shown
from hami_webhook.kube.quantity import Format, Quantity

MOST_PROFILES = 128
MOST_SLICES = 6
"""Slices of a card whose table isn't known."""
_SURELY_MEBIBYTES = 1024
"""A bare number from here on is MiB whatever the table: no card has half as many GB."""
_NAME = re.compile(r"(?P<size>[0-9]{1,4})g\.(?P<gigabytes>[0-9]{1,6})gb", re.ASCII)
_DIGITS = re.compile(r"[0-9]{1,9}", re.ASCII)


class DrsProfile(FixedMemory, frozen=True):
    """A partition the driver can make: its memory, slices and percent of the cores.

    `name` and `id` are as the plugin registered them.
    """

    size: int
    cores: int
    name: str
    id: str

    @property
    def gigabytes(self) -> int:
        return self.mebibytes // 1024


class ProfileTable(Struct, frozen=True):
    """A node's profiles by size, then GB; there is at least one."""

    profiles: tuple[DrsProfile, ...]

    @property
    def slices(self) -> int:
        """Slices of a whole card."""
        return self.profiles[-1].size

    @property
    def gigabytes(self) -> int:
        """Memory of a whole card; the slices, if no profile has any memory."""
        return max(profile.gigabytes for profile in self.profiles) or self.slices

    @property
    def shape(self) -> tuple[tuple[int, int], ...]:
        """What two tables have in common if they serve every request the same way."""
        return tuple((profile.size, profile.gigabytes) for profile in self.profiles)

    def named(self, name: str | None) -> DrsProfile:
        return next(profile for profile in self.profiles if profile.name == name)

    def __str__(self) -> str:
        return ", ".join(profile.name for profile in self.profiles)


class Wanted(Struct, frozen=True):
    """What a container requests of a DRS card: a number of slices, or else so much memory and percent of the cores."""

    size: int | None = None
    memory: Quantity | None = None
    cores: int = 0

    @property
    def declared(self) -> int | None:
        """The MiB written, where they are sure to be MiB; slices depend on the table."""
        if self.size is not None or self.memory is None:
            return None
        amount = self.memory.ceil()
        if self.memory.format is Format.BINARY_SI:
            return -(-amount // 1024**2)
        return amount if amount >= _SURELY_MEBIBYTES else None

    def on(self, card_memory: int) -> int:
        return card_memory

    def profile(self, table: ProfileTable) -> DrsProfile | None:
        """The profile that serves this, None if none does."""
        if self.size is not None:
            return next((profile for profile in table.profiles if profile.size == self.size), None)
        memory = self._gigabytes(table)
        return next((p for p in table.profiles if p.gigabytes >= memory and p.cores >= self.cores), None)

    def _gigabytes(self, table: ProfileTable) -> int:
        """The memory wanted: bytes if written with a binary suffix, MiB if too many for GB."""
        if self.memory is None:
            return 0
        amount = self.memory.ceil()
        if self.memory.format is Format.BINARY_SI:
            return -(-amount // 1024**3)
        return -(-amount // 1024) if amount > 2 * table.gigabytes else amount


class DrsCard(Struct, frozen=True):
    """What a DRS card has beyond a device's common fields."""

    minor: str
    table: ProfileTable


def read_capacity(text: str) -> tuple[ProfileTable, list[tuple[int, str, int]]]:
    """The table, and of every card index, minor and slices in order, by index. Raises `RegistrationError`."""
    written = parse_json(text)
    fields = lower_keys(written) if isinstance(written, dict) else {}
    devices, profiles = fields.get("devices") or [], fields.get("profiles") or {}
    if not isinstance(devices, list) or not isinstance(profiles, dict):
        raise RegistrationError("devices must be an array and profiles an object")
    check_number(len(devices))
    cards = sorted(_card(item, position) for position, item in enumerate(devices))
    if len({index for index, *_ in cards}) < len(cards):
        raise RegistrationError("two devices have the same index")
    return _table(profiles), cards


def _card(item: Any, position: int) -> tuple[int, str, int]:
    if not isinstance(item, dict):
        raise RegistrationError(f"device {position} must be a JSON object")
    fields = lower_keys(item)
    index, minor, slices = (_text(fields, key, position) for key in ("index", "minor", "capacity"))
    number = int(index) if _DIGITS.fullmatch(index) else position
    if not _DIGITS.fullmatch(slices) or int(slices) == 0:
        raise RegistrationError(f"device {position}: capacity must be a number of slices above 0")
    return number, minor or str(number), int(slices)


def _text(fields: Mapping[str, Any], key: str, position: int) -> str:
    """A text, or a whole number as one."""
    value = fields.get(key)
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise RegistrationError(f"device {position}: {key} must be a text or a whole number, not {shown(value)}")
    return str(value).strip()


def _table(written: Mapping[str, Any]) -> ProfileTable:
    """The table, without the names that are no profile's."""
    if len(written) > MOST_PROFILES:
        raise RegistrationError(f"{len(written)} profiles are registered, a node can have at most {MOST_PROFILES}")
    parsed = []
    for name, id_ in written.items():
        match = _NAME.fullmatch("".join(name.split()).lower())
        if match and int(match["size"]) > 0:
            if isinstance(id_, bool) or not isinstance(id_, str | int):
                raise RegistrationError(f"profile {name[:100]}: the id must be a text, not {shown(id_)}")
            parsed.append((int(match["size"]), int(match["gigabytes"]), name, str(id_)))
    if not parsed:
        raise RegistrationError("no profile such as 1g.6gb is in it")
    slices = max(size for size, *_ in parsed)
    return ProfileTable(
        tuple(
            DrsProfile(gigabytes * 1024, size, -(-size * 100 // slices), name, id_)
            for size, gigabytes, name, id_ in sorted(parsed)
        )
    )
