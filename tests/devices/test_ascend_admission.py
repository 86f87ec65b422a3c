"""What admission makes of containers that ask for NPUs, and what is then read of them.

Source: docs/spec/ascend.md#2, #5, #6.
"""

from __future__ import annotations

import json
from typing import Any

import jsonpatch
import pytest
from builders import container
from tables import in_one_test

from hami_webhook.admission.pods import normalise
from hami_webhook.device_config import builtin_device_config
from hami_webhook.devices.device_lister import NO_DEVICES
from hami_webhook.devices.model import FixedMemory, Request, ShareOfCard
from hami_webhook.devices.registry import Vendors
from hami_webhook.devices.vendors.ascend import Ascend
from hami_webhook.kube.draft import PodDraft
from hami_webhook.kube.objects import Pod

from .fit_env import CHART, JSON, FitEnv, configured, pod
from .npus import B2, B3, B4, B41, MODE, SOFT, A, C, P, chips, node, npus, registered, with_limits

YARD = FitEnv([])


def memory_of(word: str = B3, vendors: Vendors = CHART, notes: dict[str, str] | None = None, **amounts: Any) -> str:
    """The memory limit after admission, or the refusal; request and limit agree."""
    found = FitEnv([], vendors).admit(pod(annotations=notes, **with_limits(word=word, **amounts)))
    if found.pod is None:
        return found.message
    name = f"huawei.com/{word}-memory"
    assert found.limits()[name] == found.requests()[name]
    return str(found.limits()[name])


# 2: configuration


def test_the_chart_has_every_model() -> None:
    section: Any = builtin_device_config().config.section("vnpus")
    assert {chip.key for chip in Ascend.of(section)} == {A, B2, B3, B4, B41, P, C} < set(CHART)
    for chip in Ascend.of(section):
        assert chip.resource_names == tuple(f"huawei.com/{chip.key}{end}" for end in ("", "-memory", "-core"))
        assert [key.name for key in chip.quota_keys()] == [f"limits.{name}" for name in chip.resource_names]


def test_the_older_layout_makes_the_same_vendors_and_means_no_soft_mode() -> None:
    entry = "{commonWord: X1, resourceName: a.b/x1, memoryAllocatable: 10}"
    old, new = configured(f"vnpus: [{entry}]"), configured(f"vnpus: {{hamiVnpuCore: true, configs: [{entry}]}}")
    assert list(old) == list(new) == ["X1"]
    on = node(npus(1), "X1")
    assert [registered(on, "X1", each).facts.soft for each in (old, new)] == [False, True]


@pytest.mark.parametrize(
    ("section", "soft"),
    [
        ({}, False),
        ({"hamiVnpuMode": ""}, False),
        ({"hamiVnpuMode": "", "hamiVnpuCore": True}, True),
        ({"hamiVnpuMode": "template", "hamiVnpuCore": True}, False),
        ({"hamiVnpuMode": "hami-core"}, True),
        ({"hamiVnpuMode": " hamiCore "}, True),
        ({"hamiVnpuMode": "enpu", "enpuPolicy": "elastic"}, False),
    ],
)
def test_the_mode_of_hami_2_11_says_what_nodes_do(section: JSON, soft: bool) -> None:
    entry = {"commonWord": "X1", "resourceName": "a.b/x1", "memoryAllocatable": 10}
    vendors = configured(json.dumps({"vnpus": {**section, "configs": [entry]}}))
    assert registered(node(npus(1), "X1"), "X1", vendors).facts.soft is soft


def test_what_hami_2_11_has_once_is_every_chips() -> None:
    entries = [
        {"commonWord": word, "resourceName": f"a.b/{word}", "memoryAllocatable": 10, **more}
        for word, more in (("x1", {}), ("x2", {"runtimeClassName": "own"}))
    ]
    section = {"runtimeClassName": "ascend", "overwriteEnv": True, "configs": entries}
    env = FitEnv([], configured(json.dumps({"vnpus": section})))
    classes = [env.admit(pod(**{f"a.b/{word}": 1})).patched["spec"]["runtimeClassName"] for word in ("x1", "x2")]
    assert classes == ["ascend", "own"]
    (without,) = env.admit(pod()).patched["spec"]["containers"]
    assert without["env"] == [{"name": "ASCEND_VISIBLE_DEVICES", "value": ""}]


