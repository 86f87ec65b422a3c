"""Kunlunxin's choice of cards on random nodes: what section 7 of its page says, read literally; nothing oversold."""

from itertools import combinations

from builders import container
from hypothesis import given
from hypothesis import strategies as st

from hami_webhook.devices.codecs import decode_pod_devices
from hami_webhook.devices.debit import Debit, per_device
from hami_webhook.devices.model import NodeView, Usage
from hami_webhook.devices.reasons import Rejection
from hami_webhook.kube.objects import ContainerKind, Pod
from hami_webhook.quota.budget import PodBudget
from hami_webhook.scheduling.fit import fit_pod, read_pod_request

from . import xpus
from .fit_env import CHART, NOW, pod
from .xpus import HALF, MEM, QUARTER, VXPU, WHOLE, XPU, card, kl, server, slices, with_limits

COUNTS = st.integers(1, 8)
SIZES = st.sampled_from([QUARTER, QUARTER, HALF, WHOLE])
FOURS = [{0, 1, 4, 5}, {2, 3, 6, 7}, {0, 2, 4, 6}, {1, 3, 5, 7}, {0, 3, 4, 7}, {1, 2, 5, 6}]
ORDER = {1: [1, 3, 2, 4], 2: [2, 3, 4], 3: [3, 4], 4: [4]}


# the rules, read literally: of all sets of the count those that may be, and of those the first


def rank(chosen, fitting, shared, *, sliced):
    """A set's place in the order of preference; None if it may not be."""
    count, left = len(chosen), {i for i in fitting if i < 4}
    right = set(fitting) - left
    mine = set(chosen)
    if count == 1 and shared and not mine <= shared:
        return None
    if count == 8:
        return (0,)
    if count in (1, 2, 4) or (count == 3 and sliced):
        for side, wing in enumerate((left, right)):
            if mine <= wing:
                return (0, ORDER[count].index(len(wing)), side, chosen)
        if count == 2 and chosen[1] == chosen[0] + 4:
            return (1, chosen)
        if count == 4 and mine in FOURS:
            return (1, FOURS.index(mine))
        return None
    if not sliced:
        return None
    primary, other = (left, right) if len(left) >= len(right) else (right, left)
    extra = sorted((i ^ 4 not in primary, i) for i in mine & other)
    return (0, len(primary - mine), extra)


def by_rule(count, fitting, shared=frozenset(), *, sliced=False):
    """The set that the rules choose, None for none."""
    ranked = [
        (place, chosen)
        for chosen in combinations(sorted(fitting), count)
        if (place := rank(chosen, fitting, shared, sliced=sliced)) is not None
    ]
    return min(ranked)[1] if ranked else None


