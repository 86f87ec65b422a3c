"""What claims cost and what allocations hold, as we compute it, beside what a stock kube-scheduler allocates.

Slices are written by hand, each scenario's on a node of its own; the scheduler is the control plane's.
"""

from __future__ import annotations

import random

import msgspec
import pytest
from dra.objects import CLASSES, HAMI, NVIDIA, exactly, inventory, resource_slice, share, total, whole

from hack.devcluster.plane import ControlPlane
from hami_webhook.dra.allocation import allocated
from hami_webhook.dra.cost import cost_of
from hami_webhook.kube import claims_wire as wire

from .deployment import Kubectl, allocates_several, eventually
from .objects import JSON, namespace

SCENARIOS, SEED = 60, 32
HOST = "kubernetes.io/hostname"
SELECTORS = (
    "",
    f'device.attributes["{HAMI}"].productName == "NVIDIA A10"',
    f'device.attributes["{HAMI}"].uuid.matches("[02]$")',
    f'device.capacity["{HAMI}"].memory.compareTo(quantity("24Gi")) >= 0',
    f'device.capacity["{HAMI}"].memory.isLessThan(quantity("24Gi"))',
    f'!has(device.attributes["other.example.com"].x) && device.driver == "{HAMI}"',
    'has(device.attributes["other.example.com"].x)',
)


class Scenario:
    """A node with a few devices, and a pod that may run only there, with one claim."""

    def __init__(self, dice: random.Random, index: int, *, several: bool) -> None:
        self.name = f"claims-{index}"
        self.several = several
        self.driver = dice.choice((HAMI, HAMI, HAMI, NVIDIA))
        devices = [self._device(dice, f"d{i}") for i in range(dice.randint(1, 4))]
        self.slice = resource_slice(self.name, *devices, driver=self.driver)
        request = self._request(dice)
        if dice.random() < 0.2:
            others = [{**self._request(dice), "name": f"a{i}"} for i in range(2)]
            self.request: JSON = {"name": "r", "firstAvailable": others}
        else:
            self.request = {"name": "r", "exactly": request}

    def _device(self, dice: random.Random, name: str) -> JSON:
        memory, model = dice.choice((("16Gi", "NVIDIA T4"), ("24Gi", "NVIDIA A10"), ("40Gi", "NVIDIA A100")))
        if self.driver == NVIDIA:
            return whole(name, memory, model=model)
        policies: list[JSON] = [
            {},
            {"default": "4Gi", "validRange": {"min": "2Gi", "step": "2Gi", "max": memory}},
            {"default": "4Gi", "validRange": {"min": "1Gi", "max": "12Gi"}},
            {"default": "10Gi", "validValues": ["4Gi", "10Gi", memory]},
        ]
        return share(name, memory, model, **dice.choice(policies))

    def _request(self, dice: random.Random) -> JSON:
        amounts: JSON = {}
        if dice.random() < 0.7:
            amounts["memory"] = f"{dice.choice((1, 1000, 3000, 4096, 9999, 17000, 40960))}Mi"
        if self.driver == HAMI and dice.random() < 0.7:
            amounts["cores"] = dice.choice(("0", "10", "12500m", "100"))
        # an expression that a device fails ends the scheduling of its pod, so those of one driver only
        cel = dice.choice(SELECTORS) if self.driver == HAMI else ""
        mode: JSON = {"allocationMode": "All"} if dice.random() < 0.15 else {"count": dice.choice((1, 1, 2))}
        if not self.several:
            mode = {"count": 1}
        return exactly(self.driver, cel, **amounts, **mode)

    def objects(self, space: str) -> list[JSON]:
        labels = {"e2e": space}
        container = {"name": "main", "image": "none", "resources": {"claims": [{"name": "cards"}]}}
        spec = {
            "tolerations": [{"operator": "Exists"}],  # no kubelet says that the nodes are ready
            "nodeSelector": {HOST: self.name},
            "containers": [container],
            "resourceClaims": [{"name": "cards", "resourceClaimName": self.name}],
        }
        node: JSON = {"metadata": {"name": self.name, "labels": {HOST: self.name, **labels}}}
        amounts = {"cpu": "4", "memory": "8Gi", "pods": "10"}
        node["status"] = {"capacity": amounts, "allocatable": amounts}
        meta = {"name": self.name, "namespace": space}
        return [
            {"apiVersion": "v1", "kind": "Node", **node},
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceSlice",
                **self.slice,
                "metadata": {**self.slice["metadata"], "labels": labels},
            },
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": meta,
                "spec": {"devices": {"requests": [self.request]}},
            },
            {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec},
        ]

    def check(self, claim: wire.ResourceClaim) -> str:
        """Whether the scheduler gave what we expect; what it gave."""
        requests = [msgspec.convert(self.request, wire.DeviceRequest)]
        cost = cost_of(requests, inventory(self.slice), seconds=60.0)
        found = claim.status.allocation if claim.status is not None else None
        if found is None:
            # one with fewer devices than are wanted isn't known to us: the least of each is what it costs
            return "refused, as expected" if cost.problems else "refused"
        results = (found.devices and found.devices.results) or ()
        held = allocated(results, inventory(self.slice).devices)
        assert held.unseen == ()
        floor, got = cost.debits["NVIDIA"], total(held.devices)["NVIDIA"]
        assert all(getattr(floor, name) <= getattr(got, name) for name in ("slots", "memory", "cores")), (floor, got)
        assert "exactly" not in self.request or cost.problems == ()
        # of the devices that it got alone, a request costs just what it holds
        names = {result.device for result in results}
        devices = [each for each in self.slice["spec"]["devices"] if each["name"] in names]
        chosen = self._chosen(results[0].request or "")
        alone = inventory(resource_slice(self.name, *devices, driver=self.driver))
        if len(devices) == 1 or chosen.get("allocationMode") == "All":
            request = msgspec.convert({"name": "r", "exactly": chosen}, wire.DeviceRequest)
            assert cost_of([request], alone).debits == {"NVIDIA": got}
        return "allocated"

    def _chosen(self, request: str) -> JSON:
        """The alternative that an allocation is of, or the one that there is."""
        alternatives = {f"r/{each['name']}": each for each in self.request.get("firstAvailable", ())}
        found: JSON = alternatives.get(request) or self.request["exactly"]
        return {key: value for key, value in found.items() if key != "name"}


