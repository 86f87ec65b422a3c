"""Which cards pods of every vendor get, why they are refused, what it costs: one suite for all that are registered.

The nodes and the requests are those of `test_conformance.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pytest
from builders import container
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tables import in_one_test

from hami_webhook.devices.model import AllocatedDevice, Device, DeviceShare, NodeView, Usage
from hami_webhook.devices.pod_fit import fit_pod, read_pod_request
from hami_webhook.devices.reasons import Rejection
from hami_webhook.quota.budget import PodBudget
from hami_webhook.quota.pricing import charge_of, price_pending

from .fit_env import JSON, NOW, FitEnv, Placed, asked, pod
from .test_conformance import CASES, Case, every_vendor, of_each_vendor, pod_of

POLICY = "hami.io/gpu-scheduler-policy"


@dataclass(frozen=True)
class Taken:
    """A request of a case, on a node without pods, and the cards it gets there."""

    case: Case
    view: NodeView
    limits: JSON
    notes: Mapping[str, str]
    got: Sequence[AllocatedDevice]

    @property
    def share(self) -> DeviceShare:
        return self.got[0].share

    @property
    def cards(self) -> Sequence[Device]:
        return self.view.inventories[self.case.key].devices

    def manifest(self, name: str = "p", limits: JSON | None = None, notes: Mapping[str, str] | None = None) -> JSON:
        return pod(name, annotations={**self.notes, **(notes or {})}, **(self.limits if limits is None else limits))

    def env(self, hard: Mapping[str, int] | None = None) -> FitEnv:
        return self.case.env([self.view.node], hard=hard or {})


def served(case: Case) -> Iterator[Taken]:
    """The requests that a node takes, of pods that don't choose cards themselves."""
    lists = set(case.vendor.keys.lists)
    for limits, notes in case.requests:
        for node in case.nodes:
            env = case.env([node])
            view, admitted = env.state.view(node.name), env.admit(pod(annotations=dict(notes), **limits))
            if view is None or admitted.pod is None or lists & notes.keys():
                continue
            found = fitted(case, view, admitted.pod)
            if not isinstance(found, str):
                yield Taken(case, view, limits, notes, found)


def fitted(
    case: Case, view: NodeView, manifest: JSON, hard: Mapping[str, int] | None = None
) -> Sequence[AllocatedDevice] | str:
    """The cards of the first container, or why it gets none."""
    incoming = pod_of(manifest)
    request = read_pod_request(incoming, case.vendors, "spread")
    if request is None:
        return "requests nothing"
    budget = None if hard is None else PodBudget(hard, incoming.kinds, case.vendors)
    found = fit_pod(view, request, case.vendors, budget)
    return str(found) if isinstance(found, Rejection) else found.rows[0][case.key].devices


FIRSTS = [
    min(served(case), key=lambda taken: (len(taken.got), not taken.share.cores, taken.share.cores, -len(taken.cards)))
    for case in CASES
]
"""Of each vendor a request of as few cards and cores as possible, on the node with the most cards."""
every_first = pytest.mark.parametrize("taken", FIRSTS, ids=lambda taken: taken.case.key)


# what refuses a card

LABELS = {
    "sick": "CardNotHealth",
    "denied": "CardUuidMismatch",
    "full": "CardTimeSlicingExhausted",
    "mutex": "ExclusiveDeviceAllocateConflict",
    "quota": "ResourceQuotaNotFit",
    "memory": "CardInsufficientMemory",
    "cores": "CardInsufficientCore",
}
ORDERS = {
    "AWSNeuron": "sick denied full mutex quota",
    "Biren": "sick denied full",
    "Enflame": "sick denied full mutex quota memory",
    "Enflame-DRS": "sick denied full mutex quota memory",
    "GCU": "sick",
    "Metax-GPU": "sick full",
    "Vastai": "sick denied full",
    "XPU": "denied sick memory",
    "kunlun": "denied sick",
}
"""What is checked in another order than that of `LABELS`, or isn't checked: then it is in the vendor's own tests."""


