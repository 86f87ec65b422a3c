"""Whatever the node, its usage and the pod: a placement never takes more of a card than there is, nor breaks a rule."""

from __future__ import annotations

from collections.abc import Sequence

from builders import card
from hypothesis import given
from hypothesis import strategies as st

from hami_webhook.devices.debit import per_device
from hami_webhook.devices.model import NodeView, Usage
from hami_webhook.devices.pod_fit import NodeFit
from hami_webhook.devices.reasons import Rejection
from hami_webhook.devices.vendors.nvidia.mig import MigInstance, MigPlacement
from hami_webhook.kube.objects import ContainerKind, Pod

from .cards import container, fitted, init, mig_card, node, pod, room, sidecar, view
from .fit_env import JSON

MEMORIES = (40960, 24576, 24576, 99)


@st.composite
def worlds(draw: st.DrawFn) -> NodeView:
    """A node's cards with what is taken of each."""
    records, usage = [], {}
    for i in range(draw(st.integers(2, 6))):
        fields: JSON = {
            "numa": draw(st.integers(0, 2)),
            "count": draw(st.sampled_from([0, 2, 3, 5, 9])),
            "health": draw(st.sampled_from([True] * 7 + [False])),
            "devcore": draw(st.sampled_from([100, 100, 150, 50, 0])),
            "index": draw(st.integers(0, 5)),
        }
        uuid = f"g{i}"
        if draw(st.integers(0, 3)) == 0:
            records.append(mig_card(uuid, **fields | {"devcore": 100}))
            start = draw(st.integers(0, 6))
            taken = Usage(1, 5120, 14, marks=(MigInstance("1g.5gb", MigPlacement(start, 1)),))
        else:
            memory = draw(st.sampled_from(MEMORIES))
            records.append(card(uuid, devmem=memory, **fields))
            taken = Usage(
                draw(st.integers(0, 3)), draw(st.integers(0, memory)), draw(st.integers(0, fields["devcore"]))
            )
        if draw(st.booleans()):
            usage[uuid] = taken
    uuids = [r["id"] for r in records]
    scores = {(x, y): draw(st.sampled_from([0, 10, 100, -5])) for x in uuids for y in uuids if x < y}
    return view(
        node(
            *records,
            scores=draw(st.sampled_from([None, scores])),
            cordon=draw(st.sampled_from([None, None, None, "g1"])),
        ),
        usage,
    )


amounts = st.fixed_dictionaries(
    {"gpu": st.sampled_from([0, 1, 2, 2, 3])},
    optional={
        "mem": st.sampled_from([1, 3000, 8000, 20000]),
        "percent": st.sampled_from([1, 20, 33]),
        "cores": st.sampled_from([0, 10, 40, 120]),
    },
)
pods = st.builds(
    lambda inits, apps, policy, notes: pod(
        *(kind(f"i{n}", **given_) for n, (kind, given_) in enumerate(inits)),
        *(container(f"a{n}", **given_) for n, given_ in enumerate(apps)),
        container("asks", gpu=1, mem=1),
        policy=policy,
        annotations={key: value for key, value in notes.items() if value is not None},
    ),
    st.lists(st.tuples(st.sampled_from([init, sidecar]), amounts), max_size=2),
    st.lists(amounts, max_size=2),
    st.sampled_from(
        [
            "binpack",
            "spread",
            "mutex",
            "topology-aware",
            "numa",
            "numa-first,topology-aware",
            "topology-aware,mutex",
            "",
        ]
    ),
    st.fixed_dictionaries(
        {
            "nvidia.com/numa-bind": st.sampled_from([None, "true"]),
            "nvidia.com/vgpu-mode": st.sampled_from([None, None, None, "mig", "hami-core"]),
            "nvidia.com/nouse-gpuuuid": st.sampled_from([None, "g0"]),
        }
    ),
)


@given(worlds(), pods, st.none() | st.integers(8000, 90000))
def test_a_placement_keeps_within_every_card_and_every_rule(on: NodeView, incoming: Pod, memory: int | None) -> None:
    budget = None if memory is None else room(incoming, memory=memory)
    fit = fitted(incoming, on, budget)
    if isinstance(fit, Rejection):
        assert str(fit)
        return
    cards = {device.uuid: device for device in on.inventories["NVIDIA"].devices}
    claims = fit.claims()
    for (vendor, uuid), debit in per_device(claims, incoming.kinds).items():
        device, used = cards[uuid], on.used(vendor, uuid)
        assert used.slots < device.slots
        assert used.memory + debit.memory <= device.memory
        if device.mode != "mig":  # instances of one container are limited by their placements alone
            assert used.slots + debit.slots <= device.slots
            assert used.cores + debit.cores <= device.cores
        assert device.healthy
        assert uuid not in on.inventories["NVIDIA"].facts.cordoned
    if budget is not None:
        assert budget.admits(claims)
    assert all(claim.memory > 0 for claim in claims)
    bound = incoming.annotations.get("nvidia.com/numa-bind") == "true"
    for item, row in zip(incoming.containers, fit.rows, strict=True):
        count = int(item.limits["nvidia.com/gpu"])
        assert len(row["NVIDIA"].devices if row else ()) == count
        shared = [d.uuid for d in (row["NVIDIA"].devices if row else ()) if cards[d.uuid].mode != "mig"]
        assert len(set(shared)) == len(shared)
        if bound and row:
            assert len({cards[d.uuid].numa for d in row["NVIDIA"].devices}) == 1
    instances_stay_apart(on, incoming, fit)


def instances_stay_apart(on: NodeView, incoming: Pod, fit: NodeFit) -> None:
    """No two MIG instances that exist at one time overlap."""
    kinds = incoming.kinds
    for device in on.inventories["NVIDIA"].devices:
        before = [mark.placement for mark in on.used("NVIDIA", device.uuid).marks]
        cacheable: list[MigPlacement] = []
        sidecars: list[MigPlacement] = []
        for kind, row in zip(kinds, fit.rows, strict=True):
            found = row["NVIDIA"].devices if row else ()
            mine = [d.share.mark.placement for d in found if d.uuid == device.uuid and d.share.mark]
            if kind is ContainerKind.INIT:
                disjoint([*before, *sidecars, *mine])
                continue
            sidecars += mine if kind is ContainerKind.SIDECAR else []
            cacheable += mine
        disjoint([*before, *cacheable])


def disjoint(placements: Sequence[MigPlacement]) -> None:
    slices = [n for placement in placements for n in range(placement.start, placement.start + placement.size)]
    assert len(slices) == len(set(slices))
