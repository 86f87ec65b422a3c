"""KAI's pods: what they may ask for, what they cost, who may change that, and the pods that hold its cards.

Source: docs/spec/kai.md; the examples of its section 7 by number. KAI itself can't be had here: pods carry what its
binder writes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import pytest
from admission.reviews import NoTouch, at_once, handler_of, parsed, refusal, review, update
from admission.reviews import pod as tenants_pod
from builders import JSON, bound_pod, card, container, read_node
from devices.fit_env import CHART, NOW, configured, pod
from hypothesis import given
from hypothesis import strategies as st
from refusals import has_node
from tables import in_one_test

from hami_webhook.admission.handler import AdmissionHandler
from hami_webhook.admission.identities import AdmissionRules
from hami_webhook.admission.review import UNCHANGED
from hami_webhook.devices.model import BadRequest
from hami_webhook.integrations.kai import CARD_MEMORY, CARD_MODEL, CardShare, read_share
from hami_webhook.kube.objects import Node, Pod
from hami_webhook.queueing.headroom import manager_of
from hami_webhook.quota.card_selection import CardSelection
from hami_webhook.quota.floors import floor_id
from hami_webhook.quota.pricing import charge_of, overrun

from .schedulers_env import SchedulersEnv

KAI, BINDER = "kai-scheduler", "system:serviceaccount:kai-scheduler:binder"
RESERVED = "kai-resource-reservation"
OF_MAIN = "nvidia.com/container.main.gpu-memory"
A30, H100 = 24576, 81559


def gpu_node(name: str, memory: object, *cards: JSON, model: str = "") -> Node:
    """A node as NVIDIA's plugin and GPU feature discovery show it, and HAMi's plugin if it registers cards."""
    labels = {CARD_MEMORY: str(memory)} | ({CARD_MODEL: model} if model else {})
    return read_node(name, *cards, labels=labels, capacity={"nvidia.com/gpu": 8})


def two_nodes() -> SchedulersEnv:
    return SchedulersEnv([gpu_node("small", A30, model="NVIDIA-A30"), gpu_node("large", H100, model="NVIDIA-H100")])


def kai_pod(name: str = "p", /, *containers: JSON, scheduler: str = KAI, **more: Any) -> JSON:
    """A pod of one container without limits, unless given; `fraction`, `memory` and `devices` are its annotations."""
    keys = {"fraction": "gpu-fraction", "memory": "gpu-memory", "devices": "gpu-fraction-num-devices"}
    notes = {keys[key]: str(more.pop(key)) for key in keys if key in more} | more.pop("notes", {})
    return pod(name, *(containers or (container(),)), annotations=notes, schedulerName=scheduler, **more)


def short(amounts: Mapping[str, int]) -> tuple[int, int, int]:
    """Cards, MiB and percent."""
    assert amounts.keys() <= {"limits.nvidia.com/gpu", "limits.nvidia.com/gpumem", "limits.nvidia.com/gpucores"}
    found = [amounts.get(f"limits.nvidia.com/{name}", 0) for name in ("gpu", "gpumem", "gpucores")]
    return found[0], found[1], found[2]


def debit(env: SchedulersEnv, manifest: JSON, node: str) -> tuple[int, int, int]:
    return short(charge_of(env.keep(manifest, node), env.vendors, env.state.capacity, NOW).amounts)


@pytest.mark.parametrize(
    ("manifest", "floor", "placed"),
    [
        pytest.param(kai_pod(fraction="0.5"), (1, 12288, 50), (1, 40780, 50), id="1 half of a card"),
        pytest.param(kai_pod(memory=2000), (1, 2000, 3), (1, 2000, 3), id="2 memory"),
        pytest.param(kai_pod(fraction="0.25", devices=2), (2, 12288, 50), (2, 40780, 50), id="3 of two cards"),
        pytest.param(kai_pod("p", container(gpu=2)), (2, 49152, 200), (2, 163118, 200), id="4 whole cards"),
        pytest.param(kai_pod(notes={f"{OF_MAIN}.request": "4Gi", f"{OF_MAIN}.limit": "8Gi"}), (1, 4096, 6),
                     (1, 4096, 6), id="5 by container"),
        pytest.param(kai_pod(notes={f"{OF_MAIN}.limit": "8Gi"}), (1, 8192, 11), (1, 8192, 11), id="5 by its limit"),
        pytest.param(kai_pod(fraction="1e-9"), (1, 1, 1), (1, 1, 1), id="6 less than a MiB"),
        pytest.param(kai_pod(fraction="0.01", notes={f"{OF_MAIN}.request": "4Gi"}), (1, 4096, 6), (1, 4096, 6),
                     id="7 both ways: the larger"),
        pytest.param(kai_pod(memory=200000), (1, 200000, 100), (1, 200000, 100), id="8 more than a card"),
    ],
)  # fmt: skip
def test_a_pod_costs_the_least_until_it_is_bound_and_then_its_nodes_card(
    manifest: JSON, floor: tuple[int, int, int], placed: tuple[int, int, int]
) -> None:
    env = two_nodes()
    admitted = env.admit(manifest)
    assert (admitted.manifest, list(admitted.warnings)) == (manifest, [])
    assert short(env.waiting(manifest)) == floor
    assert debit(env, manifest, "large") == placed


def test_on_a_node_without_the_label_the_least_counts_and_it_is_said() -> None:
    env = two_nodes()
    env.state.set_node(read_node("bare", capacity={"nvidia.com/gpu": 8}), NOW)
    charge = charge_of(env.keep(kai_pod(fraction="0.5"), "bare"), env.vendors, env.state.capacity, NOW)
    assert (short(charge.amounts), charge.placed) == ((1, 12288, 50), False)
    assert charge.problems == (
        "node bare has no label nvidia.com/gpu.memory, so the least that a card could cost counts",
    )


def test_more_than_was_charged_is_an_overrun() -> None:
    """A share of a large card in a quota that had room for one of the smallest."""
    env = two_nodes()
    bound = env.keep(kai_pod(fraction="0.5"), "large")
    charge = charge_of(bound, env.vendors, env.state.capacity, NOW)
    keys = {"limits.nvidia.com/gpu", "limits.nvidia.com/gpumem"}
    assert overrun(bound, charge, keys, env.vendors, env.state.capacity) == ["limits.nvidia.com/gpumem"]


@in_one_test("label", ["", "0", "-5", "80Gi", "many", "1e30", "99999999999999999999"])
def test_a_label_that_says_nothing_is_none(label: str) -> None:
    """Nodes write it themselves: no one of them makes a share cost nothing, or everything."""
    env = two_nodes()
    env.state.set_node(gpu_node("odd", label), NOW)
    assert short(env.waiting(kai_pod(fraction="0.5"))) == (1, 12288, 50)


def test_without_any_card_that_is_known_a_share_still_costs_a_card() -> None:
    assert short(SchedulersEnv().waiting(kai_pod(fraction="0.5"))) == (1, 1, 50)
    assert short(SchedulersEnv().waiting(kai_pod(memory=2000))) == (1, 2000, 0)


def test_whole_cards_cost_no_less_than_without_the_integration() -> None:
    """HAMi's plugin registers the cards, and nothing labels the node."""
    env = SchedulersEnv([read_node("n1", card("GPU-a"), card("GPU-b"))])
    assert short(env.waiting(kai_pod("p", container(gpu=2)))) == (2, 81920, 200)
    assert debit(env, kai_pod("p", container(gpu=2)), "n1") == (2, 81920, 200)


