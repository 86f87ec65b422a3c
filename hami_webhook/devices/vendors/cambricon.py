"""Cambricon MLUs, sliced by the driver's dynamic sMLU. Source: docs/spec/cambricon.md.

The vendor's own plugin reports sums as capacity, so cards have no identity but their place on the node. A container
gets a share of one card, in percent of compute and units of 256 MiB, or whole cards.
"""

from __future__ import annotations

from collections.abc import Iterator

from hami_webhook.config.devices import CountMemoryCore
from hami_webhook.devices.capacity_devices import index_of, summed
from hami_webhook.devices.device_lister import DeviceLister
from hami_webhook.devices.keys import DeviceKeys, ReservedKeys
from hami_webhook.devices.lock_annotations import NodeLock
from hami_webhook.devices.model import Inventory, Rows
from hami_webhook.devices.vendor import Vendor
from hami_webhook.kube.draft import ContainerDraft, PodDraft
from hami_webhook.kube.objects import ContainerKind, Node, Pod

UNIT = 256
"""MiB of a unit of memory: the plugin's `--min-dsmlu-unit=256`."""

MODEL_LABEL = "Model"
"""Where the plugin, from 2.0.20 on, writes the model of a node's cards."""

PROFILE = "CAMBRICON_DSMLU_PROFILE"
# The plugin looks for the misspelt key, HAMi from 2.7.1 on writes the other one.
ASSIGNED = ("CAMBRICON_DSMLU_ASSIGHED", "CAMBRICON_DSMLU_ASSIGNED")


class CambriconSection(CountMemoryCore):
    """`cambricon`. One unit of the memory resource is 256 MiB, whatever the file says."""

    @property
    def factor(self) -> int:
        return UNIT


class Cambricon(Vendor):
    key = "MLU"
    section_name = "cambricon"
    section_type = CambriconSection
    reserved = ReservedKeys(("CAMBRICON_DSMLU_PROFILE_INSTANCE",))
    keys = DeviceKeys.usual(
        "cambricon-mlu",
        uuid="cambricon.com/[no]use-gpuuuid",
        model="cambricon.com/[no]use-mlutype",
        extra=(*ASSIGNED, PROFILE),
    )
    memory_factor = UNIT
    default_cores = 100
    multi_is_exclusive = True
    explains_memory = True
    lock = NodeLock("cambricon.com/dsmlu.lock", 120.0, names_holder=False)

    # node side (docs/spec/cambricon.md#3)

    def inventory(self, node: Node) -> Inventory | None:
        model = node.labels.get(MODEL_LABEL, "").strip()
        return summed(self, node, "cambricon-mlu", 100, model if "mlu" in model.lower() else "")

    @property
    def kubelet_counted(self) -> tuple[str, ...]:
        return self.memory_name, self.core_name

    # admission (5): what the vendor's plugin can't serve

    def warnings_of(self, container: ContainerDraft) -> Iterator[str]:
        yield from super().warnings_of(container)
        if container.kind is not ContainerKind.APP:
            yield "an init container gets no MLU, because the device plugin looks at app containers only"
        if self.amount(container, self.count_name) != 1:
            return
        requested = self._sliced(container)
        if not requested:
            yield (
                f"without {self.memory_name} and {self.core_name} it starts without a card, because in sMLU mode the "
                "device plugin isn't called for it"
            )
        elif len(requested) == 1:
            yield (
                f"with {requested[0]} alone, kubelet calls the device plugin once instead of twice: the slice is never "
                "marked as assigned, and the node's lock stays until it expires"
            )

    def admit_pod(self, pod: PodDraft, device_lister: DeviceLister) -> None:
        slices = [container.name for container in pod.containers if self._sliced(container)]
        if len(slices) > 1:
            pod.warn(
                f"containers {', '.join(slices)} ask for {self.memory_name} or {self.core_name}, but the device plugin "
                "serves only one such container of a pod; with more, the pod fails"
            )

    def _sliced(self, container: ContainerDraft) -> list[str]:
        """The resources in the container for which kubelet calls the plugin."""
        return [name for name in (self.memory_name, self.core_name) if self.amount(container, name)]

    # outputs (9)

    def encode(self, pod: Pod, rows: Rows, node: Node, now: float) -> dict[str, str]:
        first = next(row[self.key] for row in rows if self.key in row).devices[0]
        index = index_of(first.uuid)
        profile = f"{index}_{first.share.cores}_{first.share.memory // UNIT}"
        return super().encode(pod, rows, node, now) | dict.fromkeys(ASSIGNED, "false") | {PROFILE: profile}
