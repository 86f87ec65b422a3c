"""Which sGPU cards a pod may have, gets, and how its node is scored (docs/spec/metax.md#7, #8, #11, #13)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tables import in_one_test

from hami_webhook.devices.model import Device, NodeView, PodUsage, Usage
from hami_webhook.devices.pod_fit import NodeFit, fit_pod
from hami_webhook.devices.reasons import Rejection
from hami_webhook.devices.registry import Vendors
from hami_webhook.devices.vendors.metax.qos import SgpuCard
from hami_webhook.devices.vendors.metax.sgpu import topology_score
from hami_webhook.scheduling.scoring import node_score, score

from .cards import room
from .fit_env import CHART, JSON, FitEnv, asked, configured, pod
from .metaxes import (
    APP_CLASS,
    AWARE,
    CARD_POLICY,
    NODE_POLICY,
    OFFLINE,
    ONLINE,
    QOS,
    cards_of,
    chosen,
    g,
    one,
    placed,
    pod_with_limits,
    sgpu_node,
    tenant,
    used,
    view,
    zoned,
)

KEY = "Metax-SGPU"
KINDS = BEST, FIXED, BURST = "best-effort", "fixed-share", "burst-share"


def fitted(on: NodeView, manifest: JSON, **limits: int) -> list[list[str]] | str:
    """The cards of each container, or the refusal; within a quota of MiB, cores or slots."""
    ask = asked(manifest)
    found = fit_pod(on, ask, CHART, room(ask.pod, **limits) if limits else None)
    if isinstance(found, Rejection):
        return str(found)
    return [[device.uuid for device in row[KEY].devices] if row else [] for row in found.rows]


# checks, in their order


def test_class_and_qos_are_looked_at_after_health_and_before_all_else() -> None:
    """Each card fails its check and all that come after."""
    crowd = used(tenant(99, 65536, 16, qos=FIXED, app="offline"))
    others = used(tenant(99, 65536, 16, qos=FIXED))
    on = view(g("sick", healthy=False), g("classed"), g("qos"), g("listed"), sick=crowd, classed=crowd, qos=others,
              listed=used(tenant(99, 65536, 16)))  # fmt: skip
    notes = {"metax-tech.com/nouse-gpuuuid": "listed, qos, classed", CARD_POLICY: "mutex"}
    assert fitted(on, pod_with_limits(notes=notes, vcore=50, vmemory=1)) == (
        "1/4 CardAppClassMismatch, 1/4 CardQosPolicyMismatch, 1/4 CardUnhealthy, 1/4 CardUuidMismatch"
    )


def test_an_online_pod_needs_memory_and_a_slot_but_no_cores() -> None:
    full = used(tenant(100, app="online"))
    for vcore in (0, 60, 100, 150):
        assert fitted(view(g("A"), A=full), pod_with_limits(notes=ONLINE, vcore=vcore, vmemory=4)) == [["A"]]
        over = used(tenant(120, app="online"))
        assert fitted(view(g("A"), A=over), pod_with_limits(notes=ONLINE, vcore=vcore, vmemory=4)) == [["A"]]
    assert fitted(view(g("A"), A=full), pod_with_limits(notes=ONLINE)) == "1/1 CardInsufficientMemory"
    crowded = used(tenant(0, slots=16, app="online"))
    assert fitted(view(g("A"), A=crowded), pod_with_limits(notes=ONLINE, vmemory=4)) == "1/1 CardTimeSlicingExhausted"


# classes and QoS


@pytest.mark.parametrize(
    ("there", "ordinary", "online", "offline"),
    [
        ([], True, True, True),
        ([""], True, False, False),
        (["online"], False, True, False),
        (["offline"], False, True, True),
        (["offline", "online"], False, True, False),
        (["", "online"], False, True, False),
        (["", "offline"], False, True, True),
        (["Online"], True, False, False),
    ],
)
def test_who_joins_whom(there: list[str], ordinary: bool, online: bool, offline: bool) -> None:
    on = view(g("A"), A=used(*(tenant(10, app=app) for app in there)))
    for notes, fits in (({}, ordinary), (ONLINE, online), (OFFLINE, offline)):
        answer = fitted(on, pod_with_limits(notes=notes, vcore=10, vmemory=1))
        assert answer == ([["A"]] if fits else "1/1 CardAppClassMismatch")


@in_one_test(
    ("registered", "holders", "takes"),
    [
        (FIXED, [], {BEST, FIXED, BURST}),
        ("", [], {BEST, FIXED, BURST}),
        (FIXED, [tenant(qos=FIXED)], {FIXED}),
        # the plugin writes the annotation late, so the pods are the authority
        (BEST, [tenant(qos=FIXED)], {FIXED}),
        ("", [tenant(qos=FIXED)], {FIXED}),
        # nobody says: a pod with all cores has no QoS, an online one neither
        (FIXED, [tenant(0, qos=BURST, slots=1), tenant(100, qos=BEST)], {BURST}),
        # pods that disagree come from outside
        (FIXED, [tenant(qos=FIXED), tenant(qos=BEST)], {FIXED}),
        (BURST, [tenant(qos=FIXED), tenant(qos=BEST)], set()),
        ("", [tenant(qos=FIXED), tenant(qos=BEST)], set()),
        # a pod with all of a smaller card's cores tells nothing, so the node does
        *((registered, [tenant(100, qos=BURST)], {registered}) for registered in KINDS),
        ("", [tenant(100, qos=BURST)], {BEST, FIXED, BURST}),
        ("other", [tenant(100, qos=BURST)], set()),
    ],
)
def test_one_kind_of_qos_at_a_time(registered: str, holders: list[PodUsage], takes: set[str]) -> None:
    on = view(g("A", qosPolicy=registered, totalCompute=200), A=used(*holders))
    for qos in (BEST, FIXED, BURST):
        answer = fitted(on, pod_with_limits(notes={QOS: qos}, vcore=10, vmemory=1))
        assert answer == ([["A"]] if qos in takes else "1/1 CardQosPolicyMismatch")


def test_an_online_pods_qos_is_not_looked_at_neither_way() -> None:
    on = view(g("A", qosPolicy=FIXED), A=used(tenant(0, qos=BURST, app="online"), tenant(20, qos=FIXED, app="offline")))
    assert fitted(on, pod_with_limits(notes={**ONLINE, QOS: BEST}, vmemory=1)) == [["A"]]
    alone = view(g("A", qosPolicy=FIXED), A=used(tenant(20, qos=BURST, app="offline")))
    assert fitted(alone, pod_with_limits(notes={**OFFLINE, QOS: BURST}, vcore=1, vmemory=1)) == [["A"]]


def test_a_second_container_joins_the_first_whatever_the_node_says() -> None:
    """The card counts as used with the pod's own QoS and class (HAMi refuses both)."""
    two = (one("a", sgpu=1, vcore=30, vmemory=1), one("b", sgpu=1, vcore=30, vmemory=1))
    on = view(g("A", qosPolicy=FIXED))
    assert fitted(on, pod("p", *two, annotations={QOS: BURST})) == [["A"], ["A"]]
    for notes in (ONLINE, OFFLINE):
        assert fitted(view(g("A")), pod("p", *two, annotations=notes)) == [["A"], ["A"]]


