"""What HAMi 2.10 and 2.11 read differently of pods, as the section `hami` chooses (docs/spec/core.md#2.5)."""

from __future__ import annotations

import json
from itertools import combinations

import pytest
from builders import container, read_node
from hypothesis import given
from hypothesis import strategies as st

from hami_webhook.admission.pods import suspicions
from hami_webhook.config.errors import ConfigError
from hami_webhook.config.load import builtin_text
from hami_webhook.devices import newer_annotations
from hami_webhook.devices.pod_preferences import CardPolicy
from hami_webhook.devices.registry import Vendors
from hami_webhook.devices.vendors.nvidia import mig
from hami_webhook.kube.draft import PodDraft

from .cards import A100_PROFILES, card, mig_card, node
from .fit_env import JSON, FitEnv, configured, pod
from .npus import B3, MODE
from .test_amd import COUNT, REGISTER, amd, with_limits

UNSAID = builtin_text().replace('\nhami:\n  version: "2.10"', "")


def reading(version: str, before: str = "", after: str = "") -> Vendors:
    """The vendors of the built-in configuration, in which one text is another, with the section `hami`."""
    return configured(UNSAID.replace(before, after) + f"\nhami: {{version: '{version}'}}\n")


OLDER, NEWER = reading("2.10"), reading("2.11")
HIDING = [reading("2.11", "overwriteEnv: false", f"overwriteEnv: {usual}") for usual in ("false", "true")]
GPU, MEM, CORES = "nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpucores"
POLICY = "hami.io/gpu-scheduler-policy"
PREFERENCE = "nvidia.com/mig-profile-preference"
OVERWRITE, BY_CONTAINER = "hami.io/overwrite-env", "hami.io/overwrite-env-containers"


def test_a_file_that_says_nothing_means_2_10_and_only_two_versions_are_known() -> None:
    assert not any(vendor.is_2_11 for vendor in configured(UNSAID).values())
    assert not any(vendor.is_2_11 for vendor in OLDER.values())
    assert all(vendor.is_2_11 for vendor in NEWER.values())
    with pytest.raises(ConfigError, match=r"must be 2\.10 or 2\.11"):
        reading("2.9")


@pytest.mark.parametrize(("written", "is_2_11"), [("2.10", False), ("2.11", True), ("'2.11'", True)])
def test_a_version_needs_no_quotes(written: str, is_2_11: bool) -> None:
    """YAML takes it for a number then."""
    assert configured(f"{UNSAID}\nhami: {{version: {written}}}\n")["NVIDIA"].is_2_11 is is_2_11


@pytest.mark.parametrize(
    ("vendors", "cores", "message"),
    [
        (OLDER, 150, ""),
        (NEWER, 100, ""),
        (NEWER, 150, f"invalid {CORES} value 150 in container main: must be an integer between 0 and 100"),
    ],
)
def test_cores_above_100(vendors: Vendors, cores: int, message: str) -> None:
    asking = pod("p", container(**{GPU: 1, MEM: 10, CORES: cores}))
    assert FitEnv([], vendors).admit(asking).message == message


def test_a_pod_that_was_admitted_with_more_than_100_cores_is_still_placed_and_counted() -> None:
    env = FitEnv([node(card("a", devcore=100))], NEWER)
    env.placed(pod("p", container(**{GPU: 1, MEM: 10, CORES: 150})), admit=False)
    assert env.used("NVIDIA", "a") == (1, 10, 100)


@pytest.mark.parametrize(
    ("written", "older", "newer"),
    [
        (None, "binpack", "binpack"),
        ("spread", "spread", "spread"),
        ("mutex,numa", "mutex,numa", "mutex,numa"),
        ("numa-first", "numa-first", "numa-first"),
        ("fastest", "fastest", "binpack"),
        ("binpack,fastest", "binpack,fastest", "binpack"),
        ("spread,", "spread,", "binpack"),
        ("", "", "binpack"),
    ],
)
def test_a_card_policy_that_is_unknown(written: str | None, older: str, newer: str) -> None:
    notes = {} if written is None else {POLICY: written}
    assert CardPolicy.of(notes, "binpack", is_2_11=False) == CardPolicy.parse(older)
    assert CardPolicy.of(notes, "binpack", is_2_11=True) == CardPolicy.parse(newer)


# Ascend