# 5.1: the environment guard

GUARDED = chips(overwriteEnv=True)


def env_after(*containers: JSON, vendors: Vendors = GUARDED) -> list[object]:
    raw = pod("p", *containers)
    for _ in range(2):
        draft = PodDraft(raw)
        normalise(draft, vendors, NO_DEVICES)
        raw = jsonpatch.apply_patch(raw, draft.operations())
    assert draft.operations() == []
    return [item.get("env") for item in raw["spec"]["containers"]]


BLANK = {"name": "ASCEND_VISIBLE_DEVICES", "value": ""}


@pytest.mark.parametrize(
    ("env", "after"),
    [
        (None, [BLANK]),
        ([{"name": "A", "value": "1"}], [{"name": "A", "value": "1"}, BLANK]),
        ([{"name": "ASCEND_VISIBLE_DEVICES", "value": "0"}, {"name": "A"}], [BLANK, {"name": "A"}]),
        ([{"name": "ASCEND_VISIBLE_DEVICES", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}], [BLANK]),
        ([{"name": "ASCEND_VISIBLE_DEVICES", "value": "0"}] * 3, [BLANK]),
    ],
)
def test_the_guard_blanks_one_variable_where_no_npu_is_asked(env: list[JSON] | None, after: list[JSON]) -> None:
    assert env_after(container() | {"env": env} if env else container()) == [after]


def test_the_guard_of_one_chip_spares_containers_that_ask_for_another() -> None:
    seen = [{"name": "ASCEND_VISIBLE_DEVICES", "value": "0"}]
    plain, none = container("b"), container("c", **with_limits(0))
    assert env_after(container("a", **with_limits(1, word=P)) | {"env": seen}, plain, none) == [seen, [BLANK], [BLANK]]
    assert env_after(container("a", **with_limits(1)) | {"env": seen}) == [seen]
    assert env_after(container() | {"env": seen}, vendors=chips()) == [seen]
    unaskable = chips(overwriteEnv=True, resourceName="", resourceMemoryName="", resourceCoreName="")
    assert env_after(container() | {"env": seen}, vendors=unaskable) == [[BLANK]], "any entry that says so counts"
    assert env_after(container() | {"env": seen}, vendors=CHART) == [seen]


def test_the_guard_reaches_init_containers() -> None:
    draft = PodDraft(pod("p", container(**with_limits(1)), init=[container("i")]))
    assert [vendor.key for vendor in normalise(draft, GUARDED, NO_DEVICES)] == [B3]
    assert {"op": "add", "path": "/spec/initContainers/0/env", "value": [BLANK]} in draft.operations()


# 5.1: no count


@pytest.mark.parametrize("limits", [{}, with_limits(0, 100, 5), with_limits(None, 100), with_limits(None, 99999, 50)])
def test_without_a_count_there_is_nothing_to_do(limits: JSON) -> None:
    draft = PodDraft(pod(**limits))
    assert normalise(draft, CHART, NO_DEVICES) == ()
    assert draft.operations() == []


# 5.2: SuperPod


@pytest.mark.parametrize(("count", "after"), [(1, "2"), (2, "2"), (4, "4"), (16, "16")])
def test_a_super_pod_gives_whole_modules(count: int, after: str) -> None:
    admitted = YARD.admit(pod(**with_limits(count, word=C)))
    assert admitted.limits() == with_limits(after, "65536", word=C)
    assert admitted.requests() == {f"huawei.com/{C}-memory": "65536"}
    assert len(admitted.warnings) == (count == 1)


def test_the_request_of_a_rounded_count_follows() -> None:
    both = container(requests=with_limits(1, word=C), **with_limits(1, word=C))
    assert YARD.admit(pod("p", both)).requests() == with_limits("2", "65536", word=C)