@pytest.fixture
def kubectl(plane: ControlPlane) -> Kubectl:
    return Kubectl(plane.kubeconfig)


def test_the_scheduler_gives_no_less_than_a_claim_cost_and_rounds_as_we_do(kubectl: Kubectl) -> None:
    dice = random.Random(SEED)
    several = allocates_several(kubectl)
    scenarios = [Scenario(dice, index, several=several) for index in range(SCENARIOS)]
    space = namespace(kubectl)
    classes = [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": name, "labels": {"e2e": space}},
            "spec": {"selectors": [{"cel": {"expression": each}} for each in expressions]},
        }
        for name, expressions in CLASSES.items()
    ]
    objects = [obj for each in scenarios for obj in each.objects(space)]
    try:
        kubectl.apply(*classes, *(obj for obj in objects if obj["kind"] != "Pod"))
        kubectl.apply(*(obj for obj in objects if obj["kind"] == "Pod"))
        eventually(lambda: undecided(kubectl, space), [])
        items = kubectl.get("resourceclaims", "-n", space)["items"]
        claims = {item["metadata"]["name"]: msgspec.convert(item, wire.ResourceClaim) for item in items}
        outcomes = {each.name: each.check(claims[each.name]) for each in scenarios}
        assert set(outcomes.values()) >= {"allocated", "refused, as expected"}, outcomes
    finally:
        kubectl("delete", "namespace", space, "--wait=false")
        api = "/apis/resource.k8s.io/v1"
        for path in (f"{api}/resourceslices", f"{api}/deviceclasses", "/api/v1/nodes"):
            kubectl("delete", "--raw", f"{path}?labelSelector=e2e={space}")  # one request for all of them


def undecided(kubectl: Kubectl, space: str) -> list[str]:
    """The pods of which the scheduler has said nothing."""
    pods = kubectl.get("pods", "-n", space)["items"]
    return [each["metadata"]["name"] for each in pods if not (each.get("status") or {}).get("conditions")]
