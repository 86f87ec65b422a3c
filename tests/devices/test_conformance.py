"""What holds of every vendor's declaration, nodes and admission: one suite for all that are registered.

The nodes and the requests are those of the vendor's example in `manifests/examples`, so that a new vendor is in here
with its example. Fit, quota and what is written are in `test_conformance_fit.py`. What a vendor's page says beyond this
is in the vendor's own tests.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from builders import container, read_node
from hypothesis import settings
from tables import in_one_test

from hami_webhook.device_config import builtin_device_config, enabled_vendors
from hami_webhook.devices.handshake import Health
from hami_webhook.devices.keys import Dimension
from hami_webhook.devices.lock_annotations import COMMON_LOCK
from hami_webhook.devices.model import BadRequest, RegistrationError
from hami_webhook.devices.pod_fit import read_pod_request
from hami_webhook.devices.registry import Vendors
from hami_webhook.devices.reserved_annotations import PLACEMENT_KEYS, is_scheduler_owned
from hami_webhook.devices.vendor import Vendor
from hami_webhook.kube.objects import Node, Pod

from .fit_env import CHART, JSON, NOW, FitEnv, configured, pod

EXAMPLES = Path(__file__).parents[2] / "manifests" / "examples"
MOST = settings().max_examples
of_each_vendor = settings(max_examples=MOST if MOST >= 200 else MOST // 3)
"""For properties that are tried for each of two dozen vendors."""
OLD_ILUVATAR = configured(
    "iluvatar: {resourceCountName: iluvatar.ai/vgpu, resourceMemoryName: iluvatar.ai/vcuda-memory, "
    "resourceCoreName: iluvatar.ai/vcuda-core}"
)
"""HAMi 2.7's section, which the chart has no longer."""


@dataclass(frozen=True)
class Case:
    """A vendor with its nodes, and what containers request of it: requests and the annotations of their pods."""

    vendors: Vendors
    key: str
    nodes: Sequence[Node]
    requests: Sequence[tuple[JSON, Mapping[str, str]]]

    @property
    def vendor(self) -> Vendor:
        return self.vendors[self.key]

    def env(self, nodes: Sequence[Node] | None = None, **quota: Any) -> FitEnv:
        return FitEnv(self.nodes if nodes is None else nodes, self.vendors, **quota)

    def first(self, **annotations: str) -> JSON:
        """A pod that requests what the first pod of the example does."""
        limits, notes = self.requests[0]
        return pod(annotations={**notes, **annotations}, **limits)


@functools.cache
def documents() -> list[JSON]:
    return [each for path in sorted(EXAMPLES.glob("*.yaml")) for each in yaml.safe_load_all(path.read_text()) if each]


def registers(vendor: Vendor, found: Node) -> bool:
    try:
        return vendor.inventory(found) is not None
    except RegistrationError:
        return False


def requests_of(vendor: Vendor) -> Iterator[tuple[JSON, Mapping[str, str]]]:
    for each in documents():
        if each["kind"] == "Pod":
            notes = each["metadata"].get("annotations", {})
            for item in each["spec"]["containers"]:
                limits = item.get("resources", {}).get("limits", {})
                named = {name: amount for name, amount in limits.items() if name in vendor.resource_names}
                if named:
                    yield named, {key: text for key, text in notes.items() if not is_scheduler_owned(key)}


def cases() -> list[Case]:
    nodes = {each["metadata"]["name"]: Node.from_object(each) for each in documents() if each["kind"] == "Node"}
    found = [
        Case(CHART, key, [each for each in nodes.values() if registers(vendor, each)], list(requests_of(vendor)))
        for key, vendor in CHART.items()
    ]
    capacity = {"iluvatar.ai/vcuda-memory": 256, "iluvatar.ai/vcuda-core": 200, "iluvatar.ai/vgpu": 200}
    old = {"iluvatar.ai/vgpu": 1, "iluvatar.ai/vcuda-memory": 16, "iluvatar.ai/vcuda-core": 30}
    requests: list[tuple[JSON, Mapping[str, str]]] = [(old, {}), ({"iluvatar.ai/vgpu": 2}, {})]
    found.append(Case(OLD_ILUVATAR, "Iluvatar", [read_node("old-1", capacity=capacity)], requests))
    return [case for case in found if case.nodes]


CASES = cases()
every_vendor = pytest.mark.parametrize("case", CASES, ids=lambda case: case.key)


def test_every_vendor_has_an_example() -> None:
    """Of chips at least one of a section."""
    assert {type(case.vendor) for case in CASES} == set(Vendor.classes)
    assert all(case.requests for case in CASES)


