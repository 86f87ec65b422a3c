"""Whole Kunlunxin cards, as their own plugin counts them: never shared, chosen by wing and link."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from hami_webhook.devices import reasons
from hami_webhook.devices.capacity_devices import SHARED_SLOTS, capacity, counted, index_of
from hami_webhook.devices.fit_request import HEALTHY, UUID_LISTS, Check, FitRequest, Selection
from hami_webhook.devices.keys import DeviceKeys
from hami_webhook.devices.model import Device, DeviceShare, Inventory, NodeView, Request, Rows, Usage
from hami_webhook.devices.vendors.kunlun import boards, wings
from hami_webhook.devices.vendors.kunlun.boards import WHOLE, KunlunSection, Kunlunxin
from hami_webhook.kube.objects import Container, Node, Pod

DEVICE_INDEX = "BAIDU_COM_DEVICE_IDX"

UNUSED = Check(reasons.EXCLUSIVE_DEVICE_ALLOCATE_CONFLICT, lambda c: c.usage.slots == 0)


class KunlunXpu(Kunlunxin):
    """Whole cards, one by one counted by their plugin's capacity."""

    key = "kunlun"
    section_name = "kunlun"
    section_type = KunlunSection
    section_fields = ("resource_count_name",)
    lock = None
    keys = DeviceKeys(
        allocated="hami.io/kunlun-allocated",
        extra=(DEVICE_INDEX,),
        use_uuid=boards.USE_UUID,
        nouse_uuid=boards.NOUSE_UUID,
    )
    checks = (UUID_LISTS, boards.IN_A_WING, HEALTHY, UNUSED, boards.UNUSED_BY_TWIN)

    def misfits(self, container: Container) -> Iterator[str]:
        yield from boards.misfits(self.count_name, self.amount(container, self.count_name) or 0, whole=True)

    def inventory(self, node: Node) -> Inventory | None:
        count = capacity(node, self.count_name)
        cards = counted(self.key, node, "kunlun", count, slots=SHARED_SLOTS, memory=WHOLE, cores=100)
        devices = tuple(replace(card, numa=int(card.index >= count // 2)) for card in cards)
        return Inventory(devices) if devices else None

    def resolve_share(self, request: Request, device: Device, usage: Usage) -> DeviceShare | None:
        return DeviceShare(device.memory, device.cores)

    def selection(self, fit_request: FitRequest) -> Selection:
        return boards.WHOLE_CARDS

    def score(self, pod: Pod, view: NodeView, rows: Rows, policy: str) -> float:
        devices = [device for inventory in view.inventories.values() for device in inventory.devices]
        if any("kunlun" not in device.type for device in devices):
            return 0.0
        indices = {card.uuid: card.index for card in view.inventories[self.key].devices}
        before = {index for uuid, index in indices.items() if view.used(self.key, uuid).slots}
        given = {indices[device.uuid] for row in rows if self.key in row for device in row[self.key].devices}
        better = wings.score(before, before | given)
        return float(-better if policy == "spread" else better)

    def encode(self, pod: Pod, rows: Rows, node: Node, now: float) -> dict[str, str]:
        uuids = (device.uuid for row in rows if self.key in row for device in row[self.key].devices)
        indices = dict.fromkeys(str(index_of(uuid)) for uuid in uuids)
        return super().encode(pod, rows, node, now) | {DEVICE_INDEX: ",".join(indices)}
