"""The device-config.yaml that HAMi's charts render with their default values: no warning, and every name managed.

`charts/` has them as the vendors' pages give them, section by section. They are read here as plain YAML, and what is
found under a key that names a resource is compared with what the program manages.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from hami_webhook.config import load
from hami_webhook.device_config import device_config_model, enabled_vendors, load_device_config
from hami_webhook.devices.registry import section_types
from hami_webhook.integrations import SCHEDULERS

CHARTS = Path(__file__).parent / "charts"
V2_7, V2_10, V2_11 = (CHARTS / f"hami-{version}.yaml" for version in ("2.7", "2.10", "2.11"))
BUILT_IN = Path(load.__file__).with_name(load.FILE_NAME)


def named(part: Any) -> Iterator[str]:
    """Everything under a key that begins with `resource`, at any depth."""
    if isinstance(part, dict):
        for key, value in part.items():
            if key.startswith("resource"):
                yield value
            else:
                yield from named(value)
    elif isinstance(part, list):
        for item in part:
            yield from named(item)


@pytest.mark.parametrize("path", [BUILT_IN, V2_7, V2_10, V2_11], ids=lambda path: path.stem)
def test_every_resource_name_of_a_section_is_managed(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    managed = enabled_vendors(load_device_config(text, path.name).config).resource_names
    for section, written in yaml.safe_load(text).items():
        names = set(named(written))
        # Koordinator's names are fixed, KAI's pods ask by annotation, and claims have none
        assert names or section in ("koordinator", "kai", "hami", "dra", "exporters"), f"{section} names nothing"
        assert names <= managed, f"{section}: {sorted(names - managed)} aren't managed"


@pytest.mark.parametrize(
    ("path", "warnings"),
    [
        (BUILT_IN, []),
        (V2_10, []),
        (V2_11, []),
        (V2_7, ["nvidia.knownMigGeometries: ignored: HAMi 2.10 replaced it by migProfileAllowlist"]),
    ],
    ids=lambda value: value.stem if isinstance(value, Path) else "",
)
def test_a_rendered_file_loads_without_a_warning(path: Path, warnings: list[str]) -> None:
    """Of 2.7 one thing can't be kept, and docs/spec/nvidia.md (2) asks that it be said."""
    found = load_device_config(path.read_text(encoding="utf-8"), path.name).warnings
    assert [warning.partition(": ")[2] for warning in found] == warnings


def test_the_built_in_file_means_what_the_newest_chart_means() -> None:
    """It only adds shared Enflame cards, the allow list's other models, two schedulers and claims."""
    ours, chart = (load_device_config(path.read_text(encoding="utf-8"), path.name).config for path in (BUILT_IN, V2_10))
    for section in yaml.safe_load(V2_10.read_text(encoding="utf-8")):
        mine, theirs = getattr(ours, section), getattr(chart, section)
        if section == "nvidia":
            mine, theirs = (each.model_copy(update={"mig_profile_allowlist": ()}) for each in (mine, theirs))
        assert mine == theirs, section


def test_the_next_chart_means_what_the_newest_means() -> None:
    """With the default values: the same vendors with the same resources, Hygon's under both names in either."""
    vendors = [
        enabled_vendors(load_device_config(path.read_text(encoding="utf-8"), path.name).config)
        for path in (V2_10, V2_11)
    ]
    before, after = ({key: (each.resource_names, each.keys) for key, each in found.items()} for found in vendors)
    assert before == after
    assert {"DCU", "HCU"} <= before.keys()


def test_the_charts_have_every_section_there_is() -> None:
    sections = {
        key for path in (BUILT_IN, V2_7, V2_10, V2_11) for key in yaml.safe_load(path.read_text(encoding="utf-8"))
    }
    assert sections == set(device_config_model().model_fields)
    assert section_types().keys() | SCHEDULERS.keys() | {"hami", "dra", "exporters"} == sections
