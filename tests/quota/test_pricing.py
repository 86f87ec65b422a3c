"""What a pod is charged (docs/spec/quota.md#5), row by row."""

from __future__ import annotations

from typing import Any

import pytest
from builders import JSON, card, container, node
from tables import in_one_test

from hami_webhook.device_config import builtin_device_config, enabled_vendors
from hami_webhook.devices.debit import Debit
from hami_webhook.devices.vendor import Vendor
from hami_webhook.kube.objects import Node, Pod
from hami_webhook.quota.pricing import ClusterCapacity, charge_of, in_units, price_pending
from hami_webhook.state.cluster_cache import ClusterCache

from .objects import ALLOCATED, LARGE, MEM, NOON, SMALL, allocation, full, read_pod, vendors

LAPSE = 300.0


def state(*nodes: JSON, factor: int = 1) -> ClusterCache:
    made = ClusterCache(vendors(factor))
    for item in nodes:
        made.set_node(Node.from_object(item), NOON)
    return made


L, S = node("n1", card("GPU-L", LARGE)), node("n2", card("GPU-S", SMALL), labels={"zone": "b"})
BOTH = state(L, S)
SIDE, INIT = container("s", sidecar=True, gpu=1, mem=2000), container("i", gpu=1, mem=6000)


@pytest.mark.parametrize(
    ("pod", "amounts"),
    [
        (read_pod(gpu=2, mem=2000), full(gpu=2, mem=4000)),
        (read_pod(gpu=2, mem=2000, cores=30), full(gpu=2, mem=4000, cores=60)),
        (read_pod(gpu=2, mem=2000, cores=150), full(gpu=2, mem=4000, cores=200)),
        (read_pod("p", container("a", gpu=1, mem=1), container("b", gpu=1, mem=2)), full(gpu=2, mem=3)),
        (read_pod("p", container(gpu=1, mem=3000), init=(SIDE, INIT)), full(gpu=2, mem=8000)),
        (read_pod("p", container(gpu=1, mem=3000), init=(INIT, SIDE)), full(gpu=2, mem=6000)),
        (read_pod("p", container(), init=(INIT,)), full(gpu=1, mem=6000)),
        (read_pod(gpu=0, mem=2000), {}),
        (read_pod(cpu=1), {}),
    ],
)
def test_declared_amounts_follow_from_the_pod_alone(pod: Pod, amounts: dict[str, int]) -> None:
    charge = price_pending(pod, vendors(), BOTH.capacity)
    assert charge.amounts == amounts
    assert charge.derivable
    assert charge.floors == frozenset()
    assert not charge.placed