def handles(usages, cards):
    """What the driver has given out."""
    splits = [used.memory // used.slots for used in usages if used.slots]
    return cards + sum(4 if size <= QUARTER else 2 if size <= HALF else 0 for size in splits)


def by_rule_within_handles(count, size, usage, indices):
    """The set, or the label of the refusal."""
    idle = {i for i in indices if not usage[i].slots}
    fitting = {
        i
        for i in indices
        if usage[i].memory + size <= WHOLE and (i in idle or usage[i].memory // usage[i].slots == size)
    }
    first = by_rule(count, fitting, fitting - idle, sliced=size < WHOLE)
    if first is None or size == WHOLE:
        return first or "NumaNotFit"
    each, taken = (4 if size == QUARTER else 2), handles(usage.values(), len(indices))
    new = each * len(idle.intersection(first))
    if new == 0 or taken + new <= 32:
        return first
    allowed = sorted(fitting & idle)[: max(0, (32 - taken) // each)]
    reduced = (fitting - idle) | set(allowed)
    return by_rule(count, reduced, fitting - idle, sliced=True) or "NodeInsufficientHandle"


# random nodes

taken = st.one_of(
    st.just(Usage()),
    st.just(Usage()),
    st.builds(lambda n: Usage(n, n * QUARTER, n * 25), st.integers(1, 4)),
    st.builds(lambda n: Usage(n, n * HALF, n * 50), st.integers(1, 2)),
    st.just(Usage(1, WHOLE, 100)),
    st.builds(lambda n, memory: Usage(n, memory, 50), st.integers(1, 3), st.integers(1, WHOLE)),
)
servers = st.one_of(
    st.lists(taken, min_size=8, max_size=8),
    st.lists(st.sampled_from([Usage(), *[Usage(1, QUARTER, 25)] * 6]), min_size=8, max_size=8),
)
indices = st.one_of(st.just(list(range(8))), st.lists(st.integers(0, 7), unique=True, min_size=1))


def view_of(whole=0, cards=(), usage=None):
    node = server(xpus=whole, cards=cards)
    found = {key: CHART[key].inventory(node) for key in ("XPU", "kunlun")}
    return NodeView(node, {key: inventory for key, inventory in found.items() if inventory}, usage or {})


def placed(view, manifest, budget=None):
    return fit_pod(view, read_pod_request(Pod.from_object(manifest), CHART, "spread"), CHART, budget)


def cards_of(fit, key="XPU"):
    return tuple(int(device.uuid[-1]) for device in fit.rows[0][key].devices)


@given(COUNTS, st.integers(1, 8), st.sets(st.integers(0, 7)))
def test_whole_cards_are_chosen_by_the_rule(count, registered, used):
    usage = {("kunlun", f"n1-kunlun-{i}"): Usage(1, WHOLE, 100) for i in used}
    found = placed(view_of(registered, usage=usage), with_limits(container(**{XPU: count})))
    if count > registered:
        assert str(found) == "NodeInsufficientDevice"
        return
    expected = by_rule(count, set(range(registered)) - used)
    if expected is None:
        assert found.counts["NumaNotFit"] == 1
    else:
        assert cards_of(found, "kunlun") == expected


@given(COUNTS, SIZES, indices, servers)
def test_slices_are_chosen_by_the_rule_within_the_handles(count, size, registered, usages):
    usage = dict(zip(range(8), usages, strict=True))
    view = view_of(cards=[card(i) for i in registered], usage={("XPU", kl(i)): usage[i] for i in registered})
    found = placed(view, with_limits(slices(count, size)))
    if count > len(registered):
        assert str(found) == "NodeInsufficientDevice"
        return
    expected = by_rule_within_handles(count, size, {i: usage[i] for i in registered}, registered)
    if isinstance(expected, str):
        assert found.counts[expected] == 1
        assert found.cards == len(registered)
    else:
        assert cards_of(found) == expected


@given(
    COUNTS,
    st.sampled_from([QUARTER, HALF, WHOLE]),
    servers,
    st.sets(st.integers(0, 7)),
    st.sets(st.integers(0, 7)),
    st.booleans(),
)
def test_a_refusal_has_the_first_label_of_the_table(count, size, usages, denied, sick, mutex):
    usage = dict(zip(range(8), usages, strict=True))
    view = view_of(
        cards=[card(i, health=i not in sick) for i in range(8)], usage={("XPU", kl(i)): usage[i] for i in range(8)}
    )
    notes = {xpus.NOUSE: ",".join(map(kl, denied)), xpus.POLICY: "mutex" if mutex else "binpack"}
    found = placed(view, with_limits(slices(count, size), **notes))
    if not isinstance(found, Rejection) or "NodeInsufficientHandle" in found.counts:
        return
    would = {
        i
        for i in range(8)
        if i not in sick
        and usage[i].slots
        and usage[i].memory + size <= WHOLE
        and usage[i].memory // usage[i].slots == size
    }
    if mutex and would:
        assert found.counts["ExclusiveDeviceAllocateConflict"] == len(would)
    elif denied:
        assert found.counts["CardUuidMismatch"] == len(denied)
    else:
        assert found.counts["NumaNotFit"] == 1


# several containers, both plugins

request = st.fixed_dictionaries(
    {},
    optional={
        "xpu": st.sampled_from([1, 1, 2, 4]),
        "vxpu": st.tuples(st.integers(1, 4), st.sampled_from([QUARTER, HALF, WHOLE])),
    },
)


def made(name, asked, **fields):
    limits = {XPU: asked["xpu"]} if "xpu" in asked else {"cpu": 1}
    if "vxpu" in asked:
        limits |= {VXPU: asked["vxpu"][0], MEM: asked["vxpu"][1]}
    return container(name, **limits, **fields)


pods = st.builds(
    lambda inits, apps: pod(
        "p",
        *(made(f"a{n}", asked) for n, asked in enumerate(apps)),
        slices(1, QUARTER, "asks"),
        init=[made(f"i{n}", asked, sidecar=sidecar) for n, (asked, sidecar) in enumerate(inits)],
    ),
    st.lists(st.tuples(request, st.booleans()), max_size=2),
    st.lists(request, max_size=3),
)
worlds = st.tuples(servers, st.sets(st.integers(0, 7), max_size=4), st.booleans())


def state_of(usages, whole, twins):
    """A node with both plugins, or with vXPU cards and whole cards of other indices."""
    usage = {("XPU", kl(i)): used for i, used in enumerate(usages) if used.slots and i not in whole}
    usage |= {("kunlun", f"n1-kunlun-{i}"): Usage(1, WHOLE, 100) for i in whole}
    return view_of(8, cards=[card(i) for i in range(8) if twins or i not in whole], usage=usage)


@given(worlds, pods)
def test_no_card_is_oversold_nor_split_two_ways_nor_used_through_both_plugins(state, manifest):
    view, incoming = state_of(*state), Pod.from_object(manifest)
    fit = placed(view, manifest)
    if isinstance(fit, Rejection):
        assert str(fit)
        return
    devices = {(key, d.uuid): d for key, inventory in view.inventories.items() for d in inventory.devices}
    for (key, uuid), debit in per_device(fit.claims(), incoming.kinds).items():
        used = view.used(key, uuid)
        assert used.memory + debit.memory <= devices[key, uuid].memory
        assert key == "XPU" or used.slots == 0
    running = dict(view.usage)
    for kind, row in zip(incoming.kinds, fit.rows, strict=True):
        then = dict(running)
        for key, allocation in row.items():
            assert len({d.uuid for d in allocation.devices}) == len(allocation.devices)
            for device in allocation.devices:
                used = then.get((key, device.uuid), Usage())
                assert used.slots == 0 or (key, used.memory // used.slots) == ("XPU", device.share.memory)
                then[key, device.uuid] = used.plus(device.share)
        taken_through = [(key, devices[key, uuid].index) for (key, uuid), used in then.items() if used.slots]
        assert len({index for _, index in taken_through}) == len(taken_through)
        vxpus = [used for (key, _), used in then.items() if key == "XPU"]
        cards = view.inventories["XPU"].devices
        before = handles([view.used("XPU", card.uuid) for card in cards], len(cards))
        assert handles(vxpus, len(cards)) <= max(32, before)
        if kind is not ContainerKind.INIT:
            running = then


@given(worlds, pods)
def test_the_annotations_say_what_was_given(state, manifest):
    view = state_of(*state)
    fit = placed(view, manifest)
    if isinstance(fit, Rejection):
        return
    for key, names in (
        ("XPU", ("xpu-devices-to-allocate", "xpu-devices-allocated")),
        ("kunlun", ("kunlun-allocated",)),
    ):
        given_ = [[(d.uuid, d.share) for d in row[key].devices] if key in row else [] for row in fit.rows]
        written = CHART[key].encode(fit.rows, view.node, NOW)
        for name in names:
            rows = decode_pod_devices(written[f"hami.io/{name}"])
            assert {entry.word for row in rows for entry in row} <= {key}
            assert [[(e.uuid, e.memory, e.cores) for e in row] for row in rows] == [
                [(uuid, share.memory, share.cores) for uuid, share in row] for row in given_
            ]


@given(worlds, pods, st.integers(0, 8 * WHOLE), st.integers(0, 12))
def test_quota_is_never_exceeded_and_its_own_cost_is_always_enough(state, manifest, memory, count):
    view, kinds = state_of(*state), Pod.from_object(manifest).kinds
    limits = {f"limits.{MEM}": memory, f"limits.{VXPU}": count, f"limits.{XPU}": count}
    within = placed(view, manifest, PodBudget(limits, kinds, CHART))
    if not isinstance(within, Rejection):
        assert PodBudget(limits, kinds, CHART).admits(within.claims())
    free = placed(view, manifest)
    if isinstance(free, Rejection):
        return
    costs = {key: Debit() for key in ("XPU", "kunlun")}
    for (key, _), debit in per_device(free.claims(), kinds).items():
        costs[key] += debit
    exactly = {f"limits.{MEM}": costs["XPU"].memory, f"limits.{VXPU}": costs["XPU"].slots}
    exactly[f"limits.{XPU}"] = costs["kunlun"].slots
    assert placed(view, manifest, PodBudget(exactly, kinds, CHART)) == free
