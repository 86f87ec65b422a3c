"""Hygon, Cambricon, Iluvatar and Moore Threads on random nodes: against a plain reading of their pages' section 7."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import pytest
from builders import container, read_node
from hypothesis import given
from hypothesis import strategies as st
from tables import in_one_test

from hami_webhook.admission.pods import normalise
from hami_webhook.devices.codecs import DeviceEntry
from hami_webhook.devices.device_lister import NO_DEVICES
from hami_webhook.devices.model import Device, FixedMemory, Inventory, NodeView, Request, ShareOfCard, Usage, WholeCard
from hami_webhook.devices.pod_fit import NodeFit, fit_pod
from hami_webhook.devices.reasons import Rejection
from hami_webhook.devices.registry import Vendors
from hami_webhook.devices.vendor import Vendor
from hami_webhook.kube.draft import PodDraft
from hami_webhook.kube.objects import Pod

from .fit_env import CHART, JSON, Names, asked, pod
from .test_iluvatar import BOTH


@dataclass(frozen=True)
class Rules:
    """How a vendor's page differs: MiB of a unit of memory, cores of a card, and what annotations allow and deny by."""

    key: str
    unit: int
    cores: int
    memories: Sequence[int]
    amounts: Sequence[int]
    slots: Sequence[int]
    lists: tuple[str, str]
    types: tuple[str, str] | None = None
    models: Sequence[str] = ("",)
    numa: int = 0

    @property
    def vendors(self) -> Vendors:
        return BOTH if self.key in BOTH else CHART

    @property
    def vendor(self) -> Vendor:
        return self.vendors[self.key]

    @property
    def is_percent(self) -> bool:
        """Hygon's and Cambricon's: without cores a container takes all of a card's."""
        return self.types is not None

    def share(self, wanted: JSON, device: Device) -> tuple[int, int]:
        """MiB and cores that the card would be booked with."""
        memory, whole = (wanted.get("memory") or 0) * self.unit, wanted["count"] > 1
        if self.key == "Mthreads":
            whole = self.is_alone(wanted, device)
            return (device.memory, 16) if whole else (memory, wanted.get("cores") or 0)
        if whole:
            return max(device.memory, memory), 100
        return memory or device.memory, min(wanted.get("cores", 100 if self.is_percent else 0), 100)

    def is_alone(self, wanted: JSON, device: Device) -> bool:
        """Whether no other container may have the card."""
        if self.key == "Mthreads":
            memory, cores = wanted.get("memory"), wanted.get("cores")
            return wanted["count"] > 1 or memory is None or (memory, cores) == (96, 16)
        return self.share(wanted, device)[1] == device.cores


RULES = [
    Rules("DCU", 1, 100, (4, 4, 8, 7), (0, 1, 2, 4, 5, 8), (4,), ("hygon.com/use-gpuuuid", "hygon.com/nouse-gpuuuid"),
          ("hygon.com/use-dcutype", "hygon.com/nouse-dcutype"), ("DCU-Z100L", "DCU-K100_AI")),
    Rules("MLU", 256, 100, (1024, 1024, 2048, 2000), (0, 1, 2, 4, 5, 8), (100,),
          ("cambricon.com/use-gpuuuid", "cambricon.com/nouse-gpuuuid"),
          ("cambricon.com/use-mlutype", "cambricon.com/nouse-mlutype"), ("MLU", "MLU370-X8")),
    Rules("BI-V150", 256, 100, (32768, 49152, 49152, 65536), (2, 4, 8, 16, 32, 64, 96), (1, 2, 100, 100),
          ("hami.io/use-BI-V150-uuid", "hami.io/no-use-BI-V150-uuid"), numa=1),
    Rules("Iluvatar", 256, 100, (32768, 49152, 49152, 65536), (2, 4, 8, 16, 32, 64, 96), (1, 2, 100, 100),
          ("iluvatar.ai/use-gpuuuid", "iluvatar.ai/nouse-gpuuuid"), numa=1),
    Rules("Mthreads", 512, 16, (32768, 49152, 49152, 65536), (2, 4, 8, 16, 32, 64, 96), (1, 2, 100, 100),
          ("mthreads.ai/use-gpuuuid", "mthreads.ai/nouse-gpuuuid"), numa=1),
]  # fmt: skip
every_vendor = pytest.mark.parametrize("rules", RULES, ids=lambda rules: rules.key)
POLICIES = ("spread", "binpack", "mutex", "binpack,mutex", "spread, numa", "nonsense", "")


