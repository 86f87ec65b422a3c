"""Hygon DCUs and HCUs (docs/spec/hygon.md).

Which cards a container gets is in `test_first_fit_vendors.py`, against a plain reading of section 7.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from builders import container, read_node
from tables import in_one_test

from hami_webhook.config import ConfigError
from hami_webhook.devices.model import RegistrationError
from hami_webhook.scheduling.scoring import hints

from .fit_env import CHART, JSON, FitEnv, Names, asked, configured, pod

COUNT, MEM, CORES = "hygon.com/dcunum", "hygon.com/dcumem", "hygon.com/dcucores"
REGISTER = "hami.io/node-dcu-register"
ALLOCATED, TO_ALLOCATE = "hami.io/dcu-devices-allocated", "hami.io/dcu-devices-to-allocate"
UNITS = configured(
    "hygon: {resourceCountName: a.b/dcu, resourceMemoryName: a.b/mem, resourceCoreName: a.b/core, memoryFactor: 2}"
)
NAMES = Names(COUNT, MEM, CORES)
limits, with_limits = NAMES.limits, NAMES.pod


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


# 3: node side


@pytest.mark.parametrize("text", ["A,4,9,100,T,0,true", "A,4,9,100,T,0,true,0,hami"])
def test_a_card_without_its_colon_is_unusable(text: str) -> None:
    with pytest.raises(RegistrationError, match=REGISTER):
        CHART["DCU"].inventory(read_node(**{REGISTER: text}))


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


@in_one_test(
    ("amounts", "warnings"),
    [
        (limits(1), []),
        (limits(1, 2000, 60), []),
        (limits(1, 2000, 0), []),
        (limits(1, 2000), [FOR_ITSELF]),
        (limits(1, None, 30), [UNLIMITED]),
        (limits(1, 0, 30), [UNLIMITED]),
        (limits(2, 2000), [NOT_ENFORCED.format(MEM)]),
        (limits(2, 2000, 30), [NOT_ENFORCED.format(MEM), NOT_ENFORCED.format(CORES)]),
        (limits(2, None, 30), [NOT_ENFORCED.format(CORES)]),
        (limits(None, 2000), []),
    ],
)
def test_what_is_hardly_meant_earns_a_warning(amounts: JSON, warnings: list[str]) -> None:
    incoming = pod("p", container(**amounts))
    admitted = FitEnv([]).admit(incoming)
    assert admitted.warnings == warnings
    assert admitted.pod == incoming  # nothing in the container is changed


# 7 to 14: placement


def env(**notes: str) -> FitEnv:
    """A node of two DCUs, with more annotations."""
    cards = (f"DCU-{name},4,65520,100,DCU-K100_AI,0,true,{index},hami:" for index, name in enumerate("AB"))
    return FitEnv([read_node("n1", **{REGISTER: "".join(cards), **notes})])


def test_1_a_slice_of_the_last_registered_card() -> None:
    placed = env().placed(with_limits("p", 1, 2000, 60))
    assert placed.annotations[ALLOCATED] == placed.annotations[TO_ALLOCATE] == "DCU-B,DCU,2000,60:;"
    assert placed.debits == {f"limits.{COUNT}": 1, f"limits.{MEM}": 2000, f"limits.{CORES}": 60}


# 10: quota


def test_quota_in_units_of_the_factor() -> None:
    vendors = configured(
        f"hygon: {{resourceCountName: {COUNT}, resourceMemoryName: {MEM}, resourceCoreName: {CORES}, memoryFactor: 2}}"
    )
    placed = FitEnv(env().nodes, vendors).placed(with_limits("a", 1, 800))
    assert placed.annotations[ALLOCATED] == "DCU-B,DCU,1600,100:;"
    assert placed.debits == {f"limits.{COUNT}": 1, f"limits.{MEM}": 800, f"limits.{CORES}": 100}


# 13: what is said where no node registers the cards


@pytest.mark.parametrize(
    ("count", "offered", "hint"),
    [
        (COUNT, "hygon.com/dcu",
         "no live node registers DCUs in hami.io/node-dcu-register; HAMi's own DCU device plugin writes it, Hygon's, "
         "which offers hygon.com/dcu, does not"),
        ("hygon.com/hcunum", "hygon.com/hcu",
         "no live node registers HCUs in hami.io/node-hcu-register; Hygon's HCU device plugin writes it with "
         "--strategy=hami only"),
    ],
)  # fmt: skip
def test_where_no_node_registers_the_cards_the_owner_is_told_which_plugin_would(
    count: str, offered: str, hint: str
) -> None:
    def said(on: FitEnv, name: str) -> list[str]:
        request = asked(pod("p", **{name: 3}))
        return hints({}, request, on.state.views(), CHART, on.state)

    assert said(FitEnv([read_node("n1", capacity={offered: 8})]), count) == [hint]
    assert said(env(), COUNT) == []


# 15: HCUs

HCU_NAMES = ("hygon.com/hcunum", "hygon.com/hcumem", "hygon.com/hcucores")
DCU_NAMES = (COUNT, MEM, CORES)
KEYS = ("resourceCountName", "resourceMemoryName", "resourceCoreName")
HCU_KEYS = ("resourceHCUCountName", "resourceHCUMemoryName", "resourceHCUCoreName")


def section(names: Sequence[str], keys: Sequence[str] = KEYS, *more: str) -> str:
    return "\n".join(["hygon:", *(f"  {key}: {name!r}" for key, name in zip(keys, names, strict=True)), *more])


@in_one_test(
    ("text", "dcu", "hcu"),
    [
        (section(DCU_NAMES), DCU_NAMES, HCU_NAMES),  # HAMi up to 2.10
        (section(HCU_NAMES), DCU_NAMES, HCU_NAMES),  # and since 2.11
        (section((*DCU_NAMES, *HCU_NAMES), (*KEYS, *HCU_KEYS)), DCU_NAMES, HCU_NAMES),
        (section((*HCU_NAMES, *HCU_NAMES), (*KEYS, *HCU_KEYS)), None, None),
        (section(DCU_NAMES, KEYS, "  resourceHCUCountName: ''"), DCU_NAMES, None),
        (section(("", HCU_NAMES[0]), ("resourceCountName", "resourceHCUCountName")), None, HCU_NAMES[:1]),
        (section(("a.b/dcu", "a.b/dcu-mem", ""), KEYS), ("a.b/dcu", "a.b/dcu-mem"), ("a.b/hcu", "a.b/hcu-mem")),
        (section(("a.b/cards", "a.b/mem", "a.b/cores")), ("a.b/cards", "a.b/mem", "a.b/cores"), None),
        (section(("a.dcu/cards", "a.dcu/mem", "")), ("a.dcu/cards", "a.dcu/mem"), None),
    ],
)
def test_both_names_are_known_by_whichever_the_section_has(
    text: str, dcu: tuple[str, ...] | None, hcu: tuple[str, ...] | None
) -> None:
    if dcu is hcu is None:
        with pytest.raises(ConfigError, match="give each its own name"):
            configured(text)
        return
    vendors = configured(text)
    found = [vendors[key].resource_names if key in vendors else None for key in ("DCU", "HCU")]
    assert found == [dcu, hcu]


def test_the_unit_of_memory_is_one_for_both() -> None:
    vendors = configured(section(HCU_NAMES, KEYS, "  memoryFactor: 2"))
    assert [vendors[key].memory_factor for key in ("DCU", "HCU")] == [2, 2]


def test_a_node_is_asked_for_the_cards_by_the_name_it_registers_them_under() -> None:
    """Side by side, on one node too; and nobody gets the other's card, whatever list names it."""
    both = env(**{"hami.io/node-hcu-register": "HCU-T6T829001,4,65520,100,HCU-K100_AI,0,true,0,hami:"})
    assert both.placed(with_limits("old", 1, 2000, 60)).annotations[ALLOCATED] == "DCU-B,DCU,2000,60:;"
    new = both.placed(pod("new", **dict(zip(HCU_NAMES, (1, 3000, 30), strict=True))))
    assert new.annotations["hami.io/hcu-devices-allocated"] == "HCU-T6T829001,HCU,3000,30:;"
    assert ALLOCATED not in new.annotations
    other = pod("p", annotations={"hygon.com/use-gpuuuid": "DCU-A"}, **{HCU_NAMES[0]: 1})
    assert both.place(other) == {"n1": "1/1 CardUuidMismatch"}
