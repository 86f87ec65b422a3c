"""AWS Neuron's choices on random states, against a plain reading of the page's sections 7.1 and 7.2."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from msgspec.structs import replace

from hami_webhook.devices.debit import per_vendor
from hami_webhook.devices.model import Device, Inventory, NodeView, Usage
from hami_webhook.devices.pod_fit import NodeFit, fit_pod
from hami_webhook.devices.reasons import Rejection
from hami_webhook.devices.vendors.awsneuron import lowest_run
from hami_webhook.kube.objects import ContainerKind, Pod
from hami_webhook.quota.budget import PodBudget
from hami_webhook.quota.pricing import in_units, price_pending
from hami_webhook.scheduling.scoring import score

from .fit_env import CHART, JSON, FitEnv, asked, pod, registered
from .neurons import CORES_KEY, DEVICES_KEY, NOUSE, USE, VENDOR, instance, with_limits

KINDS = ("inf2.24xlarge", "trn1.32xlarge", "Inf1.6xlarge", None)


@given(st.integers(1, 6).flatmap(lambda c: st.tuples(st.just(c), st.integers(0, 2**c - 1), st.integers(1, c))))
def test_the_lowest_run_is_the_first_that_a_finger_finds(case: tuple[int, int, int]) -> None:
    cores, taken, length = case
    free = [not taken >> core & 1 for core in range(cores)]
    starts = [start for start in range(cores) if free[start : start + length] == [True] * length]
    assert lowest_run(taken, cores, length) == sum(1 << starts[0] + i for i in range(length) if starts)


@st.composite
def nodes(draw: st.DrawFn, most: int = 17) -> NodeView:
    """A node's devices, each idle, in use, full of containers or ill."""
    cores = draw(st.sampled_from([1, 2, 2, 4]))
    size = draw(st.integers(1, most))
    on = instance(draw(st.sampled_from(KINDS)), size, cores)
    devices, usage = [], {}
    idle = draw(st.sampled_from([1, 3, 12]))
    found = registered(VENDOR, on)
    for device in found.devices:
        devices.append(replace(device, healthy=draw(st.integers(0, 20)) > 0))
        if draw(st.integers(0, idle)) == 0:
            mask = draw(st.integers(1, 2**cores - 1))
            slots = draw(st.integers(1, mask.bit_count()))
            usage["AWSNeuron", device.uuid] = Usage(slots, 0, mask.bit_count(), mask=mask)
    return NodeView(on, {"AWSNeuron": Inventory(tuple(devices), found.facts)}, usage)


@st.composite
def lists(draw: st.DrawFn) -> dict[str, str]:
    some = st.lists(st.integers(0, 16), max_size=14).map(lambda found: ",".join(f"n1-AWSNeuron-{i}" for i in found))
    return {key: draw(some) for key in (USE, NOUSE) if draw(st.integers(0, 3)) == 0}


def fitted(on: NodeView, manifest: JSON, budget: PodBudget | None = None) -> NodeFit | Rejection:
    return fit_pod(on, asked(manifest), CHART, budget)


def given_devices(result: NodeFit | Rejection, on: NodeView) -> list[tuple[int, int]] | str:
    """Index and mask of each device of a single container, as written; or the refusal."""
    if isinstance(result, Rejection):
        return str(result)
    (row,) = result.rows
    return [(int(d.uuid.rpartition("-")[2]), d.share.mask) for d in row["AWSNeuron"].devices]


def admitted_by(notes: dict[str, str], device: Device) -> bool:
    allow = [item for item in notes.get(USE, "").split(",") if item]
    return (not allow or device.uuid in allow) and device.uuid not in notes.get(NOUSE, "").split(",")


def a_block(on: NodeView, notes: dict[str, str], count: int) -> list[tuple[int, int]] | str:
    """Section 7.1, read aloud."""
    devices = on.inventories["AWSNeuron"].devices
    kind = on.node.labels.get("node.kubernetes.io/instance-type", "")
    full = 2 ** devices[0].cores - 1
    if count > len(devices):
        return "NodeInsufficientDevice"
    usable = [d.healthy and on.used("AWSNeuron", d.uuid).slots == 0 and admitted_by(notes, d) for d in devices]
    for start in range(len(devices)):
        if "inf" not in kind.lower() and (count not in (1, 4, 8, 16) or start % count):
            continue
        if len(usable[start : start + count]) == count and all(usable[start : start + count]):
            return [(start + i, full) for i in range(count)]
    return f"1/{len(devices)} NumaNotFit"


def a_device(on: NodeView, notes: dict[str, str], cores: int, mutex: bool) -> list[tuple[int, int]] | str:
    """Section 7.2, read aloud."""
    devices = on.inventories["AWSNeuron"].devices
    tally: Counter[str] = Counter()
    for device in reversed(devices):
        used = on.used("AWSNeuron", device.uuid)
        free = [not used.mask >> core & 1 for core in range(device.cores)]
        runs = [s for s in range(device.cores - cores + 1) if all(free[s : s + cores])]
        if not device.healthy:
            tally["CardNotHealth"] += 1
        elif not admitted_by(notes, device):
            tally["CardUuidMismatch"] += 1
        elif used.slots >= device.slots:
            tally["CardTimeSlicingExhausted"] += 1
        elif mutex and used.slots > 0:
            tally["ExclusiveDeviceAllocateConflict"] += 1
        elif not runs:
            tally["CardInsufficientCore"] += 1
        else:
            return [(device.index, sum(1 << core for core in range(runs[0], runs[0] + cores)))]
    message = {**tally, "AllocatedCardsInsufficientRequest": 0}
    return ", ".join(sorted(f"{n}/{len(devices)} {label}" for label, n in message.items() if n))