def test_after_all_cores_a_card_has_no_qos_for_the_next_container() -> None:
    containers = (one("a", sgpu=1, vcore=100, vmemory=1), one("b", sgpu=1, vcore=30, vmemory=1))
    assert fitted(view(g("A", qosPolicy=FIXED, totalCompute=200)), pod("p", *containers)) == [["A"], ["A"]]
    assert fitted(view(g("A", qosPolicy=FIXED)), pod("p", *containers)) == "1/1 CardInsufficientCore"
    beside = view(g("A", qosPolicy=BEST, totalCompute=200), A=used(tenant(50, qos=FIXED)))
    assert fitted(beside, pod("p", *containers)) == "1/1 CardQosPolicyMismatch"


def test_the_qos_of_a_card_changes_with_its_pods() -> None:
    """Nothing about it is remembered: not after a restart, not when the pod is gone."""
    env = FitEnv([sgpu_node(g("A", qosPolicy=BEST))])
    placed(env, pod_with_limits("a", {QOS: FIXED}, vcore=10, vmemory=1))
    assert env.place(pod_with_limits("b", {QOS: BURST}, vcore=10, vmemory=1)) == {"n1": "1/1 CardQosPolicyMismatch"}
    env.remove("a")
    placed(env, pod_with_limits("b", {QOS: BURST}, vcore=10, vmemory=1))


# choice


