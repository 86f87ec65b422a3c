"""The section `hami` of device-config.yaml: which HAMi's reading of pods is followed (docs/spec/core.md#2.5)."""

from collections.abc import Mapping
from typing import Annotated, ClassVar

from hami_webhook.config.devices import DeviceSection
from hami_webhook.config.fields import checked, refuse
from hami_webhook.kube.message_text import found
from hami_webhook.kube.yaml_reader import Path

_AS_NUMBERS = {2.1: "2.10", 2.11: "2.11"}
"""What YAML makes of versions without quotes."""


def _version(value: object) -> str:
    text = _AS_NUMBERS.get(value) if isinstance(value, float) else value
    if text not in _AS_NUMBERS.values():
        refuse(f"must be 2.10 or 2.11, found {found(value)}")
    return str(text)


class HamiSection(DeviceSection):
    """`hami`: where HAMi's versions read a pod differently, the one whose reading is followed."""

    MAY_NAME_NOTHING: ClassVar[bool] = True

    version: Annotated[str, checked(_version, type="string", pattern=r"^2\.1[01]$")] = "2.10"

    @property
    def is_2_11(self) -> bool:
        return self.version == "2.11"

    def parts(self) -> Mapping[Path, DeviceSection]:
        """None: it names no resources."""
        return {}
