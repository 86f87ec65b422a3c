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

from hami_webhook.admission.pods import normalise
from hami_webhook.devices.codecs import DeviceEntry
from hami_webhook.devices.debit import Debit, per_device
from hami_webhook.devices.device_lister import NO_DEVICES
from hami_webhook.devices.model import (
    Device,
    Inventory,
    NodeView,
    Usage,
)
from hami_webhook.devices.registry import Vendors
from hami_webhook.devices.vendor import Vendor
from hami_webhook.kube.draft import PodDraft
from hami_webhook.kube.objects import ContainerKind, Pod
from hami_webhook.quota.budget import PodBudget
from hami_webhook.scheduling.fit import NodeFit, fit_pod, read_pod_request
from hami_webhook.scheduling.placement_metadata import placement_annotations

from .fit_env import CHART, JSON, NOW, FitEnv, Placed, pod
from .iluvatars import BOTH


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
    cores = [0, rules.cores // 10, rules.cores // 4, rules.cores // 2, rules.cores, rules.cores + 1]
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


def fitted(rules: Rules, view: NodeView, manifest: JSON, budget: PodBudget | None = None) -> Any:
    """Of the pod as admission leaves it."""
    draft = PodDraft(manifest)
    normalise(draft, rules.vendors, NO_DEVICES)
    ask = read_pod_request(draft.result(), rules.vendors, "spread")
    assert ask is not None
    return fit_pod(view, ask, rules.vendors, budget)


def entries(rules: Rules, fit: NodeFit) -> list[list[DeviceEntry]]:
    """What each container was given."""
    return [
        [DeviceEntry(d.uuid, rules.key, d.share.memory, d.share.cores) for d in row[rules.key].devices]
        for row in fit.rows
    ]


@every_vendor
@given(st.data())
def test_the_choice_is_that_of_a_plain_reading(rules: Rules, data: st.DataObject) -> None:
    view, wanted = data.draw(views(rules)), data.draw(wants(rules))
    notes, policy = data.draw(lists(rules)), data.draw(st.sampled_from(POLICIES))
    manifest = pod(annotations={**notes, "hami.io/gpu-scheduler-policy": policy}, **limits(rules, wanted))
    found = fitted(rules, view, manifest)
    answer = entries(rules, found)[0] if isinstance(found, NodeFit) else str(found)
    assert answer == plain_reading(rules, view, wanted, notes, policy)


@every_vendor
@given(st.data())
def test_a_placement_keeps_within_every_card_and_the_quota_and_is_written_as_given(
    rules: Rules, data: st.DataObject
) -> None:
    view, vendor = data.draw(views(rules)), rules.vendor
    wanted = [data.draw(wants(rules)) for _ in range(data.draw(st.integers(1, 4)))]
    inits = data.draw(st.integers(0, min(2, len(wanted) - 1)))
    sidecars = [n < inits and data.draw(st.booleans()) for n in range(len(wanted))]
    boxes = [container(f"c{n}", sidecar=sidecars[n], **limits(rules, each)) for n, each in enumerate(wanted)]
    incoming = pod("p", *boxes[inits:], init=boxes[:inits])
    manifest = Pod.from_object(incoming)
    hard = {f"limits.{vendor.memory_name}": data.draw(st.integers(0, 500))} if data.draw(st.booleans()) else {}
    budget = PodBudget(hard, manifest.kinds, rules.vendors)
    fit = fitted(rules, view, incoming, budget)
    if not isinstance(fit, NodeFit):
        assert str(fit)
        return
    assert budget.admits(fit.claims())
    cards = {device.uuid: device for device in view.inventories[rules.key].devices}
    debits = per_device(fit.claims(), manifest.kinds)
    for (_, uuid), debit in debits.items():
        device, used = cards[uuid], view.used(rules.key, uuid)
        assert device.healthy
        assert used.slots + debit.slots <= device.slots
        assert used.memory + debit.memory <= device.memory
        assert used.cores + debit.cores <= device.cores
    assert all(-(-sum(debits.values(), Debit()).memory // rules.unit) <= most for most in hard.values())
    given_ = entries(rules, fit)
    for each, row in zip(wanted, given_, strict=True):
        assert len({entry.uuid for entry in row}) == len(row) == each["count"]
        if each["count"] > 1:
            assert all((entry.memory, entry.cores) == rules.share(each, cards[entry.uuid]) for entry in row)
            assert all(view.used(rules.key, entry.uuid).slots == 0 for entry in row)
    written = placement_annotations(manifest, fit, view, rules.vendors, NOW)
    assert vendor.decode(Pod.from_object(pod(annotations=written))) == given_
    for own in (ContainerKind.INIT, ContainerKind.APP) if rules.key == "Mthreads" else ():
        of = zip(given_, manifest.kinds, strict=True)
        together = [{entry.uuid for entry in row} for row, kind in of if kind in (own, ContainerKind.SIDECAR)]
        assert len(together) < 2 or len(set.union(*together)) == 1


@given(st.data())
def test_pod_after_pod_what_the_annotations_say_never_exceeds_the_cards(data: st.DataObject) -> None:
    """A card that one container has whole is nobody else's, but for containers without cores."""
    dcu, mlu = RULES[:2]
    register = "".join(f"c{n},4,{4 + n},100,DCU-K100_AI,0,true,{n},hami:" for n in range(3))
    capacity = {mlu.vendor.core_name: 300, mlu.vendor.memory_name: 20}
    env = FitEnv([read_node("n1", capacity=capacity, **{"hami.io/node-dcu-register": register})])
    whole: set[tuple[str, str]] = set()
    for number in range(data.draw(st.integers(1, 10))):
        rules = data.draw(st.sampled_from([dcu, mlu]))
        placed = env.place(pod(f"p{number}", **limits(rules, data.draw(wants(rules)))))
        if isinstance(placed, Placed):
            rows = rules.vendor.decode(Pod.from_object(pod(annotations=placed.annotations))) or []
            whole |= {(rules.key, entry.uuid) for row in rows for entry in row if entry.cores == 100}
    view = env.state.view("n1")
    assert view is not None
    for vendor, inventory in view.inventories.items():
        for device in inventory.devices:
            used = view.used(vendor, device.uuid)
            assert (used.slots <= device.slots, used.memory <= device.memory, used.cores <= device.cores) == (True,) * 3
            assert (vendor, device.uuid) not in whole or used.slots == 1 or used.cores == 100


@every_vendor
@pytest.mark.parametrize(
    ("used", "policy", "label"),
    [
        (Usage(1, 10**6, 100), "spread", "ResourceQuotaNotFit"),
        (Usage(1, 0, 0), "mutex", "ExclusiveDeviceAllocateConflict"),
        (Usage(100, 0, 0), "spread", "CardTimeSlicingExhausted"),
    ],
)
def test_quota_is_asked_behind_the_pods_own_wishes_and_before_what_is_free(
    rules: Rules, used: Usage, policy: str, label: str
) -> None:
    cards = Inventory((Device(rules.key, "c0", 0, 4, 10**6, rules.cores, rules.key),))
    view = NodeView(read_node("n1"), {rules.key: cards}, {(rules.key, "c0"): used})
    manifest = pod(annotations={"hami.io/gpu-scheduler-policy": policy}, **limits(rules, {"count": 1, "memory": 2}))
    nothing = PodBudget({f"limits.{rules.vendor.memory_name}": 0}, Pod.from_object(manifest).kinds, rules.vendors)
    assert str(fitted(rules, view, manifest, nothing)) == f"1/1 {label}"
