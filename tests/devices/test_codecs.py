"""The wire encodings: card lists in both forms, pair scores, devices on pods (docs/spec/nvidia.md#3.1, #3.2 and #9)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tables import in_one_test

from hami_webhook.devices.codecs import (
    BadAnnotation,
    CardRecord,
    DeviceEntry,
    custom_info,
    decode_cards,
    decode_pair_scores,
    decode_pod_devices,
    encode_pod_devices,
    parse_bool,
)
from hami_webhook.devices.model import RegistrationError
from hami_webhook.devices.registration import MOST_CARDS
from hami_webhook.devices.vendors.nvidia.mig import MigInstance, MigPlacement, decode_allocations, read_profiles

from .fit_env import JSON

SEVEN = "GPU-fc28,10,49140,100,NVIDIA-NVIDIA L40S,0,true"
NINE = "GPU-b97d,10,49140,100,NVIDIA-NVIDIA L40S,0,true,1,hami-core"


def rec(
    uuid: str,
    index: int = 0,
    count: int = 10,
    devmem: int = 49140,
    devcore: int = 100,
    numa: int = 0,
    mode: str = "hami-core",
    health: bool = True,
    **extra: Any,
) -> CardRecord:
    return CardRecord(uuid, index, count, devmem, devcore, "NVIDIA-NVIDIA L40S", numa, mode, health, extra)


def seven(uuid: str, **fields: Any) -> CardRecord:
    return replace(rec(uuid, **fields), indexed=False)


@pytest.mark.parametrize(
    ("text", "cards"),
    [
        (f"{SEVEN}:{NINE}:", [seven("GPU-fc28"), rec("GPU-b97d", 1)]),
        (f"{SEVEN}:{NINE}", [seven("GPU-fc28"), rec("GPU-b97d", 1)]),
        (SEVEN, [seven("GPU-fc28")]),
        (NINE, [rec("GPU-b97d", 1)]),
        (f"  {SEVEN}:\n", [seven("GPU-fc28")]),
        (f"::{SEVEN}: :", [seven("GPU-fc28")]),
        (":", []),
        (SEVEN.replace("true", "F") + ":", [seven("GPU-fc28", health=False)]),
        (SEVEN.replace(",0,true", ",-1,1") + ":", [seven("GPU-fc28", numa=-1)]),
    ],
)
def test_the_colon_form_is_read(text: str, cards: list[CardRecord]) -> None:
    assert decode_cards(text) == cards


@in_one_test(
    "text",
    [
        "",
        "GPU-fc28:",
        f"{SEVEN},1:",
        f"{NINE},more:",
        "GPU-fc28,10,49140,100,L40S,0:",
        SEVEN.replace("10,", "ten,", 1) + ":",
        SEVEN.replace("49140", "99999999999") + ":",
        SEVEN.replace(",100,", ",,") + ":",
        SEVEN.replace("true", "") + ":",
        NINE.replace(",1,", ",-1,") + ":",
        SEVEN.replace("10,", "-10,", 1) + ":",
        SEVEN.replace(",100,", ",-100,") + ":",
        SEVEN.replace("GPU-fc28", "") + ":",
        f"{SEVEN}:{SEVEN}:",
        f"{SEVEN}:junk:",
    ],
)
def test_one_bad_card_makes_the_whole_colon_form_unusable(text: str) -> None:
    with pytest.raises(RegistrationError):
        decode_cards(text)


DEEP = "[" * 1015 + "]" * 1015


@pytest.mark.parametrize(
    ("decode", "text"),
    [
        (decode_cards, f'[{{"id":{DEEP}}}]'),
        (decode_cards, f'[{{"id":"a","devmem":{DEEP}}}]'),
        (decode_cards, f'[{{"id":"a","health":"{"x" * 9999}"}}]'),
        (decode_cards, f'[{{"id":"{"a" * 9999}","devmem":-1}}]'),
        (decode_cards, f"{SEVEN.replace('true', 'x' * 9999)}:"),
        (lambda text: custom_info(rec("a", custominfo=json.loads(text))), f"{'[' * 900}{']' * 900}"),
        (decode_pair_scores, f'[{{"uuid":"a","score":{{"b":{DEEP}}}}}]'),
        (decode_pair_scores, f'[{{"uuid":"a","score":{{"b":"{"9" * 9999}"}}}}]'),
        (decode_pod_devices, f"GPU-0,{'x' * 9999}:;"),
    ],
)
def test_what_a_refusal_shows_of_a_value_is_short_however_long_or_deep_the_value_is(
    decode: Callable[[str], object], text: str
) -> None:
    with pytest.raises((RegistrationError, BadAnnotation)) as refused:
        decode(text)
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize("text", [SEVEN, NINE, ""])
def test_a_card_without_its_colon_is_unusable_where_the_page_wants_one(text: str) -> None:
    with pytest.raises(RegistrationError):
        decode_cards(text, unended=False)


@pytest.mark.parametrize("text", [f"{SEVEN}:", f"{NINE}:{SEVEN}", ":", "[]", "null"])
def test_the_last_colon_may_be_missing_behind_another_one(text: str) -> None:
    assert decode_cards(text, unended=False) == decode_cards(text)


@in_one_test(
    ("text", "expected"),
    [
        *((text, True) for text in ("1", "t", "T", "TRUE", "true", "True")),
        *((text, False) for text in ("0", "f", "F", "FALSE", "false", "False")),
        *((text, None) for text in ("", "yes", "no", "tRue", " true", "2")),
    ],
)
def test_booleans_are_spelled_as_go_spells_them(text: str, expected: bool | None) -> None:
    assert parse_bool(text) is expected


def test_the_json_form_has_zero_values_left_out_and_a_card_without_health_is_unhealthy() -> None:
    text = """ [{"id":"GPU-0","count":10,"devmem":40960,"devcore":100,"type":"A100","mode":"hami-core","health":true},
      {"id":"GPU-1","index":1,"numa":1,"unknown":{"x":[]}}] """
    assert decode_cards(text) == [
        CardRecord("GPU-0", 0, 10, 40960, 100, "A100", 0, "hami-core", True, {}),
        CardRecord("GPU-1", 1, 0, 0, 0, "", 1, "", False, {"unknown": {"x": []}}),
    ]


OWN = {"id": "uuid", "count": "slots", "devmem": "vram", "health": "ok"}


def test_a_vendor_with_a_json_of_its_own_names_the_standard_fields_in_it() -> None:
    (found,) = decode_cards('[{"UUID":"a","slots":4,"vram":9,"ok":true,"id":"x","type":3,"devCore":"y"}]', OWN)
    assert found == CardRecord("a", 0, 4, 9, 0, "", 0, "", True, {"id": "x", "type": 3, "devcore": "y"})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('[{"id":"a"}]', "card id '' is empty"),
        ('[{"uuid":"a","slots":"4"}]', "card 0: slots must be a 32-bit integer, not '4'"),
        ('[{"uuid":"a","vram":-1}]', "must not be negative"),
        (SEVEN + ":", "not valid JSON"),
        ("", "not valid JSON"),
    ],
)
def test_such_a_json_is_read_as_strictly_and_has_no_colon_form(text: str, why: str) -> None:
    with pytest.raises(RegistrationError, match=re.escape(why)):
        decode_cards(text, OWN)


@pytest.mark.parametrize("text", ["[]", "null", " [ ] "])
def test_no_cards_can_be_written_as_an_empty_list_or_null(text: str) -> None:
    assert decode_cards(text) == []


def test_json_keys_are_matched_ignoring_case_and_null_is_the_zero_value() -> None:
    (found,) = decode_cards('[{"ID":"a","Devmem":5,"HEALTH":true,"numa":null,"type":null,"CustomInfo":{"N":1}}]')
    assert (found.id, found.devmem, found.health, found.numa, found.type) == ("a", 5, True, 0, "")
    assert found.extra == {"custominfo": {"N": 1}}


@in_one_test(
    "text",
    [
        "[",
        "[null]",
        "[1]",
        "[{}]",
        '[{"id":""}]',
        '[{"id":5}]',
        '[{"id":"a"},{"id":"a"}]',
        '[{"id":"a","count":"10"}]',
        '[{"id":"a","count":1.0}]',
        '[{"id":"a","count":true}]',
        '[{"id":"a","devmem":2147483648}]',
        '[{"id":"a","health":"true"}]',
        '[{"id":"a","mode":1}]',
        '[{"id":"a","type":[]}]',
        '[{"id":"a","index":-1}]',
        '[{"id":"a","count":-1}]',
        '[{"id":"a","devmem":-1}]',
        '[{"id":"a","devcore":-1}]',
        '[{"id":"a"}] x',
        "\ud800",
    ],
)
def test_one_element_that_does_not_fit_makes_the_whole_json_form_unusable(text: str) -> None:
    with pytest.raises(RegistrationError):
        decode_cards(text)


@pytest.mark.parametrize("form", [json.dumps, lambda cards: "".join(f"{each['id']},1,1,1,A,0,true:" for each in cards)])
def test_more_cards_than_a_node_can_have_are_refused(form: Callable[[list[JSON]], str]) -> None:
    cards = [{"id": f"GPU-{number}"} for number in range(MOST_CARDS + 1)]
    assert len(decode_cards(form(cards[1:]))) == MOST_CARDS
    with pytest.raises(RegistrationError, match="257 cards are registered, a node can have at most 256"):
        decode_cards(form(cards))


def with_profiles(value: object) -> CardRecord:
    (found,) = decode_cards(json.dumps([{"id": "GPU-m", "mode": "mig", "migProfiles": value}]))
    return found


def test_mig_profiles_are_read_smallest_first() -> None:
    listed = [
        {"name": "3g", "memoryMB": 20, "core": 42, "sliceCount": 4, "placements": [{"start": 4, "size": 4}]},
        {"Name": "1g", "MEMORYMB": 5, "core": 14, "slicecount": 1, "placements": [{"Start": 3, "Size": 1}]},
        {"name": "1g+me", "memoryMB": 5, "core": 14, "sliceCount": 1, "placements": None},
        {"name": "2g", "memoryMB": 20, "core": 28, "sliceCount": 2, "placements": []},
    ]
    found = read_profiles(with_profiles(listed))
    assert [p.name for p in found] == ["1g", "1g+me", "2g", "3g"]
    assert [p.placements for p in found] == [(MigPlacement(3, 1),), (), (), (MigPlacement(4, 4),)]


@pytest.mark.parametrize("value", [None, []])
def test_a_mig_card_may_have_no_profiles(value: object) -> None:
    assert read_profiles(with_profiles(value)) == ()


@in_one_test(
    "value",
    [
        {},
        "",
        0,
        [1],
        [{}],
        [{"name": ""}],
        [{"name": "1g", "placements": {}}],
        [{"name": "1g", "placements": [1]}],
        [{"name": "1g", "placements": [{"start": 0, "size": 0}]}],
        [{"name": "1g", "placements": [{"start": -1, "size": 1}]}],
        [{"name": "1g", "placements": [{"start": 63, "size": 2}]}],
        [{"name": "1g", "placements": [{"start": 0, "size": 10**18}]}],
        [{"name": "1g", "placements": [{"start": 0, "size": 1}] * 128}],
        [{"name": "1g"}] * 129,
        [{"name": "1g", "memoryMB": "5"}],
        [{"name": "1g", "core": -1}],
        [{"name": "1g", "sliceCount": True}],
    ],
)
def test_a_bad_mig_profile_makes_the_registration_unusable(value: object) -> None:
    with pytest.raises(RegistrationError, match=r"^card GPU-m: migProfiles\b"):
        read_profiles(with_profiles(value))


# pair scores


@pytest.mark.parametrize(
    ("text", "scores"),
    [
        ('[{"uuid":"a","score":{"b":100}}]', {"a": {"b": 100}}),
        ('[{"uuid":"a","score":{"b":"100","c":"-7"}}]', {"a": {"b": 100, "c": -7}}),
        ('[{"uuid":"a","score":{"b":-30}}]', {"a": {"b": -30}}),
        ('[{"uuid":"a","score":{"b":" 5 "}}]', {"a": {"b": 5}}),
        ('[{"UUID":"a","Score":{"B":1,"b":2}}]', {"a": {"B": 1, "b": 2}}),
        ('[{"uuid":"a"},{"uuid":"b","score":null},{"uuid":"c","score":{"a":null}}]', {"a": {}, "b": {}, "c": {"a": 0}}),
        ("[]", {}),
    ],
)
def test_pair_scores_are_numbers_or_numeric_strings(text: str, scores: dict[str, dict[str, int]]) -> None:
    assert decode_pair_scores(text) == scores


@in_one_test(
    "text",
    [
        "",
        "x",
        "null",
        "{}",
        "[1]",
        "[null]",
        "[{}]",
        '[{"uuid":1}]',
        '[{"uuid":"a","score":[]}]',
        '[{"uuid":"a","score":{"b":"1.5"}}]',
        '[{"uuid":"a","score":{"b":1.5}}]',
        '[{"uuid":"a","score":{"b":""}}]',
        '[{"uuid":"a","score":{"b":true}}]',
        '[{"uuid":"a","score":{"b":2147483648}}]',
        '[{"uuid":"a","score":{"b":"-2147483649"}}]',
    ],
)
def test_pair_scores_that_are_none_are_an_error(text: str) -> None:
    with pytest.raises(RegistrationError):
        decode_pair_scores(text)


# devices on pods

E1 = DeviceEntry("GPU-5b", "NVIDIA", 3000, 30)
E2 = DeviceEntry("GPU-77", "NVIDIA", 3000, 30)
B1, B2 = "0000:3b:00.0", "0000:5e:00.0"


def test_rows_are_encoded_with_a_slot_for_every_container() -> None:
    assert encode_pod_devices([[], [E1, E2]]) == ";GPU-5b,NVIDIA,3000,30:GPU-77,NVIDIA,3000,30:;"
    assert encode_pod_devices([[E1], [], []]) == "GPU-5b,NVIDIA,3000,30:;;;"


@in_one_test(
    ("text", "rows"),
    [
        (";GPU-5b,NVIDIA,3000,30:GPU-77,NVIDIA,3000,30:;", [[], [E1, E2]]),
        ("GPU-5b,NVIDIA,3000,30:;;;", [[E1], [], []]),
        ("GPU-5b,NVIDIA,3000,30", [[E1]]),
        ("GPU-5b,NVIDIA,3000,30:;GPU-77,NVIDIA,3000,30:", [[E1], [E2]]),
        (",,0,0:;GPU-5b,NVIDIA,3000,30:;", [[], [E1]]),
        ("[0-1],NVIDIA,0,0:;GPU-5b,NVIDIA,3000,30:;", [[], [E1]]),
        ("GPU-5b[2-1],NVIDIA,3000,30:;", [[E1]]),
        ("GPU-5b,NVIDIA,3000,30,more,fields:;", [[E1]]),
        ("no comma:GPU-5b,NVIDIA,3000,30:;", [[E1]]),
        ("GPU-5b,NVIDIA,3000,30:rest:;", [[E1]]),
        ("GPU-5b,NVIDIA,3000,30::GPU-77,NVIDIA,3000,30:", [[E1, E2]]),
        ("0000:3b:00.0,XPU,1,2:0000:5e:00.0,XPU,3,4:;", [[DeviceEntry(B1, "XPU", 1, 2), DeviceEntry(B2, "XPU", 3, 4)]]),
        (";0000:3b:00.0,XPU,1,2;GPU-5b,NVIDIA,3000,30:;", [[], [DeviceEntry(B1, "XPU", 1, 2)], [E1]]),
        ("", []),
        (";", [[]]),
        (";;", [[], []]),
    ],
)
def test_rows_are_decoded_with_empty_slots_and_legacy_forms(text: str, rows: list[list[DeviceEntry]]) -> None:
    assert decode_pod_devices(text) == rows


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ("a,NVIDIA,3000", "has 3 fields, at least 4 are needed"),
        ("a,b", "has 2 fields, at least 4 are needed"),
        ("a,N,x,0", "memory 'x' is not a whole number"),
        ("a,N,0,x", "cores 'x' is not a whole number"),
        ("a,N,-1,0", "memory '-1' is not a whole number"),
        ("a,N,9999999999,0", "memory '9999999999' is not a whole number"),
    ],
)
def test_one_bad_entry_makes_the_record_unreadable(entry: str, why: str) -> None:
    with pytest.raises(BadAnnotation, match=f"{why}$"):
        decode_pod_devices(f"{encode_pod_devices([[E1]])}{entry}:;")


words = st.text(st.characters(codec="utf-8", exclude_characters=",:;[", categories=["L", "N", "P", "Z"])).map(str.strip)
entries = st.builds(
    DeviceEntry, words.filter(bool), words, st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1)
)  # fmt: skip


@given(st.lists(st.lists(entries, max_size=3), max_size=4))
def test_rows_round_trip(rows: list[list[DeviceEntry]]) -> None:
    assert decode_pod_devices(encode_pod_devices(rows)) == rows


bus_ids = st.lists(st.text("0123456789abcdef.-", min_size=1, max_size=4), min_size=1, max_size=4).map(":".join)


@given(st.lists(st.lists(st.builds(DeviceEntry, bus_ids, words, st.just(1), st.just(2)), max_size=3), max_size=4))
def test_ids_with_colons_round_trip(rows: list[list[DeviceEntry]]) -> None:
    assert decode_pod_devices(encode_pod_devices(rows)) == rows


# MIG records on pods

GOOD = {
    "containerIndex": 0,
    "deviceIndex": 0,
    "gpuUUID": "GPU-m",
    "profile": "2g.10gb",
    "placement": {"start": 0, "size": 2},
}
IDENTITY = {"migUUID": "MIG-1", "gpuInstanceID": 0, "computeInstanceID": 0}


@pytest.mark.parametrize("extra", [{}, IDENTITY, {"migUUID": "", "gpuInstanceID": None}, {"future": 1}])
def test_a_mig_record_has_all_or_none_of_the_instances_identity(extra: JSON) -> None:
    (found,) = decode_allocations(json.dumps([{**GOOD, **extra}])) or []
    assert (found.row, found.device, found.uuid) == (0, 0, "GPU-m")
    assert found.instance == MigInstance("2g.10gb", MigPlacement(0, 2))


@in_one_test(
    "change",
    [
        {"containerIndex": -1},
        {"deviceIndex": -1},
        {"containerIndex": "0"},
        {"gpuUUID": ""},
        {"gpuUUID": None},
        {"profile": ""},
        {"placement": None},
        {"placement": {"start": 0, "size": 0}},
        {"placement": {"start": -1, "size": 1}},
        {"migUUID": "MIG-1", "gpuInstanceID": 0},
        {"gpuInstanceID": 0, "computeInstanceID": 0},
    ],
)
def test_one_bad_mig_record_makes_the_whole_annotation_invalid(change: JSON) -> None:
    other = {**GOOD, "containerIndex": 5}
    assert decode_allocations(json.dumps([other])) is not None
    assert decode_allocations(json.dumps([other, {**GOOD, **change}])) is None


def test_a_repeated_container_and_device_makes_the_mig_annotation_invalid() -> None:
    assert decode_allocations(json.dumps([GOOD, {**GOOD, "gpuUUID": "GPU-n"}])) is None
    assert len(decode_allocations(json.dumps([GOOD, {**GOOD, "deviceIndex": 1}])) or ()) == 2


@pytest.mark.parametrize("text", ["", "x", "{}", '""', '"abc"', "1", "[1]", "[null]", "[[]]"])
def test_a_mig_annotation_that_is_no_list_of_records_is_invalid(text: str) -> None:
    assert decode_allocations(text) is None


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["id", "ID", "index", "count", "devmem", "type", "numa", "health", "custominfo"]),
            st.sampled_from([None, "a", "b", "", 0, 1, -1, 2**31 - 1, 2**31, 1.0, True, False, {}, [], "\ud800"]),
        ),
        max_size=3,
    )
)
def test_the_usual_json_form_is_read_as_any_other(cards: list[JSON]) -> None:
    def read(names: dict[str, str] | None) -> list[CardRecord] | str:
        try:
            return decode_cards(json.dumps(cards), names)
        except RegistrationError as error:
            return str(error)

    fields = ("id", "index", "count", "devmem", "devcore", "type", "numa", "mode", "health")
    assert read(None) == read({name: name for name in fields})