def test_one_npu_of_a_super_pod_with_a_slice_is_two_slices_and_stays_so() -> None:
    admitted = YARD.admit(
        pod("p", container("a", **with_limits(1, 10000, word=C)), container("b", **with_limits(1, 9, word=C)))
    )
    assert admitted.limits(0) == admitted.limits(1) == with_limits("2", "16384", word=C)
    assert "container a: huawei.com/Ascend910C 1 becomes 2, as the NPUs of a module are bound" in admitted.warnings
    message = YARD.admit(pod("p", container("a", **with_limits(2, 16384, word=C)))).message
    assert "vNPU not supported for multiple devices" in message, "two, as the user wrote it"


def test_what_admission_rounded_may_be_asked_of_the_containers_it_rounded_only() -> None:
    notes = dict(
        YARD.admit(pod("p", container("a", **with_limits(1, 16384, word=C)))).patched["metadata"]["annotations"]
    )
    other = pod("p", container("b", **with_limits(2, 16384, word=C)), annotations=notes)
    assert "vNPU not supported" in YARD.admit(other).message
    four = pod("p", container("a", **with_limits(4, 16384, word=C)), annotations=notes)
    assert "vNPU not supported" in YARD.admit(four).message


@pytest.mark.parametrize("count", [3, 5, 15])
@pytest.mark.parametrize("notes", [None, SOFT])
def test_odd_counts_of_a_super_pod_are_refused(count: int, notes: dict[str, str] | None) -> None:
    assert YARD.admit(pod(annotations=notes, **with_limits(count, word=C))).message == (
        f"Ascend910C device request must be 1 or 2*n, got {count}: in container main ask for {count - 1} or "
        f"{count + 1} huawei.com/Ascend910C, as the two NPUs of a module are bound"
    )


def test_other_chips_and_unbound_modules_are_not_rounded() -> None:
    assert YARD.admit(pod(**with_limits(1))).limits()[f"huawei.com/{B3}"] == "1"
    unbound = configured(
        "vnpus: [{commonWord: Ascend910C, resourceName: a.b/c, resourceMemoryName: a.b/m, memoryAllocatable: 100}]"
    )
    for count in ("1", "3"):
        limits = FitEnv([], unbound).admit(pod(**{"a.b/c": count})).limits()
        assert limits == {"a.b/c": count, "a.b/m": "100"}
    bound = configured("vnpus: [{commonWord: Ascend910D, superPod: true, resourceName: a.b/c, memoryAllocatable: 100}]")
    assert FitEnv([], bound).admit(pod(**{"a.b/c": "3"})).limits() == {"a.b/c": "3"}, "only Ascend910C has modules"


# 5.3: the core gate


@pytest.mark.parametrize("notes", [None, {MODE: ""}, {MODE: "hami"}, {MODE: "HAMI-CORE"}, {MODE: "hami-core "}])
def test_cores_are_for_soft_mode_only_and_only_its_exact_name_selects_it(notes: dict[str, str] | None) -> None:
    assert YARD.admit(pod(annotations=notes, **with_limits(1, core=20))).message == (
        "huawei.com/Ascend910B3-core is only supported in hami-core (soft split) mode: container main asks for 20; "
        f"remove it, or set the annotation {MODE}: hami-core"
    )
    requested = container(requests=with_limits(None, core=5), **with_limits(1))
    assert "-core is only supported" in YARD.admit(pod("p", requested, annotations=notes)).message
    assert YARD.admit(pod(annotations=notes, **with_limits(1, core=0))).limits() == with_limits("1", "65536", "0")


def test_without_a_core_name_there_is_no_gate() -> None:
    vendors = chips(resourceCoreName="")
    assert FitEnv([], vendors).admit(pod(**with_limits(1, core=20))).limits() == with_limits("1", "65536", "20")


# 5.4: memory

