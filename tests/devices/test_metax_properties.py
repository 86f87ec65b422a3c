"""The rules of sGPU cards against a plain reading of them, on random nodes (docs/spec/metax.md#7 and #8)."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from hami_webhook.devices.debit import per_device
from hami_webhook.devices.model import Device, NodeView, PodUsage, Usage
from hami_webhook.devices.reasons import Rejection
from hami_webhook.devices.vendors.metax.linkzones import topology_score
from hami_webhook.devices.vendors.metax.qos import SgpuCard
from hami_webhook.kube.objects import Pod
from hami_webhook.scheduling.fit import NodeFit, fit_pod, read_pod_request

from .cards import Room, room
from .fit_env import CHART, JSON, FitEnv, pod
from .metaxes import APP_CLASS, CARD_POLICY, QOS, g, one, pod_with_limits, sgpu_node

KEY = "Metax-SGPU"
KINDS = ("best-effort", "fixed-share", "burst-share")
CLASSES = ("", "online", "offline")


@st.composite
def tenants(draw: st.DrawFn) -> PodUsage:
    app = draw(st.sampled_from(("", "", "", "online", "offline")))
    notes = {QOS: draw(st.sampled_from(KINDS)), **({APP_CLASS: app} if app else {})}
    cores = 0 if app == "online" else draw(st.sampled_from((0, 10, 50, 100)))
    return PodUsage(
        Pod.from_object(pod_with_limits("t", notes)), draw(st.integers(1, 2)), draw(st.integers(0, 20000)), cores
    )


@st.composite
def nodes(draw: st.DrawFn, most: int = 6) -> NodeView:
    cards, usage = [], {}
    for number in range(draw(st.integers(1, most))):
        uuid = f"G{number}"
        cards.append(
            g(
                uuid,
                draw(st.sampled_from((-1, 0, 1, 1, 2, 2, 3))),
                numa=draw(st.integers(-1, 1)),
                healthy=draw(st.sampled_from((True, True, True, True, None))),
                totalDevCount=draw(st.sampled_from((0, 2, 4, 16, 16))),
                totalVRam=draw(st.sampled_from((32768, 65536, 65536))),
                totalCompute=draw(st.sampled_from((100, 100, 100, 200, 0))),
                qosPolicy=draw(st.sampled_from(("", *KINDS))),
            )
        )
        holders = draw(st.lists(tenants(), max_size=3)) if draw(st.booleans()) else []
        if holders:
            usage[KEY, uuid] = Usage(
                sum(h.slots for h in holders),
                sum(h.memory for h in holders),
                sum(h.cores for h in holders),
                tuple(holders),
            )
    on = sgpu_node(*cards)
    inventory = CHART[KEY].inventory(on)
    assert inventory is not None
    return NodeView(on, {KEY: inventory}, usage)


def ask_fit(on: NodeView, manifest: JSON, budget: Room | None = None) -> NodeFit | Rejection:
    ask = read_pod_request(Pod.from_object(manifest), CHART, "spread")
    assert ask is not None
    return fit_pod(on, ask, CHART, budget)


# the checks, card by card


def may_have(on: NodeView, device: Device, app: str, qos: str, cores: int, memory: int | None) -> str:
    """The label by which one card refuses a container; empty if it doesn't. Straight from the page's table."""
    usage = on.used(KEY, device.uuid)
    apps = [holder.pod.annotations.get(APP_CLASS, "") for holder in usage.holders]
    if not device.healthy:
        return "CardUnhealthy"
    if usage.slots:
        ordinary_card = not any(apps)
        if (app == "") != ordinary_card or (app == "offline" and "online" in apps):
            return "CardAppClassMismatch"
    if app != "online" and usage.slots and cores != 100:
        said = {h.pod.annotations[QOS] for h in usage.holders
                if h.cores < 100 and h.pod.annotations.get(APP_CLASS) != "online"}  # fmt: skip
        registered = device.extra.qos
        if len(said) > 1:
            fits = registered in said and registered == qos
        else:
            fits = (said.pop() if said else registered) in ("", qos)
        if not fits:
            return "CardQosPolicyMismatch"
    if device.slots <= usage.slots:
        return "CardTimeSlicingExhausted"
    if device.memory - usage.memory < (device.memory if memory is None else memory):
        return "CardInsufficientMemory"
    if app != "online":
        if device.cores - usage.cores < cores:
            return "CardInsufficientCore"
        if device.cores == 100 == cores and usage.slots > 0:
            return "ExclusiveDeviceAllocateConflict"
        if cores == 0 and device.cores and usage.cores >= device.cores:
            return "CardComputeUnitsExhausted"
    return ""


@given(
    nodes(most=1),
    st.sampled_from(CLASSES),
    st.sampled_from(KINDS),
    st.sampled_from((0, 10, 50, 100, 150)),
    st.sampled_from((None, 4, 20, 60)),
)
def test_a_card_is_refused_for_the_first_reason_of_the_table(
    on: NodeView, app: str, qos: str, cores: int, gib: int | None
) -> None:
    notes = {QOS: qos, **({APP_CLASS: app} if app else {})}
    amounts = {"vcore": cores} if gib is None else {"vcore": cores, "vmemory": gib}
    (device,) = on.inventories[KEY].devices
    label = may_have(on, device, app, qos, cores, None if gib is None else gib * 1024)
    found = ask_fit(on, pod_with_limits("p", notes, **amounts))
    assert str(found) == f"1/1 {label}" if label else isinstance(found, NodeFit)


# the choice among the cards that may be had


def tried(on: NodeView, app: str, cores: int, amounts: JSON, notes: dict[str, str]) -> list[Device]:
    """The cards that may be had, in the order they are tried: asked of Fit one after another."""
    left = [d.uuid for d in on.inventories[KEY].devices]
    order: list[Device] = []
    by_uuid = {d.uuid: d for d in on.inventories[KEY].devices}
    while left:
        # an offline class isn't needed to see the order: below 100 cores the first in order is taken
        found = ask_fit(on, pod_with_limits("p", {**notes, "metax-tech.com/use-gpuuuid": ",".join(left)}, **amounts))
        if isinstance(found, Rejection):
            break
        uuid = found.rows[0][KEY].devices[0].uuid
        order.append(by_uuid[uuid])
        left.remove(uuid)
    return order


def by_zones(order: list[Device], count: int) -> list[str]:
    """The link-zone tree, read aloud."""
    if len(order) == count:
        return [d.uuid for d in order]
    zones: list[list[Device]] = []
    for device in order:
        if device.extra.zone > 0:
            mates = next((zone for zone in zones if zone[0].extra.zone == device.extra.zone), None)
            if mates is None:
                zones.append([device])
            else:
                mates.append(device)
    for size in range(count, len(order) + 1):
        for zone in zones:
            if len(zone) == size:
                return [d.uuid for d in zone[:count]]
    linked = [d for size in range(1, len(order) + 1) for zone in zones if len(zone) == size for d in zone]
    unlinked = [d for d in order if d.extra.zone <= 0]
    return [d.uuid for d in [*linked, *unlinked][:count]]


@given(st.lists(st.sampled_from((-1, 0, 1, 1, 2, 2, 3, 3)), min_size=1, max_size=8), st.integers(1, 6), st.data())
def test_whole_compute_follows_the_link_zone_tree(zones: list[int], count: int, data: st.DataObject) -> None:
    busy = data.draw(st.sets(st.integers(0, len(zones) - 1)))
    cards = [g(f"G{n}", zone, numa=data.draw(st.integers(0, 1))) for n, zone in enumerate(zones)]
    on = sgpu_node(*cards)
    inventory = CHART[KEY].inventory(on)
    assert inventory is not None
    holder = PodUsage(Pod.from_object(pod_with_limits("t", {QOS: KINDS[0]})), 1, 1024, 10)
    view = NodeView(on, {KEY: inventory}, {(KEY, f"G{n}"): Usage(1, 1024, 10, (holder,)) for n in busy})
    free = [d for n, d in enumerate(inventory.devices) if n not in busy]
    order = sorted(free, key=lambda d: (-d.numa, -d.index))  # all free cards are equally idle
    found = ask_fit(view, pod_with_limits(sgpu=count))
    if len(order) < count:
        assert isinstance(found, Rejection)
        return
    assert isinstance(found, NodeFit)
    assert [d.uuid for d in found.rows[0][KEY].devices] == by_zones(order, count)


@given(nodes())
def test_an_online_pod_takes_the_card_it_disturbs_least(on: NodeView) -> None:
    notes = {APP_CLASS: "online"}
    found = ask_fit(on, pod_with_limits("p", notes, vmemory=4))
    fits = [d for d in on.inventories[KEY].devices if not may_have(on, d, "online", "", 0, 4096)]
    if not fits:
        assert isinstance(found, Rejection)
        return
    assert isinstance(found, NodeFit)

    def disturbance(device: Device) -> tuple[bool, int, int]:
        apps = [h.pod.annotations.get(APP_CLASS, "") for h in on.used(KEY, device.uuid).holders]
        return (apps.count("online") == 0 < apps.count("offline"), apps.count("online"), apps.count("offline"))

    (taken,) = found.rows[0][KEY].devices
    assert disturbance(next(d for d in fits if d.uuid == taken.uuid)) == min(map(disturbance, fits))


@given(nodes(), st.integers(1, 4), st.sampled_from((0, 10, 50)))
def test_a_share_of_compute_takes_the_first_cards_in_the_order_tried(on: NodeView, count: int, cores: int) -> None:
    amounts, notes = {"vcore": cores, "vmemory": 2}, {QOS: KINDS[0]}
    order = tried(on, "", cores, amounts, notes)
    assert {d.uuid for d in order} == {
        d.uuid for d in on.inventories[KEY].devices if not may_have(on, d, "", KINDS[0], cores, 2048)
    }
    found = ask_fit(on, pod_with_limits("p", notes, sgpu=count, **amounts))
    if len(order) < count:
        assert isinstance(found, Rejection)
    else:
        assert isinstance(found, NodeFit)
        assert [d.uuid for d in found.rows[0][KEY].devices] == [d.uuid for d in order[:count]]


# the score


@given(st.lists(st.sampled_from((-2, 0, 1, 2, 3)), min_size=1, max_size=9), st.data())
def test_the_topology_score_counts_pairs(zones: list[int], data: st.DataObject) -> None:
    """10 · 10 for each linked pair within, 10 off for each linked pair torn apart."""
    cards = [Device(KEY, f"c{n}", n, 1, 1, 100, KEY, extra=SgpuCard("", zone)) for n, zone in enumerate(zones)]
    inside = data.draw(st.sets(st.integers(0, len(cards) - 1), min_size=1))
    expected = 0
    for x, y in combinations(range(len(cards)), 2):
        if zones[x] == zones[y] > 0:
            among = (x in inside) + (y in inside)
            expected += {2: 100, 1: -10, 0: 0}[among]
    assert topology_score(cards, [cards[n] for n in sorted(inside)]) == expected


# Fit as a whole

shares = st.fixed_dictionaries(
    {"sgpu": st.sampled_from((0, 1, 1, 2, 3))},
    optional={"vcore": st.sampled_from((0, 10, 60, 100)), "vmemory": st.sampled_from((1, 8, "3000Mi"))},
)


@st.composite
def pods(draw: st.DrawFn, name: str = "p") -> JSON:
    app = draw(st.sampled_from(CLASSES))

    def amounts() -> JSON:
        found = draw(shares)
        return {**found, "sgpu": min(found["sgpu"], 1)} if app else found

    inits = [one(f"i{n}", sidecar=draw(st.booleans()), **amounts()) for n in range(draw(st.integers(0, 2)))]
    apps = [one(f"a{n}", **amounts()) for n in range(draw(st.integers(0, 2)))]
    last = one("last", sgpu=1, vcore=draw(st.sampled_from((0, 20, 100))), vmemory=1)
    notes = {
        CARD_POLICY: draw(st.sampled_from(("binpack", "spread", "mutex", "numa", "topology-aware"))),
        QOS: draw(st.sampled_from(KINDS)),
        **({APP_CLASS: app} if app else {}),
    }
    return pod(name, *apps, last, init=inits, annotations=notes)


@given(nodes(), pods(), st.none() | st.integers(2000, 150000))
def test_fit_never_oversells_a_card_nor_the_quota(on: NodeView, manifest: JSON, memory: int | None) -> None:
    asked = Pod.from_object(manifest)
    budget = None if memory is None else room(asked, memory=memory)
    found = ask_fit(on, manifest, budget)
    if isinstance(found, Rejection):
        assert str(found)
        return
    cards = {d.uuid: d for d in on.inventories[KEY].devices}
    online = asked.annotations.get(APP_CLASS) == "online"
    for (vendor, uuid), debit in per_device(found.claims(), asked.kinds).items():
        device, taken = cards[uuid], on.used(vendor, uuid)
        assert device.healthy
        assert taken.slots + debit.slots <= device.slots
        assert taken.memory + debit.memory <= device.memory
        assert debit.cores == 0 if online else taken.cores + debit.cores <= device.cores
    if budget is not None:
        assert budget.admits(found.claims())
    for item, row in zip(asked.containers, found.rows, strict=True):
        given = [d.uuid for d in row[KEY].devices] if row else []
        assert len(set(given)) == len(given) == int(item.limits["metax-tech.com/sgpu"])


@given(st.data())
def test_what_is_placed_here_never_mixes_classes_or_kinds_of_qos(data: st.DataObject) -> None:
    """Whatever comes and goes, two kinds of QoS never meet on a card, nor ordinary and classed pods."""
    env = FitEnv([sgpu_node(*(g(f"G{n}", n % 2, totalDevCount=4) for n in range(3)))])
    there: list[str] = []
    for number in range(data.draw(st.integers(1, 8))):
        if there and data.draw(st.integers(0, 3)) == 0:
            env.remove(there.pop(data.draw(st.integers(0, len(there) - 1))))
            continue
        name = f"p{number}"
        if not isinstance(env.place(data.draw(pods(name))), dict):
            there.append(name)
        (view,) = env.state.views()
        for device in view.inventories[KEY].devices:
            holders = view.used(KEY, device.uuid).holders
            apps = {holder.pod.annotations.get(APP_CLASS, "") for holder in holders}
            assert "" not in apps or apps == {""}
            kinds = {h.pod.annotations[QOS] for h in holders
                     if h.cores < 100 and h.pod.annotations.get(APP_CLASS) != "online"}  # fmt: skip
            assert len(kinds) <= 1