@every_vendor
def test_without_its_section_or_its_count_name_it_is_not_there(case: Case) -> None:
    """Nor are its resources, memory and cores included."""
    name, field = case.vendor.section_name, case.vendor.section_fields[0]
    config = builtin_device_config().config
    section = config.section(name)
    without = [config.without([name])]
    if section is not None:
        without.append(config.model_copy(update={name: unnamed(section, field)}))
    for each in without:
        vendors = enabled_vendors(each)
        assert case.key not in vendors
        assert set(case.vendor.resource_names).isdisjoint(vendors.own_names)


def unnamed(section: Any, field: str) -> Any:
    """A section whose count has no name, or in which no chip's has."""
    if isinstance(section, tuple):
        return tuple(unnamed(chip, field) for chip in section)
    if "configs" in type(section).model_fields:
        return section.model_copy(update={"configs": unnamed(section.configs, field)})
    return section.model_copy(update={field: ""})


LISTS = {
    "AMD": ("amd.com/[no]use-gpu-uuid", "amd.com/[no]use-gputype"),
    "AWSNeuron": ("aws.amazon.com/[no]use-neuron-uuid", ""),
    "Ascend910B3": ("hami.io/[no-]use-Ascend910B3-uuid", ""),
    "Ascend910C": ("hami.io/[no-]use-Ascend910C-uuid", ""),
    "BI-V150": ("hami.io/[no-]use-BI-V150-uuid", ""),
    "Biren": ("birentech.com/[no]use-gpuuuid", ""),
    "DCU": ("hygon.com/[no]use-gpuuuid", "hygon.com/[no]use-dcutype"),
    "Enflame": ("enflame.com/[no]use-gpuuuid", ""),
    "Enflame-DRS": ("enflame.com/[no]use-gpuuuid", ""),
    "HCU": ("hygon.com/[no]use-gpuuuid", "hygon.com/[no]use-hcutype"),
    "Iluvatar": ("iluvatar.ai/[no]use-gpuuuid", ""),
    "MLU": ("cambricon.com/[no]use-gpuuuid", "cambricon.com/[no]use-mlutype"),
    "Metax-SGPU": ("metax-tech.com/[no]use-gpuuuid", ""),
    "Mthreads": ("mthreads.ai/[no]use-gpuuuid", ""),
    "NVIDIA": ("nvidia.com/[no]use-gpuuuid", "nvidia.com/[no]use-gputype"),
    "Vastai": ("vastaitech.com/[no]use-gpuuuid", ""),
    "XPU": ("hami.io/[no-]use-xpu-uuid baidu.com/[no]use-gpuuuid", ""),
    "kunlun": ("hami.io/[no-]use-xpu-uuid baidu.com/[no]use-gpuuuid", ""),
}
"""The annotations that list UUIDs and types (docs/spec/node-registration.md#7); in brackets is what deny lists have."""
UNLOCKED = {"AWSNeuron", "Enflame", "Enflame-DRS", "GCU", "Iluvatar", "Metax-GPU", "Mthreads", "kunlun"}
"""Their plugins release no node lock; Cambricon's has one of its own."""
UNITS = {"BI-V150": 256, "Iluvatar": 256, "MLU": 256, "Metax-SGPU": 1024, "Mthreads": 512}
"""The MiB of a unit of memory, where that isn't 1."""
IN_BYTES = {"Enflame-DRS", "Metax-SGPU"}
"""A quota of their memory with a binary suffix is bytes."""


@every_vendor
def test_its_lists_lock_and_units_are_those_of_hami(case: Case) -> None:
    keys, lists = case.vendor.keys, LISTS.get(case.key, ("", ""))
    assert [keys.use_uuid, keys.use_type] == [tuple(re.sub(r"\[.*?\]", "", text).split()) for text in lists]
    assert [keys.nouse_uuid, keys.nouse_type] == [tuple(re.sub(r"[\[\]]", "", text).split()) for text in lists]
    if case.key != "MLU":
        assert case.vendor.lock is (None if case.key in UNLOCKED else COMMON_LOCK)
    for key in case.vendor.quota_keys():
        of_memory = key.dimension is Dimension.MEMORY
        assert key.name.removeprefix("limits.") in case.vendor.resource_names
        assert key.factor == (UNITS.get(case.key, 1) if of_memory else 1)
        assert key.binary_is_bytes is (of_memory and case.key in IN_BYTES)


SETTING = "runtime_class_name"


