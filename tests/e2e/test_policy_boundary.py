"""A tenant with `edit` in its namespace tries to get past what the policy file and the Namespace demand of its pods.

The way in is a pod with a scheduling gate: it is admitted and not placed yet, and its annotations can be patched.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hack.devcluster.plane import ControlPlane

from .deployment import Deployment, Kubectl, deployed, eventually
from .hamischeduler import HamiScheduler, scheduling
from .kubelet import Kubelets
from .objects import JSON, add_ready_node, gpu_node, pod
from .scheduling import scheduler_account
from .tenants import tenant

REFUSED = 'admission webhook "policy.webhook.hami.io" denied the request: '
ALLOCATED = "hami.io/vgpu-devices-allocated"
USE, NOUSE, NOUSE_TYPE = "nvidia.com/use-gpuuuid", "nvidia.com/nouse-gpuuuid", "nvidia.com/nouse-gputype"
NODE_POLICY = "hami.io/node-scheduler-policy"
POLICY = """\
policies:
- name: no-a100
  match: {namespaceSelector: {matchLabels: {tier: no-a100}}}
  devices: {NVIDIA: {denyTypes: [A100]}}
- name: fill-up
  match: {namespaceSelector: {matchLabels: {tier: fill-up}}}
  enforce: {hami.io/node-scheduler-policy: binpack}
