"""Limits as claims: what a pod's templates say, and that they cost what the limits do (docs/spec/dra.md#8)."""

from __future__ import annotations

import json
from time import perf_counter
from typing import Any

import msgspec
import pytest
from builders import card, container, node, pod
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from quota.objects import NOON, claiming_vendors
from tables import in_one_test

from hami_webhook.admission.pods import normalise
from hami_webhook.admission.requests import checked_requests
from hami_webhook.config.drivers import DraSection
from hami_webhook.devices.device_lister import NO_DEVICES
from hami_webhook.devices.model import BadRequest
from hami_webhook.devices.pod_preferences import ListRule
from hami_webhook.devices.registry import Vendors
from hami_webhook.dra.claim_cache import ClaimCache
from hami_webhook.dra.claim_templates import (
    LONGEST_SPECS,
    MOST_SPECS,
    TEMPLATE_SPECS,
    TemplateSpec,
    annotation_of,
    declared_templates,
)
from hami_webhook.dra.conversion import Conversion, convert
from hami_webhook.dra.cost import DeviceInventory
from hami_webhook.dra.selectors import selected
from hami_webhook.kube.draft import PodDraft
from hami_webhook.kube.objects import Node, Pod, PodResourceClaim
from hami_webhook.quota.pricing import ClusterCapacity, price_pending
from hami_webhook.state.cluster_cache import ClusterCache

from .objects import CLASSES, HAMI, JSON, NVIDIA, ROWS, exactly, inventory, published, resource_slice, share, whole

VENDORS = claiming_vendors()
A40 = [share("a0"), share("a1"), share("a2")]
EQUAL = inventory(resource_slice("n1", *A40))
MIXED = inventory(resource_slice("n1", *A40), resource_slice("n2", share("b0", "24Gi", "NVIDIA A10")))
DISTINCT = {"distinctAttribute": f"{HAMI}/uuid"}
UUID, MODEL = f'device.attributes["{HAMI}"].uuid', f'device.attributes["{HAMI}"].productName'
MEMORY = f'device.capacity["{HAMI}"].memory'


def admitted(*containers: JSON, vendors: Vendors = VENDORS, **fields: Any) -> Pod:
    """A pod as admission stores it where it stays limits."""
    draft = PodDraft(pod("p", *containers, **fields))
    normalise(draft, vendors, NO_DEVICES)
    return draft.result()


def converted(found: Pod, known: DeviceInventory = EQUAL, vendors: Vendors = VENDORS) -> Conversion:
    made = convert(found, checked_requests(found, vendors), vendors, known)
    assert made is not None
    return made


def requests_of(made: Conversion) -> list[list[JSON]]:
    return [json.loads(msgspec.json.encode(spec))["devices"]["requests"] for spec in made.specs]


def constraints_of(made: Conversion) -> list[JSON]:
    return [each for spec in made.specs for each in msgspec.to_builtins(spec.devices).get("constraints", ())]


def size(amount: str) -> str:
    return f'has({MEMORY}) && {MEMORY}.compareTo(quantity("{amount}")) == 0'


def ask(count: int = 1, *cel: str, **amounts: str) -> JSON:
    """As `exactly`, with a list of expressions."""
    found = exactly(count=count, **amounts)
    return found | ({"selectors": [{"cel": {"expression": each}} for each in cel]} if cel else {})


