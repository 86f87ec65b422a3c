"""The section `exporters` of device-config.yaml: what vendors' exporters call what they say of cards (docs/used.md).

An exporter is data: a row names its metrics and labels, and nothing else here knows one.
"""

import re
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self

from pydantic import model_validator

from hami_webhook.config.devices import DeviceSection
from hami_webhook.config.fields import Section, Word, checked, one_of, refuse
from hami_webhook.kube.message_text import found
from hami_webhook.kube.yaml_reader import Path

_METRIC = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_LABEL = r"[a-zA-Z_][a-zA-Z0-9_]*"
_OURS = "hami_"
_MOST = 32
"""Rows: their metrics are all in one query."""


def _metric(value: object) -> str:
    if not isinstance(value, str) or (value and not re.fullmatch(_METRIC, value, re.ASCII)):
        refuse(f"must be the name of a metric such as DCGM_FI_DEV_GPU_TEMP, or empty, found {found(value)}")
    if value.startswith(_OURS):
        refuse(f"names a metric of ours, which is read anyway, found {found(value)}; name the exporter's own")
    return value


def _label(value: object) -> str:
    if not isinstance(value, str) or (value and not re.fullmatch(_LABEL, value, re.ASCII)):
        refuse(f"must be the name of a label such as uuid, or empty, found {found(value)}")
    return value


def _needed_label(value: object) -> str:
    return _label(value) or refuse("must be the name of the label that has the card's UUID, found an empty text")


Metric = Annotated[str, checked(_metric, type="string", pattern=f"^({_METRIC})?$")]
Label = Annotated[str, checked(_label, type="string", pattern=f"^({_LABEL})?$")]
NeededLabel = Annotated[str, checked(_needed_label, type="string", pattern=f"^{_LABEL}$")]


class Exporter(Section):
    """An exporter: the labels with a card's UUID, as its device plugin registers it, and its model; the metrics with
    its temperature in degrees Celsius and its power.
    """

    exporter: Word
    uuid: NeededLabel
    model: Label = ""
    temperature: Metric = ""
    power: Metric = ""
    power_unit: Annotated[Literal["W", "mW"], one_of("W", "mW")] = "W"

    @model_validator(mode="after")
    def _names_a_metric(self) -> Self:
        if not (self.temperature or self.power):
            refuse("names no metric, so nothing is read of it; set temperature, power or both")
        return self


class ExportersSection(DeviceSection):
    """`exporters`: those that are looked for in Prometheus."""

    MAY_NAME_NOTHING: ClassVar[bool] = True

    cards: tuple[Exporter, ...] = (
        Exporter(
            exporter="dcgm-exporter",
            uuid="UUID",
            model="modelName",
            temperature="DCGM_FI_DEV_GPU_TEMP",
            power="DCGM_FI_DEV_POWER_USAGE",
        ),
        Exporter(
            exporter="npu-exporter",
            uuid="vdie_id",
            model="model_name",
            temperature="npu_chip_info_temperature",
            power="npu_chip_info_power",
        ),
        Exporter(
            exporter="mx-exporter",
            uuid="uuid",
            model="modelName",
            temperature="mx_chip_hotspot_temp",
            power="mx_board_power",
            power_unit="mW",
        ),
    )

    def parts(self) -> Mapping[Path, DeviceSection]:
        """None: its rows name no resources."""
        return {}

    @model_validator(mode="after")
    def _rows_differ(self) -> Self:
        if len(self.cards) > _MOST:
            refuse(f"cards has {len(self.cards)} rows, and at most {_MOST} are read")
        metrics = [name for row in self.cards for name in (row.temperature, row.power) if name]
        for index, name in enumerate(metrics):
            if name in metrics[:index]:
                refuse(f"cards names the metric {name} twice; keep one")
        return self