def refused(taken: Taken, wrong: Collection[str]) -> str:
    """Why a node takes no pod if this is wrong with all of its cards."""
    key, share = taken.case.key, taken.share
    notes = {POLICY: "mutex"} if "mutex" in wrong else {}
    if "denied" in wrong:
        notes[taken.case.vendor.keys.nouse_uuid[0]] = ",".join(card.uuid for card in taken.cards)
    usage = {}
    for card in taken.cards:
        slots = card.slots if "full" in wrong else int(not {"mutex", "memory", "cores"}.isdisjoint(wrong))
        memory = card.memory - share.memory + 1 if "memory" in wrong else 0
        usage[key, card.uuid] = Usage(slots, memory, card.cores - share.cores + 1 if "cores" in wrong else 0)
    closed = frozenset(usage) if "sick" in wrong else frozenset()
    unhealthy = {card.uuid: "NVML no longer finds it" for card in taken.cards if "reported" in wrong}
    view = NodeView(taken.view.node, taken.view.inventories, usage, closed, unhealthy=unhealthy)
    hard = {each.name: 0 for each in taken.case.vendor.quota_keys()} if "quota" in wrong else None
    return str(fitted(taken.case, view, taken.env().admit(taken.manifest(notes=notes)).patched, hard))


@every_first
def test_a_card_is_refused_by_the_first_check_that_it_fails(taken: Taken) -> None:
    """Each thing that can be wrong with it alone, and with all that are checked later."""
    order = ORDERS.get(taken.case.key, " ".join(LABELS)).split()
    count = len(taken.cards)
    for place, what in enumerate(order):
        label = "CardUnhealthy" if (taken.case.key, what) == ("Metax-SGPU", "sick") else LABELS[what]
        for wrong in ([what], order[place:]):
            assert f"{count}/{count} {label}" in refused(taken, wrong), wrong
    if "full" in order:
        assert LABELS["full"] in refused(taken, ["full", "mutex"]), "also where a card has one slot"


@every_first
def test_no_card_is_given_that_the_node_s_monitor_calls_unhealthy(taken: Taken) -> None:
    assert refused(taken, ["reported"]) == refused(taken, ["sick"])


@in_one_test("key", [case.key for case in CASES if case.key != "kunlun"])  # which never gives used cards
def test_a_card_that_has_just_enough_left_is_given(key: str) -> None:
    taken = next(each for each in FIRSTS if each.case.key == key)
    share = taken.share
    usage = {
        (key, card.uuid): Usage(
            card.slots - share.slots, card.memory - share.memory, card.cores - share.cores if share.cores else 0
        )
        for card in taken.cards
    }
    view = NodeView(taken.view.node, taken.view.inventories, usage)
    assert fitted(taken.case, view, taken.env().admit(taken.manifest()).patched) == taken.got


@pytest.mark.parametrize("key", ["BI-V150", "DCU", "Iluvatar", "MLU", "Metax-SGPU", "Mthreads", "NVIDIA"])
def test_compute_that_is_all_reserved_serves_nobody_and_all_of_it_nobody_beside_others(key: str) -> None:
    taken = next(each for each in FIRSTS if each.case.key == key)

    def outcome(cores: int, used: int) -> str:
        usage = {(key, card.uuid): Usage(1, 0, card.cores - used) for card in taken.cards}
        view = NodeView(taken.view.node, taken.view.inventories, usage)
        manifest = taken.env().admit(taken.manifest(limits=taken.limits | {taken.case.vendor.core_name: cores})).patched
        found = fitted(taken.case, view, manifest)
        return found.partition(" ")[2] if isinstance(found, str) else "fits"

    assert (outcome(0, used=0), outcome(0, used=1)) == ("CardComputeUnitsExhausted", "fits")
    if key != "Mthreads":  # whole cards are asked for by more than their cores
        assert outcome(100, used=100) == "ExclusiveDeviceAllocateConflict"


