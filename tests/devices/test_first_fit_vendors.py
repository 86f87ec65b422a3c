"""Iluvatar and Moore Threads on random nodes: their pages' section 7 read plainly, and cards never oversold."""

from collections import Counter
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from hami_webhook.admission.pods import normalise
from hami_webhook.devices.codecs import decode_pod_devices
from hami_webhook.devices.debit import Debit, per_device
from hami_webhook.devices.device_lister import NO_DEVICES
from hami_webhook.devices.model import Device, Inventory, NodeView, Usage
from hami_webhook.devices.reasons import Rejection
from hami_webhook.kube.draft import PodDraft
from hami_webhook.kube.objects import ContainerKind
from hami_webhook.quota.budget import PodBudget
from hami_webhook.scheduling.fit import fit_pod, read_pod_request
from hami_webhook.scheduling.placement_metadata import placement_annotations

from .iluvatars import BOTH
from .yard import CHART, NOW, container, node, pod

VENDORS = {"BI-V150": BOTH, "Iluvatar": BOTH, "Mthreads": CHART}
LISTS = {
    "BI-V150": ("hami.io/use-BI-V150-uuid", "hami.io/no-use-BI-V150-uuid"),
    "Iluvatar": ("iluvatar.ai/use-gpuuuid", "iluvatar.ai/nouse-gpuuuid"),
    "Mthreads": ("mthreads.ai/use-gpuuuid", "mthreads.ai/nouse-gpuuuid"),
}
UNIT = {"BI-V150": 256, "Iluvatar": 256, "Mthreads": 512}
CORES = {"BI-V150": 100, "Iluvatar": 100, "Mthreads": 16}
UNITS = [2, 4, 8, 16, 32, 64, 96]