# what the user writes


@in_one_test(
    ("notes", "words"),
    [
        ({"gpu-fraction": "1"}, "must be a number above 0 and below 1; for whole cards set nvidia.com/gpu"),
        *[({"gpu-fraction": text}, "must be a number above 0 and below 1") for text in (
            "0", "-0.5", "1.5", "NaN", "nan", "inf", "1e400", "0x1p-1", "half", " 0.5", "0_1.5", "0.5,0.5",
            "٠.٥", "0." + "1" * 100, "1e9999999999",
        )],
        *[({"gpu-memory": text}, "must be a whole number of MiB between 1 and 16777216") for text in (
            "0", "-1", "2Gi", "1.5", "1e3", "16777217", "9" * 5000, "NaN", "٤",
        )],
        *[({"gpu-fraction": "0.5", "gpu-fraction-num-devices": text}, "must be a whole number of cards between 1 and ")
          for text in ("0", "-1", "", "1.5", "two", "1025", "9" * 5000)],
        *[({f"{OF_MAIN}.request": text}, "must be an amount of memory above 0") for text in (
            "0", "-1Gi", "much", "", "1e400", "17Ti", "9" * 5000,
        )],
        ({"gpu-fraction": "0.5", "gpu-memory": "100"}, "gpu-fraction and gpu-memory in one pod"),
    ],
)  # fmt: skip
def test_what_kai_would_not_give_is_refused_with_a_sentence(notes: JSON, words: str) -> None:
    message = two_nodes().refusal(kai_pod(notes=notes))
    assert words in message
    assert len(message) < 300