"""


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    path = tmp_path_factory.mktemp("policy") / "policy.yaml"
    path.write_text(POLICY)
    return ("--policy-file", str(path))


@pytest.fixture(scope="module")
def program(
    plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory, policy: tuple[str, str]
) -> Iterator[Deployment]:
    with deployed(plane, tmp_path_factory.mktemp("program"), "hami-webhook-0", flags=policy) as deployment:
        scheduler_account(deployment.kubectl)
        yield deployment


@pytest.fixture(scope="module", params=["cooperative", "single"])
def both(
    request: pytest.FixtureRequest,
    program: Deployment,
    kubelets: Kubelets,
    policy: tuple[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[HamiScheduler]:
    folder = tmp_path_factory.mktemp("scheduler")
    with scheduling(program.plane, folder, program.login("hami-scheduler"), request.param, policy) as both:
        yield both


@pytest.fixture
def scheduler(program: Deployment, both: HamiScheduler) -> Iterator[HamiScheduler]:
    yield both
    program.kubectl.delete_all("pods", "nodes")


class Tenancy:
    """A namespace with a label `tier` and annotations, in which `{space}` is its name; and its tenant."""

    def __init__(self, program: Deployment, folder: Path, tier: str = "none", notes: JSON | None = None) -> None:
        self.admin = program.kubectl
        self.space = f"e2e-{uuid.uuid4().hex[:8]}"
        written = {key: text.format(space=self.space) for key, text in (notes or {}).items()}
        meta = {"name": self.space, "labels": {"tier": tier}, "annotations": written}
        self.admin.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": meta})
        self.admin("wait", "serviceaccount/default", "-n", self.space, "--for=create", "--timeout=120s")
        self.tenant: Kubectl = tenant(self.admin, program.plane, folder, self.space)

    def create_gated(self, name: str, **asked: int) -> None:
        """Create a pod that waits for its gate, as the tenant."""
        gated = pod(self.space, name, **(asked or {"gpu": 1, "gpumem": 1000}))
        gated["spec"]["schedulingGates"] = [{"name": "example.com/hold"}]
        self.tenant.apply(gated)

    def annotate(self, name: str, *changes: str) -> str:
        """Change annotations, `KEY=VALUE` or `KEY-`, as the tenant: what it reads if that is refused, else nothing."""
        done = self.tenant.run("annotate", "pod", name, "-n", self.space, "--overwrite", *changes)
        return done.stderr.strip() if done.returncode else ""

    def open_gate(self, name: str) -> None:
        gone = '[{"op": "remove", "path": "/spec/schedulingGates"}]'
        self.tenant("patch", "pod", name, "-n", self.space, "--type=json", "-p", gone)

    def pod(self, name: str) -> JSON:
        return self.tenant.get("pod", name, "-n", self.space)

    def notes(self, name: str) -> JSON:
        found: JSON = self.pod(name)["metadata"].get("annotations", {})
        return found

    def node(self, name: str) -> str:
        """The node it is bound to, once it is; empty before."""
        return str(self.pod(name)["spec"].get("nodeName", ""))

    def card(self, name: str) -> str:
        return str(self.notes(name)[ALLOCATED]).partition(",")[0]

    def events(self, name: str) -> str:
        about = "--field-selector", f"involvedObject.name={name}"
        return "\n".join(item["message"] for item in self.tenant.get("events", "-n", self.space, *about)["items"])


@contextmanager
def without_update_webhook(admin: Kubectl, unguarded: Tenancy, name: str, key: str) -> Iterator[None]:
    """No policy.webhook.hami.io in the block, which begins once the tenant can take a key off its pod."""
    configuration = ("validatingwebhookconfiguration", "hami-webhook-admission")
    hooks = admin.get(*configuration)["webhooks"]
    kept = [hook for hook in hooks if hook["name"] != "policy.webhook.hami.io"]

    def write(webhooks: list[JSON]) -> None:
        patch = [{"op": "replace", "path": "/webhooks", "value": webhooks}]
        admin("patch", *configuration, "--type=json", "-p", json.dumps(patch))

    write(kept)
    try:
        eventually(lambda: unguarded.annotate(name, f"{key}-"), "")
        yield
    finally:
        write(hooks)


def node_with(admin: Kubectl, tenancy: Tenancy, name: str, *types: str) -> str:
    """A node with a card of each type that kube-scheduler may use; its name, which is never used twice."""
    name = f"{name}-{tenancy.space}"
    node = gpu_node(name, *[24576] * len(types))
    register = node["metadata"]["annotations"]
    cards = json.loads(register["hami.io/node-nvidia-register"])
    register["hami.io/node-nvidia-register"] = json.dumps(
        [{**card, "type": model} for card, model in zip(cards, types, strict=True)]
    )
    add_ready_node(admin, node, gpu=10 * len(types))
    return name


# the update is refused


def test_what_policy_set_cant_be_patched_away_and_can_be_tightened(program: Deployment, tmp_path: Path) -> None:
    here = Tenancy(program, tmp_path, "no-a100")
    here.create_gated("p")
    assert here.notes("p")[NOUSE_TYPE] == "A100"
    by_policy = f"{REFUSED}{NOUSE_TYPE}: must name A100, denied by policy no-a100"
    assert by_policy in here.annotate("p", f"{NOUSE_TYPE}-")
    assert by_policy in here.annotate("p", f"{NOUSE_TYPE}=V100")
    assert here.notes("p")[NOUSE_TYPE] == "A100"
    # inside the boundary, and what is none of policy's
    assert here.annotate("p", f"{NOUSE_TYPE}=V100,A100", f"{USE}=GPU-1,GPU-2", f"{NODE_POLICY}=spread", "mine=1") == ""
    assert here.annotate("p", f"{USE}=GPU-1") == ""
    here.open_gate("p")


# nobody refuses the update, and Fit holds all the same


def test_the_extender_gives_no_denied_card_whatever_the_annotations_say(
    program: Deployment, scheduler: HamiScheduler, tmp_path: Path
) -> None:
    admin = program.kubectl
    here = Tenancy(program, tmp_path, "no-a100")
    one = node_with(admin, here, "one", "NVIDIA A10", "NVIDIA A100")
    here.create_gated("p")
    here.create_gated("greedy", gpu=2, gpumem=1000)
    here.create_gated("free")
    with without_update_webhook(admin, here, "p", NOUSE_TYPE):
        for name in ("greedy", "free"):
            assert here.annotate(name, f"{NOUSE_TYPE}-") == ""
        assert here.annotate("free", f"{USE}={one}-1") == ""
        for name in ("p", "greedy", "free"):
            assert NOUSE_TYPE not in here.notes(name)
            here.open_gate(name)
        eventually(lambda: here.node("p"), one)
        assert here.card("p") == f"{one}-0"
        assert here.notes("p")[NOUSE_TYPE] == "A100"
        # one of two cards would be the denied one, and so would the only one that is asked for
        for name in ("greedy", "free"):
            said = f"{NOUSE_TYPE} set to A100 by policy no-a100"
            eventually(lambda: said in here.events(name))  # noqa: B023  called at once
            assert here.node(name) == ""


def test_the_extender_holds_the_namespaces_lists(program: Deployment, scheduler: HamiScheduler, tmp_path: Path) -> None:
    admin = program.kubectl
    here = Tenancy(program, tmp_path, notes={NOUSE: "one-{space}-1"})
    one = node_with(admin, here, "one", "NVIDIA A10", "NVIDIA A10")
    here.create_gated("p")
    here.create_gated("greedy")
    with without_update_webhook(admin, here, "p", NOUSE):
        assert here.annotate("greedy", f"{NOUSE}-", f"{USE}={one}-1") == ""
        for name in ("p", "greedy"):
            here.open_gate(name)
        eventually(lambda: here.node("p"), one)
        assert here.card("p") == f"{one}-0"
        nothing_left = f"use-gpuuuid: none of {one}-1 is allowed in namespace {here.space} (denied: {one}-1)"
        eventually(lambda: f"{nothing_left}, by namespace {here.space}" in here.events("greedy"))
        assert here.node("greedy") == ""


def test_the_extender_holds_an_enforced_node_policy(
    program: Deployment, scheduler: HamiScheduler, tmp_path: Path
) -> None:
    admin = program.kubectl
    here = Tenancy(program, tmp_path, "fill-up")
    for name in ("one", "two"):
        node_with(admin, here, name, "NVIDIA A10")
    here.create_gated("first")
    here.open_gate("first")
    eventually(lambda: here.pod("first")["status"]["phase"], "Running")
    here.create_gated("p")
    with without_update_webhook(admin, here, "p", NODE_POLICY):
        assert here.annotate("p", f"{NODE_POLICY}=spread") == ""
        here.open_gate("p")
        eventually(lambda: here.node("p"), here.node("first"))
        assert here.notes("p")[NODE_POLICY] == "binpack"