def test_the_first_cards_in_the_order_tried_are_taken_without_all_cores_or_with_a_class() -> None:
    cards = zoned(2, 2, 1, 1, 1)
    assert chosen(FitEnv([sgpu_node(*cards)]), pod_with_limits(sgpu=2, vcore=99, vmemory=1)) == ["G5", "G4"]
    assert chosen(FitEnv([sgpu_node(*cards)]), pod_with_limits(notes=OFFLINE)) == ["G5"]
    assert chosen(FitEnv([sgpu_node(*cards)]), pod_with_limits()) == ["G2"]
    fewer = FitEnv([sgpu_node(*cards)])
    assert chosen(fewer, pod_with_limits(notes={CARD_POLICY: "binpack"}, sgpu=2, vcore=1, vmemory=1)) == ["G5", "G4"]


def test_cards_of_a_zone_are_linked() -> None:
    found = view(*zoned(2, 1, 0, 2, 3, 1, 0)).inventories[KEY]
    assert CHART[KEY].link_groups(found) == [["G2", "G6"], ["G1", "G4"]]


def test_an_online_pod_goes_where_it_disturbs_least() -> None:
    def ranked(**usage: Usage) -> list[str]:
        names, found = sorted(usage), []
        while names:
            on = view(*(g(name) for name in names), **{name: usage[name] for name in names})
            answer = fitted(on, pod_with_limits(notes=ONLINE, vmemory=1))
            assert isinstance(answer, list)
            found.append(answer[0][0])
            names.remove(found[-1])
        return found

    online, offline = tenant(0, app="online"), tenant(1, app="offline")
    assert ranked(
        a=used(offline),
        b=used(offline, offline),
        c=used(online, online),
        d=used(online, offline, offline),
        e=used(online, offline),
        f=used(online),
        g=used(),
    ) == ["g", "f", "e", "d", "c", "a", "b"]
    assert fitted(view(g("a"), g("b")), pod_with_limits(notes=ONLINE, vmemory=1)) == [["b"]]


# quota in the choice


def test_a_zone_that_quota_forbids_is_left_for_one_it_allows() -> None:
    big, small = {"totalVRam": 65536}, {"totalVRam": 32768}
    on = view(g("A", 1, **big), g("B", 1, **big), g("C", 2, **small), g("D", 2, **small), g("E", 2, **big))
    assert fitted(on, pod_with_limits(sgpu=2)) == [["B", "A"]]
    assert fitted(on, pod_with_limits(sgpu=2), memory=100000) == [["E", "D"]]
    assert fitted(on, pod_with_limits(sgpu=2), memory=65536) == [["D", "C"]]
    assert fitted(on, pod_with_limits(sgpu=3), memory=140000) == [["E", "D", "C"]]
    assert fitted(on, pod_with_limits(sgpu=2), memory=65535) == "5/5 ResourceQuotaNotFit"


def test_the_cheapest_cards_over_all_zones_are_found() -> None:
    on = view(
        g("A", 1, totalVRam=40000), g("B", 2, totalVRam=65536), g("C", 0, totalVRam=10000), g("D", 0, totalVRam=10000)
    )
    assert fitted(on, pod_with_limits(sgpu=2), memory=20000) == [["D", "C"]]
    on = view(g("A", 1, totalVRam=12000), g("C", 0, totalVRam=8000), g("D", 0, totalVRam=8000))
    assert fitted(on, pod_with_limits(sgpu=2), memory=17000) == [["D", "C"]]


# node score


def device(uuid: str, zone: int) -> Device:
    return Device(KEY, uuid, 0, 16, 65536, 100, KEY, extra=SgpuCard("", zone))


@pytest.mark.parametrize(
    ("idle", "chosen_", "expected"),
    [
        ((1, 1, 1, 1), (0,), -30),
        ((1, 1, 1, 1), (0, 1), 60),
        ((1, 1), (0, 1), 100),
        ((1, 1, 1, 1), (0, 1, 2, 3), 600),
        ((1, 2), (0, 1), 0),
        ((1, 1, 1, 2, 2), (0, 1, 3, 4), 180),
        ((1, 1, 1, 1, 2, 2, 2, 2), tuple(range(8)), 1200),
        ((0, 0, 0), (0, 1), 0),
    ],
)
def test_check_values_of_the_topology_score(idle: tuple[int, ...], chosen_: tuple[int, ...], expected: int) -> None:
    cards = [device(f"c{position}", zone) for position, zone in enumerate(idle)]
    assert topology_score(cards, [cards[position] for position in chosen_]) == expected


