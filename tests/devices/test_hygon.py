"""Hygon DCUs (docs/spec/hygon.md); the worked examples of its section 14 are tests under their numbers."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from builders import container, node, read_node
from tables import in_one_test

from hami_webhook.config import ConfigError
from hami_webhook.devices.model import RegistrationError
from hami_webhook.devices.pod_fit import read_pod_request
from hami_webhook.kube.objects import Pod
from hami_webhook.scheduling.scoring import hints

from .fit_env import CHART, JSON, FitEnv, Names, Placed, configured, pod
from .simulated_quota import amounts, run

COUNT, MEM, CORES = "hygon.com/dcunum", "hygon.com/dcumem", "hygon.com/dcucores"
REGISTER = "hami.io/node-dcu-register"
ALLOCATED, TO_ALLOCATE = "hami.io/dcu-devices-allocated", "hami.io/dcu-devices-to-allocate"
DCU = CHART["DCU"]
SAMPLE = (
    "DCU-TPXS320016070601,4,65520,100,DCU-K100_AI,0,true,0,hami:"
    "DCU-TPXS320010040501,4,65520,100,DCU-K100_AI,0,true,1,hami:"
)
UNITS = configured(
    "hygon: {resourceCountName: a.b/dcu, resourceMemoryName: a.b/mem, resourceCoreName: a.b/core, memoryFactor: 2}"
)
NAMES = Names(COUNT, MEM, CORES)
limits, with_limits, one = NAMES.limits, NAMES.pod, NAMES.container


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


def card(uuid: str, index: int = 0, *, memory: int = 65520, slots: int = 4, health: str = "true") -> str:
    return f"{uuid},{slots},{memory},100,DCU-K100_AI,0,{health},{index},hami:"


A, B = card("DCU-A"), card("DCU-B", 1)


def registering(*cards: str) -> JSON:
    return {REGISTER: "".join(cards)}


def env(*cards: str) -> FitEnv:
    return FitEnv([read_node("n1", **registering(*(cards or (A, B))))])


def got(placed: Placed | dict[str, str]) -> str:
    """The annotation written, or why the only node refused."""
    return placed.annotations[ALLOCATED] if isinstance(placed, Placed) else placed["n1"]


def on(uuid: str) -> dict[str, str]:
    return {"hygon.com/use-gpuuuid": uuid}


def test_1_a_slice_of_the_last_registered_card() -> None:
    placed = env().placed(with_limits("p", 1, 2000, 60))
    assert placed.annotations[ALLOCATED] == placed.annotations[TO_ALLOCATE] == "DCU-B,DCU,2000,60:;"
    assert placed.debits == {f"limits.{COUNT}": 1, f"limits.{MEM}": 2000, f"limits.{CORES}": 60}


def allowed(use: str, nouse: str = "") -> dict[str, str]:
    return {"hygon.com/use-dcutype": use, "hygon.com/nouse-dcutype": nouse}


WHOLE_B = "DCU-B,DCU,65520,100:;"
MISMATCH = "2/2 CardTypeMismatch"


@in_one_test(
    ("cards", "incoming", "answer"),
    [
        pytest.param((), with_limits(), WHOLE_B, id="2 a count alone is the whole card"),
        pytest.param(
            (), with_limits("p", 2, 2000, 30), "DCU-B,DCU,65520,100:DCU-A,DCU,65520,100:;", id="5 several come whole"
        ),
        pytest.param((), with_limits(notes=allowed("k100")), WHOLE_B, id="6 part of the model"),
        pytest.param((), with_limits(notes=allowed("Z100")), MISMATCH, id="6 another model"),
        pytest.param((), with_limits(notes=allowed("K100,Z100", "k100_ai")), MISMATCH, id="6 denied as well"),
        pytest.param((), with_limits(notes=allowed("")), WHOLE_B, id="6 blank"),
        pytest.param(
            ("L,4,9,100,DCU-Z100L,0,true:",), with_limits(notes=allowed("Z100")), "L,DCU,9,100:;", id="6 longer model"
        ),
        pytest.param((), with_limits(notes=on("DCU-A , DCU-X")), "DCU-A,DCU,65520,100:;", id="7 allowed"),
        pytest.param(
            (), with_limits(notes={"hygon.com/nouse-gpuuuid": "DCU-A,DCU-B"}), "2/2 CardUuidMismatch", id="7 denied"
        ),
        pytest.param((A,), with_limits("p", 1, 2000, 120), "DCU-A,DCU,2000,100:;", id="8 cores beyond a card"),
        pytest.param((), with_limits("p", 3), "NodeInsufficientDevice", id="9 more than there are"),
        pytest.param(
            ("DCU-A,4,65520,100,DCU-K100_AI,0,true,0:",), with_limits(), "node unregistered", id="10 eight fields"
        ),
        pytest.param(
            (), pod("p", container("side"), one(1, 2000, 60)), ";DCU-B,DCU,2000,60:;", id="11 an empty slot"
        ),
    ],
)  # fmt: skip
def test_on_idle_cards(cards: Sequence[str], incoming: JSON, answer: str) -> None:
    assert got(env(*cards).place(incoming)) == answer


@pytest.mark.parametrize(
    ("cores", "answer"),
    [(40, "DCU-B,DCU,2000,40:;"), (41, "2/2 CardInsufficientCore"), (None, "2/2 CardInsufficientCore")],
)
def test_3_cores_that_are_left(cores: int | None, answer: str) -> None:
    both = env()
    for uuid in ("DCU-A", "DCU-B"):
        both.place(with_limits(uuid, 1, 2000, 60, notes=on(uuid)))
    assert got(both.place(with_limits("p", 1, 2000, cores))) == answer


def test_4_memory_alone_is_exclusive() -> None:
    one_ill = env(A, card("DCU-B", 1, health="false"))
    one_ill.place(with_limits("a", 1, 2000, 0))
    assert got(one_ill.place(with_limits("p", 1, 2000))) == "1/2 CardNotHealth, 1/2 ExclusiveDeviceAllocateConflict"


def test_5_several_cards_of_which_one_is_in_use() -> None:
    shared = env()
    shared.place(with_limits("small", 1, 1, 1, notes=on("DCU-A")))
    assert got(shared.place(with_limits("p", 2, 2000, 30))) == (
        "1/2 AllocatedCardsInsufficientRequest, 1/2 CardInsufficientMemory"
    )


def test_8_no_cores_where_none_are_left() -> None:
    taken = env()
    taken.place(with_limits("full", 1, 2000, 100, notes=on("DCU-B")))
    assert got(taken.place(with_limits("p", 1, 1, 0, notes=on("DCU-B")))) == (
        "1/2 CardComputeUnitsExhausted, 1/2 CardUuidMismatch"
    )


def test_whole_cards_need_at_least_the_memory_that_was_written() -> None:
    unequal = env(A, B, card("DCU-C", 2, memory=32752))
    assert got(unequal.place(with_limits("p", 2, 40000), keep=False)) == "DCU-B,DCU,65520,100:DCU-A,DCU,65520,100:;"
    assert got(unequal.place(with_limits("p", 3, 40000))) == (
        "1/3 CardInsufficientMemory, 2/3 AllocatedCardsInsufficientRequest"
    )
    assert got(unequal.place(with_limits("p", 3, 32752))).count("DCU,") == 3


# 10: quota

DCUS = [node("n1", **registering(A, B))]
NOTHING_KNOWN: list[JSON] = []


def hard(mem: int | None = None, cores: int | None = None) -> JSON:
    return limits(None, mem, cores)


def debits(count: int, mem: int, cores: int) -> JSON:
    return {COUNT: count, MEM: mem, CORES: cores}


def exceeded(requested: str, used: str, limited: str, memory: str) -> str:
    amounts = f"requested: {requested}, used: {used}, limited: {limited}"
    return f"exceeding resource quota: exceeded quota: quota, {amounts} (memory: {memory})"


def test_quota_a_to_d() -> None:
    pods = [with_limits("a", 1, 2000, 60), with_limits("b"), with_limits("c", 1, 3000), with_limits("d", 1, 2000, 20)]
    result = run(DCUS, hard(70000, 200), pods)
    reported = exceeded(
        f"limits.{CORES}=100,limits.{MEM}=3000",
        f"limits.{CORES}=160,limits.{MEM}=67520",
        f"limits.{CORES}=200,limits.{MEM}=70000",
        "2.9Gi requested, 65.9Gi used, 68.4Gi limited",
    )
    assert amounts(result) == [debits(1, 2000, 60), debits(1, 65520, 100), reported, debits(1, 2000, 20)]
    assert result.quotas[0]["used"] == {f"limits.{MEM}": 69520, f"limits.{CORES}": 180}


def test_quota_e_is_declared_at_admission_and_found_too_large_at_placement() -> None:
    result = run(DCUS, hard(100000), [with_limits("e", 2, 2000)])
    assert amounts(result) == ["1/2 AllocatedCardsInsufficientRequest, 1/2 ResourceQuotaNotFit"]
    assert result.quotas[0]["used"] == {f"limits.{MEM}": 4000}
    assert result.pods[0].allowed
    assert amounts(run(DCUS, hard(131040), [with_limits("e", 2, 2000)])) == [debits(2, 131040, 200)]


def test_a_whole_card_is_charged_the_smallest_eligible_one_while_it_waits() -> None:
    """Quota docs/spec/hygon.md#5 outranks section 10, by which a whole card declares nothing at admission."""
    unequal = [node("n1", **registering(A, card("DCU-S", 1, memory=30000)))]
    reported = exceeded(
        f"limits.{MEM}=30000 (smallest eligible card)",
        f"limits.{MEM}=0",
        f"limits.{MEM}=29999",
        "29.3Gi requested, 0Mi used, 29.3Gi limited",
    )
    assert amounts(run(unequal, hard(29999), [with_limits("p")])) == [reported]
    reported = exceeded(
        f"limits.{MEM}=65520 (smallest eligible card)",
        f"limits.{MEM}=0",
        f"limits.{MEM}=50000",
        "64Gi requested, 0Mi used, 48.8Gi limited",
    )
    assert amounts(run(unequal, hard(50000), [with_limits("p", notes=on("DCU-A"))])) == [reported]
    assert amounts(run(unequal, hard(30000), [with_limits("p")])) == [debits(1, 30000, 100)]
    assert run(NOTHING_KNOWN, hard(1), [with_limits("p")]).quotas[0]["used"] == {f"limits.{MEM}": 1}