@pytest.mark.parametrize(
    ("pod", "memory"),
    [
        (read_pod(gpu=1, percent=50), SMALL // 2),
        (read_pod(gpu=2, percent=50), SMALL),
        (read_pod(gpu=1), SMALL),
        (read_pod(gpu=1, percent=33), 5406),
        (read_pod(gpu=1, percent=50, annotations={"nvidia.com/use-gpuuuid": "GPU-L"}), LARGE // 2),
        (read_pod(gpu=1, percent=50, annotations={"nvidia.com/nouse-gputype": "NVIDIA A100"}), 1),
        (read_pod(gpu=1, percent=50, nodeSelector={"zone": "b"}), SMALL // 2),
        (read_pod(gpu=1, percent=50, nodeSelector={"zone": "c"}), 1),
        (read_pod(gpu=3, percent=50, nodeSelector={"zone": "c"}), 3),
    ],
)
def test_an_open_memory_is_charged_as_on_the_smallest_eligible_card(pod: Pod, memory: int) -> None:
    charge = price_pending(pod, vendors(), BOTH.capacity)
    assert charge.amounts[MEM] == memory
    assert charge.floors == {MEM}
    assert not charge.derivable


def test_health_cordons_and_use_do_not_matter_to_the_floor() -> None:
    sick = node("n2", card("GPU-S", SMALL, health=False))
    sick["metadata"]["annotations"]["hami.io/device-cordon"] = "GPU-S"
    assert price_pending(read_pod(gpu=1), vendors(), state(L, sick).capacity).amounts[MEM] == SMALL


@pytest.mark.parametrize(
    ("profile", "percent", "memory"),
    [(9984, 10, 9984), (9984, 50, 20480), (20000, 50, 20480), (30000, 50, 30000)],
)
def test_the_floor_on_a_mig_card_is_a_profile_if_one_is_large_enough(profile: int, percent: int, memory: int) -> None:
    profiles = [
        {"name": "2g", "memoryMB": profile, "core": 28, "sliceCount": 2, "placements": [{"start": 0, "size": 2}]}
    ]
    known = state(node("n", card("GPU-M", 40960, mode="mig", migProfiles=profiles)))
    assert price_pending(read_pod(gpu=1, percent=percent), vendors(), known.capacity).amounts[MEM] == memory


@pytest.mark.parametrize(
    ("factor", "amounts", "units"),
    [
        (1024, {"gpu": 1, "percent": 50}, 8),
        (1024, {"gpu": 2, "mem": 3}, 6),
        (1000, {"gpu": 1, "percent": 50}, 9),
        (1000, {"gpu": 3, "percent": 10}, 5),  # 3 × 1638 MiB, rounded up once
        (0, {"gpu": 1, "mem": 5}, 5),
    ],
)
def test_units_are_rounded_up_once_per_pod(factor: int, amounts: dict[str, int], units: int) -> None:
    assert (
        price_pending(read_pod(**amounts), vendors(factor), state(L, S, factor=factor).capacity).amounts[MEM] == units
    )


def test_without_a_known_card_a_device_costs_a_unit() -> None:
    assert price_pending(read_pod(gpu=2), vendors(1024), ClusterCapacity()).amounts[MEM] == 2


def test_amounts_in_units_leave_zeros_out() -> None:
    assert in_units({"NVIDIA": Debit(1, 0, 0)}, vendors()) == full(gpu=1)


def placed(*rows: list[tuple[str, int, int]], age: float = 0, bound: bool = False, **how: Any) -> Any:
    notes = {"hami.io/vgpu-node": "n1", "hami.io/vgpu-time": str(int(NOON - age)), ALLOCATED: allocation(*rows)}
    spec = {"nodeName": "n1"} if bound else {}
    return how.pop("containers", None) or read_pod(
        "p", *how.pop("apps", [container(gpu=1, percent=50)]), annotations=notes, **spec, **how
    )


ONE, TWO = ("A", 5000, 10), ("B", 7000, 20)


@in_one_test(
    ("pod", "amounts"),
    [
        (placed([ONE]), full(gpu=1, mem=5000, cores=10)),
        (placed([ONE, TWO]), full(gpu=2, mem=12000, cores=30)),
        (placed([ONE], [ONE], apps=[container("a", gpu=1), container("b", gpu=1)]), full(gpu=2, mem=10000, cores=20)),
        # an ordinary init container and an app on one card, on two cards
        (placed([("A", 8000, 0)], [ONE], init=(INIT,)), full(gpu=1, mem=8000, cores=10)),
        (placed([("C", 8000, 0)], [ONE], init=(INIT,)), full(gpu=2, mem=13000, cores=10)),
        # a sidecar before an init container, and after
        (placed([("A", 2000, 0)], [("A", 6000, 0)], [("A", 3000, 0)], init=(SIDE, INIT)), full(gpu=2, mem=8000)),
        (placed([("A", 6000, 0)], [("A", 2000, 0)], [("A", 3000, 0)], init=(INIT, SIDE)), full(gpu=2, mem=6000)),
        # two shares of a card for one init container are one slot
        (placed([("A", 1, 0), ("A", 1, 0)], [], init=(INIT,)), full(gpu=1, mem=2)),
        # HAMi 2.7 wrote app containers only; any other number of rows counts as app containers too
        (placed([ONE], init=(INIT,)), full(gpu=1, mem=5000, cores=10)),
        (placed([ONE], [ONE], [ONE], init=(INIT,)), full(gpu=3, mem=15000, cores=30)),
    ],
)
def test_a_placed_pod_costs_what_it_holds_device_by_device(pod: Pod, amounts: dict[str, int]) -> None:
    charge = charge_of(pod, vendors(), BOTH.capacity, NOON, LAPSE)
    assert charge.amounts == amounts
    assert charge.placed
    assert charge.derivable


def finished(**status: Any) -> Any:
    return placed([("A", 8000, 0)], [ONE], init=(container("i", gpu=1, mem=8000),), status=status)


APP = {"name": "main"}


@pytest.mark.parametrize(
    ("status", "over"),
    [
        ({}, False),
        ({"initContainerStatuses": [{"name": "i", "state": {"terminated": {"exitCode": 0}}}]}, True),
        ({"initContainerStatuses": [{"name": "i", "state": {"terminated": {"exitCode": 1}}}]}, False),
        ({"initContainerStatuses": [{"name": "i", "state": {"running": {}}}]}, False),
        ({"containerStatuses": [{**APP, "state": {"waiting": {}}}]}, False),
        ({"containerStatuses": [{**APP, "state": {"running": {}}}]}, True),
        ({"containerStatuses": [{**APP, "lastState": {"terminated": {"exitCode": 1}}}]}, True),
        ({"containerStatuses": [{**APP, "state": {"waiting": {}}, "restartCount": 1}]}, True),
    ],
)
def test_after_init_only_what_stays_is_charged(status: Any, over: bool) -> None:
    assert charge_of(finished(**status), vendors(), BOTH.capacity, NOON).amounts[MEM] == (5000 if over else 8000)


@pytest.mark.parametrize(
    ("pod", "counts"),
    [
        (placed([ONE], age=299), True),
        (placed([ONE], age=300), False),
        (placed([ONE], age=9000, bound=True), True),
        (read_pod(gpu=1, percent=50, annotations={ALLOCATED: allocation([ONE])}), False),
        (placed([]), False),
    ],
)
def test_a_placement_without_a_bind_lapses(pod: Pod, counts: bool) -> None:
    charge = charge_of(pod, vendors(), BOTH.capacity, NOON, LAPSE)
    assert charge.placed is counts
    assert charge.amounts[MEM] == (5000 if counts else SMALL // 2)


@pytest.mark.parametrize("text", ["A,NVIDIA,x,0:;", "A,NVIDIA,5:;", "A,NVIDIA,-1,0:;"])
def test_an_unreadable_allocation_costs_what_is_declared(text: str) -> None:
    notes = {"hami.io/vgpu-node": "n1", ALLOCATED: text}
    pod = read_pod(gpu=1, mem=2000, annotations=notes, nodeName="n1")
    charge = charge_of(pod, vendors(), BOTH.capacity, NOON)
    assert charge.amounts == full(gpu=1, mem=2000)
    assert len(charge.problems) == 1
    assert charge.problems[0].startswith(f"{ALLOCATED} can't be read, so the amounts that the pod declares count: ")


def test_an_amount_nobody_admitted_is_a_problem_and_holds_nothing() -> None:
    charge = charge_of(read_pod(gpu=1, mem="16Gi"), vendors(), BOTH.capacity, NOON)
    assert charge.amounts == {}
    assert "invalid nvidia.com/gpumem value 16Gi" in charge.problems[0]


def test_no_vendor_is_called_for_a_pod_that_names_nothing_of_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A placement is judged with every pod of the namespace, most of which may be another scheduler's."""
    known = enabled_vendors(builtin_device_config().config)

    def called(*_: object) -> None:
        raise AssertionError("a vendor was called")

    for name in ("named_by", "decode", "request_in_pod"):
        monkeypatch.setattr(Vendor, name, called)
    theirs = container(limits={"volcano.sh/vgpu-number": "2", "volcano.sh/vgpu-memory": "300"})
    on_n1 = {"nodeName": "n1"}
    charge = charge_of(read_pod("p", theirs, **on_n1), known, ClusterCapacity(), NOON)
    assert charge.amounts == {"limits.volcano.sh/vgpu-number": 2, "limits.volcano.sh/vgpu-memory": 600}
    with pytest.raises(AssertionError, match="was called"):
        charge_of(read_pod(gpu=1, mem=2000), known, ClusterCapacity(), NOON)
    with pytest.raises(AssertionError, match="was called"):
        charge_of(read_pod("p", theirs, annotations={ALLOCATED: "x"}, **on_n1), known, ClusterCapacity(), NOON)