@in_one_test(
    ("amounts", "expected"),
    [
        ({"gpu": 1, "mem": 3000, "cores": 30}, ask(memory="3000Mi", cores="30")),
        ({"gpu": 2, "mem": 3000}, ask(2, memory="3000Mi", cores="0")),
        ({"mem": 3000}, ask(memory="3000Mi", cores="0")),
        # HAMi's defaults: all of the memory, and then all of the cores
        ({"gpu": 1}, ask(cores="100")),
        ({"gpu": 1, "cores": 30}, ask(cores="30")),
        ({"gpu": 1, "mem": 3000, "cores": 150}, ask(memory="3000Mi", cores="100")),
        ({"gpu": 1, "percent": 100}, ask(cores="100")),
        ({"gpu": 1, "percent": 50, "cores": 10}, ask(1, size("40960Mi"), cores="10", memory="20480Mi")),
        ({"gpu": 1, "percent": 33, "cores": 10}, ask(1, size("40960Mi"), cores="10", memory="13516Mi")),
        ({"gpu": 1, "percent": 50, "mem": 100}, ask(memory="100Mi", cores="0")),
    ],
)
def test_a_container_s_amounts(amounts: JSON, expected: JSON) -> None:
    (requests,) = requests_of(converted(admitted(**amounts)))
    assert requests == [{"name": "cards-0", "exactly": expected}]


def test_what_is_written_in_requests_alone_counts_as_for_hami() -> None:
    found = pod("p", {"name": "c", "resources": {"requests": {"nvidia.com/gpu": "2", "nvidia.com/gpumem": "5"}}})
    draft = PodDraft(found)
    normalise(draft, VENDORS, NO_DEVICES)
    assert requests_of(converted(draft.result())) == [[{"name": "cards-0", "exactly": ask(2, memory="5Mi", cores="0")}]]


def test_a_percentage_of_cards_of_several_sizes_is_one_of_each() -> None:
    (requests,) = requests_of(converted(admitted(gpu=1, percent=50, cores=10), MIXED))
    assert requests == [
        {
            "name": "cards-0",
            "firstAvailable": [
                {"name": "size-0", **ask(1, size("24576Mi"), cores="10", memory="12288Mi")},
                {"name": "size-1", **ask(1, size("40960Mi"), cores="10", memory="20480Mi")},
            ],
        }
    ]


def test_of_many_sizes_those_of_most_cards_are_named() -> None:
    cards = [share(f"c{gib}-{number}", f"{gib}Gi") for gib in range(1, 11) for number in range(1 + (gib > 2))]
    (requests,) = requests_of(converted(admitted(gpu=1, percent=50), inventory(resource_slice("n1", *cards))))
    memories = [each["capacity"]["requests"]["memory"] for each in requests[0]["firstAvailable"]]
    assert memories == [f"{gib * 512}Mi" for gib in range(3, 11)]


def test_a_default_below_the_whole_card_is_not_taken_for_it() -> None:
    policy: JSON = {"default": "1Gi", "validRange": {"min": "1Mi", "step": "1Mi", "max": "40Gi"}}
    known = inventory(resource_slice("n1", share("a0", **policy)))
    (requests,) = requests_of(converted(admitted(gpu=1), known))
    assert requests[0]["exactly"] == ask(1, size("40960Mi"), cores="100", memory="40960Mi")


def test_several_cards_of_a_container_are_different_ones() -> None:
    assert constraints_of(converted(admitted(gpu=2, mem=10))) == [DISTINCT]
    assert constraints_of(converted(admitted(gpu=1, mem=10))) == []
    # each container has a claim of its own, and both may be of one card
    made = converted(admitted(container("a", gpu=1, mem=10), container("b", gpu=1, mem=10)))
    assert constraints_of(made) == []
    assert list(made.claims) == ["hami-0", "hami-1"]
    assert len(set(made.claims.values())) == 1


def test_a_driver_of_whole_cards_takes_who_asks_for_whole_cards() -> None:
    known = inventory(resource_slice("n1", whole("c0"), driver=NVIDIA), classes={NVIDIA: CLASSES[NVIDIA]})
    (requests,) = requests_of(converted(admitted(gpu=2), known))
    assert requests == [{"name": "cards-0", "exactly": {"deviceClassName": NVIDIA, "count": 2}}]
    with pytest.raises(BadRequest, match=r"container main: gpu\.nvidia\.com gives whole cards only"):
        converted(admitted(gpu=1, mem=3000), known)
    with pytest.raises(BadRequest, match="whole cards only"):
        converted(admitted(gpu=1, cores=30), known)


