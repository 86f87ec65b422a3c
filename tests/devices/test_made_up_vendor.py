"""A vendor that one module outside of the package adds works wherever vendors do, and says what it declares wrongly.

The module is that of docs/adding-a-vendor.md.
"""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest
import yaml
from document_steps import ROOT, steps
from simulate.files import JSON, Simulate, listed, pod, quota

from hack.render_manifests import render
from hami_webhook.config import ConfigError
from hami_webhook.config.devices import CountMemoryCore, DeviceSection
from hami_webhook.config.fields import ResourceName
from hami_webhook.device_config import builtin_device_config, enabled_vendors, load_device_config
from hami_webhook.devices.keys import DeviceKeys
from hami_webhook.devices.registration import NodeRegistration
from hami_webhook.devices.vendor import Vendor

CONFIG = """\
acme:
  resourceCountName: acme.example/gpu
  resourceMemoryName: acme.example/memory
  resourceCoreName: acme.example/cores
"""
COUNT, MEMORY, CORES = (f"acme.example/{word}" for word in ("gpu", "memory", "cores"))


@pytest.fixture
def vendors(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is forgotten at its end."""
    monkeypatch.setattr(Vendor, "classes", Vendor.classes)


@pytest.fixture
def acme(vendors: None, tmp_path: Path) -> None:
    (module, *_) = steps((ROOT / "docs" / "adding-a-vendor.md").read_text())
    path = tmp_path / "acme.py"
    path.write_text(module.text)
    runpy.run_path(str(path))


@pytest.fixture
def command(acme: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Simulate:
    return Simulate(tmp_path, capsys)


def pod_with_limits(name: str, notes: JSON | None = None, **amounts: int) -> JSON:
    limits = {COUNT: 1, **{f"acme.example/{word}": amount for word, amount in amounts.items()}}
    return pod(name, {"name": "main", "image": "x", "resources": {"limits": limits}}, annotations=notes)


def cluster() -> list[JSON]:
    cards = [
        {"id": uuid, "count": 4, "devmem": 16000, "devcore": 100, "type": "ACME-1", "health": True}
        for uuid in ("acme-0", "acme-1")
    ]
    meta = {"name": "n1", "annotations": {"hami.io/node-acme-register": json.dumps(cards)}}
    hard = {f"limits.{name}": amount for name, amount in ((COUNT, "3"), (MEMORY, "20000"), (CORES, "150"))}
    return [{"apiVersion": "v1", "kind": "Node", "metadata": meta}, quota(spec={"hard": hard})]


def test_config_check_says_what_its_section_means(command: Simulate) -> None:
    run = command.main("config", "check", command.file("acme.yaml", CONFIG))
    assert (run.status, run.err) == (0, "")
    said = " ".join(run.out.split())
    assert "acme: ACME" in said
    for word in (COUNT, MEMORY, CORES, "memory of each card", "1 MiB", "percent of a card", f"limits.{MEMORY}"[:20]):
        assert word in said
    run = command.main("config", "check", command.file("acme.yaml", CONFIG.replace("Memory", "Memry")))
    assert "did you mean resourceMemoryName?" in run.err


def test_simulate_places_charges_and_refuses_its_pods(command: Simulate) -> None:
    config = command.file("acme.yaml", CONFIG)
    pods = [
        pod_with_limits("shares", memory=4000, cores=30),
        pod_with_limits("named", {"acme.example/use-uuid": "acme-0"}, memory=4000, cores=30),
        pod_with_limits("whole-card", cores=30),
        pod_with_limits("too-much", memory=12001, cores=30),
        pod_with_limits("forged", {"acme.example/plan": "mine"}),
        pod_with_limits("forged-too", {"acme.example/started": "now"}),
    ]
    run = command(cluster(), *pods, flags=("--config", config))
    shares, named, whole, refused = (run.pod(each) for each in ("shares", "named", "whole-card", "too-much"))
    assert shares["placement"]["annotations"]["hami.io/acme-devices-allocated"] == "acme-1,ACME,4000,30:;"
    assert named["placement"]["annotations"]["hami.io/acme-devices-allocated"] == "acme-0,ACME,4000,30:;"
    assert shares["debits"] == {f"limits.{COUNT}": 1, f"limits.{MEMORY}": 4000, f"limits.{CORES}": 30}
    assert (whole["allowed"], refused["allowed"]) == (False, False)
    assert "exceeded quota: gpu-quota" in refused["message"]
    for name, key in (("forged", "plan"), ("forged-too", "started")):
        assert run.pod(name)["message"].startswith(f"annotation acme.example/{key} is written by the scheduler only")
    assert run.used == {f"limits.{COUNT}": 2, f"limits.{MEMORY}": 8000, f"limits.{CORES}": 60}


def test_explain_says_card_by_card_why_a_pod_has_none(command: Simulate) -> None:
    node, _ = cluster()
    files = command.file("cluster.json", listed(node)), command.file("pod.json", pod_with_limits("p", memory=16001))
    config = command.file("acme.yaml", CONFIG)
    run = command.main("explain", "--cluster", files[0], "-f", files[1], "--config", config, "-o", "json")
    assert (run.status, run.err) == (0, "")
    (account,) = run.result["nodes"]
    assert account["reason"] == "2/2 CardInsufficientMemory"
    assert "acme-0" in run.out


def test_manifests_and_kube_schedulers_configuration_name_its_resources(command: Simulate) -> None:
    rendered = render(CONFIG, "acme.yaml")["base/webhooks.yaml"]
    conditions = {
        hook["name"].partition(".")[0]: hook["matchConditions"][0]["expression"]
        for document in yaml.safe_load_all(rendered)
        for hook in document["webhooks"]
    }
    assert all(f"'{name}'" in conditions["mutate"] for name in (COUNT, MEMORY, CORES))
    assert r"acme\\.example/plan" in conditions["guard"]
    assert r"acme\\.example/started" in conditions["guard"]
    assert "'acme.example/use-uuid'" in conditions["policy"]
    base = {"kind": "KubeSchedulerConfiguration", "extenders": [{"urlPrefix": "http://127.0.0.1:8081"}]}
    files = ("--device-config-file", command.file("acme.yaml", CONFIG), "--from", command.file("base.yaml", base))
    run = command.main("config", "kube-scheduler", *files)
    (extender,) = yaml.safe_load(run.out)["extenders"]
    assert {each["name"] for each in extender["managedResources"]} == {COUNT, MEMORY, CORES}


def test_other_vendors_are_as_they_were(acme: None) -> None:
    built_in = builtin_device_config().config
    assert "ACME" not in enabled_vendors(built_in)
    assert built_in.section("acme") is None


# what is declared wrongly


class Unexplained(DeviceSection):
    resource_count_name: ResourceName = ""


class Other(CountMemoryCore):
    pass


def declare(**attributes: Any) -> None:
    """Define a vendor that is right but for these attributes; None for none."""
    right: dict[str, Any] = {
        "key": "ACME",
        "section_name": "acme",
        "section_type": Other,
        "registration": NodeRegistration("hami.io/node-acme-register"),
        "keys": DeviceKeys.usual("acme"),
        "__module__": "outside",
    }
    type("Acme", (Vendor,), {name: value for name, value in (right | attributes).items() if value is not None})


WRONG = [
    ({"key": None}, "vendor outside.Acme: key is missing"),
    ({"keys": None}, "vendor outside.Acme: keys is missing"),
    ({"key": "NVIDIA"}, "2 vendors have the key NVIDIA; it must be unique"),
    ({"section_type": int}, "section_type must be a DeviceSection, or a tuple of them, found <class 'int'>"),
    ({"section_name": "my section"}, "section_name must be a key of device-config.yaml in camel case"),
    ({"section_name": "nvidia"}, "section nvidia is that of Nvidia already, with another section_type"),
    (
        {"section_type": Unexplained},
        "Unexplained.resource_count_name must have a Meaning: the resource's description and unit",
    ),
    ({"section_fields": ("resource_name",)}, "Other has no field resource_name"),
    ({"registration": None}, "no node can have its cards: set registration, or override inventory"),
]


@pytest.mark.parametrize(("attributes", "sentence"), WRONG, ids=range(len(WRONG)))
def test_what_is_declared_wrongly_is_said(
    vendors: None,
    attributes: dict[str, Any],
    sentence: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    declare(**attributes)
    with pytest.raises(ConfigError) as refusal:
        load_device_config(CONFIG, "acme.yaml")
    (fault,) = refusal.value.faults
    assert sentence in fault
    command = Simulate(tmp_path, capsys)
    run = command.main("config", "check", command.file("acme.yaml", CONFIG))
    assert (run.status, run.out, run.err) == (2, "", f"hami-webhook: {fault}\n")


def test_what_is_declared_right_is_not_complained_of(vendors: None) -> None:
    declare()
    assert list(enabled_vendors(load_device_config(CONFIG, "acme.yaml").config)) == ["ACME"]
