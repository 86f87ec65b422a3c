"""The section `hami` of device-config.yaml: which HAMi's reading of pods is followed (docs/spec/core.md#2.5)."""

from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Literal

from hami_webhook.config.devices import DeviceSection
from hami_webhook.config.fields import one_of
from hami_webhook.kube.yaml_reader import Path


class HamiSection(DeviceSection):
    """`hami`: where HAMi's versions read a pod differently, the one whose reading is followed."""

    MAY_NAME_NOTHING: ClassVar[bool] = True

    version: Annotated[Literal["2.10", "2.11"], one_of("2.10", "2.11")] = "2.10"

    @property
    def is_2_11(self) -> bool:
        return self.version == "2.11"

    def parts(self) -> Mapping[Path, DeviceSection]:
        """None: it names no resources."""
        return {}

    def notes(self) -> Iterator[str]:
        yield f"pods are read as by HAMi {self.version}"
