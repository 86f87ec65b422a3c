"""Claims under a quota, on a real control plane: stock kube-scheduler allocates, and there is no extender.

The numbers are those of an installation without us: two of three claims of 10000Mi fit into 20000 MiB, and all three
were allocated there.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import statistics
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from dra.objects import HAMI, NVIDIA, VFIO, consumable, exactly, passed_through, resource_slice, share, whole

from hack.devcluster.plane import ControlPlane

from .api_client import api_client
from .claims import (
    API,
    NODE,
    TEN,
    bound,
    charging_claims,
    claim,
    memory,
    namespace_with_quota,
    pod,
    requests,
    settled,
    template,
)
from .deployment import ROOT, Deployment, Kubectl, eventually, takes_names_of_classes
from .objects import JSON
from .scheduling import messages


@pytest.fixture(scope="module")
def program(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with charging_claims(plane, tmp_path_factory.mktemp("program")) as deployment:
        yield deployment


TRY = ("create", "--dry-run=server", "-f", "-")


def test_what_hamis_own_chart_takes_is_accepted(program: Deployment) -> None:
    bundle = base64.b64encode(program.ca.certificate).decode()
    text = (ROOT / "manifests" / "in-hami-chart" / "claims.yaml").read_text().replace("CA_BUNDLE", bundle)
    assert text.count(bundle) == 3
    program.kubectl("apply", "--dry-run=server", "-f", "-", stdin=text)


def test_the_third_pod_is_refused_by_kubectl_and_all_is_free_at_the_end(program: Deployment, team: str) -> None:
    kubectl = program.kubectl
    kubectl.apply(template(team, "ten", TEN))
    kubectl.apply(pod(team, "a", of="ten"), pod(team, "b", of="ten"))
    refused = kubectl.refused(pod(team, "c", of="ten"))
    assert "exceeded quota: gpu-quota, requested: limits.nvidia.com/gpumem=10000" in refused
    assert "used: limits.nvidia.com/gpumem=20000, limited: limits.nvidia.com/gpumem=20000" in refused
    eventually(lambda: bound(kubectl, team), ["a", "b"])
    eventually(lambda: settled(kubectl, team))
    assert (memory(kubectl, team), kubectl.used(team)["gpu"]) == (20000, "2")
    kubectl.delete_all("pods", namespace=team)
    eventually(lambda: memory(kubectl, team), 0)


def test_firstavailable_is_corrected_and_what_does_not_fit_is_refused_at_its_allocation(
    program: Deployment, team: str
) -> None:
    kubectl = program.kubectl
    either = requests(exactly(HAMI, memory="12000Mi", cores="1"), exactly(HAMI, memory="2000Mi", cores="1"))
    kubectl.apply(template(team, "either", either))
    kubectl.apply(pod(team, "a", of="either"))
    eventually(lambda: bound(kubectl, team), ["a"])
    eventually(lambda: memory(kubectl, team), 12000)
    kubectl.apply(pod(team, "b", of="either"))
    eventually(
        lambda: "exceeded quota: gpu-quota, requested: limits.nvidia.com/gpumem=10000" in messages(kubectl, team)
    )
    assert bound(kubectl, team) == ["a"]
    assert memory(kubectl, team) == 14000


@pytest.mark.parametrize("name", ["example.com/card", None])
def test_extended_resources_that_a_class_takes_are_charged(program: Deployment, team: str, name: str | None) -> None:
    kubectl = program.kubectl
    kubectl("patch", "deviceclass", HAMI, "--type=merge", "-p", json.dumps({"spec": {"extendedResourceName": name}}))
    one = pod(team, "a", resources={"limits": {name or f"deviceclass.resource.kubernetes.io/{HAMI}": "1"}})
    refusal = "requested: limits.nvidia.com/gpumem=40960 (smallest eligible card)"
    eventually(lambda: refusal in kubectl.run(*TRY, stdin=json.dumps(one)).stderr)  # the class has been read
    change = [{"op": "replace", "path": "/spec/hard/limits.nvidia.com~1gpumem", "value": "50000"}]
    kubectl("patch", "resourcequota", "gpu-quota", "-n", team, "--type=json", "-p", json.dumps(change))
    kubectl.apply(one)
    assert memory(kubectl, team) == 40960
    eventually(lambda: bound(kubectl, team), ["a"])
    eventually(lambda: settled(kubectl, team))
    gets_device = name is not None or takes_names_of_classes(kubectl)
    eventually(lambda: memory(kubectl, team), 40960 if gets_device else 0)
    assert len(kubectl.get("resourceclaims", "-n", team)["items"]) == gets_device


def test_claims_that_say_they_are_a_pods_are_charged_what_they_get(program: Deployment, team: str) -> None:
    kubectl = program.kubectl
    big = requests(exactly(HAMI, memory="11000Mi", cores="1"))
    kubectl.apply(template(team, "later", TEN))
    # a pod that can't be scheduled yet, so that there is time for a claim by hand
    waiting = pod(team, "a", of="later")
    waiting["spec"]["schedulingGates"] = [{"name": "example.com/wait"}]
    kubectl.apply(waiting)
    uid = kubectl.get("pod", "a", "-n", team)["metadata"]["uid"]
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": uid, "controller": True}
    forged = claim(
        team,
        "forged",
        big,
        ownerReferences=[owner],
        annotations={"resource.kubernetes.io/pod-claim-name": "another"},
    )
    kubectl.apply(forged, pod(team, "b", uses="forged"))
    refusal = "exceeded quota: gpu-quota, requested: limits.nvidia.com/gpumem=11000"
    eventually(lambda: refusal in messages(kubectl, team))
    assert bound(kubectl, team) == []
    assert memory(kubectl, team) == 10000


def test_amounts_and_selectors_that_nothing_can_be_meant_by_are_answered(program: Deployment, team: str) -> None:
    kubectl = program.kubectl
    numbers = ", ".join(map(str, range(10)))
    # of 1,000 comparisons for each device, as the API server lets a tenant write
    slow = f"[{numbers}].all(a, [{numbers}].all(b, [{numbers}].all(c, a + b + c >= 0)))"
    kubectl.apply(claim(team, "slow", requests(exactly(HAMI, cel=slow, memory="1000Mi"))))
    assert memory(kubectl, team) == 1000
    refused = kubectl.refused(claim(team, "huge", requests(exactly(HAMI, memory="9000Pi"))))
    assert "exceeded quota: gpu-quota" in refused
    kubectl.apply(claim(team, "negative", requests(exactly(HAMI, memory="-5Gi"))))
    assert memory(kubectl, team) == 1001  # 1 MiB, the least that a device gives
    kubectl("delete", "resourceclaims", "--all", "-n", team, "--wait=false")
    eventually(lambda: memory(kubectl, team), 0)


def test_a_pod_that_waits_at_a_gate_is_charged_for_its_claims(program: Deployment, team: str) -> None:
    kubectl = program.kubectl
    kubectl.apply(template(team, "ten", TEN), claim(team, "shared", TEN), pod(team, "user", uses="shared"))
    eventually(lambda: bound(kubectl, team), ["user"])
    gated = pod(team, "gated", of="ten")
    gated["spec"]["schedulingGates"] = [{"name": "example.com/wait"}]
    gated["spec"]["resourceClaims"].append({"name": "more", "resourceClaimName": "shared"})
    kubectl.apply(gated)
    assert memory(kubectl, team) == 20000
    assert "exceeded quota" in kubectl.refused(pod(team, "late", of="ten"))
    kubectl("patch", "pod", "gated", "-n", team, "--type=merge", "-p", '{"spec": {"schedulingGates": []}}')
    eventually(lambda: bound(kubectl, team), ["gated", "user"])
    assert memory(kubectl, team) == 20000


def test_a_node_that_names_the_pool_of_another_one_neither_blocks_nor_cheapens_its_cards(
    program: Deployment, team: str
) -> None:
    """With its own credentials, the largest generation, and a name that sorts first. NodeRestriction allows it."""
    kubectl, plane = program.kubectl, program.plane
    evil = Kubectl(plane.authority.kubeconfig("node-evil", plane.server, "system:node:evil", "system:nodes"))
    kubectl.apply(
        {
            "apiVersion": API,
            "kind": "ResourceSlice",
            **resource_slice(NODE, whole("w0", "12Gi"), whole("w1", "12Gi"), driver=NVIDIA),
        }
    )
    forged = resource_slice(
        NODE, whole("w0", "4Mi"), whole("w1", "4Mi"), driver=NVIDIA, generation=10**9, name="0-evil"
    )
    forged["spec"]["nodeName"] = "evil"
    evil("create", "-f", "-", stdin=json.dumps({"apiVersion": API, "kind": "ResourceSlice", **forged}))
    tried = "create", "--dry-run=server", "-f", "-"
    two = claim(team, "two", requests(exactly(NVIDIA, count=2)))
    refusal = "requested: limits.nvidia.com/gpumem=24576"  # by what n1 publishes, once both have been seen
    eventually(lambda: refusal in kubectl.run(*tried, stdin=json.dumps(two)).stderr)
    kubectl.apply(template(team, "one", requests(exactly(NVIDIA))), pod(team, "a", of="one"))
    eventually(lambda: bound(kubectl, team), ["a"])
    eventually(lambda: settled(kubectl, team))
    assert memory(kubectl, team) == 12288
    kubectl("delete", "resourceslice", "0-evil", f"{NODE}-{NVIDIA}-1")


def test_a_node_that_rewrites_its_slices_and_slow_selectors_delay_no_other_tenant(
    program: Deployment, team: str
) -> None:
    """5,120 devices, of which one slice is written all the time, and claims with the slowest selectors beside that."""
    kubectl, plane = program.kubectl, program.plane
    evil = Kubectl(plane.authority.kubeconfig("node-evil", plane.server, "system:node:evil", "system:nodes"))
    node = api_client(evil.kubeconfig)

    def published(number: int, memory: str) -> JSON:
        cards = [share(f"d{number}-{card}", memory) for card in range(128)]
        return {"apiVersion": API, "kind": "ResourceSlice", **resource_slice("evil", *cards, name=f"evil-{number}")}

    for number in range(40):
        node.create(published(number, "40Gi"))
    over, numbers = threading.Event(), "[0,1,2,3,4,5,6,7,8,9]"
    # how many claims there are once the other tenant's pods are, depends on the machine
    enough = json.dumps({"spec": {"hard": {"limits.nvidia.com/gpu": "10000"}}})
    kubectl("patch", "resourcequota", "gpu-quota", "-n", team, "-p", enough)

    def rewrite() -> None:
        for size in itertools.cycle(("41Gi", "42Gi")):
            if over.wait(1 / 40):
                return
            node.merge({"spec": {"devices": published(3, size)["spec"]["devices"]}}, "resourceslices", "evil-3")

    def ask(tenant: int) -> None:
        for number in itertools.count():
            slow = f"{number} >= 0 && {numbers}.all(a, {numbers}.all(b, {numbers}.all(c, a + b + c >= 0)))"
            made = claim(team, f"slow-{tenant}-{number}", requests(exactly(HAMI, cel=slow, memory="1Mi", cores="1")))
            api_client(kubectl.kubeconfig).create(made)
            if over.wait(0.05):
                return

    with namespace_with_quota(kubectl) as other, ThreadPoolExecutor(4) as threads:
        running = [threads.submit(rewrite), *(threads.submit(ask, tenant) for tenant in range(3))]
        took = []
        try:
            for number in range(8):
                limits = {"limits": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "10"}}
                began = time.monotonic()
                kubectl.apply(pod(other, f"p{number}", resources=limits))
                took.append(time.monotonic() - began)
        finally:
            over.set()
        for each in running:
            each.result()
    assert statistics.median(took) < 5, took  # without bounds it is 9 s, and some are refused
    kubectl("delete", "resourceslices", *(f"evil-{number}" for number in range(40)))


def test_a_name_of_claims_that_is_posted_at_once_six_times_is_charged_once(program: Deployment, team: str) -> None:
    """As HAMi's webhook names a Deployment's claims: one is created, and five are refused as the name is taken."""
    kubectl = program.kubectl
    made = claim(team, "same", requests(exactly(HAMI, memory="3000Mi", cores="1")))
    with ThreadPoolExecutor(6) as threads:
        posts = [threads.submit(kubectl.run, "create", "-f", "-", stdin=json.dumps(made)) for _ in range(6)]
    answers = [post.result().stderr for post in posts]
    assert answers.count("") == 1
    assert all("already exists" in answer for answer in answers if answer)
    assert memory(kubectl, team) == 3000
    other = claim(team, "other", requests(exactly(HAMI, memory="17000Mi", cores="1")))
    kubectl.apply(other)


def test_claims_pass_no_pod_that_waits_in_a_queue(program: Deployment, team: str) -> None:
    """In order of arrival, one of two places is free, and the first in the line needs both."""
    kubectl = program.kubectl
    queues = {"hami.io/quota-enforcement": "queue", "hami.io/quota-queue-order": "strict"}
    kubectl("annotate", "resourcequota", "gpu-quota", "-n", team, *(f"{key}={text}" for key, text in queues.items()))
    kubectl(
        "patch", "resourcequota", "gpu-quota", "-n", team, "-p", '{"spec": {"hard": {"limits.nvidia.com/gpu": "2"}}}'
    )
    gpu = {"limits": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "100"}}
    eventually(lambda: kubectl.used(team)["gpu"], "0")
    kubectl.apply(template(team, "ten", TEN), pod(team, "runs", resources=gpu))
    eventually(lambda: kubectl.used(team)["gpu"], "1")
    kubectl.apply(pod(team, "next", resources={"limits": {**gpu["limits"], "nvidia.com/gpu": "2"}}))
    passes = "queues pods, and those that wait come first: devices that are claimed"
    eventually(lambda: passes in kubectl.run(*TRY, stdin=json.dumps(pod(team, "a", of="ten"))).stderr)
    assert passes in kubectl.refused(pod(team, "a", of="ten"))
    assert passes in kubectl.refused(claim(team, "by-hand", TEN))
    kubectl("delete", "pod", "runs", "next", "-n", team, "--grace-period=0", "--force")
    eventually(lambda: kubectl.run(*TRY, stdin=json.dumps(pod(team, "a", of="ten"))).returncode, 0)
    kubectl.apply(pod(team, "a", of="ten"))
    eventually(lambda: bound(kubectl, team), ["a"])


@contextlib.contextmanager
def nvidias(kubectl: Kubectl, *devices: JSON) -> Iterator[None]:
    """Devices of NVIDIA's driver on the node, as it publishes them; the slice is written by hand."""
    made = resource_slice(NODE, *devices, driver=NVIDIA, name="nvidias")
    kubectl.apply({"apiVersion": API, "kind": "ResourceSlice", **made})
    yield
    kubectl("delete", "resourceslice", "nvidias")