@every_first
def test_of_two_pods_on_one_node_the_policy_says_which_card(taken: Taken) -> None:
    """Binpack takes the same card again where it can; spread and mutex take another."""
    case, share = taken.case, taken.share
    chosen = {}
    for policy in ("binpack", "spread", "mutex"):
        env = taken.env()
        env.placed(taken.manifest("first"))
        second = env.place(taken.manifest("second", notes={POLICY: policy}))
        chosen[policy] = [] if isinstance(second, dict) else uuids_of(case, second)
    first = [device.uuid for device in taken.got]
    twice = all(
        2 * share.slots <= card.slots and 2 * share.memory <= card.memory and 2 * share.cores <= card.cores
        for card in taken.cards
    )
    assert not set(first) & set(chosen["mutex"])
    assert (chosen["binpack"] == first) is twice
    if case.key not in ("AWSNeuron", "XPU"):  # whose own rule chooses
        assert not set(first) & set(chosen["spread"])


def uuids_of(case: Case, placed: Placed) -> list[str]:
    rows = case.vendor.decode(pod_of(pod(annotations=dict(placed.annotations))))
    assert rows is not None
    return [entry.uuid for row in rows for entry in row]


@pytest.mark.parametrize("case", [case for case in CASES if case.vendor.keys.use_uuid], ids=lambda case: case.key)
def test_its_lists_of_devices_hold(case: Case) -> None:
    """An allow list of one device gives that one or none, and a deny list of all of them gives none."""
    keys = case.vendor.keys
    for each in case.nodes:
        env = case.env([each])
        view = env.state.view(each.name)
        assert view is not None
        if case.key not in view.inventories:
            continue  # its plugin is gone
        uuids = [device.uuid for device in view.inventories[case.key].devices]
        for use in keys.use_uuid:
            placed = env.place(case.first(**{use: uuids[0]}), keep=False)
            if isinstance(placed, Placed):
                assert {entry for entry in uuids if entry in placed.annotations[keys.allocated]} == {uuids[0]}
        for nouse in keys.nouse_uuid:
            refused = env.place(case.first(**{nouse: ", ".join(uuids)}), keep=False)
            assert not isinstance(refused, Placed)


@every_vendor
def test_an_allow_list_that_names_nothing_allows_nothing(case: Case) -> None:
    """As HAMi's do; a blank one is none, and a deny list of commas denies nothing."""
    keys, env = case.vendor.keys, case.env()
    for key in (*keys.use_uuid, *keys.use_type):
        for text in (",", " , ,"):
            assert not isinstance(env.place(case.first(**{key: text}), keep=False), Placed), key
        assert isinstance(env.place(case.first(**{key: " "}), keep=False), Placed), key
    for key in (*keys.nouse_uuid, *keys.nouse_type):
        assert isinstance(env.place(case.first(**{key: ","}), keep=False), Placed), key


# what it costs


@every_vendor
def test_a_quota_of_what_a_placement_costs_is_enough_and_less_is_not(case: Case) -> None:
    for taken in served(case):
        free = taken.env().placed(taken.manifest())
        waiting = taken.env().waiting(taken.manifest())
        if case.key != "Mthreads":  # where a whole card is charged as one of 48 GiB until it is known which
            assert all(amount <= free.debits.get(key, 0) for key, amount in waiting.items())
        assert taken.env(free.debits).place(taken.manifest()) == free
        for key, amount in free.debits.items():
            short = taken.env({key: amount - 1}).place(taken.manifest())
            if isinstance(short, Placed):
                assert short.debits[key] < amount, "there is a cheaper card"
            else:
                assert all("ResourceQuotaNotFit" in why for why in short.values())


@every_first
def test_init_containers_cost_their_peak_until_they_are_over_and_sidecars_add_up(taken: Taken) -> None:
    env = taken.env()

    def cost(*apps: JSON, init: Sequence[JSON], finished: bool = False) -> Mapping[str, int] | None:
        """None where two shares don't go on the node."""
        if isinstance(env.place(pod("p", *apps, init=init, annotations=dict(taken.notes))), dict):
            return None
        (bound,) = env.state.pods()
        env.remove("p")
        return charge_of(replace(bound, init_finished=finished), taken.case.vendors, env.state.capacity, NOW).amounts

    one = container(**taken.limits)
    single = cost(one, init=[])
    assert single is not None
    assert cost(one, init=[one, one]) == single
    assert cost(container(), init=[one], finished=True) == {}
    for finished in (False, True):
        twice = cost(one, init=[container(sidecar=True, **taken.limits)], finished=finished)
        assert twice in (None, {key: 2 * amount for key, amount in single.items()})
    assert cost(one, one, init=[]) == twice


