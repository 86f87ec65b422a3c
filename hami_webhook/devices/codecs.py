"""The wire encodings shared by all vendors: card lists on nodes (docs/spec/core.md#3.1), devices on pods (9.1)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import msgspec
import orjson
from msgspec import Struct

from hami_webhook.config.go_syntax import GO_BOOLS
from hami_webhook.devices.model import RegistrationError
from hami_webhook.devices.registration import check_number
from hami_webhook.kube.message_text import shown

_INT32 = range(-(2**31), 2**31)
_Int32 = Annotated[int, msgspec.Meta(ge=_INT32[0], le=_INT32[-1])]
_INTEGER = re.compile(r"[+-]?[0-9]{1,10}", re.ASCII)


class CardRecord(Struct, frozen=True):
    """One card of a registration, before a vendor reads it.

    `extra`: the other JSON keys, in lower case. `indexed`: False for the colon form, which has no index; the index is
    then 0.
    """

    id: str
    index: int
    count: int
    devmem: int
    devcore: int
    type: str
    numa: int
    mode: str
    health: bool
    extra: Mapping[str, Any]
    indexed: bool = True


def parse_bool(text: str) -> bool | None:
    """A boolean as Go's strconv reads it, None for anything else."""
    return GO_BOOLS.get(text)


def decode_cards(text: str, names: Mapping[str, str] | None = None, *, unended: bool = True) -> list[CardRecord]:
    """A node's card list, in JSON or in the older colon form; raises `RegistrationError`, all or nothing.

    `names`: for a vendor with other JSON keys, the lower-case key of each standard field; fields without a name aren't
    read. Such vendors have no colon form. `unended`: whether a single card of the colon form may lack its `:`.
    """
    stripped = text.strip()
    if names is not None or stripped.startswith("[") or stripped == "null":
        cards = _decode_json(stripped, _STANDARD_NAMES if names is None else names)
    else:
        cards = _decode_colon(stripped, unended=unended)
    seen: set[str] = set()
    for card in cards:
        if not card.id or card.id in seen:
            raise RegistrationError(f"card id {shown(card.id)} is {'repeated' if card.id else 'empty'}")
        if min(card.index, card.count, card.devmem, card.devcore) < 0:
            raise RegistrationError(f"card {card.id[:100]}: index, count, devmem and devcore must not be negative")
        seen.add(card.id)
    return cards


def custom_info(record: CardRecord) -> Mapping[str, Any]:
    """Return the plugin's additional information about a card, with keys in lower case. Raises `RegistrationError`."""
    found = record.extra.get("custominfo")
    if found is not None and not isinstance(found, Mapping):
        raise RegistrationError(f"card {record.id[:100]}: custominfo must be an object, not {shown(found)}")
    return lower_keys(found or {})


_STANDARD_NAMES = {
    name: name for name in ("id", "index", "count", "devmem", "devcore", "type", "numa", "mode", "health")
}