ROUNDED = {
    A: [(0, 2184), (2184, 2184), (2185, 4369), (4370, 8738), (8739, 17476), (17477, 32768), (32768, 32768)],
    B2: [(0, 8192), (8193, 16384), (16385, 32768), (32769, 65536), (65536, 65536)],
    B3: [(0, 16384), (1, 16384), (10000, 16384), (16385, 32768), (32768, 32768), (32769, 65536), (65536, 65536)],
    B41: [(16384, 16384), (16385, 32768), (32769, 65536)],
    B4: [(1, 8192), (8193, 16384), (16385, 32768), (32768, 32768)],
    P: [(0, 3072), (3073, 6144), (6145, 12288), (12288, 12288), (12289, 21527), (21527, 21527), (24576, 21527)],
    C: [(1, 16384), (16385, 32768), (32769, 65536)],
}


@in_one_test(("word", "wish", "given"), [(w, *row) for w, rows in ROUNDED.items() for row in rows])
def test_memory_is_rounded_to_what_the_driver_carves_at_admission_or_later(word: str, wish: int, given: int) -> None:
    assert memory_of(word, memory=wish) == str(given)
    once = extracted(word=word, memory=given)
    assert once is not None
    assert once.memory == FixedMemory(given)
    assert wish == 0 or extracted(word=word, memory=wish) == once


@pytest.mark.parametrize(("word", "whole", "capacity"), [(A, 32768, 32768), (B3, 65536, 65536), (P, 21527, 24576)])
def test_no_memory_is_a_whole_card_and_more_than_a_card_is_refused(word: str, whole: int, capacity: int) -> None:
    assert memory_of(word) == memory_of(word, notes=SOFT) == str(whole)
    for notes in (None, SOFT):
        assert memory_of(word, memory=capacity + 1, notes=notes) == (
            f"huawei.com/{word}-memory {capacity + 1} is invalid: container main may ask for at most {capacity}, in "
            "units of 1 MiB (16 GiB is 16384, not 16Gi), or for none to get whole NPUs"
        )


@pytest.mark.parametrize("wish", [0, 1, 10000, 65536])
def test_soft_mode_keeps_what_was_written(wish: int | None) -> None:
    assert memory_of(memory=wish, notes=SOFT) == str(wish)


def test_the_user_is_told_what_rounding_made() -> None:
    def reported(notes: dict[str, str] | None = None, **amounts: Any) -> list[str]:
        return list(YARD.admit(pod(annotations=notes, **with_limits(1, **amounts))).warnings)

    (text,) = reported(memory=10000)
    assert text == "container main: huawei.com/Ascend910B3-memory 10000 becomes 16384, the template vir05_1c_16g"
    (text,) = reported(memory=40000)
    assert text == "container main: huawei.com/Ascend910B3-memory 40000 becomes 65536, a whole NPU"
    assert reported() == reported(memory=16384) == reported(memory=65536) == reported(SOFT, memory=100) == []
    between = YARD.admit(pod(annotations=SOFT, **with_limits(1, 24576, word=P)))
    assert list(between.warnings) == [], "above what a card gives, but not above what it has"


def test_a_request_that_differs_is_put_right() -> None:
    wish = container(requests=with_limits(1, 5000), **with_limits(1, 10000))
    assert YARD.admit(pod("p", wish)).requests() == with_limits(1, "16384") | {f"huawei.com/{B3}": "1"}
    alone = container(requests=with_limits(None, 5000), **with_limits(1))
    assert YARD.admit(pod("p", alone)).limits() == with_limits("1", "65536"), "memory is read from limits"


@pytest.mark.parametrize(
    ("factor", "wish", "given", "read", "template"),
    [
        (0, 10000, "16384", 16384, "quarter"),
        (1024, 10, "16", 16384, "quarter"),
        (1024, 17, "32", 32768, "half"),
        (1024, 33, "64", 65536, None),
        (1024, None, "64", 65536, None),
        (1000, 16, "16", 16384, "quarter"),  # 16384 ÷ 1000, rounded down, still means the template
        (1000, 17, "32", 32768, "half"),
        (1000, 33, "65", 65536, None),
    ],
)
def test_a_factor_is_applied_before_rounding_and_taken_out_after(
    factor: int, wish: int | None, given: str, read: int, template: str | None
) -> None:
    vendors = chips(memoryFactor=factor)
    assert memory_of(vendors=vendors, memory=wish) == given
    asked = Pod.from_object(pod(**with_limits(1, given)))
    assert vendors[B3].request_in_pod(asked.containers[0], asked) == Request(1, FixedMemory(read), 0, profile=template)