def test_a_driver_that_limits_are_not_to_become_claims_for_is_passed_over() -> None:
    vendors = claiming_vendors(converting=frozenset({NVIDIA}))
    known = inventory(resource_slice("n1", *A40), resource_slice("n2", whole("c0"), driver=NVIDIA))
    (requests,) = requests_of(converted(admitted(gpu=1, vendors=vendors), known, vendors))
    assert requests == [{"name": "cards-0", "exactly": {"deviceClassName": NVIDIA, "count": 1}}]
    with pytest.raises(BadRequest, match=r"container main: gpu\.nvidia\.com gives whole cards only"):
        converted(admitted(gpu=1, mem=3000, vendors=vendors), known, vendors)


INIT, APP = container("i", gpu=1, mem=8000), container("a", gpu=1, mem=3000, cores=50)
LARGE = container("b", gpu=1, mem=7000)
SIDE = container("s", sidecar=True, gpu=1, mem=2000)


@pytest.mark.parametrize(
    ("init", "apps", "claims", "users"),
    [
        # who runs before has the cards of who runs after
        ([INIT], [APP], [(1, "8000Mi")], [["hami-0"], ["hami-0"]]),
        ([INIT, container("j", gpu=1, mem=9000)], [APP], [(1, "9000Mi")], [["hami-0"]] * 3),
        # of a sidecar that starts later, and not of one that runs already
        ([INIT, SIDE], [], [(1, "8000Mi")], [["hami-0"], ["hami-0"]]),
        ([SIDE, INIT], [], [(1, "2000Mi"), (1, "8000Mi")], [["hami-0"], ["hami-1"]]),
        # the one whose claim grows least by it
        ([INIT], [APP, LARGE], [(1, "3000Mi"), (1, "8000Mi")], [["hami-1"], ["hami-0"], ["hami-1"]]),
        # one more card, or one less
        ([container("i", gpu=2, mem=1000)], [APP], [(1, "3000Mi"), (1, "1000Mi")], [["hami-0"], ["hami-0/cards-0"]]),
        ([INIT], [container("a", gpu=3, mem=3000)], [(1, "8000Mi"), (2, "3000Mi")], [["hami-0/cards-0"], ["hami-0"]]),
        ([INIT], [], [(1, "8000Mi")], [["hami-0"]]),
        ([container("i")], [APP], [(1, "3000Mi")], [[], ["hami-0"]]),
    ],
)  # fmt: skip
def test_containers_that_do_not_run_together_share_a_claim(
    init: list[JSON], apps: list[JSON], claims: list[tuple[int, str]], users: list[list[str]]
) -> None:
    made = converted(admitted(*apps, init=init))
    requests = [each["exactly"] for requests in requests_of(made) for each in requests]
    assert [(each["count"], each["capacity"]["requests"]["memory"]) for each in requests] == claims
    names = [
        [each.name + (f"/{each.request}" if each.request else "") for each in made.containers.get(row, ())]
        for row in range(len(init) + len(apps))
    ]
    assert names == users


@pytest.mark.parametrize(
    ("annotations", "expressions"),
    [
        ({"nvidia.com/use-gpuuuid": "GPU-a, GPU-b"}, [f'has({UUID}) && {UUID} in ["GPU-a", "GPU-b"]']),
        ({"nvidia.com/nouse-gpuuuid": "GPU-a"}, [f'!(has({UUID}) && {UUID} in ["GPU-a"])']),
        ({"nvidia.com/use-gputype": "A100,H100"}, [f'has({MODEL}) && {MODEL}.matches("(?i)(a100|h100)")']),
        ({"nvidia.com/use-gpuuuid": " "}, []),
    ],
)  # fmt: skip
def test_lists_are_selectors(annotations: JSON, expressions: list[str]) -> None:
    (requests,) = requests_of(converted(admitted(gpu=1, mem=5, annotations=annotations)))
    found = requests[0]["exactly"].get("selectors", [])
    assert [each["cel"]["expression"] for each in found] == expressions