@pytest.mark.parametrize(
    "case",
    [each for each in CASES if SETTING in getattr(each.vendor.section_type, "model_fields", ())],
    ids=lambda case: case.key,
)
def test_its_runtime_class_is_set_where_cards_are_asked_for_unless_the_pod_has_one(case: Case) -> None:
    config = builtin_device_config().config
    section = config.section(case.vendor.section_name).model_copy(update={SETTING: "its-own"})
    env = FitEnv([], enabled_vendors(config.model_copy(update={case.vendor.section_name: section})))

    def runtime(manifest: JSON) -> object:
        return env.admit(manifest).patched["spec"].get("runtimeClassName")

    mine = case.first()
    mine["spec"]["runtimeClassName"] = "mine"
    none = {case.vendor.count_name: 0}
    found = [runtime(each) for each in (case.first(), mine, pod(**none), pod())]
    assert found == ["its-own", "mine", None, None]
    assert "runtimeClassName" not in case.env([]).admit(case.first()).patched["spec"], "the chart sets none"


@every_vendor
def test_limits_come_before_requests_which_count_where_there_are_none(case: Case) -> None:
    for limits, notes in case.requests:

        def requested(limits: JSON, requests: JSON, notes: Mapping[str, str] = notes) -> object:
            incoming = pod_of(pod("p", container(requests=requests, **limits), annotations=dict(notes)))
            try:
                return case.vendor.requests_of(incoming)[0]
            except BadRequest as refusal:
                return str(refusal)

        other = dict.fromkeys(limits, "1")
        assert requested(limits, other) == requested(limits, {})
        counted = not case.vendor.limits_only
        assert requested({}, limits) == (requested(limits, {}) if counted else None)


@every_vendor
def test_all_that_it_writes_is_reserved_and_nothing_that_users_choose_by(case: Case) -> None:
    assert all(
        is_scheduler_owned(key)
        for key in (*case.vendor.keys.owned, *case.vendor.reserved.keys, *case.vendor.reserved.kept)
    )
    written = {*case.vendor.keys.owned, *case.vendor.reserved.keys, *case.vendor.reserved.kept}
    assert case.vendors.reserved.among(written, with_cards=True) == written
    assert not any(is_scheduler_owned(key) for key in (*case.vendor.keys.lists, *case.vendor.keys.choices))


SPECIFICATION = EXAMPLES.parents[1] / "docs" / "spec"


@every_vendor
def test_the_specification_has_its_names(case: Case) -> None:
    """In a table of all vendors, or on its own page. Of chips `<C>`, `<cw>` or `<chip>` stands for the chip's name."""
    vendor, registration = case.vendor, case.vendor.registration
    written = (registration.annotation, registration.handshake, *vendor.keys.owned, *vendor.reserved.keys)
    names = {vendor.known_as, *filter(None, written), *vendor.resource_names}
    words = (case.key, "<C>", "<cw>", "<chip>", "C")
    lacking = {
        page.name: {n for n in names if not any(f"`{n.replace(case.key, word)}`" in page.read_text() for word in words)}
        for page in SPECIFICATION.glob("*.md")
    }
    assert set() in lacking.values(), f"no page of docs/spec has all of {sorted(names)}"


@every_vendor
def test_a_node_that_registers_nothing_or_no_longer_does_has_none_of_its_cards(case: Case) -> None:
    assert not registers(case.vendor, read_node("bare"))
    name = case.nodes[0].name
    env = case.env(case.nodes[:1])
    env.state.set_node(read_node(name), NOW)
    assert env.place(case.first()) == {name: "node unregistered"}


@every_vendor
def test_a_node_without_the_names_that_it_is_read_by_has_none_of_its_cards(case: Case) -> None:
    def is_read_by(name: str) -> bool:
        return case.key in case.vendors.named_on(Node("node", {}, {name: ""}, {}, {}))

    def left(written: Mapping[str, Any]) -> Mapping[str, Any]:
        return {name: text for name, text in written.items() if not is_read_by(name)}

    for node in case.nodes:
        parts = left(node.annotations), left(node.capacity), left(node.allocatable)
        assert not registers(case.vendor, Node(node.name, node.labels, *parts))