@st.composite
def views(draw: Any, rules: Rules) -> NodeView:
    """A node with cards of the vendor in registered order, and with what is taken of each."""
    devices, usage = [], {}
    for place in range(draw(st.integers(1, 5))):
        memory, cores = draw(st.sampled_from(rules.memories)), rules.cores
        device = Device(
            vendor=rules.key,
            uuid=f"n1-{place}",
            index=draw(st.integers(0, 3)) if rules.key == "DCU" else place,
            slots=draw(st.sampled_from(rules.slots)),
            memory=memory,
            cores=cores,
            type=draw(st.sampled_from(rules.models)),
            numa=draw(st.integers(0, rules.numa)),
            healthy=draw(st.sampled_from([True] * 4 + [rules.key == "MLU"])),
        )
        devices.append(device)
        if draw(st.booleans()):
            taken = st.sampled_from([0, cores // 10, cores // 4, cores // 2, cores])
            expected_share = st.integers(0, memory) | st.sampled_from([0, memory])
            usage[rules.key, device.uuid] = Usage(draw(st.integers(0, 4)), draw(expected_share), draw(taken))
    return NodeView(read_node("n1"), {rules.key: Inventory(tuple(devices))}, usage)


def wants(rules: Rules) -> st.SearchStrategy[JSON]:
    """Count, and perhaps memory in the vendor's units and cores."""
    cores = [0, rules.cores // 10, rules.cores // 4, rules.cores // 2, rules.cores]
    if rules.key != "Mthreads":  # which refuses that
        cores.append(rules.cores + 1)
    return st.fixed_dictionaries(
        {"count": st.sampled_from([1, 1, 1, 2, 3])},
        optional={"memory": st.sampled_from(rules.amounts), "cores": st.sampled_from(cores)},
    )


def limits(rules: Rules, wanted: JSON) -> JSON:
    names = dict(zip(("count", "memory", "cores"), rules.vendor.resource_names, strict=True))
    return {names[key]: amount for key, amount in wanted.items()}


def lists(rules: Rules) -> st.SearchStrategy[dict[str, str]]:
    """Annotations that allow and deny cards, and models where the vendor has such."""
    use, nouse = rules.lists
    found = {use: st.sampled_from(["", "n1-0, n1-1,n1-2", "n1-3"]), nouse: st.sampled_from([" ", "n1-1", "n1-0,n1-4"])}
    if rules.types:
        use, nouse = rules.types
        found |= {use: st.sampled_from(["", "k100,mlu370", "l"]), nouse: st.sampled_from(["", "Z100,X8", "x,"])}
    return st.fixed_dictionaries({}, optional=found)


def items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def plain_reading(rules: Rules, view: NodeView, wanted: JSON, notes: dict[str, str], policy: str) -> object:
    """Section 7, rule by rule: the entries of the chosen cards, or the refusal."""
    devices, words = view.inventories[rules.key].devices, items(policy) or [""]
    if wanted["count"] > len(devices):
        return "NodeInsufficientDevice"

    def rank(place: int) -> tuple[Any, ...]:
        device = devices[place]
        used, (memory, cores) = view.used(rules.key, device.uuid), rules.share(wanted, device)
        score = (
            Fraction(used.slots + 1, device.slots)
            + Fraction(used.cores + cores, device.cores)
            + Fraction(used.memory + memory, device.memory)
        )
        if policy == "mutex":
            score = Fraction(used.slots)
        first = -score if words[0] == "binpack" else score
        if len(words) > 1:  # the keys that are named, then the index
            return first, -device.numa if "numa" in words else 0, -device.index, -place
        return first, -device.numa, -place

    def label(device: Device) -> str | None:
        used, (memory, cores) = view.used(rules.key, device.uuid), rules.share(wanted, device)
        use, nouse = (items(notes.get(key, "")) for key in rules.lists)
        types, no_types = (items(notes.get(key, "").lower()) for key in rules.types or ("", ""))
        model = device.type.lower()
        failures = {
            "CardNotHealth": not device.healthy,
            "CardTypeMismatch": bool(types and not any(item in model for item in types))
            or any(item in model for item in no_types),
            "CardUuidMismatch": bool(use and device.uuid not in use) or device.uuid in nouse,
            "CardTimeSlicingExhausted": used.slots >= device.slots,
            "ExclusiveDeviceAllocateConflict": "mutex" in words and used.slots > 0,
            "CardInsufficientMemory": device.memory - used.memory < memory,
            "CardInsufficientCore": device.cores - used.cores < cores,
            "Alone": rules.is_alone(wanted, device) and used.slots > 0,
            "CardComputeUnitsExhausted": used.cores == device.cores and cores == 0,
        }
        failed = next((name for name, fails in failures.items() if fails), None)
        return "ExclusiveDeviceAllocateConflict" if failed == "Alone" else failed

    counted: Counter[str] = Counter()
    chosen: list[DeviceEntry] = []
    for place in sorted(range(len(devices)), key=rank):
        device = devices[place]
        why = label(device)
        if why is not None:
            counted[why] += 1
            continue
        chosen.append(DeviceEntry(device.uuid, rules.key, *rules.share(wanted, device)))
        if len(chosen) == wanted["count"]:
            return chosen
    counted["AllocatedCardsInsufficientRequest"] = len(chosen)
    return ", ".join(sorted(f"{n}/{len(devices)} {why}" for why, n in counted.items() if n))


def fitted(rules: Rules, view: NodeView, manifest: JSON) -> NodeFit | Rejection:
    """Of the pod as admission leaves it."""
    draft = PodDraft(manifest)
    normalise(draft, rules.vendors, NO_DEVICES)
    ask = asked(draft.result(), rules.vendors)
    return fit_pod(view, ask, rules.vendors, None)


@in_one_test("rules", RULES[:2])
@in_one_test(
    ("wanted", "expected"),
    [
        ((), None),
        ((0, 20, 10), None),
        ((None, 20, 10), None),
        ((1,), (1, ShareOfCard, 100, 100)),
        ((1, 0), (1, ShareOfCard, 100, 100)),
        ((1, None, 30), (1, ShareOfCard, 100, 30)),
        ((1, 20), (1, FixedMemory, 20, 100)),
        ((1, "2k", 60), (1, FixedMemory, 2000, 60)),
        ((1, 20, 0), (1, FixedMemory, 20, 0)),
        ((1, 20, 101), (1, FixedMemory, 20, 100)),
        ((2,), (2, WholeCard, 0, 100)),
        ((2, 20, 10), (2, WholeCard, 20, 100)),
        ((3, 0, 0), (3, WholeCard, 0, 100)),
    ],
)
def test_what_a_container_of_hygons_or_cambricons_asks(
    rules: Rules, wanted: Sequence[object], expected: tuple[int, type, int, int] | None
) -> None:
    """In limits or in requests; memory in the vendor's units."""
    request = None
    if expected is not None:
        count, kind, memory, cores = expected
        request = Request(count, kind(memory if kind is ShareOfCard else memory * rules.unit), cores)
    amounts = Names(*rules.vendor.resource_names).limits(*wanted)
    for incoming in (pod("p", container(**amounts)), pod("p", container(requests=amounts))):
        assert rules.vendor.request(Pod.from_object(incoming).containers[0]) == request


@every_vendor
@given(st.data())
def test_the_choice_is_that_of_a_plain_reading(rules: Rules, data: st.DataObject) -> None:
    view, wanted = data.draw(views(rules)), data.draw(wants(rules))
    notes, policy = data.draw(lists(rules)), data.draw(st.sampled_from(POLICIES))
    manifest = pod(annotations={**notes, "hami.io/gpu-scheduler-policy": policy}, **limits(rules, wanted))
    found = fitted(rules, view, manifest)
    if isinstance(found, Rejection):
        answer: object = str(found)
    else:
        devices = found.rows[0][rules.key].devices
        answer = [DeviceEntry(d.uuid, rules.key, d.share.memory, d.share.cores) for d in devices]
    assert answer == plain_reading(rules, view, wanted, notes, policy)
