"""What vendors' exporters say of cards, as Prometheus has it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from aiohttp import web
from http_server import http_server

from hami_webhook.device_config import builtin_device_config, exporters_of, load_device_config
from hami_webhook.usage.exporters import Exporter
from hami_webhook.usage.figures import Measured, MeasuredCard
from hami_webhook.usage.from_prometheus import query_measured

OWN = {"node": "n1", "device_uuid": "GPU-0", "device_type": "NVIDIA-A"}
TEMPERATURE, POWER = "hami_host_gpu_temperature_celsius", "hami_host_gpu_power_usage_watts"
DCGM = {"UUID": "GPU-0", "modelName": "NVIDIA A100"}
KNOWN = exporters_of(builtin_device_config().config)


@contextmanager
def prometheus(*samples: tuple[str, dict[str, str], Any]) -> Iterator[str]:
    result = [{"metric": labels | {"__name__": name}, "value": [0, str(value)]} for name, labels, value in samples]
    answer = {"status": "success", "data": {"result": result}}
    with http_server(lambda request, body: web.json_response(answer)) as url:
        yield url


def read(*samples: tuple[str, dict[str, str], Any], exporters: Any = KNOWN) -> Measured:
    with prometheus(*samples) as url:
        return query_measured(url, 0.0, exporters)


@pytest.mark.parametrize(
    ("samples", "state"),
    [
        (
            [("DCGM_FI_DEV_GPU_TEMP", DCGM, 61), ("DCGM_FI_DEV_POWER_USAGE", DCGM, 250.5)],
            MeasuredCard("GPU-0", "NVIDIA A100", temperature=61.0, power=250.5),
        ),
        ([("DCGM_FI_DEV_GPU_TEMP", {**DCGM, "GPU_I_ID": n}, 60 + int(n)) for n in "12"],
         MeasuredCard("GPU-0", "NVIDIA A100", temperature=62.0)),
        (
            [("npu_chip_info_temperature", {"vdie_id": "GPU-0", "model_name": "910B4"}, 45)],
            MeasuredCard("GPU-0", "910B4", temperature=45.0),
        ),
        ([("mx_board_power", {"uuid": "GPU-0"}, 56000)], MeasuredCard("GPU-0", power=56.0)),
        ([(TEMPERATURE, OWN, 50), ("DCGM_FI_DEV_GPU_TEMP", DCGM, 61), ("DCGM_FI_DEV_POWER_USAGE", DCGM, 250)],
         MeasuredCard("GPU-0", "NVIDIA-A", temperature=50.0, power=250.0)),
        ([("DCGM_FI_DEV_GPU_TEMP", {"UUID": "GPU-1"}, 61)], MeasuredCard("GPU-0")),
    ],
    ids=["dcgm", "MIG instances", "npu", "mx, in milliwatts", "our monitor's come first", "another card"],
)  # fmt: skip
def test_a_card_has_what_an_exporter_says(samples: Any, state: MeasuredCard) -> None:
    assert read(*samples).state("n1", "GPU-0") == state


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-40", "1e300"])
def test_what_makes_no_sense_is_left_out(value: str) -> None:
    assert read(("DCGM_FI_DEV_GPU_TEMP", DCGM, value)).exported == {}


def test_a_long_model_is_cut() -> None:
    found = read(("DCGM_FI_DEV_GPU_TEMP", {"UUID": "GPU-0", "modelName": "x" * 100_000}, 1))
    assert len(found.state("n1", "GPU-0").model) < 1000


def test_an_exporter_alone_says_nothing_of_what_is_used() -> None:
    found = read(("DCGM_FI_DEV_GPU_TEMP", DCGM, 61))
    assert (found.cards, found.pods) == ({}, {})
    assert "no metrics of a node's monitor" in found.why


def test_a_row_of_the_configuration_is_all_that_an_exporter_takes() -> None:
    text = "nvidia: {resourceCountName: nvidia.com/gpu}\nexporters: {cards: [{exporter: e, uuid: id, power: e_watts}]}"
    exporters = exporters_of(load_device_config(text, "f").config)
    assert exporters == (Exporter(exporter="e", uuid="id", power="e_watts"),)
    sample = ("e_watts", {"id": "GPU-0"}, 7)
    assert read(sample, exporters=exporters).state("n1", "GPU-0").power == 7.0
    assert read(sample).state("n1", "GPU-0").power is None


def test_a_file_without_the_section_has_the_known_ones_and_an_empty_list_none() -> None:
    text = "nvidia: {resourceCountName: nvidia.com/gpu}\n"
    assert exporters_of(load_device_config(text, "f").config) == KNOWN
    assert exporters_of(load_device_config(f"{text}exporters: {{cards: []}}", "f").config) == ()