def scored(on: NodeView, manifest: JSON, vendors: Vendors = CHART) -> float:
    """The node's score for the pod, less what its usage gives."""
    ask = asked(manifest)
    found = fit_pod(on, ask, CHART, None)
    assert isinstance(found, NodeFit), str(found)
    return score(found, on, ask, vendors, "binpack") - node_score(on)


AWARE_VENDORS = configured("metax: {resourceVCountName: metax-tech.com/sgpu, sgpuTopologyAware: 'true'}")


@in_one_test(
    ("notes", "aware", "merit"),
    [
        ({}, False, 0),
        ({}, True, 60),
        *(({AWARE: text}, False, 60) for text in ("1", "t", "T", "TRUE", "true", "True")),
        *(({AWARE: text}, True, 0) for text in ("0", "f", "F", "FALSE", "false", "False")),
        ({AWARE: "yes"}, True, 60),
        ({AWARE: "yes"}, False, 0),
        ({AWARE: ""}, True, 60),
    ],
)
def test_who_decides_whether_topology_counts(notes: dict[str, str], aware: bool, merit: int) -> None:
    on = view(*zoned(1, 1, 1, 1))
    assert scored(on, pod_with_limits(notes=notes, sgpu=2), AWARE_VENDORS if aware else CHART) == merit * 10000


@pytest.mark.parametrize(("policy", "sign"), [("binpack", 1), ("spread", -1), ("other", 1), ("Spread", 1)])
def test_binpack_adds_and_spread_subtracts(policy: str, sign: int) -> None:
    on = view(*zoned(1, 1, 1, 1))
    assert scored(on, pod_with_limits(notes={AWARE: "1", NODE_POLICY: policy}, sgpu=2)) == sign * 600000


@pytest.mark.parametrize("policy", ["binpack", "spread"])
def test_in_both_policies_the_better_linked_node_wins_whatever_its_usage(policy: str) -> None:
    """Issue 1062 had it the other way round for spread."""
    loose = sgpu_node(*zoned(1, 2, 0, name="L"), name="a-loose")
    tight = sgpu_node(*zoned(1, 1, 0, name="T"), name="b-tight")
    for busy in ("L3", "T3"):
        env = FitEnv([loose, tight])
        placed(env, pod_with_limits("busy", {"metax-tech.com/use-gpuuuid": busy}))
        notes = {AWARE: "true", NODE_POLICY: policy}
        assert placed(env, pod_with_limits("p", notes, sgpu=2), keep=False).node == "b-tight"
        usage_decides = placed(env, pod_with_limits("q", {NODE_POLICY: policy}, sgpu=2), keep=False).node
        assert usage_decides == {"binpack": {"L3": "a-loose", "T3": "b-tight"},
                                 "spread": {"L3": "b-tight", "T3": "a-loose"}}[policy][busy]  # fmt: skip


def test_only_cards_given_with_all_cores_count() -> None:
    on = view(*zoned(1, 1, 1, 1))
    assert scored(on, pod_with_limits(notes={AWARE: "1"}, sgpu=2, vcore=99)) == 0
    mixed = pod("p", one("a", sgpu=1, vcore=99, vmemory=1), one("b", sgpu=2, vcore=100), annotations={AWARE: "1"})
    assert scored(on, mixed) == 600000


def test_idle_are_cards_without_a_task_healthy_or_not() -> None:
    sick = [*zoned(1, 1), g("G3", 1, healthy=False), g("G4", 1), g("G5", 0)]
    on = view(*sick, G4=used(tenant(1)))
    # two taken of three idle: 100 less two pairs torn apart
    assert scored(on, pod_with_limits(notes={AWARE: "1"}, sgpu=2)) == 80 * 10000


@pytest.mark.parametrize(
    ("holders", "merit"),
    [
        ([], 0),
        (["online"], -20),
        (["online", "online", "offline"], -42),
        (["offline"], -100),
        (["offline", "offline"], -200),
    ],
)
def test_an_online_pod_scores_by_the_pods_there(holders: list[str], merit: int) -> None:
    on = view(g("A", 1), g("B", 1), A=used(*(tenant(1, app=app) for app in holders)))
    for name, sign in (("binpack", 1), ("spread", -1)):
        notes = {**ONLINE, NODE_POLICY: name, AWARE: "true", "metax-tech.com/use-gpuuuid": "A"}
        assert scored(on, pod_with_limits(notes=notes, vmemory=1)) == sign * merit * 10000