def of_ascend(mode: str | None = None, cores: int | None = 20) -> JSON:
    amounts = {f"huawei.com/{B3}": 1, f"huawei.com/{B3}-memory": 3000, f"huawei.com/{B3}-core": cores}
    named = {name: amount for name, amount in amounts.items() if amount is not None}
    first = {f"huawei.com/{B3}": 1, f"huawei.com/{B3}-memory": 3000}
    return pod("p", container("init", **first), container(**named), annotations={} if mode is None else {MODE: mode})


def test_cores_of_an_npu_without_a_mode_mean_soft_mode_for_the_whole_pod() -> None:
    assert "is only supported in hami-core" in FitEnv([], OLDER).admit(of_ascend()).message
    admitted = FitEnv([], NEWER).admit(of_ascend())
    assert admitted.patched["metadata"]["annotations"][MODE] == "hami-core"
    for index in (0, 1):
        assert admitted.limits(index)[f"huawei.com/{B3}-memory"] in (3000, "3000"), "no template rounds it up"
    assert FitEnv([], NEWER).admit(of_ascend("")).patched["metadata"]["annotations"][MODE] == "hami-core"
    assert "is only supported in hami-core" in FitEnv([], NEWER).admit(of_ascend("template")).message
    assert MODE not in FitEnv([], NEWER).admit(of_ascend(cores=None)).patched["metadata"].get("annotations", {})
    assert MODE not in FitEnv([], NEWER).admit(of_ascend(cores=0)).patched["metadata"].get("annotations", {})


@pytest.mark.parametrize("mode", ["enpu", "ubs-virt", "vcann-rt"])
def test_a_mode_that_is_not_served_is_said_or_refused(mode: str) -> None:
    asking = of_ascend(mode, cores=None)
    text = f"annotation {MODE}: {mode} isn't served; remove it for slices by templates, or write hami-core"
    assert text in FitEnv([], OLDER).admit(asking).warnings
    assert FitEnv([], NEWER).admit(asking).message == text
    other = pod("p", container(**{GPU: 1, MEM: 10}), annotations={MODE: mode})
    assert FitEnv([], NEWER).admit(other).message == "", "it asks for no NPU"


# containers without cards


@pytest.mark.parametrize(
    ("usual", "notes", "hidden"),
    [
        (False, {}, False),
        (True, {}, True),
        (False, {OVERWRITE: "true"}, True),
        (True, {OVERWRITE: "false"}, False),
        (True, {OVERWRITE: "F"}, False),
        (True, {OVERWRITE: "no"}, True),
        (False, {OVERWRITE: "false", BY_CONTAINER: '{"side": "true"}'}, True),
        (True, {OVERWRITE: "true", BY_CONTAINER: '{"side": "false"}'}, False),
        (True, {OVERWRITE: "false", BY_CONTAINER: '{"side": "maybe"}'}, False),
        (True, {OVERWRITE: "false", BY_CONTAINER: '{"main": "true"}'}, False),
        (False, {BY_CONTAINER: '{"*": "true"}'}, False),
        (False, {BY_CONTAINER: '{"side": true}'}, False),
        (False, {BY_CONTAINER: "["}, False),
        (False, {BY_CONTAINER: "[]"}, False),
    ],
)
def test_whether_a_container_without_cards_sees_any_is_up_to_it_then_its_pod(
    usual: bool, notes: JSON, hidden: bool
) -> None:
    asking = pod("p", container(**{GPU: 1, MEM: 10}), container("side"), annotations=notes)
    admitted = FitEnv([], HIDING[usual]).admit(asking).patched
    env = {each["name"]: each.get("value", "") for each in admitted["spec"]["containers"][1].get("env", [])}
    assert env.get("NVIDIA_VISIBLE_DEVICES") == ("none" if hidden else None)
    assert "NVIDIA_VISIBLE_DEVICES" not in json.dumps(admitted["spec"]["containers"][0])


def test_2_10_knows_nothing_of_that() -> None:
    asking = pod("p", container(**{GPU: 1, MEM: 10}), container("side"), annotations={OVERWRITE: "true"})
    admitted = FitEnv([], OLDER).admit(asking).patched
    assert all("NVIDIA_VISIBLE_DEVICES" not in json.dumps(each) for each in admitted["spec"]["containers"])


