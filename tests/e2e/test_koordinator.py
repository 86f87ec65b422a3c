"""A pod that Koordinator places: charged by the Device objects at admission, debited by what Koordinator wrote."""

from __future__ import annotations

import json
from pathlib import Path

from hack.devcluster.plane import ControlPlane

from .deployment import Kubectl, deployed, eventually
from .objects import JSON, add_node, define_devices, namespace, quota, remove_devices
from .scheduling import foreign_scheduler

RATIO, MEMORY = "koordinator.sh/gpu-memory-ratio", "koordinator.sh/gpu-memory"
KEYS = [f"limits.{name}" for name in ("koordinator.sh/gpu.shared", RATIO, MEMORY)]


def half_a_card(space: str, name: str) -> JSON:
    limits = {RATIO: "50", "koordinator.sh/gpu-core": "50"}
    containers = [{"name": "main", "image": "registry.invalid/none", "resources": {"limits": limits}}]
    meta = {"name": name, "namespace": space, "labels": {"koordinator.sh/gpu-isolation-provider": "hami-core"}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": containers}}


def test_a_share_is_charged_by_the_smallest_card_and_debited_as_placed(plane: ControlPlane, tmp_path: Path) -> None:
    kubectl = Kubectl(plane.kubeconfig)
    define_devices(kubectl)
    add_node(kubectl, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "koord-1"}})
    cards = [
        {"type": "gpu", "minor": minor, "health": True, "resources": {MEMORY: size}}
        for minor, size in enumerate(("80Gi", "23040Mi"))
    ]
    kind = {"apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Device"}
    kubectl.apply({**kind, "metadata": {"name": "koord-1"}, "spec": {"devices": cards}})
    space = namespace(kubectl)
    hard: JSON = dict(zip(KEYS, (4, 300, "60Gi"), strict=True))
    kubectl.apply(quota(space, **hard))

    def used() -> list[str | None]:
        return [kubectl.used(space).get(key) for key in KEYS]

    with deployed(plane, tmp_path, "hami-webhook-0") as program:
        koordinator = foreign_scheduler(program, "koordinator-system", "koord-scheduler")
        eventually(used, ["0", "0", "0"])
        kubectl.apply(half_a_card(space, "p"))
        assert used() == ["1", "50", "12079595520"]
        stored = kubectl.get("pod", "p", "-n", space)
        assert stored["metadata"]["labels"] == {"koordinator.sh/gpu-isolation-provider": "HAMi-core"}
        assert stored["spec"]["schedulerName"] == "koord-scheduler"
        assert stored["spec"]["containers"][0]["resources"]["limits"] == {RATIO: "50", "koordinator.sh/gpu-core": "50"}

        # what koord-scheduler does: half of the larger card
        entry = {"minor": 0, "resources": {"koordinator.sh/gpu-core": "50", RATIO: "50"}}
        note = "scheduling.koordinator.sh/device-allocated=" + json.dumps({"gpu": [entry]})
        koordinator("annotate", "pod", "p", "-n", space, note)
        target = {"apiVersion": "v1", "kind": "Node", "name": "koord-1"}
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": "p", "namespace": space},
            "target": target,
        }
        path = f"/api/v1/namespaces/{space}/pods/p/binding"
        koordinator("create", "--raw", path, "-f", "-", stdin=json.dumps(binding))
        eventually(used, ["1", "50", "42949672960"])
        message = kubectl("describe", "quota", "gpu-quota", "-n", space).split()
        assert message[message.index(KEYS[2]) + 1 :][:2] == ["40Gi", "60Gi"]

        kubectl.apply(half_a_card(space, "q"))
        refused = kubectl.refused(half_a_card(space, "r"))
        assert "exceeding resource quota" in refused
        assert f"requested: {KEYS[2]}=12079595520 (smallest eligible card)" in refused
    remove_devices(kubectl)
