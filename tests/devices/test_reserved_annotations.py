"""Scheduler-owned annotations: every key of the table in docs/spec/node-registration.md#4, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from tables import in_one_test

from hami_webhook.device_config import builtin_device_config, enabled_vendors
from hami_webhook.devices.registry import declared
from hami_webhook.devices.reserved_annotations import OWNED_LABELS, ReservedAnnotations, is_scheduler_owned, owned_in

SPECIFICATION = (Path(__file__).parents[2] / "docs" / "spec" / "node-registration.md").read_text()
(SECTION,) = re.findall(r'<a id="4"></a>.+?(?=<a id="5">)', SPECIFICATION, re.DOTALL)
ADMISSIONS = "mthreads.com/request-gpu-num"
"""Of the section's keys the one that admission itself writes."""
NOTHING = ReservedAnnotations([])
EVERYTHING = ReservedAnnotations([*enabled_vendors(builtin_device_config().config).values(), *declared()])
CHIPS = ("Ascend910A", "Ascend910B4-1", "Ascend310P")


def owned_keys() -> list[str]:
    """What stands in backticks in the table's columns of keys, and in the paragraph of the keys for all."""
    _, _, *rows = (line for line in SECTION.splitlines() if line.startswith("|"))
    (for_all,) = re.findall(r"^For all: .+?\*\*scheduler-owned\*\*", SECTION, re.MULTILINE)
    cells = [cell for row in rows for cell in row.split("|")[2:]]
    keys = re.findall(r"`(\w[^`]+)`", " ".join((*cells, for_all)))
    chips = [key.replace("<C>", chip).replace("<k>", "12") for key in keys for chip in CHIPS]
    return sorted({*chips} - {ADMISSIONS})


USERS = [
    # choices
    "hami.io/gpu-scheduler-policy",
    "hami.io/node-scheduler-policy",
    "hami.io/device-scoring-weights",
    "nvidia.com/vgpu-mode",
    "nvidia.com/numa-bind",
    "metax-tech.com/sgpu-qos-policy",
    "huawei.com/vnpu-mode",
    "volcano.sh/vgpu-mode",
    # admission's and the quota's own
    "mthreads.com/request-gpu-num",
    "hami.io/quota-reservation",
    # near misses: keys are exact
    "",
    "hami.io/",
    "hami.io/-devices-allocated",
    "hami.io/vgpu-devices-allocated-too",
    "hami.io/vgpu-node/",
    "hami.io/vgpu-nodes",
    "HAMI.IO/vgpu-node",
    "Predicate-time",
    "example.com/predicate-time",
    "example.com/vgpu-devices-allocated",
    "x.hami.io/vgpu-devices-allocated",
    "huawei.com/ascend910b3",
    "iluvatar.ai/predicate-gpu-idx-",
    "iluvatar.ai/predicate-gpu-idx-x",
    "enflame.com/gcu-assigned-by",
]


@in_one_test("key", owned_keys())
def test_every_key_of_the_table_is_scheduler_owned(key: str) -> None:
    assert is_scheduler_owned(key)


@in_one_test("key", USERS)
def test_no_other_key_is(key: str) -> None:
    assert not is_scheduler_owned(key)


def test_owned_keys_among_annotations_are_sorted() -> None:
    annotations = {"predicate-time": "1", "nvidia.com/use-gpuuuid": "GPU-a", "hami.io/vgpu-node": "n1", "a": "b"}
    annotations |= {"hami.io/Ascend-devices-allocated": "x", "hami.io/gpu-scheduler-policy": "spread"}
    assert owned_in(annotations) == ["hami.io/Ascend-devices-allocated", "hami.io/vgpu-node"]
    assert owned_in({}) == []


@in_one_test("key", [key for key in owned_keys() if key.startswith("hami.io/")])
def test_keys_of_hami_are_reserved_on_every_pod_whatever_is_enabled(key: str) -> None:
    assert NOTHING.among([key], with_cards=False) == {key}
    assert re.search(f"^({NOTHING.everywhere})$", key)


@in_one_test("key", [key for key in owned_keys() if not key.startswith("hami.io/")])
def test_other_keys_are_reserved_where_their_vendor_is_enabled_on_pods_with_cards(key: str) -> None:
    assert NOTHING.among([key], with_cards=True) == set()
    assert EVERYTHING.among([key], with_cards=False) == set()
    if not key.startswith("huawei.com/"):  # of these the configured chips alone
        assert EVERYTHING.among([key], with_cards=True) == {key}


def test_the_label_is_owned_too() -> None:
    assert frozenset({"hami.io/vgpu-node"}) == OWNED_LABELS