def test_a_huge_annotation_is_read_once_for_all_containers() -> None:
    """An attacker's: 256 KiB of JSON on a pod of many containers."""
    text = json.dumps({f"c{number}": "true" for number in range(15_000)})
    several = [container(f"side{number}") for number in range(200)]
    asking = pod("p", container(**{GPU: 1, MEM: 10}), *several, annotations={BY_CONTAINER: text})
    newer_annotations._by_container.cache_clear()
    assert FitEnv([], NEWER).admit(asking).message == ""
    assert newer_annotations._by_container.cache_info().misses == 1


# what is said


@pytest.mark.parametrize(
    ("notes", "older", "newer"),
    [
        ({"app": "a"}, (), ()),
        ({OVERWRITE: "true"}, (f"{OVERWRITE} has no effect",), ()),
        ({"amd.com/numa-bind": "true"}, ("amd.com/numa-bind has no effect",), ()),
        ({OVERWRITE: "yes"}, (f"{OVERWRITE} has no effect",), (f'{OVERWRITE}: "yes" is neither true nor false',)),
        ({BY_CONTAINER: "{"}, (f"{BY_CONTAINER} has no effect",), (f"{BY_CONTAINER} is ignored: write",)),
        (
            {BY_CONTAINER: '{"a": "x"}'},
            (f"{BY_CONTAINER} has no effect",),
            (f'{BY_CONTAINER}: that of "a" is neither',),
        ),
        ({PREFERENCE: "2g"}, (f"{PREFERENCE} has no effect",), ()),
        (
            {"hami.io/numa-alignment": "strict"},
            ("hami.io/numa-alignment isn't served",) * 1,
            ("hami.io/numa-alignment",),
        ),
        (
            {POLICY: "fastest"},
            (f'{POLICY}: "fastest" is no card policy and acts as spread',),
            (f'{POLICY}: "fastest" is no card policy, so the configured one applies',),
        ),
    ],
)
def test_annotations_without_the_effect_that_they_seem_to_have_are_warned_of(
    notes: JSON, older: tuple[str, ...], newer: tuple[str, ...]
) -> None:
    asking = pod("p", container(**{GPU: 1, MEM: 10}), annotations=notes)
    for vendors, expected in ((OLDER, older), (NEWER, newer)):
        found = suspicions(PodDraft(asking), (vendors["NVIDIA"],))
        assert len(found) == len(expected), found
        assert all(said.startswith(start) for said, start in zip(found, expected, strict=True)), found


# MIG

MANY = [
    *A100_PROFILES,
    {"name": "4g.20gb", "memoryMB": 20480, "core": 57, "sliceCount": 4, "placements": [{"start": 0, "size": 4}]},
]


def instances(env: FitEnv, name: str, mem: int, count: int = 1, prefer: str | None = None) -> list[tuple[str, int]]:
    asking = pod(name, container(**{GPU: count, MEM: mem}), annotations={} if prefer is None else {PREFERENCE: prefer})
    written = json.loads(env.placed(asking).annotations["hami.io/vgpu-mig-allocations"])
    return [(each["profile"], each["placement"]["start"]) for each in written]


def test_small_slices_leave_the_halves_of_a_card_whole() -> None:
    older, newer = (FitEnv([node(mig_card("m"))], vendors) for vendors in (OLDER, NEWER))
    assert instances(older, "a", 4000) == [("1g.5gb", 6)]
    assert instances(newer, "a", 4000) == [("1g.5gb", 0)]
    assert instances(newer, "b", 4000) == [("1g.5gb", 1)], "in the half that isn't whole any more, from outside"
    assert instances(newer, "c", 20000) == [("3g.20gb", 4)], "the half that fewest placements are in"
    assert instances(newer, "d", 4000, 2) == [("1g.5gb", 2), ("1g.5gb", 3)]