@pytest.mark.parametrize("mode", ["hami-core", "mig,hami-core"])
def test_the_mode_in_which_cards_are_shared_may_be_named(mode: str) -> None:
    assert converted(admitted(gpu=1, mem=5, annotations={"nvidia.com/vgpu-mode": mode})).claims


WITH_GROUPS = [
    row.model_copy(update={"numa": "numaNode", "link_group": "example.com/nvlink"}) for row in DraSection().devices
]


def test_numa_and_links_are_attributes_where_a_driver_has_them() -> None:
    vendors = Vendors(VENDORS.values(), drivers=WITH_GROUPS)
    known = EQUAL
    both = {"nvidia.com/numa-bind": "true", "nvidia.com/require-nvlink": "true"}
    made = converted(admitted(gpu=2, mem=5, annotations=both), known, vendors)
    expected = [DISTINCT, {"matchAttribute": f"{HAMI}/numaNode"}, {"matchAttribute": "example.com/nvlink"}]
    assert constraints_of(made) == expected
    assert constraints_of(converted(admitted(gpu=1, mem=5, annotations=both), known, vendors)) == []


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"annotations": {"nvidia.com/vgpu-mode": "mig"}}, "annotation nvidia.com/vgpu-mode: which devices"),
        ({"annotations": {"hami.io/gpu-scheduler-policy": "topology-aware"}}, "hami.io/gpu-scheduler-policy"),
        ({"annotations": {"hami.io/node-scheduler-policy": "spread"}}, "hami.io/node-scheduler-policy"),
        ({"annotations": {"nvidia.com/numa-bind": "true"}}, "no attribute with their NUMA node"),
        ({"annotations": {"nvidia.com/require-nvlink": "true"}}, "no attribute with their link group"),
        ({"annotations": {"nvidia.com/use-gpuuuid": ","}}, "allows no card"),
        ({"annotations": {"nvidia.com/use-gpuuuid": "x" * 11_000}}, "more than 10240 characters"),
        ({"labels": {"hami.io/pod-group": "g", "hami.io/pod-group-size": "2"}}, "pod group g: its pods are charged"),
        ({"gpu": 33}, "33 devices are more than the 32 of a ResourceClaim"),
    ],
)
def test_what_no_claim_can_say_is_refused(fields: JSON, sentence: str) -> None:
    with pytest.raises(BadRequest, match=sentence):
        converted(admitted(**{"gpu": 2, "mem": 5, **fields}))


def test_a_pod_of_very_many_containers_is_refused_and_cards_are_selected_once() -> None:
    calls = 0

    def clock() -> float:
        nonlocal calls
        calls += 1
        return 0.0

    lists = {"nvidia.com/use-gpuuuid": "a1"}
    for count in (2, 32):
        calls = 0
        many = admitted(*(container(f"c{index}", gpu=1, percent=50) for index in range(count)), annotations=lists)
        assert convert(many, checked_requests(many, VENDORS), VENDORS, EQUAL, clock)
        assert calls <= 2 * 2 * (1 + len(A40))  # before and after each step: of a class and a list, on each card
    with pytest.raises(BadRequest, match="33 containers request cards"):
        converted(admitted(*(container(f"c{index}", gpu=1, mem=5) for index in range(33))))


def test_a_percentage_of_cards_that_nobody_publishes_is_refused() -> None:
    with pytest.raises(BadRequest, match="a percentage of it isn't known; request an amount"):
        converted(admitted(gpu=1, percent=50), inventory())


def test_other_vendors_stay_as_they_are_and_both_at_once_are_refused() -> None:
    other = {"limits": {"huawei.com/Ascend310P": "1"}}
    alone = admitted({"name": "o", "resources": other})
    assert convert(alone, checked_requests(alone, VENDORS), VENDORS, EQUAL) is None
    with pytest.raises(BadRequest, match="no limits of Ascend310P become claims"):
        converted(admitted(container("a", gpu=1, mem=5), {"name": "o", "resources": other}))


