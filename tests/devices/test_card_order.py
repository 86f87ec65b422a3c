"""The order in which cards are tried (docs/spec/nvidia.md#7.2), the lists and weights on pods (page 4)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import pytest
from builders import card
from hypothesis import given
from hypothesis import strategies as st
from tables import in_one_test

from hami_webhook.devices.model import Device, Usage
from hami_webhook.devices.pod_fit import read_pod_request
from hami_webhook.devices.pod_preferences import CardPolicy, ListRule, Weights, order, parse_weights, split_list

from .cards import ask, chosen, node, one, pod, used, vendors, view

# Five cards in registered order. Their scores rise b < a = e < d < c; indices run against the registered order.


@dataclass
class Rank:
    device: Device
    usage: Usage
    position: int
    memory: int
    cores: int


def test_a_present_but_empty_policy_replaces_the_default() -> None:
    on = view(node(card("a"), card("b")), {"a": used(1, 100)})
    empty, absent = pod(one(mem=1), policy=""), pod(one(mem=1))
    for incoming, policy in ((empty, ()), (absent, ("binpack",))):
        terms = ask(incoming, "binpack").terms["NVIDIA"]
        assert tuple(item for item in terms.policy.items if item) == policy
    assert chosen(empty, on) == "b"


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ({}, "c"),
        ({"hami.io/device-scoring-weights": "slot=1,core=0,memory=0"}, "a"),
        ({"hami.io/device-scoring-weights": " memory = 1 , slot=0,core=+0"}, "c"),
        ({"hami.io/device-scoring-weights": "core=5,memory=0,slot=0"}, "b"),
        ({"hami.io/device-scoring-weights": "core=5,memory=0,slot=4"}, "a"),
    ],
)
def test_the_pods_weights_say_what_counts_in_the_score(weights: dict[str, str], expected: str) -> None:
    usage = {"a": used(5, 0, 0), "b": used(1, 0, 30), "c": used(1, 40000, 0)}
    incoming = pod(one(mem=1), policy="binpack", annotations=weights)
    assert chosen(incoming, view(node(*map(card, "abc")), usage)) == expected


def test_the_slot_that_the_container_would_take_is_in_the_score() -> None:
    slots_only = {"hami.io/device-scoring-weights": "slot=1,core=0,memory=0"}
    on = view(node(card("a", count=10), card("b", count=2)), {"a": used(3)})
    assert chosen(pod(one(mem=1), policy="spread", annotations=slots_only), on) == "a"


@in_one_test(
    ("text", "why"),
    [
        ("", "expected slot, core, and memory weights"),
        ("slot=1,core=1", "expected slot, core, and memory weights"),
        ("slot=1,core,memory=1", "expected key=value entries"),
        ("slot=1,slot=1,memory=1", 'duplicate "slot" weight'),
        ("slot=1,cores=1,memory=1", 'unknown weight "cores"'),
        ("slot=1,core=1.5,memory=1", '"core" weight must be an integer'),
        ("slot=-+1,core=1,memory=1", '"slot" weight must be an integer'),
        ("slot=٣,core=1,memory=1", '"slot" weight must be an integer'),
        ("slot=1,core=1,memory=-1", '"memory" weight must not be negative'),
        ("slot=0,core=0,memory=0", "at least one weight must be positive"),
    ],
)
def test_weights_that_cannot_be_meant_fail_the_pod_with_a_sentence(text: str, why: str) -> None:
    annotations = {"hami.io/device-scoring-weights": text}
    with pytest.raises(ValueError) as caught:
        read_pod_request(pod(one(), annotations=annotations), vendors(), "spread")
    assert str(caught.value) == f'invalid hami.io/device-scoring-weights annotation "{text}": {why} for pod p'


def test_weights_may_be_large() -> None:
    text = "slot=12345678901,core=0,memory=0"
    assert parse_weights({"hami.io/device-scoring-weights": text}, "p") == Weights(12345678901, 0, 0)


@pytest.mark.parametrize(
    ("text", "items"), [("", ()), (" , ", ()), ("a", ("a",)), (" b , a,,b", ("b", "a")), ("a b", ("a b",))]
)
def test_lists_are_trimmed_and_without_empties_and_repeats(text: str, items: tuple[str, ...]) -> None:
    assert split_list(text) == items


def rule(notes: Mapping[str, str], *, fold: bool = False) -> ListRule:
    return ListRule.read(notes, ("use", "use2"), ("nouse", "nouse2"), fold=fold)


@in_one_test(
    ("notes", "admitted"),
    [
        ({}, "a b c"),
        ({"use": " "}, "a b c"),
        ({"use": " , "}, ""),
        ({"use": "a", "use2": ","}, ""),
        ({"use": ",,a"}, "a"),
        ({"nouse": ","}, "a b c"),
        ({"use": "a,b"}, "a b"),
        ({"use": "A"}, ""),
        ({"nouse": "a,x"}, "b c"),
        ({"use": "a,b", "nouse": "b"}, "a"),
        ({"use": "a,b", "use2": "b,c"}, "b"),
        ({"use": "", "use2": "b,c"}, "b c"),
        ({"nouse": "a", "nouse2": "b"}, "c"),
    ],
)
def test_uuid_lists_hold_together_over_all_alias_keys(notes: dict[str, str], admitted: str) -> None:
    assert " ".join(uuid for uuid in "abc" if rule(notes).admits(uuid)) == admitted


@pytest.mark.parametrize(
    ("notes", "admitted"),
    [
        ({}, True),
        ({"use": "a100"}, True),
        ({"use": "v100, SXM4"}, True),
        ({"use": "v100"}, False),
        ({"use": "V100,"}, False),
        ({"nouse": "sxm"}, False),
        ({"use": "A100", "nouse": "40gb"}, False),
        ({"use": "A100", "use2": "NVIDIA A100"}, True),
        ({"use": "A100", "use2": "V100"}, False),
    ],
)
def test_type_lists_match_parts_of_the_model_ignoring_case(notes: dict[str, str], admitted: bool) -> None:
    assert rule(notes, fold=True).admits_type("NVIDIA A100-SXM4-40GB") is admitted


# the table once more, read with fractions


def by_the_table(ranks: Sequence[Rank], text: str, weights: Weights, numa_bound: bool) -> list[int]:
    def score(rank: Rank) -> Fraction:
        d, u = rank.device, rank.usage
        if 0 in (d.slots, d.cores, d.memory):
            return Fraction(0)
        return 10 * (
            weights.slot * Fraction(u.slots + 1, d.slots)
            + weights.core * Fraction(u.cores + rank.cores, d.cores)
            + weights.memory * Fraction(u.memory + rank.memory, d.memory)
        )

    def high(rank: Rank) -> Fraction:
        return -score(rank)

    def numa_high(rank: Rank) -> Fraction:
        return Fraction(-rank.device.numa)

    low = score
    keys: list[Callable[[Rank], Fraction | int]]
    items = [item.strip() for item in text.split(",")]
    if len(items) > 1 or items[0] in ("numa", "numa-first"):
        named = {"binpack": high, "spread": low, "numa": numa_high, "numa-first": numa_high}
        keys = []
        for item in items:
            if item in named and named[item] not in keys:
                keys.append(named[item])
        keys = keys or [low]
        if numa_bound:
            keys = [numa_high, *(key for key in keys if key is not numa_high)]
        keys.append(lambda r: -r.device.index)
    elif numa_bound:
        keys = [lambda r: r.device.numa, high] if items[0] == "binpack" else [numa_high, low]
    elif items[0] == "mutex":
        keys = [lambda r: r.usage.slots, numa_high]
    else:
        keys = [high if items[0] == "binpack" else low, numa_high]
    keys.append(lambda r: -r.position)
    return sorted(range(len(ranks)), key=lambda i: tuple(key(ranks[i]) for key in keys))


some_ranks = st.lists(
    st.builds(
        lambda slots, memory, cores, numa, index, us, um, uc, memory_asked: (
            Device("NVIDIA", "", index, slots, memory, cores, "", numa),
            Usage(us, um, uc),
            memory_asked,
        ),
        st.sampled_from([0, 1, 7, 10]),
        st.sampled_from([0, 24576, 40960, 40961]),
        st.sampled_from([0, 20, 100, 150]),
        st.integers(0, 2),
        st.integers(0, 3),
        st.integers(0, 3),
        st.sampled_from([0, 1, 4096, 20480]),
        st.sampled_from([0, 10, 50]),
        st.sampled_from([1, 4096, 20480]),
    ),
    max_size=8,
)
policy_texts = st.lists(
    st.sampled_from(["binpack", "spread", "numa", "numa-first", "mutex", "topology-aware", "x", ""]),
    min_size=1,
    max_size=4,
).map(" , ".join)


@given(
    some_ranks,
    policy_texts,
    st.builds(Weights, st.integers(0, 3), st.integers(0, 3), st.integers(1, 3)),
    st.booleans(),
    st.sampled_from([0, 10, 100]),
)
def test_the_order_is_the_tables_read_with_fractions(
    drawn: list[tuple[Device, Usage, int]], policy: str, weights: Weights, numa_bound: bool, cores: int
) -> None:
    ranks = [Rank(device, usage, i, memory, cores) for i, (device, usage, memory) in enumerate(drawn)]
    found = order(ranks, CardPolicy.parse(policy), weights, numa_bound=numa_bound)
    assert found == by_the_table(ranks, policy, weights, numa_bound)


def test_items_that_are_no_policy_are_told() -> None:
    assert CardPolicy.parse("numa,fastest,,mutex,worst").warnings_of() == [
        'hami.io/gpu-scheduler-policy: "fastest" is no card policy and acts as spread',
        'hami.io/gpu-scheduler-policy: "worst" is no card policy and acts as spread',
    ]