def test_quota_in_units_of_the_factor() -> None:
    vendors = configured(
        f"hygon: {{resourceCountName: {COUNT}, resourceMemoryName: {MEM}, resourceCoreName: {CORES}, memoryFactor: 2}}"
    )
    result = run(DCUS, hard(1000), [with_limits("a", 1, 800), with_limits("b", 1, 1200)], vendors=vendors)
    amounts_in_gi = "2.3Gi requested, 1.6Gi used, 2Gi limited"
    reported = exceeded(f"limits.{MEM}=1200", f"limits.{MEM}=800", f"limits.{MEM}=1000", amounts_in_gi)
    assert amounts(result) == [debits(1, 800, 100), reported]
    assert result.pods[0].placement is not None
    assert result.pods[0].placement["annotations"][ALLOCATED] == "DCU-B,DCU,1600,100:;"


# 13: defects of HAMi that aren't to be had here


def test_where_no_node_registers_dcus_the_owner_is_told_which_plugin_would() -> None:
    request = read_pod_request(Pod.from_object(with_limits("p", 3)), CHART, "spread")
    assert request is not None
    bare = FitEnv([read_node("n1", capacity={"hygon.com/dcu": 8})])
    assert hints({}, request, bare.state.views(), CHART, bare.state) == [
        "no live node registers DCUs in hami.io/node-dcu-register; HAMi's own DCU device plugin writes it, Hygon's, "
        "which offers hygon.com/dcu, does not"
    ]
    assert hints({}, request, env().state.views(), CHART, env().state) == []


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
    hcu = "HCU-T6T829001,4,65520,100,HCU-K100_AI,0,true,0,hami:"
    notes: JSON = {REGISTER: SAMPLE, "hami.io/node-hcu-register": hcu}
    both = [node("n1", **notes)]
    new = pod("new", **dict(zip(HCU_NAMES, (1, 3000, 30), strict=True)))
    result = run(both, hard(70000), [with_limits("old", 1, 2000, 60), new])
    placed = [each.placement for each in result.pods]
    assert placed[0] is not None
    assert placed[0]["annotations"][ALLOCATED] == "DCU-TPXS320010040501,DCU,2000,60:;"
    assert placed[1] is not None
    assert placed[1]["annotations"]["hami.io/hcu-devices-allocated"] == "HCU-T6T829001,HCU,3000,30:;"
    assert placed[1]["annotations"]["hami.io/hcu-devices-to-allocate"] == "HCU-T6T829001,HCU,3000,30:;"
    assert ALLOCATED not in placed[1]["annotations"]
    other = pod("p", annotations={"hygon.com/use-gpuuuid": "DCU-TPXS320010040501"}, **{HCU_NAMES[0]: 1})
    assert run(both, hard(70000), [other]).pods[0].placement is None


def test_where_no_node_registers_hcus_the_owner_is_told_how_the_plugin_would() -> None:
    request = read_pod_request(Pod.from_object(pod("p", **{HCU_NAMES[0]: 1})), CHART, "spread")
    assert request is not None
    bare = FitEnv([read_node("n1", capacity={"hygon.com/hcu": 8})])
    assert hints({}, request, bare.state.views(), CHART, bare.state) == [
        "no live node registers HCUs in hami.io/node-hcu-register; Hygon's HCU device plugin writes it with "
        "--strategy=hami only"
    ]