# what nobody may be able to do

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
HOSTILE = ['"] || true || ["', "\\", '\\"', "a\nb", "'", "(?s).*", "a|b", "$(x)", "{{.}}", "\x00", "\u2028", "😀"]


@given(st.lists(TEXTS | st.sampled_from(HOSTILE), min_size=1, max_size=3))
def test_no_list_is_more_than_text(items: list[str]) -> None:
    """A card is selected by its own UUID or a part of its own model, and by nothing else."""
    uuids = {"nvidia.com/use-gpuuuid": ",".join(items)}
    types = {"nvidia.com/use-gputype": ",".join(items)}
    rules = [ListRule.read(each, tuple(each), (), fold=fold) for each, fold in ((uuids, False), (types, True))]
    names = [*items, "x", *(item for rule in rules for item in rule.allow), " ".join(items).swapcase()]
    devices = [
        share(f"d{index}") | {"attributes": {"uuid": {"string": name}, "productName": {"string": name}}}
        for index, name in enumerate(names)
    ]
    published_devices = published([resource_slice("n1", *devices)]).all
    for lists, rule in zip((uuids, types), rules, strict=True):
        if rule.allows_nothing or not rule.allow:
            continue
        if any(ord(char) < ord(" ") or char == "\x7f" for item in rule.allow for char in item):
            with pytest.raises(BadRequest, match="characters that are no text"):
                converted(admitted(gpu=1, mem=5, annotations=lists))
            continue
        (requests,) = requests_of(converted(admitted(gpu=1, mem=5, annotations=lists)))
        expressions = [each["cel"]["expression"] for each in requests[0]["exactly"]["selectors"]]
        assert all(each.isascii() and each.isprintable() for each in expressions)
        found = selected(published_devices, expressions, seconds=10.0, clock=perf_counter)
        admits = rule.admits_type if lists is types else rule.admits
        got = [names[int(device.id.name[1:])] for device in found]
        # beyond ASCII regular expressions and Python fold case by rules of their own
        compared = [name for name in names if name.isascii() or lists is uuids]
        assert [name for name in got if name in compared] == [name for name in compared if admits(name)]


def declaring(annotation: str, *templates: str) -> Pod:
    """A pod that refers to these templates."""
    claims = tuple(PodResourceClaim(f"c{number}", template=name) for number, name in enumerate(templates))
    return Pod("s", "p", "", {}, {TEMPLATE_SPECS: annotation}, (), resource_claims=claims)


def one(request: JSON) -> JSON:
    return {"devices": {"requests": [{"name": "r", "exactly": {**request, "count": 1}}]}}


@pytest.mark.parametrize(
    "forge",
    [
        lambda spec: {**spec, "devices": {**spec["devices"], "config": []}},
        lambda spec: one({**exactly(), "adminAccess": True}),
        lambda spec: one(exactly(memory="1Mi")),
    ],
)
def test_a_forged_annotation_declares_nothing(forge: Any) -> None:
    """Under the name of another template, or in a form that conversion doesn't write."""
    (spec,) = converted(admitted(gpu=1, mem=5)).specs
    written = msgspec.to_builtins(spec)

    def declared(content: object) -> Any:
        return declared_templates(declaring(json.dumps({spec.name: content}), spec.name), ROWS)

    assert declared(written) == {spec.name: spec}
    assert declared(forge(written)) == {}


@pytest.mark.parametrize(("device_class", "declares"), [(HAMI, True), (NVIDIA, False), ("other.example.com", False)])
def test_a_forged_annotation_declares_no_class_that_limits_do_not_become_claims_of(
    device_class: str, declares: bool
) -> None:
    spec = msgspec.convert(one(exactly(device_class, memory="1Mi")), TemplateSpec)
    rows = claiming_vendors(converting=frozenset({HAMI})).drivers
    assert bool(declared_templates(declaring(annotation_of([spec]), spec.name), rows)) == declares