def lower_keys(record: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON object with its keys in lower case, as they are matched ignoring case."""
    return {key.lower(): value for key, value in record.items()}


def parse_json(text: str) -> Any:
    """What a JSON text says; raises `RegistrationError`."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise RegistrationError(f"not valid JSON: {error}") from error


class _StandardCard(msgspec.Struct, forbid_unknown_fields=True):
    """A card of the JSON form as most plugins write it: the standard fields and no others, in lower case."""

    id: str = ""
    index: _Int32 = 0
    count: _Int32 = 0
    devmem: _Int32 = 0
    devcore: _Int32 = 0
    type: str = ""
    numa: _Int32 = 0
    mode: str = ""
    health: bool = False


_STANDARD_CARDS = msgspec.json.Decoder(list[_StandardCard])


def _decode_json(text: str, names: Mapping[str, str]) -> list[CardRecord]:
    if names is _STANDARD_NAMES:
        try:  # in a fifth of the time
            standard = _STANDARD_CARDS.decode(text)
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
            pass  # another spelling, or a fault, which is named below
        else:
            check_number(len(standard))
            return [
                CardRecord(c.id, c.index, c.count, c.devmem, c.devcore, c.type, c.numa, c.mode, c.health, {})
                for c in standard
            ]
    records = parse_json(text)
    if records is None:
        return []
    if not isinstance(records, list):
        raise RegistrationError("must be a JSON array of cards")
    check_number(len(records))
    cards = []
    for position, record in enumerate(records):
        if not isinstance(record, dict):
            raise RegistrationError(f"card {position} must be a JSON object")
        fields = lower_keys(record)
        where = f"card {position}"
        cards.append(
            CardRecord(
                id=string_in(fields, names.get("id", ""), where),
                index=integer_in(fields, names.get("index", ""), where),
                count=integer_in(fields, names.get("count", ""), where),
                devmem=integer_in(fields, names.get("devmem", ""), where),
                devcore=integer_in(fields, names.get("devcore", ""), where),
                type=string_in(fields, names.get("type", ""), where),
                numa=integer_in(fields, names.get("numa", ""), where),
                mode=string_in(fields, names.get("mode", ""), where),
                health=boolean_in(fields, names.get("health", ""), where),
                extra={key: value for key, value in fields.items() if key not in names.values()},
            )
        )
    return cards


def _decode_colon(text: str, *, unended: bool) -> list[CardRecord]:
    if ":" not in text and not (unended and text.count(",") in (6, 8)):
        raise RegistrationError("must be a JSON array, or cards of 7 or 9 comma-separated fields each ended by ':'")
    check_number(text.count(":"))
    cards = []
    for position, segment in enumerate(text.split(":")):
        if not segment.strip():
            continue
        fields = [field.strip() for field in segment.split(",")]
        where = f"card {position}"
        if len(fields) not in (7, 9):
            raise RegistrationError(f"{where} has {len(fields)} fields, not 7 or 9")
        health = parse_bool(fields[6])
        if health is None:
            raise RegistrationError(f"{where}: health {shown(fields[6])} is not a boolean")
        index = _parse_integer(fields[7], f"{where}: index") if len(fields) == 9 else 0
        cards.append(
            CardRecord(
                id=fields[0],
                index=index,
                count=_parse_integer(fields[1], f"{where}: count"),
                devmem=_parse_integer(fields[2], f"{where}: devmem"),
                devcore=_parse_integer(fields[3], f"{where}: devcore"),
                type=fields[4],
                numa=_parse_integer(fields[5], f"{where}: numa"),
                mode=fields[8] if len(fields) == 9 else "hami-core",
                health=health,
                extra={},
                indexed=len(fields) == 9,
            )
        )
    return cards


def _parse_integer(text: str, where: str) -> int:
    if not _INTEGER.fullmatch(text) or int(text) not in _INT32:
        raise RegistrationError(f"{where} {shown(text)} is not a 32-bit integer")
    return int(text)


def integer_in(fields: Mapping[str, Any], key: str, where: str) -> int:
    """The 32-bit integer under `key`, 0 for none; `where` is for the `RegistrationError`."""
    value = fields.get(key)
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or value not in _INT32:
        raise RegistrationError(f"{where}: {key} must be a 32-bit integer, not {shown(value)}")
    return value


def string_in(fields: Mapping[str, Any], key: str, where: str) -> str:
    """The text under `key`, empty for none; `where` is for the `RegistrationError`."""
    value = fields.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise RegistrationError(f"{where}: {key} must be a string, not {shown(value)}")
    return value


def boolean_in(fields: Mapping[str, Any], key: str, where: str) -> bool:
    """Whether `key` says true, false for none; `where` is for the `RegistrationError`."""
    value = fields.get(key)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise RegistrationError(f"{where}: {key} must be true or false, not {shown(value)}")
    return value


class BadAnnotation(ValueError):
    """A pod's device annotation can't be read; the text says why."""


class DeviceEntry(Struct, frozen=True):
    """One card in a pod's device annotation, with the container's memory and cores on it."""

    uuid: str
    word: str
    memory: int
    cores: int


def encode_pod_devices(rows: Iterable[Sequence[DeviceEntry]]) -> str:
    """`;GPU-0,NVIDIA,3000,30:GPU-1,NVIDIA,3000,30:;` — a slot per container, init containers first."""
    return "".join(
        "".join(f"{entry.uuid},{entry.word},{entry.memory},{entry.cores}:" for entry in row) + ";" for row in rows
    )


_USUAL_CARD = re.compile(r"([^\s,\[]+),([^\s,]*),([0-9]{1,9}),([0-9]{1,9})", re.ASCII)
"""A card in a pod's device annotation as schedulers write it."""


def decode_pod_devices(text: str) -> list[list[DeviceEntry]]:
    """The rows of a device annotation; raises `BadAnnotation`.

    A UUID's `[template-slot]` suffix (HAMi 2.7 to 2.9, MIG) is cut off, and `,,0,0:` is an empty slot (2.5). A part
    without a comma is the beginning of an id with colons, such as a PCI bus id (docs/spec/kunlun.md#9). If such a part
    has a blank, it is no id, and is skipped.
    """
    pieces = text.split(";")
    if pieces and not pieces[-1].strip():
        pieces.pop()
    rows = []
    for piece in pieces:
        row = []
        begun = ""
        for part in piece.split(":"):
            if not begun and (card := _USUAL_CARD.fullmatch(part)) is not None:  # in half of the time
                uuid, word, memory, cores = card.groups()
                row.append(DeviceEntry(uuid, word, int(memory), int(cores)))
                continue
            if "," not in part:
                begun = f"{begun}{part}:" if part and " " not in part else ""
                continue
            fields = [field.strip() for field in f"{begun}{part}".split(",")]
            begun = ""
            if len(fields) < 4:
                raise BadAnnotation(f"device {shown(part)} has {len(fields)} fields, at least 4 are needed")
            uuid, word, memory, cores = fields[:4]
            for name, number in (("memory", memory), ("cores", cores)):
                if not _INTEGER.fullmatch(number) or int(number) not in _INT32 or int(number) < 0:
                    raise BadAnnotation(f"device {shown(part)}: {name} {shown(number)} is not a whole number")
            uuid = uuid.partition("[")[0]
            if uuid:
                row.append(DeviceEntry(uuid, word, int(memory), int(cores)))
        rows.append(row)
    return rows


class _PairScores(msgspec.Struct, forbid_unknown_fields=True):
    """A card's pair scores as plugins write them."""

    uuid: str
    score: dict[str, _Int32]


_PAIR_SCORES = msgspec.json.Decoder(list[_PairScores])


def decode_pair_scores(text: str) -> dict[str, dict[str, int]]:
    """Pair scores `[{"uuid": …, "score": {peer: 100}}]`, numbers or numeric strings; raises `RegistrationError`."""
    try:  # in a tenth of the time
        return {each.uuid: each.score for each in _PAIR_SCORES.decode(text)}
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        pass  # another spelling, or a fault, which is named below
    records = parse_json(text)
    if not isinstance(records, list):
        raise RegistrationError("must be a JSON array of scores")
    scores: dict[str, dict[str, int]] = {}
    for position, record in enumerate(records):
        fields = lower_keys(record) if isinstance(record, dict) else {}
        if not isinstance(fields.get("uuid"), str):
            raise RegistrationError(f"record {position} must be an object with a uuid")
        peers = {} if fields.get("score") is None else fields["score"]
        if not isinstance(peers, dict):
            raise RegistrationError(f"record {position}: score must be an object")
        scores[fields["uuid"]] = {peer: _score(value, position) for peer, value in peers.items()}
    return scores


def _score(value: Any, position: int) -> int:
    if value is None:
        return 0
    if isinstance(value, str) and _INTEGER.fullmatch(value.strip()):
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and value in _INT32:
        return value
    raise RegistrationError(f"record {position}: score {shown(value)} is not a 32-bit integer")