def test_a_share_beside_whole_cards_is_refused() -> None:
    manifest = kai_pod("p", container(), container("other", gpu=1), fraction="0.5")
    assert "a share of a card by annotation and nvidia.com/gpu in one pod" in two_nodes().refusal(manifest)


def test_a_pod_that_has_its_node_is_refused() -> None:
    assert two_nodes().refusal(kai_pod(fraction="0.5", nodeName="large")) == has_node("large")


def test_a_privileged_container_is_warned_of() -> None:
    manifest = kai_pod("p", container(securityContext={"privileged": True}), fraction="0.5")
    assert two_nodes().admit(manifest).codes == ["kai/privileged"]


@given(st.text(max_size=60) | st.from_regex(r"[-+]?[0-9.]{1,20}([eE][-+]?[0-9]{1,6})?", fullmatch=True))
def test_any_text_is_a_share_of_a_card_or_refused(text: str) -> None:
    for key in ("gpu-fraction", "gpu-memory", "gpu-fraction-num-devices", f"{OF_MAIN}.limit"):
        try:
            share = read_share({"gpu-fraction": "0.5", key: text})
        except BadRequest:
            continue
        if share is not None:
            assert 0 <= share.portion < 1
            assert 1 <= share.cards <= 1024
            held = share.on(A30, H100)
            assert 0 < held.memory <= 1024 * 2**24
            assert 0 < held.cores <= 100 * share.cards


@given(
    st.integers(1, 8),
    st.fractions(0, 1).filter(lambda portion: 0 < portion < 1),
    st.integers(0, 200000),
    st.lists(st.integers(1, 200000), min_size=1, max_size=5),
    st.data(),
)
def test_the_floor_is_never_above_a_placement(
    cards: int, portion: Fraction, memory: int, sizes: list[int], data: st.DataObject
) -> None:
    share, size = CardShare(cards, portion, memory), data.draw(st.sampled_from(sizes))
    floor, held = share.on(min(sizes), max(sizes)), share.on(size, size)
    assert floor.at_least(held) == held


# whose pods they are


@in_one_test(
    "manifest",
    [
        kai_pod(fraction="0.5", scheduler="default-scheduler"),
        kai_pod(fraction="nonsense", scheduler=""),
        kai_pod(memory="2Gi", scheduler="volcano"),
        kai_pod(),
        kai_pod(notes={"gpu-fraction-container-name": "main", "runai-gpu-group": "g"}),
        kai_pod(labels={"runai-gpu-group": "g"}, notes={"received-resource-type": "Fraction"}),
    ],
)
def test_ordinary_day_other_pods_are_left_alone_and_cost_nothing(manifest: JSON) -> None:
    """Without KAI's scheduler, or without a share: no read, no charge, no warning."""
    handler = handler_of(known=CHART, services=NoTouch())
    for path in (handler.mutate, handler.validate, handler.webhook):
        assert at_once(path(parsed(review(manifest)))) == UNCHANGED
    assert two_nodes().state is not None
    found = Pod.from_object({**manifest, "spec": {**manifest["spec"], "nodeName": "large"}})
    assert charge_of(found, CHART, two_nodes().state.capacity, NOW).amounts == {}