def test_cards_that_are_passed_through_and_shares_of_no_memory_are_charged(program: Deployment, team: str) -> None:
    """A tenant asks for 0 bytes of a card that two may share: half of the card is its price."""
    kubectl = program.kubectl
    with nvidias(kubectl, passed_through("v0", "4Gi"), consumable("c0", "2", "16Gi")):
        kubectl.apply(template(team, "vm", requests(exactly(VFIO))), pod(team, "a", of="vm"))
        zero = requests(exactly(NVIDIA, memory="0"))
        kubectl.apply(template(team, "zero", zero), pod(team, "b", of="zero"))
        eventually(lambda: bound(kubectl, team), ["a", "b"])
        eventually(lambda: settled(kubectl, team))
        assert (memory(kubectl, team), kubectl.used(team)["gpu"]) == (4096 + 8192, "2")
        refused = kubectl.refused(pod(team, "c", of="zero"))
        assert "exceeded quota: gpu-quota, requested: limits.nvidia.com/gpumem=8192" in refused


def test_a_qualified_name_is_charged_as_kube_scheduler_allocates_it(program: Deployment, team: str) -> None:
    """kube-scheduler takes such a name from 1.38 on; with older ones the pod waits, and holds what it waits for."""
    kubectl, plane = program.kubectl, program.plane
    with nvidias(kubectl, consumable("c1", "memory", "16Gi")):
        named = requests(exactly(NVIDIA, capacity={"requests": {f"{NVIDIA}/memory": "4Gi"}}))
        kubectl.apply(template(team, "named", named), pod(team, "a", of="named"))
        assert memory(kubectl, team) == 4096
        if plane.scheduler_minor >= 38:
            eventually(lambda: bound(kubectl, team), ["a"])
            eventually(lambda: settled(kubectl, team))
        else:
            eventually(lambda: "cannot allocate all claims" in messages(kubectl, team))
        assert memory(kubectl, team) == 4096