WORDS = [
    ("(amd|nvidia).com/gpumem", "an integer number of MiB between 0 and 2147483647"),
    ("hygon.com/[dh]cumem|huawei.com/.*-memory",
     "an integer number of MiB (16 GiB is 16384, not 16Gi) between 0 and 2147483647"),
    ("kunlunxin.com/vxpu-memory", "an integer number of MiB between 0 and 1125899906842624"),
    ("cambricon.com/mlu.smlu.vmemory",
     "an integer number of units of 256 MiB (16 GiB is 64, not 16Gi) between 0 and 8388607"),
    ("metax-tech.com/vmemory", "at most 2097151 GiB as a whole number, or 1Mi to 2147483647Mi in bytes"),
    ("nvidia.com/gpumem-percentage", "an integer between 0 and 100"),
    ("enflame.com/vgcu-percentage", "an integer percentage of a card between 0 and 100"),
    ("enflame.com/drs-gcu", "an integer number of slices between 1 and 2147483647"),
    ("iluvatar.ai/(.*-)?vgpu", "a whole number between 0 and 21474836"),
    ("iluvatar.ai/(.*vMem|vcuda-memory)", "a whole number of 256 MiB units (16 GiB is 64) between 0 and 8388607"),
    ("iluvatar.ai/.*", "a whole number between 0 and 2147483647"),
    ("mthreads.com/vgpu", "a whole number between 1 and 43690"),
    ("mthreads.com/sgpu-memory",
     "a whole number of 512 MiB units (of one card: [2, 4, 8, 16, 32, 64, 96]) between 0 and 4194303"),
    ("mthreads.com/sgpu-core", "a whole number of core groups between 0 and 2147483647"),
    (".*", "an integer between 0 and 2147483647"),
]  # fmt: skip
"""What an amount must be, by the first pattern that its name matches."""
BAD_AMOUNTS = {"-1", "0.5", "1500m", "many", "1e30", "16Gi"}
OTHERWISE = {
    "aws.amazon.com/neuron": BAD_AMOUNTS,
    "aws.amazon.com/neuroncore": BAD_AMOUNTS,
    "amd.com/gpucores": BAD_AMOUNTS,
    "enflame.com/gcu-memory": BAD_AMOUNTS,
    "enflame.com/gcu-core": BAD_AMOUNTS,
    "enflame.com/drs-gcu": {"-1"},
    "kunlunxin.com/vxpu-memory": {"-1", "16Gi"},
    "metax-tech.com/vmemory": {"16Gi"},
    "mthreads.com/vgpu": {"-1"},
}
"""Amounts that can be meant, or are refused in other words: these are in the vendor's own tests."""


@every_vendor
@pytest.mark.parametrize("count", [None, 1])
@pytest.mark.parametrize("where", ["limits", "requests"])
def test_an_amount_that_cant_be_meant_is_refused_with_what_would_be_right(
    case: Case, where: str, count: int | None
) -> None:
    env = case.env([])
    for name in case.vendor.resource_names:
        right = next(words for pattern, words in WORDS if re.fullmatch(pattern, name))
        amounts = BAD_AMOUNTS - OTHERWISE.get(name, set())
        if amounts and (most := re.search(r"\d+$", right)):
            amounts = {*amounts, str(int(most[0]) + 1)}
            largest: JSON = {name: most[0]}
            assert f"invalid {name} " not in env.admit(pod(**largest)).message
        for amount in amounts:
            written: JSON = {**({} if count is None else {case.vendor.count_name: count}), name: amount}
            bad = container(**written) if where == "limits" else container(requests=written)
            manifest = pod("p", bad)
            refused = f"invalid {name} value {amount} in container main: must be "
            is_bytes = amount == "16Gi" and name == case.vendor.memory_name
            hint = f"; for 16Gi write {16384 // case.vendor.memory_factor}"
            assert env.admit(manifest).message == refused + right + (hint if is_bytes else "")
            if amount in BAD_AMOUNTS and name not in ("nvidia.com/gpumem-percentage", "nvidia.com/priority"):
                with pytest.raises(BadRequest, match=re.escape(refused)):  # where admission was passed by
                    read_pod_request(pod_of(manifest), case.vendors, "spread")


PLUGINS = {
    **{
        chip: (f"hami.io/node-register-{chip}", f"hami.io/node-handshake-{chip}")
        for chip in ("Ascend910B3", "Ascend910C")
    },
    "AMD": ("hami.io/node-amd-register", ""),
    "BI-V150": ("hami.io/node-BI-V150-register", "hami.io/node-handshake-BI-V150"),
    "Biren": ("hami.io/node-biren-register", "hami.io/node-handshake-biren"),
    "DCU": ("hami.io/node-dcu-register", "hami.io/node-handshake-dcu"),
    "HCU": ("hami.io/node-hcu-register", "hami.io/node-handshake-hcu"),
    "Metax-SGPU": ("metax-tech.com/node-gpu-devices", ""),
    "NVIDIA": ("hami.io/node-nvidia-register", "hami.io/node-handshake"),
    "Vastai": ("hami.io/node-va-register", "hami.io/node-handshake-va"),
    "XPU": ("hami.io/node-register-xpu", "hami.io/node-handshake-xpu"),
}
"""The annotations in which plugins register cards, and by which they are asked whether they live."""