@every_vendor
def test_what_is_written_of_each_container_is_read_back(case: Case) -> None:
    """Init containers first, and nothing for those without cards."""
    for taken in served(case):
        one = container(**taken.limits)
        manifest = taken.env().admit(pod("p", container(), one, init=[one], annotations=dict(taken.notes))).patched
        request = asked(manifest, case.vendors)
        found = fit_pod(taken.view, request, case.vendors, None)
        assert not isinstance(found, Rejection)
        written = case.vendor.encode(pod_of(manifest), found.rows, taken.view.node, NOW)
        keys = [key for key in (case.vendor.keys.allocated, case.vendor.keys.to_allocate) if key]
        assert len({written[key] for key in keys}) == 1
        read = case.vendor.decode(pod_of(pod(annotations=written)))
        assert [[(entry.uuid, entry.memory) for entry in row] for row in read or ()] == [
            [(device.uuid, device.share.memory) for device in row[case.key].devices] if row else []
            for row in found.rows
        ]
        assert [bool(row) for row in found.rows] == [True, False, True]


# whatever comes and goes


@every_first
@of_each_vendor
@given(data=st.data())
def test_no_card_is_oversold_no_quota_exceeded_and_all_is_given_back(taken: Taken, data: st.DataObject) -> None:
    """Pod after pod, of several containers of all kinds; some of them end before the next comes."""
    case = taken.case
    first = taken.env().placed(taken.manifest())
    key, amount = data.draw(st.sampled_from(sorted(first.debits.items())), "quota key")
    most = data.draw(st.none() | st.integers(1, 4 * amount), "quota")
    env = case.env(hard={} if most is None else {key: most})
    requests, notes = zip(*case.requests, strict=True)
    there = []
    for number in range(data.draw(st.integers(1, 5), "pods")):

        def drawn(name: str, most: int, **fields: bool) -> list[JSON]:
            found = data.draw(st.lists(st.sampled_from(requests), max_size=most), name)
            return [container(f"{name}{place}", **fields, **limits) for place, limits in enumerate(found)]

        policy = data.draw(st.sampled_from(["spread", "binpack", "mutex", "topology-aware", "numa"]))
        init = [*drawn("init", 1), *drawn("beside", 1, sidecar=True)]
        chosen = {**data.draw(st.sampled_from(notes), "annotations"), POLICY: policy}
        manifest = pod(f"p{number}", *drawn("app", 2), container("side"), init=init, annotations=chosen)
        found = env.admit(manifest)
        if found.pod is None:
            assert found.message
            continue
        incoming = pod_of(found.pod)
        if not any(case.vendor.requests_of(incoming)):
            continue
        waiting = price_pending(incoming, case.vendors, env.state.capacity).amounts
        assert waiting.keys() <= case.vendors.quota_keys.keys()
        placed = env.place(found.pod, admit=False)
        if isinstance(placed, Placed):
            there.append(f"p{number}")
        else:
            assert all(placed.values()), "every node says why"
        stays_within(env)
        charged = env.charged()
        assert all(charged[key] <= hard for key, hard in env.hard.items())
        if there and data.draw(st.integers(0, 3)) == 0:
            env.remove(there.pop(0))
    for name in there:
        env.remove(name)
    assert not +env.charged()
    assert all(env.used(*card) == (0, 0, 0) for card in all_cards(env))


def all_cards(env: FitEnv) -> Iterator[tuple[str, str, str]]:
    for view in env.state.views():
        for key, inventory in view.inventories.items():
            yield from ((key, device.uuid, view.node.name) for device in inventory.devices)


def stays_within(env: FitEnv) -> None:
    for view in env.state.views():
        for key, inventory in view.inventories.items():
            for device in inventory.devices:
                slots, memory, cores = env.used(key, device.uuid, view.node.name)
                assert slots <= device.slots, device
                assert memory <= device.memory, device
                rounded_up = slots if key == "Enflame-DRS" else 0  # sixths of a card, a slot each
                assert cores <= device.cores + rounded_up or device.mode == "mig", device