@st.composite
def views(draw, key):
    """A node with cards of the vendor and with what is taken of each."""
    devices, usage = [], {}
    for i in range(draw(st.integers(1, 5))):
        uuid, cores = f"n1-card-{i}", CORES[key]
        memory = draw(st.sampled_from([64, 96, 96, 128])) * 512
        slots = draw(st.sampled_from([1, 2, 100, 100]))
        healthy, numa = draw(st.sampled_from([True] * 5 + [False])), draw(st.integers(0, 1))
        devices.append(Device(key, uuid, i, slots, memory, cores, key, numa, healthy=healthy))
        if draw(st.booleans()):
            taken = st.sampled_from([0, cores // 4, cores // 2, cores])
            usage[key, uuid] = Usage(
                draw(st.integers(0, 2)), draw(st.sampled_from([0, 512, 16384, memory])), draw(taken)
            )
    return NodeView(node("n1"), {key: Inventory(tuple(devices))}, usage)


def containers(key):
    """A container that asks for the vendor's cards, as (count, units, cores)."""
    cores = st.none() | st.sampled_from([0, CORES[key] // 4, CORES[key] // 2, CORES[key], CORES[key] + 1])
    return st.tuples(st.sampled_from([1, 1, 1, 2, 3]), st.none() | st.sampled_from(UNITS), cores)


def pod_with_limits(key, *wanted, init=(), notes=None):
    """The pod after admission; `init` are pairs of a sidecar's mark and what it wants."""

    def made(name, amounts, *, sidecar=False):
        limits = dict(zip(VENDORS[key][key].resource_names, amounts, strict=True))
        return container(name, sidecar=sidecar, **{k: v for k, v in limits.items() if v is not None})

    inits = [made(f"i{n}", amounts, sidecar=mark) for n, (mark, amounts) in enumerate(init)]
    draft = PodDraft(pod(*(made(f"c{n}", each) for n, each in enumerate(wanted)), init=inits, annotations=notes))
    normalise(draft, VENDORS[key], NO_DEVICES)
    return draft.result()


def fitted(key, view, manifest, budget=None):
    ask = read_pod_request(manifest, VENDORS[key], "spread")
    assert ask is not None
    return fit_pod(view, ask, VENDORS[key], budget)


def resolved(key, wanted, device):
    """MiB and cores that the card would be booked with, and whether it must be whole; as pages' section 6 has it."""
    count, units, cores = wanted
    whole = count > 1
    if key == "Mthreads":
        whole = whole or units is None or (units, cores) == (96, 16)
        return (device.memory, 16, True) if whole else (units * 512, cores or 0, False)
    if whole:
        return max(device.memory, (units or 0) * 256), 100, True
    return units * 256 if units else device.memory, min(cores or 0, 100), False


def label(key, wanted, device, usage, policy, allowed):
    """The first of section 7's checks that the card fails; None if it passes."""
    memory, cores, whole = resolved(key, wanted, device)
    alone = whole if key == "Mthreads" else cores == device.cores
    failures = {
        "CardNotHealth": not device.healthy,
        "CardUuidMismatch": device.uuid not in allowed,
        "CardTimeSlicingExhausted": usage.slots >= device.slots,
        "ExclusiveDeviceAllocateConflict": policy == "mutex" and usage.slots > 0,
        "CardInsufficientMemory": device.memory - usage.memory < memory,
        "CardInsufficientCore": device.cores - usage.cores < cores,
        "Alone": alone and usage.slots > 0,
        "CardComputeUnitsExhausted": usage.cores == device.cores and cores == 0,
    }
    failed = next((name for name, fails in failures.items() if fails), None)
    return "ExclusiveDeviceAllocateConflict" if failed == "Alone" else failed


def plainly(key, view, wanted, policy, allowed):
    """The entries of the chosen cards, or the reason text, by a plain reading."""
    devices = view.inventories[key].devices
    count = wanted[0]
    if count > len(devices):
        return "NodeInsufficientDevice"

    def score(device):
        usage, (memory, cores, _) = view.used(key, device.uuid), resolved(key, wanted, device)
        parts = (
            (1, usage.slots, device.slots),
            (cores, usage.cores, device.cores),
            (memory, usage.memory, device.memory),
        )
        return sum(Fraction(asked + used, total) for asked, used, total in parts)

    def rank(device):
        usage = view.used(key, device.uuid)
        first = {"binpack": score(device), "spread": -score(device), "mutex": -usage.slots}[policy]
        return first, device.numa, device.index

    passed, counts = [], Counter()
    for device in sorted(devices, key=rank, reverse=True):
        failed = label(key, wanted, device, view.used(key, device.uuid), policy, allowed)
        if failed is None:
            passed.append((device.uuid, *resolved(key, wanted, device)[:2]))
        else:
            counts[failed] += 1
        if len(passed) == count:
            return passed
    if passed:
        counts["AllocatedCardsInsufficientRequest"] = len(passed)
    return ", ".join(sorted(f"{n}/{len(devices)} {name}" for name, n in counts.items()))


@given(st.data())
def test_the_first_cards_that_pass_are_taken_in_scan_order(data):
    key = data.draw(st.sampled_from(sorted(VENDORS)))
    view = data.draw(views(key))
    wanted = data.draw(containers(key))
    policy = data.draw(st.sampled_from(["spread", "binpack", "mutex"]))
    uuids = [device.uuid for device in view.inventories[key].devices]
    use, nouse = (data.draw(st.none() | st.lists(st.sampled_from(uuids), min_size=1)) for _ in range(2))
    notes = {"hami.io/gpu-scheduler-policy": policy}
    notes |= {name: ",".join(items) for name, items in zip(LISTS[key], (use, nouse), strict=True) if items}
    allowed = {uuid for uuid in uuids if (not use or uuid in use) and uuid not in (nouse or ())}
    fit = fitted(key, view, pod_with_limits(key, wanted, notes=notes))
    expected = plainly(key, view, wanted, policy, allowed)
    if isinstance(fit, Rejection):
        assert str(fit) == expected
    else:
        devices = fit.rows[0][key].devices
        assert [(d.uuid, d.booking.memory, d.booking.cores) for d in devices] == expected


@given(st.data())
def test_no_card_is_oversold_and_what_is_written_is_what_was_given(data):
    key = data.draw(st.sampled_from(sorted(VENDORS)))
    view = data.draw(views(key))
    inits = data.draw(st.lists(st.tuples(st.booleans(), containers(key)), max_size=2))
    apps = data.draw(st.lists(containers(key), min_size=1, max_size=3))
    hard = data.draw(st.none() | st.integers(1, 500))
    manifest = pod_with_limits(key, *apps, init=inits)
    vendor = VENDORS[key][key]
    limits = {} if hard is None else {f"limits.{vendor.memory_name}": hard}
    budget = PodBudget(limits, manifest.kinds, VENDORS[key]) if limits else None
    fit = fitted(key, view, manifest, budget)
    if isinstance(fit, Rejection):
        assert str(fit)
        return
    cards = {device.uuid: device for device in view.inventories[key].devices}
    debits = per_device(fit.holds(), manifest.kinds)
    for (_, uuid), debit in debits.items():
        device, used = cards[uuid], view.used(key, uuid)
        assert device.healthy
        assert used.slots + debit.slots <= device.slots
        assert used.memory + debit.memory <= device.memory
        assert used.cores + debit.cores <= device.cores
    if hard is not None:
        assert -(-sum(debits.values(), Debit()).memory // UNIT[key]) <= hard
    wanted = [each for _, each in inits] + apps
    assert [len(row[key].devices) for row in fit.rows] == [count for count, _, _ in wanted]
    assert all(len({d.uuid for d in row[key].devices}) == len(row[key].devices) for row in fit.rows)
    written = placement_annotations(manifest, fit, view, VENDORS[key], NOW)
    given_ = [[(d.uuid, d.booking.memory, d.booking.cores) for d in row[key].devices] for row in fit.rows]
    decoded = decode_pod_devices(written[vendor.keys.allocated])
    assert [[(e.uuid, e.memory, e.cores) for e in row] for row in decoded] == given_
    assert {e.word for row in decoded for e in row} == {key}
    if key == "Mthreads":
        for own in (ContainerKind.INIT, ContainerKind.APP):
            together = [
                {d.uuid for d in row[key].devices}
                for row, kind in zip(fit.rows, manifest.kinds, strict=True)
                if kind in (own, ContainerKind.SIDECAR)
            ]
            assert len(together) < 2 or len(set.union(*together)) == 1