def test_a_preferred_profile_comes_first_and_falls_back() -> None:
    allowing = reading("2.11", "[1g.5gb, 2g.10gb, 3g.20gb, 7g.40gb]", "[3g.20gb, 4g.20gb]")
    env = FitEnv([node(mig_card("m", MANY))], allowing)
    assert env.waiting(pod("w", container(**{GPU: 1}), annotations={PREFERENCE: "4g"}))["limits.nvidia.com/gpu"] == 1
    assert instances(env, "a", 15000, prefer="4g.20gb") == [("4g.20gb", 0)]
    assert instances(env, "b", 15000, prefer="4g, 3g") == [("3g.20gb", 4)], "none of the first is free"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1g.5gb", ""),
        ("2g", ""),
        (" 2g , 1g.5gb ", ""),
        ("", f'invalid {PREFERENCE} annotation "": must list MIG profiles, as 4g.20gb or 4g'),
        (" , ", f'invalid {PREFERENCE} annotation " , ": must list MIG profiles, as 4g.20gb or 4g'),
        ("9g", f'invalid {PREFERENCE} annotation: "9g" is no profile that nvidia.migProfileAllowlist'),
        ("2g.", f'invalid {PREFERENCE} annotation: "2g." is no profile that nvidia.migProfileAllowlist'),
    ],
)
def test_a_preference_names_profiles_that_the_configuration_allows(text: str, message: str) -> None:
    asking = pod("p", container(**{GPU: 1, MEM: 10}), annotations={PREFERENCE: text})
    assert FitEnv([], NEWER).admit(asking).message.startswith(message)
    assert bool(FitEnv([], NEWER).admit(asking).message) == bool(message)
    assert FitEnv([], OLDER).admit(asking).message == ""


def test_a_preference_may_not_cost_more_than_what_is_left_over() -> None:
    """What a waiting pod is charged is the least: the profile that it prefers may be taken when it is placed."""
    env = FitEnv([node(mig_card("m"))], NEWER)
    asking = {
        key: pod("w", container(**{GPU: 1, "nvidia.com/gpumem-percentage": 10}), annotations=notes)
        for key, notes in (("plain", {}), ("preferring", {PREFERENCE: "7g"}))
    }
    assert env.waiting(asking["preferring"]) == env.waiting(asking["plain"])


PLACES = [mig.MigPlacement(start, size) for size in (1, 2, 4, 8) for start in range(0, 8, size)]


@given(st.lists(st.sampled_from(PLACES), min_size=1, max_size=10, unique=True), st.integers(0, 255), st.integers(1, 4))
def test_slices_of_one_profile_need_no_backtracking(places: list[mig.MigPlacement], occupied: int, count: int) -> None:
    """A container's slices are of one size, whose placements never overlap: in whatever order they are taken, as many
    find room as there is for.
    """
    size = places[0].size
    profile = mig.MigProfile("p", 1, 1, size, tuple([each for each in places if each.size == size]))
    free = [each for each in profile.placements if not each.mask & occupied]
    possible = any(
        not any(a.mask & b.mask for a, b in combinations(chosen, 2)) for chosen in combinations(free, min(count, 9))
    )
    taken = occupied
    for _ in range(count):
        left = [each for each in profile.placements if not each.mask & taken]
        if not left:
            break
        taken |= mig._best_by_region(left, taken, [profile]).mask
    else:
        assert possible
        return
    assert not possible


# AMD


@pytest.mark.parametrize(
    ("together", "cus"), [(None, 3), (2, 4), (2.0, 4), (304, 304), (1000, 304), (1, 3), (True, 3), ("2", 3)]
)
def test_compute_units_are_given_as_many_together_as_the_plugin_says(together: object, cus: int) -> None:
    custom: JSON = {} if together is None else {"cuPerWGP": together}
    for vendors in (OLDER, NEWER):
        env = FitEnv([amd("G0", custominfo=custom)], vendors)
        assert env.outcome(with_limits(1, 10, 1), "AMD").split(",")[3] == f"{cus}:;"


@pytest.mark.parametrize(
    ("vendors", "notes", "text"),
    [
        (NEWER, {}, "G0"),
        (NEWER, {"amd.com/numa-bind": "true"}, "1/2 AllocatedCardsInsufficientRequest, 1/2 NumaNotFit"),
        (NEWER, {"nvidia.com/numa-bind": "true"}, "G0"),
        (OLDER, {"amd.com/numa-bind": "true"}, "G0"),
    ],
)
def test_cards_of_one_numa_node(vendors: Vendors, notes: JSON, text: str) -> None:
    cards = json.loads(amd("G0", "G1").annotations[REGISTER])
    cards[1]["numa"] = 1
    on = read_node("amd-1", capacity={COUNT: 20}, **{REGISTER: json.dumps(cards)})
    assert text in FitEnv([on], vendors).outcome(with_limits(2, **notes), "AMD")