@given(nodes(), st.sampled_from([2, 2, 3, 4, 4, 5, 8, 16]), lists(), st.booleans(), st.booleans())
def test_a_block_is_the_first_that_the_page_allows(
    on: NodeView, count: int, notes: dict[str, str], mutex: bool, by_cores: bool
) -> None:
    policy = {"hami.io/gpu-scheduler-policy": "mutex"} if mutex else {}
    per_device = on.inventories["AWSNeuron"].devices[0].cores
    ask = with_limits(cores=count * per_device) if by_cores else with_limits(count)
    assert given_devices(fitted(on, pod("p", ask, annotations=notes | policy)), on) == a_block(on, notes, count)


@given(nodes(), st.data(), lists(), st.sampled_from(["mutex", "binpack", "binpack,mutex", "topology-aware"]))
def test_a_single_device_is_the_last_that_the_page_allows(
    on: NodeView, data: st.DataObject, notes: dict[str, str], policy: str
) -> None:
    per_device = on.inventories["AWSNeuron"].devices[0].cores
    cores = data.draw(st.integers(1, per_device))
    ask = with_limits(1) if cores == per_device and data.draw(st.booleans()) else with_limits(cores=cores)
    result = fitted(on, pod("p", ask, annotations=notes | {"hami.io/gpu-scheduler-policy": policy}))
    assert given_devices(result, on) == a_device(on, notes, cores, "mutex" in policy)


amounts = st.sampled_from(
    [
        with_limits(1),
        with_limits(2),
        with_limits(3),
        with_limits(cores=1),
        with_limits(cores=1),
        with_limits(cores=2),
        with_limits(cores=8),
        with_limits(),
    ]
)


@st.composite
def pods(draw: st.DrawFn) -> JSON:
    inits = draw(st.lists(st.tuples(amounts, st.booleans()), max_size=2))
    apps = draw(st.lists(amounts, min_size=1, max_size=3))
    return pod(
        "p",
        *({**ask, "name": f"a{n}"} for n, ask in enumerate(apps)),
        with_limits(cores=1, name="last"),
        init=[
            {**ask, "name": f"i{n}", **({"restartPolicy": "Always"} if stays else {})}
            for n, (ask, stays) in enumerate(inits)
        ],
        annotations=draw(lists()),
    )


budgets = st.fixed_dictionaries({}, optional={CORES_KEY: st.integers(0, 14), DEVICES_KEY: st.integers(0, 8)})


@given(nodes(most=8), pods(), budgets)
def test_no_core_is_ever_given_twice_and_no_limit_overrun(on: NodeView, manifest: JSON, limits: dict[str, int]) -> None:
    incoming = Pod.from_object(manifest)
    result = fitted(on, manifest, PodBudget(limits, incoming.kinds, CHART))
    if isinstance(result, Rejection):
        assert str(result)
        return
    spent = in_units(per_vendor(result.claims(), incoming.kinds), CHART)
    assert all(spent[key] <= limit for key, limit in limits.items() if key in spent)
    devices = {device.uuid: device for device in on.inventories["AWSNeuron"].devices}
    cacheable = {(u, c) for u, d in devices.items() for c in range(d.cores) if on.used("AWSNeuron", u).mask >> c & 1}
    for container, kind, row in zip(incoming.containers, incoming.kinds, result.rows, strict=True):
        chosen = row["AWSNeuron"].devices if row else ()
        mine = {(d.uuid, core) for d in chosen for core in range(31) if d.share.mask >> core & 1}
        assert mine.isdisjoint(cacheable)
        assert all(core < devices[uuid].cores and devices[uuid].healthy for uuid, core in mine)
        wanted = container.amount("aws.amazon.com/neuroncore")
        count = container.amount("aws.amazon.com/neuron")
        per_device = next(iter(devices.values())).cores
        assert len(mine) == (int(wanted) if wanted else int(count or 0) * per_device)
        assert [d.share.cores for d in chosen] == [d.share.mask.bit_count() for d in chosen]
        if kind is not ContainerKind.INIT:
            cacheable |= mine


@given(st.lists(nodes(most=8), min_size=1, max_size=3), pods())
def test_a_waiting_pod_is_never_charged_more_than_its_placement(views: list[NodeView], manifest: JSON) -> None:
    named = [replace(view, node=structs.replace(view.node, name=f"n{n}")) for n, view in enumerate(views)]
    incoming = Pod.from_object(manifest)
    charge = price_pending(incoming, CHART, FitEnv([view.node for view in named]).state.capacity)
    for view in views:
        result = fitted(view, manifest)
        if not isinstance(result, Rejection):
            actual = in_units(per_vendor(result.claims(), incoming.kinds), CHART)
            assert all(amount <= actual[key] for key, amount in charge.amounts.items())


@given(nodes())
def test_the_score_is_ten_times_the_share_of_cores_in_use(on: NodeView) -> None:
    ask = asked(pod("p", with_limits(1)))
    result = fit_pod(on, ask, CHART, None)
    if isinstance(result, Rejection):
        return
    devices = on.inventories["AWSNeuron"].devices
    in_use = [on.used("AWSNeuron", d.uuid).mask >> core & 1 for d in devices for core in range(d.cores)]
    assert score(result, on, ask, CHART, "binpack") == 10 * sum(in_use) / len(in_use)