@every_vendor
def test_its_plugin_registers_and_is_asked_by_hamis_annotations(case: Case) -> None:
    registration = case.vendor.registration
    assert (registration.annotation, registration.handshake) == PLUGINS.get(case.key, ("", ""))
    if not registration.handshake:
        assert case.vendor.health(read_node(capacity={case.vendor.count_name: 1}), NOW, UTC) == Health(healthy=True)


@pytest.mark.parametrize("case", [case for case in CASES if case.key in PLUGINS], ids=lambda case: case.key)
def test_cards_that_cant_be_read_are_not_there_and_their_annotation_is_named(case: Case) -> None:
    register, _ = PLUGINS[case.key]
    for text in ("[]", "null"):
        assert case.vendor.inventory(read_node(**{register: text})) is None
    repeated = '[{"id":"a","uuid":"a"},{"id":"a","uuid":"a"}]'
    for text in ("", "[", "{}", "x", "[null]", "5", '[{"id":', '[{"id":"a","count":"4"}]', "a,1,2:", repeated):
        with pytest.raises(RegistrationError, match=f"^{register}: "):
            case.vendor.inventory(read_node(**{register: text}))
        env = case.env([read_node(capacity={case.vendor.count_name: 1}, **{register: text})])
        assert env.place(case.first()) == {"n1": "node unregistered"}
        assert [register in problem.text for problem in env.state.problems()] == [True]


def requesting(age: int) -> str:
    return f"Requesting_{datetime.fromtimestamp(NOW - age, UTC):%Y-%m-%d %H:%M:%S}"


NO_TIMES = ("", "yesterday", "2025-1-21 12:00:00", "2025-13-21 12:00:00", "2025-11-21T12:00:00Z")


@in_one_test(
    ("text", "allocatable", "health"),
    [
        (None, 0, Health(healthy=True, request_handshake=True)),
        ("Reported_2026.01.10 04:06:57", 0, Health(healthy=True, request_handshake=True)),
        ("Reported 2026-01-01 00:00:05.1 +0800 CST m=+1.5", 0, Health(healthy=True, request_handshake=True)),
        ("Deleted_2026-01-10 04:06:57", 0, Health(healthy=True, request_handshake=True)),
        ("Requesting", 0, Health(healthy=True)),
        *((f"Requesting_{text}", 0, Health(healthy=True)) for text in NO_TIMES),
        (requesting(-500), 0, Health(healthy=True, until=NOW + 560)),
        (requesting(59), "1.5", Health(healthy=True, until=NOW + 1)),
        (requesting(0), 0, Health(healthy=True, until=NOW + 60)),
        (requesting(59), 0, Health(healthy=True, until=NOW + 1)),
        (requesting(60), 0, Health(healthy=False)),
        (requesting(3600), 0, Health(healthy=False)),
        (requesting(60), 1, Health(healthy=True)),
    ],
)
@in_one_test("case", [case for case in CASES if PLUGINS.get(case.key, ("", ""))[1]])
def test_a_silent_plugin_takes_its_cards_away_unless_some_are_allocatable(
    case: Case, text: str | None, allocatable: object, health: Health
) -> None:
    notes = {PLUGINS[case.key][1]: text} if text else {}
    assert case.vendor.health(read_node(capacity={case.vendor.count_name: allocatable}, **notes), NOW, UTC) == health


@every_vendor
def test_a_pod_that_names_nothing_of_it_is_left_alone(case: Case) -> None:
    manifest = pod("p", container(cpu=1, memory="1Gi"))
    admitted = case.env().admit(manifest)
    assert (admitted.pod, list(admitted.warnings)) == (manifest, [])


@every_vendor
def test_what_placement_writes_is_reserved_and_what_it_costs_has_a_quota_key(case: Case) -> None:
    placed = case.env().placed(case.first())
    assert {case.vendor.keys.allocated, *PLACEMENT_KEYS[:2]} <= placed.annotations.keys()
    assert all(is_scheduler_owned(key) for key in placed.annotations)
    assert placed.debits.keys() <= {key.name for key in case.vendor.quota_keys()}
    assert placed.debits[f"limits.{case.vendor.count_name}"] >= 1


def pod_of(manifest: JSON) -> Pod:
    return Pod.from_object(manifest)