@in_one_test("section", ["kai: {enabled: false}", ""])
def test_a_section_that_is_off_or_absent_leaves_kais_pods_alone(section: str) -> None:
    vendors = configured(f"nvidia: {{resourceCountName: nvidia.com/gpu}}\n{section}")
    assert vendors.foreign == ()
    assert (
        at_once(handler_of(known=vendors, services=NoTouch()).validate(parsed(review(kai_pod(fraction="9")))))
        == UNCHANGED
    )


def test_without_nvidias_section_there_is_nothing_to_charge() -> None:
    assert [each.key for each in configured("volcano: {}\nkai: {}").foreign] == ["volcano"]


def test_kai_decides_when_its_pods_run_so_they_get_no_gate_of_ours() -> None:
    assert manager_of(Pod.from_object(kai_pod(fraction="0.5")), CHART) == "KAI"


def test_pods_that_ask_for_other_shares_do_not_share_a_floor_entry() -> None:
    """What is kept for pods that wait is kept for those that ask for the same."""
    shares = [kai_pod(name, fraction=share) for name, share in (("a", "0.5"), ("b", "0.5"), ("c", "0.6"))]
    first, same, other = (floor_id(Pod.from_object(manifest), CHART) for manifest in shares)
    assert first == same != other


@pytest.mark.parametrize(("types", "counted"), [(("h100",), (1, 40780, 50)), (("a30",), (0, 0, 0))])
def test_a_quota_of_some_cards_counts_a_share_of_those(types: tuple[str, ...], counted: tuple[int, int, int]) -> None:
    env = two_nodes()
    bound = env.keep(kai_pod(fraction="0.5"), "large")
    found = charge_of(bound, env.vendors, env.state.capacity, NOW, cards=CardSelection(types))
    assert short(found.amounts) == counted


# attacks


RULES = AdmissionRules(foreign_users={"kai": frozenset({BINDER})}, trusted_groups=frozenset({"ops"}))
GATE = handler_of(RULES, known=CHART, services=NoTouch())
ANY_GATE = handler_of(RULES, known=CHART)


@in_one_test(
    "change",
    [
        {"gpu-fraction": "0.9"},
        {"gpu-fraction": "0.1"},
        {"gpu-fraction": None},
        {"gpu-memory": "1"},
        {"gpu-fraction-num-devices": "8"},
        {f"{OF_MAIN}.request": "80Gi"},
    ],
)
def test_attack_a_tenant_changes_what_its_pod_asks_for_later(change: JSON) -> None:
    """A pod without a share, or with a small one, would be charged for that and get more."""
    old = kai_pod(fraction="0.5", namespace="team-a")
    notes = {key: value for key, value in {**old["metadata"]["annotations"], **change}.items() if value is not None}
    new = {**old, "metadata": {**old["metadata"], "annotations": notes}}
    code, message = refusal(lambda: at_once(GATE.validate(parsed(update(old, new)))))
    assert (code, "can't be changed from" in message) == (403, True)
    plain = kai_pod(namespace="team-a")
    if None not in change.values():
        grown = {**plain, "metadata": {**plain["metadata"], "annotations": change}}
        assert refusal(lambda: at_once(GATE.validate(parsed(update(plain, grown)))))[0] == 403
    # KAI's binder writes the memory that a share came to; others of our own do as they like
    assert at_once(GATE.validate(parsed(update(old, new, BINDER)))) == UNCHANGED
    assert at_once(GATE.validate(parsed(update(old, new, "joe", "ops")))) == UNCHANGED


def test_ordinary_day_its_other_annotations_and_labels_change_freely() -> None:
    old = kai_pod(fraction="0.5", namespace="team-a")
    new = kai_pod(fraction="0.5", namespace="team-a", labels={"runai-gpu-group": "g"}, notes={"team": "a"})
    assert at_once(GATE.validate(parsed(update(old, new)))) == UNCHANGED
    other = [kai_pod(namespace="team-a", scheduler="mine", memory=memory) for memory in (1, 2)]
    assert at_once(GATE.validate(parsed(update(other[0], other[1])))) == UNCHANGED