def test_of_an_annotation_little_is_read() -> None:
    """What the pod doesn't refer to isn't, and nothing of one with more specs than conversion writes."""
    specs = [msgspec.convert(one(exactly(memory=f"{size + 1}Mi")), TemplateSpec) for size in range(MOST_SPECS + 1)]
    names = [spec.name for spec in specs]
    assert declared_templates(declaring(annotation_of(specs[1:]), *names[:3]), ROWS).keys() == {*names[1:3]}
    assert declared_templates(declaring(annotation_of(specs), *names), ROWS) == {}
    full = declaring(annotation_of(specs[1:]), *names)
    more = admitted(gpu=1, mem=5, annotations=full.annotations)
    with pytest.raises(BadRequest, match="of more than 64 templates"):
        converted(replace(more, resource_claims=full.resource_claims))


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"hami-0": 1}', "[" * 100_000, '{"a": "' + "x" * LONGEST_SPECS + '"}']
)
def test_an_annotation_that_is_none_declares_nothing(text: str) -> None:
    assert declared_templates(declaring(text, "a", "hami-0"), ROWS) == {}


# what it costs


def capacity_of(*memories: str) -> tuple[ClusterCache, ClaimCache]:
    """The same cards, registered by a device plugin and published by a driver."""
    claims = ClaimCache(VENDORS.drivers, VENDORS.resource_names)
    state = ClusterCache(VENDORS, claimed=ClaimCache(()))
    for index, memory in enumerate(memories):
        mebibytes = int(memory.removesuffix("Gi")) * 1024
        state.set_node(Node.from_object(node(f"n{index}", card(f"GPU-{index}", mebibytes))), NOON)
    known = inventory(
        *(resource_slice(f"n{index}", share(f"GPU-{index}", each)) for index, each in enumerate(memories))
    )
    claims._inventory = known
    return state, claims


CONTAINERS = st.builds(
    lambda gpu, share_of, cores: {"gpu": gpu, **share_of, **({} if cores is None else {"cores": cores})},
    st.integers(1, 3),
    st.sampled_from([{}, {"mem": 1}, {"mem": 3000}, {"percent": 33}, {"percent": 100}, {"mem": 9, "percent": 9}]),
    st.sampled_from([None, 0, 30, 100]),
)


@given(
    apps=st.lists(CONTAINERS, min_size=1, max_size=3),
    init=st.lists(st.tuples(CONTAINERS, st.booleans()), max_size=2),
    memories=st.lists(st.sampled_from(["24Gi", "40Gi"]), min_size=1, max_size=3),
)
def test_claims_cost_what_the_limits_cost_on_equal_cards(
    apps: list[JSON], init: list[tuple[JSON, bool]], memories: list[str]
) -> None:
    """Equal without ordinary init containers; with them no less, and no more than if all ran together."""
    state, claims = capacity_of(*memories)
    first = [container(f"i{index}", sidecar=sidecar, **amounts) for index, (amounts, sidecar) in enumerate(init)]
    containers = [container(f"a{index}", **amounts) for index, amounts in enumerate(apps)]
    limits = admitted(*containers, init=first)
    made = converted(limits, claims.inventory)
    claimed = Pod(
        limits.namespace,
        limits.name,
        "",
        {},
        {TEMPLATE_SPECS: annotation_of(made.specs)},
        (),
        resource_claims=tuple(PodResourceClaim(name, template=template) for name, template in made.claims.items()),
    )
    before = price_pending(limits, VENDORS, state.capacity).amounts
    charged = price_pending(claimed, VENDORS, ClusterCapacity(state, claims)).amounts
    after = {key: amount for key, amount in charged.items() if amount}
    if all(sidecar for _, sidecar in init):
        assert after == before
        return
    together = admitted(*[{**each, "restartPolicy": None} for each in first], *containers)
    most = price_pending(together, VENDORS, state.capacity).amounts
    assert before.keys() == after.keys() == most.keys()
    assert all(before[key] <= after[key] <= most[key] for key in most)
