"""Hygon DCUs (docs/spec/hygon.md): configuration, node side, admission, extraction, what is written."""

from __future__ import annotations

import pytest
from builders import container, read_node

from hami_webhook.devices.lock_annotations import COMMON_LOCK
from hami_webhook.devices.model import (
    FixedMemory,
    RegistrationError,
    Request,
)
from hami_webhook.devices.vendors.hygon import Hygon
from hami_webhook.kube.objects import Pod

from .fit_env import CHART, JSON, FitEnv, Names, configured, pod

COUNT, MEM, CORES = "hygon.com/dcunum", "hygon.com/dcumem", "hygon.com/dcucores"
REGISTER = "hami.io/node-dcu-register"
DCU = CHART["DCU"]
SAMPLE = (
    "DCU-TPXS320016070601,4,65520,100,DCU-K100_AI,0,true,0,hami:"
    "DCU-TPXS320010040501,4,65520,100,DCU-K100_AI,0,true,1,hami:"
)
UNITS = configured(
    "hygon: {resourceCountName: a.b/dcu, resourceMemoryName: a.b/mem, resourceCoreName: a.b/core, memoryFactor: 2}"
)
limits = Names(COUNT, MEM, CORES).limits


def registered(text: str) -> list[tuple[object, ...]]:
    inventory = DCU.inventory(read_node(**{REGISTER: text}))
    if inventory is None:
        return []
    return [(d.uuid, d.slots, d.memory, d.cores, d.type, d.healthy, d.index, d.mode) for d in inventory.devices]


# 2: configuration


@pytest.mark.parametrize(
    ("text", "factor"),
    [("", 1), ("memoryFactor: 0", 1), ("memoryFactor: 1", 1), ("memoryFactor: 1024", 1024)],
)
def test_the_unit_of_memory_is_the_factor(text: str, factor: int) -> None:
    vendors = configured(f"hygon:\n  resourceCountName: {COUNT}\n  resourceMemoryName: {MEM}\n  {text}")
    assert vendors["DCU"].memory_factor == factor
    assert [key.factor for key in vendors["DCU"].quota_keys()] == [1, factor]


def test_the_names_are_the_charts_unless_the_file_says_otherwise() -> None:
    assert CHART["DCU"].resource_names == (COUNT, MEM, CORES)
    assert UNITS["DCU"].resource_names == ("a.b/dcu", "a.b/mem", "a.b/core")


def test_the_data_sheet() -> None:
    assert isinstance(DCU, Hygon)
    assert DCU.lock is COMMON_LOCK
    assert set(DCU.keys.owned) == {"hami.io/dcu-devices-to-allocate", "hami.io/dcu-devices-allocated"}
    assert [key.name for key in DCU.quota_keys()] == [f"limits.{name}" for name in (COUNT, MEM, CORES)]


# 3: node side


def test_the_pages_registration_is_read() -> None:
    assert registered(SAMPLE) == [
        ("DCU-TPXS320016070601", 4, 65520, 100, "DCU-K100_AI", True, 0, "hami"),
        ("DCU-TPXS320010040501", 4, 65520, 100, "DCU-K100_AI", True, 1, "hami"),
    ]


@pytest.mark.parametrize(
    ("text", "cards"),
    [
        ("DCU-0,30,32752,100,DCU-Z100L,0,true:", [("DCU-0", 30, 32752, 100, "DCU-Z100L", True, 0, "hami-core")]),
    ],
)
def test_older_forms_are_read_too(text: str, cards: list[object]) -> None:
    assert registered(text) == cards


@pytest.mark.parametrize("text", ["A,4,9,100,T,0,true", "A,4,9,100,T,0,true,0,hami"])
def test_a_card_without_its_colon_is_unusable(text: str) -> None:
    with pytest.raises(RegistrationError, match=REGISTER):
        registered(text)


# 5: admission


def test_memory_is_bounded_after_the_factor_too() -> None:
    env = FitEnv([], UNITS)
    assert env.admit(pod(**{"a.b/dcu": 1, "a.b/mem": 1073741823})).pod is not None
    assert env.admit(pod(**{"a.b/dcu": 1, "a.b/mem": 1073741824})).message == (
        "invalid a.b/mem value 1073741824 in container main: must be an integer number of units of 2 MiB "
        "(16 GiB is 8192, not 16Gi) between 0 and 1073741823"
    )


NOT_ENFORCED = "container main: {} isn't enforced, because hygon.com/dcunum 2 gives whole cards"
FOR_ITSELF = (
    "container main: hygon.com/dcumem without hygon.com/dcucores takes the card for itself, as cores are then all 100"
)
UNLIMITED = (
    "container main: hygon.com/dcucores without hygon.com/dcumem isn't enforced, because the device plugin limits no "
    "container that has a card's whole memory"
)


@pytest.mark.parametrize(
    ("amounts", "warnings"),
    [
        (limits(1), []),
        (limits(1, 2000, 60), []),
        (limits(1, 2000, 0), []),
        (limits(1, 2000), [FOR_ITSELF]),
        (limits(1, 0), []),
        (limits(1, None, 30), [UNLIMITED]),
        (limits(1, 0, 30), [UNLIMITED]),
        (limits(2), []),
        (limits(2, 2000), [NOT_ENFORCED.format(MEM)]),
        (limits(2, 2000, 30), [NOT_ENFORCED.format(MEM), NOT_ENFORCED.format(CORES)]),
        (limits(2, None, 30), [NOT_ENFORCED.format(CORES)]),
        (limits(0, 2000), []),
        (limits(None, 2000), []),
    ],
)
def test_what_is_hardly_meant_earns_a_warning(amounts: JSON, warnings: list[str]) -> None:
    incoming = pod("p", container(**amounts))
    admitted = FitEnv([]).admit(incoming)
    assert admitted.warnings == warnings
    assert admitted.pod == incoming  # nothing in the container is changed


# 6: extraction, for what is special to it; the rest is in test_first_fit_vendors.py


def test_limits_come_before_requests_and_memory_is_in_units() -> None:
    incoming = pod("p", container(requests={"a.b/dcu": 2, "a.b/core": 7}, **{"a.b/dcu": 1, "a.b/mem": 800}))
    assert UNITS["DCU"].request(Pod.from_object(incoming).containers[0]) == Request(1, FixedMemory(1600), 7)