@in_one_test(
    ("labels", "notes"),
    [
        ({"runai-gpu-group": "g"}, {"received-resource-type": "Fraction"}),
        ({"runai-gpu-group/a": "a", "runai-gpu-group/b": "b"}, {}),
        ({"nvidia.com/gpu.memory": "1"}, {"nvidia.com/gpu.memory": "1"}),
    ],
)
def test_attack_what_the_binder_writes_lowers_nothing_if_a_tenant_writes_it(labels: JSON, notes: JSON) -> None:
    """Neither before the pod is bound, nor later, when the tenant takes the label away again."""
    env = two_nodes()
    written = kai_pod(fraction="0.5", labels=labels, notes=notes)
    assert short(charge_of(Pod.from_object(written), env.vendors, env.state.capacity, NOW).amounts) == (1, 12288, 50)
    assert debit(env, written, "large") == debit(env, kai_pod("q", fraction="0.5"), "large") == (1, 40780, 50)


def holder(name: str = "gpu-reservation-large-abcde", *, namespace: str = RESERVED, **more: Any) -> JSON:
    """What KAI's binder makes, to hold a card."""
    limits = {"nvidia.com/gpu": "1"}
    labels = {"app": RESERVED, "runai-gpu-group": "g"}
    holding = container("resource-reservation", limits, limits)
    return tenants_pod(name, holding, nodeName="large", labels=labels, namespace=namespace, **more)


def sent(path: str, manifest: JSON, user: str, *groups: str, gate: AdmissionHandler = GATE) -> Any:
    info = {"username": user, "groups": ["system:authenticated", *groups]}
    asked = parsed(review(manifest, userInfo=info, namespace=manifest["metadata"]["namespace"]))
    return asyncio.run(getattr(gate, path)(asked))


def test_where_kai_holds_cards_nothing_but_limits_is_free() -> None:
    """A share, or cards that our own scheduler gave, cost what they do elsewhere."""
    share = kai_pod(fraction="0.5", namespace=RESERVED, nodeName="large")
    assert short(charge_of(Pod.from_object(share), CHART, two_nodes().state.capacity, NOW).amounts) == (1, 40780, 50)
    ours = bound_pod("p", "n1", "GPU-1,NVIDIA,3000,30:;", namespace=RESERVED)
    assert short(charge_of(Pod.from_object(ours), CHART, two_nodes().state.capacity, NOW).amounts) == (1, 3000, 30)


PATHS = pytest.mark.parametrize("path", ["mutate", "validate", "webhook"])


@PATHS
def test_ordinary_day_kais_binder_holds_a_card(path: str) -> None:
    """Nothing is put in, asked of quotas, or charged: the pods that share the card pay for it."""
    assert sent(path, holder(), BINDER) == UNCHANGED
    assert sent(path, holder(), "joe", "ops") == UNCHANGED
    assert charge_of(Pod.from_object(holder()), CHART, two_nodes().state.capacity, NOW).amounts == {}


@PATHS
@pytest.mark.parametrize(
    ("manifest", "user", "words"),
    [
        (holder(), "alice", "only KAI makes pods with cards in namespace kai-resource-reservation, not alice"),
        (holder(), f"system:serviceaccount:{RESERVED}:default", "only KAI makes pods with cards"),
        (kai_pod(fraction="0.5", namespace=RESERVED), "alice", "only KAI makes pods with cards"),
        (
            tenants_pod("gpu-reservation-a", container(gpu=1), namespace=RESERVED),
            "alice",
            "only KAI makes pods with cards",
        ),
        (holder(namespace="team-a"), "alice", has_node("large")),
        (holder(namespace="team-a"), BINDER, has_node("large")),
    ],
)
def test_attack_nobody_else_holds_a_card_without_a_charge(path: str, manifest: JSON, user: str, words: str) -> None:
    """Neither the name nor the namespace alone, nor the account elsewhere."""
    code, message = refusal(lambda: sent(path, manifest, user, gate=ANY_GATE))
    assert (code, words in message) == (403, True), message


def test_ordinary_day_a_pod_without_cards_may_be_there() -> None:
    plain = tenants_pod("p", container(), namespace=RESERVED)
    assert sent("validate", plain, "alice") == UNCHANGED
