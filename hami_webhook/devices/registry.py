"""The vendors that a device configuration enables, in one fixed order (by backend key)."""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, Sequence, ValuesView
from typing import Any

from hami_webhook.config import DeviceConfig
from hami_webhook.devices.foreign_scheduler import Coexistence, ForeignScheduler
from hami_webhook.devices.keys import MEBIBYTE, Dimension, Governed, QuotaKey
from hami_webhook.devices.vendor import Vendor
from hami_webhook.devices.vendors import ascend
from hami_webhook.devices.vendors.amd import Amd
from hami_webhook.devices.vendors.awsneuron import AwsNeuron
from hami_webhook.devices.vendors.biren import Biren
from hami_webhook.devices.vendors.cambricon import Cambricon
from hami_webhook.devices.vendors.enflame import gcus
from hami_webhook.devices.vendors.hygon import Hygon
from hami_webhook.devices.vendors.iluvatar import OldFamily, PerChip
from hami_webhook.devices.vendors.kunlun import KunlunVxpu, KunlunXpu
from hami_webhook.devices.vendors.metax import MetaxGpu, MetaxSgpu
from hami_webhook.devices.vendors.mthreads import Mthreads
from hami_webhook.devices.vendors.nvidia import Nvidia
from hami_webhook.devices.vendors.vastai import Vastai
from hami_webhook.kube.draft import ContainerDraft
from hami_webhook.kube.objects import Container

PLACEMENT_KEYS = ("hami.io/vgpu-node", "hami.io/vgpu-time", "hami.io/bind-time", "hami.io/bind-phase")
"""The scheduler-owned annotations that every vendor shares."""


VENDORS: Mapping[str, Callable[[Any], Iterable[Vendor]]] = {
    "amd": lambda section: (Amd(section),),
    "awsneuron": lambda section: (AwsNeuron(section),),
    "biren": lambda section: (Biren(section),),
    "cambricon": lambda section: (Cambricon(section),),
    "enflame": gcus,
    "hygon": lambda section: (Hygon(section),),
    "iluvatar": lambda section: (OldFamily(section),),
    "iluvatars": lambda chips: map(PerChip, chips),
    "kunlun": lambda section: (KunlunXpu(section), KunlunVxpu(section)),
    "metax": lambda section: (MetaxGpu(section), MetaxSgpu(section)),
    "mthreads": lambda section: (Mthreads(section),),
    "nvidia": lambda section: (Nvidia(section),),
    "vastai": lambda section: (Vastai(section),),
    "vnpus": ascend.vendors,
}
"""What each section of device-config.yaml enables: the vendors it describes."""


class Vendors(Mapping[str, Vendor]):
    """The enabled vendors by backend key, sorted, and the other projects' schedulers.

    `resource_names` are all that are managed, `own_names` those of the vendors, whose pods we place; of these
    kube-scheduler leaves all to us, `ignored_by_scheduler`, but those that a device plugin advertises as pods ask for
    them. `governed` are the ones that policy can speak of. `owned_annotations` are what only our scheduler and device
    plugins write on a pod, `foreign_annotations` what only the other schedulers and theirs do. `mixing` is the rule of
    one GPU manager per node.
    """

    def __init__(
        self, vendors: list[Vendor], foreign: Sequence[ForeignScheduler] = (), mixing: Coexistence | None = None
    ) -> None:
        self.mixing = mixing or Coexistence()
        self._by_key = {vendor.key: vendor for vendor in sorted(vendors, key=lambda vendor: vendor.key)}
        self.foreign = tuple(foreign)
        self.governed: Mapping[str, Governed] = {
            **self._by_key,
            **{scheduler.key: scheduler for scheduler in foreign if scheduler.governable},
        }
        self.own_names = frozenset(name for vendor in vendors for name in vendor.resource_names)
        self.ignored_by_scheduler = self.own_names.difference(*(vendor.kubelet_counted for vendor in vendors))
        self.resource_names = self.own_names.union(*(scheduler.resource_names for scheduler in foreign))
        self.owned_annotations = frozenset((*PLACEMENT_KEYS, *(k for vendor in vendors for k in vendor.keys.owned)))
        self.foreign_annotations = frozenset(key for scheduler in foreign for key in scheduler.owned)
        self.byte_keys = frozenset(key for scheduler in foreign for key in scheduler.byte_keys)
        self._names = {name: [v.key for v in vendors if name in v.resource_names] for name in self.own_names}
        self.keys_of = {vendor.key: vendor.quota_keys() for vendor in vendors}
        self.quota_keys: Mapping[str, tuple[tuple[str, QuotaKey], ...]] = self._quota_keys()
        self.bytes_per_unit = self._bytes_per_unit()

    @classmethod
    def from_config(
        cls, config: DeviceConfig, foreign: Sequence[ForeignScheduler] = (), mixing: Coexistence | None = None
    ) -> Vendors:
        """The vendors of a configuration: a section that is present enables its vendor, if that can be asked for."""
        sections = ((getattr(config, name), build) for name, build in VENDORS.items())
        found = [vendor for section, build in sections if section is not None for vendor in build(section)]
        return cls([vendor for vendor in found if not vendor.inert], foreign, mixing)

    def named_by(self, container: Container | ContainerDraft) -> frozenset[str]:
        """The keys of the vendors of which the container names a resource: those that it `asks`."""
        names = container.named & self._names.keys()
        return frozenset([key for name in names for key in self._names[name]])

    def __getitem__(self, key: str) -> Vendor:
        return self._by_key[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_key)

    def __len__(self) -> int:
        return len(self._by_key)

    def items(self) -> ItemsView[str, Vendor]:
        return self._by_key.items()

    def values(self) -> ValuesView[Vendor]:
        return self._by_key.values()

    def _quota_keys(self) -> dict[str, tuple[tuple[str, QuotaKey], ...]]:
        found: dict[str, tuple[tuple[str, QuotaKey], ...]] = {}
        for key in self._by_key:
            for quota_key in self.keys_of[key]:
                found[quota_key.name] = (*found.get(quota_key.name, ()), (key, quota_key))
        for scheduler in self.foreign:
            found |= dict.fromkeys(scheduler.quota_keys, ())
        return found

    def _bytes_per_unit(self) -> dict[str, int]:
        """The quota keys a hard may count in bytes, with the bytes of a unit; vendors that share one must agree."""
        found: dict[str, int] = {}
        for name, shared in self.quota_keys.items():
            if not shared:
                continue  # another scheduler's, with units of its own
            factors = {key.factor for _, key in shared if key.binary_is_bytes and key.dimension is Dimension.MEMORY}
            if len(factors) == 1 and all(key.binary_is_bytes for _, key in shared):
                found[name] = factors.pop() * MEBIBYTE
        return found