def test_a_factor_bounds_what_may_be_written() -> None:
    vendors = chips(memoryFactor=1024)
    assert "at most 64" in memory_of(vendors=vendors, memory=65)
    assert "16 GiB is 16" in memory_of(vendors=vendors, memory=2**21)
    assert "between 0 and 2097151" in memory_of(vendors=vendors, memory=2**21)


def test_without_templates_every_slice_is_a_whole_card() -> None:
    assert memory_of(vendors=chips(templates=[]), memory=5) == "65536"
    assert memory_of(vendors=chips(templates=[]), memory=5, count=2) == "65536"


def test_without_a_memory_name_nothing_is_written() -> None:
    vendors = chips(resourceMemoryName="", resourceCoreName="")
    assert FitEnv([], vendors).admit(pod(**with_limits(2))).limits() == with_limits("2")


# 5.5: several NPUs


@pytest.mark.parametrize(
    ("memory", "notes", "fine"),
    [
        (None, None, True),
        (65536, None, True),
        (32769, None, True),
        (32768, None, False),
        (1, None, False),
        (1, SOFT, True),
    ],
)
def test_several_npus_are_whole_in_template_mode(memory: int | None, notes: dict[str, str] | None, fine: bool) -> None:
    assert YARD.admit(pod(annotations=notes, **with_limits(2, memory))).message == (
        ""
        if fine
        else "vNPU not supported for multiple devices: container main asks for 2 huawei.com/Ascend910B3 with a slice "
        "of each; ask for one, or for whole NPUs (no huawei.com/Ascend910B3-memory), or set the annotation "
        f"{MODE}: hami-core"
    )


# 5.7 and several containers


def test_every_container_and_every_chip_is_completed() -> None:
    both = container("a", **with_limits(1, 100), **with_limits(1, 100, word=P))
    admitted = YARD.admit(
        pod("p", both, container("b", **with_limits(2)), init=[container("i", **with_limits(1, 20000))])
    )
    assert admitted.limits(0) == with_limits("1", "16384") | with_limits("1", "3072", word=P)
    assert admitted.limits(1) == with_limits("2", "65536")
    assert admitted.patched["spec"]["initContainers"][0]["resources"]["limits"] == with_limits("1", "32768")


# 6: request extraction


def extracted(notes: dict[str, str] | None = None, word: str = B3, **amounts: Any) -> Request | None:
    incoming = Pod.from_object(pod(annotations=notes, **with_limits(word=word, **amounts)))
    return CHART[word].request_in_pod(incoming.containers[0], incoming)


@in_one_test(
    ("amounts", "notes", "request_"),
    [
        ({"count": 0}, None, None),
        ({"count": None, "memory": 5}, None, None),
        ({}, None, Request(1, ShareOfCard(100), 0)),
        ({"memory": 0}, None, Request(1, ShareOfCard(100), 0)),
        ({"memory": 0}, SOFT, Request(1, ShareOfCard(100), 0)),
        ({"memory": 10000}, None, Request(1, FixedMemory(16384), 0, profile="vir05_1c_16g")),
        ({"memory": 10000}, SOFT, Request(1, FixedMemory(10000), 0)),
        ({"memory": 16384}, SOFT, Request(1, FixedMemory(16384), 0)),
        ({"memory": 50000}, None, Request(1, FixedMemory(65536), 0)),
        ({"memory": 70000}, None, Request(1, FixedMemory(70000), 0)),
        ({"memory": 70000}, SOFT, Request(1, FixedMemory(70000), 0)),
        ({"count": 3, "memory": 9, "core": 30}, SOFT, Request(3, FixedMemory(9), 30)),
        ({"core": 300}, SOFT, Request(1, ShareOfCard(100), 100)),
    ],
)
def test_what_a_container_asks(amounts: JSON, notes: dict[str, str] | None, request_: Request | None) -> None:
    assert extracted(notes, **amounts) == request_