def test_a_device_that_no_row_is_for_is_called_so_and_a_qualified_name_costs_the_same(
    program: Deployment, team: str
) -> None:
    kubectl = program.kubectl
    kubectl.apply(claim(team, "long", requests(exactly(HAMI, capacity={"requests": {f"{HAMI}/memory": "9Gi"}}))))
    assert memory(kubectl, team) == 9216
    by_driver = {"selectors": [{"cel": {"expression": f'device.driver == "{NVIDIA}"'}}]}
    kubectl.apply(
        {"apiVersion": API, "kind": "DeviceClass", "metadata": {"name": "any.example.com"}, "spec": by_driver}
    )
    with nvidias(kubectl, whole("x0", "4Gi", "vgpu")):
        kubectl.apply(template(team, "any", requests(exactly("any.example.com"))), pod(team, "a", of="any"))
        text = f"device x0 of pool {NODE} of driver {NVIDIA} is of type vgpu, and no row of dra.devices prices it"
        eventually(lambda: text in messages(kubectl, team))
        assert bound(kubectl, team) == []
    kubectl("delete", "deviceclass", "any.example.com")


def test_claims_of_other_drivers_never_depend_on_us(program: Deployment, team: str) -> None:
    """With no replica up ours are refused, and those of others are made and allocated."""
    kubectl, other = program.kubectl, "other.example.com"
    device = {"name": "d0", "attributes": {"type": {"string": "fpga"}}}
    kubectl.apply(
        {"apiVersion": API, "kind": "ResourceSlice", **resource_slice(NODE, device, driver=other)},
        {
            "apiVersion": API,
            "kind": "DeviceClass",
            "metadata": {"name": other},
            "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{other}"'}}]},
        },
    )
    program.stop("a")
    program.balancer.backends.clear()
    try:
        kubectl.apply(claim(team, "theirs", requests(exactly(other))), pod(team, "p", uses="theirs"))
        kubectl.apply(template(team, "theirs", requests(exactly(other))))
        eventually(lambda: bound(kubectl, team), ["p"])
        assert "failed calling webhook" in kubectl.refused(claim(team, "ours", TEN))
    finally:
        program.start("a")