def test_an_online_pod_scores_each_card_once_and_not_itself() -> None:
    on = view(g("A"), A=used(tenant(1, app="online")))
    two = (one("a", sgpu=1, vmemory=1), one("b", sgpu=1, vmemory=1))
    assert scored(on, pod("p", *two, annotations=ONLINE)) == -20 * 10000


def test_the_policy_called_topology_aware_leaves_the_choice_of_node_to_the_score() -> None:
    env = FitEnv([sgpu_node(*zoned(1, 1, 1, 1), name="a"), sgpu_node(*zoned(1, 1, name="H"), name="b")])
    assert placed(env, pod_with_limits(notes={CARD_POLICY: "topology-aware"}, sgpu=2), keep=False).node == "a"
    notes = {CARD_POLICY: "topology-aware", AWARE: "true"}
    assert cards_of(placed(env, pod_with_limits(notes=notes, sgpu=2)))[0] == ["H2", "H1"]


# the rules read literally, on random nodes


def sharing(usage: Usage) -> list[PodUsage]:
    """The pods on a card that have a QoS."""
    return [each for each in usage.holders if each.cores < 100 and each.pod.annotations.get(APP_CLASS) != "online"]


def by_zones(order: list[tuple[str, int]], count: int) -> list[str]:
    """The link-zone tree, read aloud; cards as (uuid, zone) in the order tried."""
    if len(order) == count:
        return [uuid for uuid, _ in order]
    zones: dict[int, list[str]] = {}
    for uuid, zone in order:
        if zone > 0:
            zones.setdefault(zone, []).append(uuid)
    by_size = sorted(zones.values(), key=len)
    for cards in by_size:
        if len(cards) >= count:
            return cards[:count]
    return [*(uuid for cards in by_size for uuid in cards), *(uuid for uuid, zone in order if zone <= 0)][:count]


@given(st.lists(st.sampled_from((-1, 0, 1, 1, 2, 2, 3, 3)), min_size=1, max_size=8), st.integers(1, 6), st.data())
def test_whole_compute_follows_the_link_zone_tree(zones: list[int], count: int, data: st.DataObject) -> None:
    busy = data.draw(st.sets(st.integers(0, len(zones) - 1)))
    cards = [g(f"G{n}", zone, numa=data.draw(st.integers(0, 1))) for n, zone in enumerate(zones)]
    answer = fitted(view(*cards, **{f"G{n}": used(tenant()) for n in busy}), pod_with_limits(sgpu=count))
    free = [n for n in range(len(zones)) if n not in busy]
    order = sorted(free, key=lambda n: (-cards[n]["numa"], -n))  # all free cards are equally idle
    if len(order) < count:
        assert isinstance(answer, str)
    else:
        assert answer == [by_zones([(f"G{n}", zones[n]) for n in order], count)]


@given(st.data())
def test_what_is_placed_here_never_mixes_classes_or_kinds_of_qos(data: st.DataObject) -> None:
    """Whatever comes and goes, two kinds of QoS never meet on a card, nor ordinary and classed pods."""
    env = FitEnv([sgpu_node(*(g(f"G{n}", n % 2, totalDevCount=4) for n in range(3)))])
    there: list[str] = []
    for number in range(data.draw(st.integers(1, 8))):
        if there and data.draw(st.integers(0, 3)) == 0:
            env.remove(there.pop(data.draw(st.integers(0, len(there) - 1))))
            continue
        cores = data.draw(st.lists(st.sampled_from((0, 20, 60, 100)), min_size=1, max_size=3))
        notes = {QOS: data.draw(st.sampled_from(KINDS))} | data.draw(st.sampled_from(({}, ONLINE, OFFLINE)))
        apps = [one(f"a{n}", sgpu=1, vcore=each, vmemory=1) for n, each in enumerate(cores)]
        if not isinstance(env.place(pod(f"p{number}", *apps, annotations=notes)), dict):
            there.append(f"p{number}")
        (on,) = env.state.views()
        for device in on.inventories[KEY].devices:
            usage = on.used(KEY, device.uuid)
            apps_there = {holder.pod.annotations.get(APP_CLASS, "") for holder in usage.holders}
            assert "" not in apps_there or apps_there == {""}
            assert len({holder.pod.annotations[QOS] for holder in sharing(usage)}) <= 1
