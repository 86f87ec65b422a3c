"""What a user and a platform team see with kubectl, the program deployed as the dev overlay does it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from builders import JSON

from .deployment import Deployment, eventually
from .objects import add_node, gpu_node, namespace, pod, quota
from .scheduling import place_waiting
from .sidecars import AMOUNTS, injector
from .webhooks import mutating

DENIED = 'admission webhook "validate.webhook.hami.io" denied the request: '


@pytest.fixture(scope="module", autouse=True)
def nodes(program: Deployment) -> None:
    add_node(program.kubectl, gpu_node("card-24g", 24576), gpu=10)
    add_node(program.kubectl, gpu_node("cards-8g", 8000, 8000), gpu=20)


@pytest.fixture
def scheduler(program: Deployment) -> Path:
    return program.login("hami-scheduler")


def described(program: Deployment, space: str) -> dict[str, tuple[str, str]]:
    """`kubectl describe quota`: used and hard by resource."""
    lines = program.kubectl("describe", "quota", "gpu-quota", "-n", space).splitlines()
    rows = [line.split() for line in lines if line.startswith("limits.")]
    return {name.removeprefix("limits.nvidia.com/"): (used, hard) for name, used, hard in rows}


def test_two_cards_of_2000_mib_cost_4000_and_half_a_card_what_it_lands_on(program: Deployment, scheduler: Path) -> None:
    kubectl = program.kubectl
    space = namespace(kubectl)
    kubectl.apply(quota(space, gpu=5, mem=30000))
    kubectl.apply(pod(space, "a-two", gpu=2, gpumem=2000), pod(space, "half", gpu=1, gpumem_percentage=50))
    stored = kubectl.get("pod", "a-two", "-n", space)
    assert stored["spec"]["schedulerName"] == "hami-scheduler"
    # while it waits, half a card counts as half of the smallest one
    eventually(lambda: described(program, space), {"gpu": ("3", "5"), "gpumem": ("8k", "30k")})
    assert place_waiting(scheduler, space, ["cards-8g"], "a-two") == {"a-two": "cards-8g"}
    assert place_waiting(scheduler, space, ["card-24g"]) == {"half": "card-24g"}
    eventually(lambda: described(program, space), {"gpu": ("3", "5"), "gpumem": ("16288", "30k")})
    # kube-controller-manager recalculates when the spec changes, and owns the native key only
    kubectl("patch", "quota", "gpu-quota", "-n", space, "--type=merge", "-p", '{"spec":{"hard":{"pods":"10"}}}')
    eventually(lambda: kubectl.used(space).get("pods"), "2")
    assert described(program, space) == {"gpu": ("3", "5"), "gpumem": ("16288", "30k")}
    kubectl("delete", "pod", "half", "-n", space, "--grace-period=0", "--force")
    eventually(lambda: described(program, space), {"gpu": ("2", "5"), "gpumem": ("4k", "30k")})
    kubectl("delete", "pod", "a-two", "-n", space, "--grace-period=0", "--force")
    eventually(lambda: described(program, space), {"gpu": ("0", "5"), "gpumem": ("0", "30k")})


def test_a_pod_over_quota_is_refused_in_kubernetes_words(program: Deployment) -> None:
    kubectl = program.kubectl
    space = namespace(kubectl)
    kubectl.apply(quota(space, gpu=2, mem=3000))
    assert kubectl.refused(pod(space, "p", gpu=2, gpumem=2000)) == (
        f'Error from server (Forbidden): error when creating "STDIN": {DENIED}exceeding resource quota: '
        "exceeded quota: gpu-quota, requested: limits.nvidia.com/gpumem=4000, used: limits.nvidia.com/gpumem=0, "
        "limited: limits.nvidia.com/gpumem=3000 (memory: 3.9Gi requested, 0Mi used, 2.9Gi limited)"
    )
    assert kubectl.used(space) == {"gpu": "0", "gpumem": "0"}
    assert kubectl.ledger(space) == {}


def test_cards_that_another_webhook_adds_are_placed_by_us_or_refused(program: Deployment) -> None:
    """A stand-in mutator that adds a card to every pod: asked before ours, and after it.

    An API server asks a webhook again only if it was asked before: of a pod without cards ours was not.
    """
    kubectl, space = program.kubectl, namespace(program.kubectl)
    kubectl.apply(quota(space, gpu=5))
    eventually(lambda: kubectl.used(space), {"gpu": "0"})
    limit = {"limits": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1000"}}

    def add_card(_: JSON) -> list[JSON]:
        return [{"op": "add", "path": "/spec/containers/0/resources", "value": limit}]

    with mutating(program, "aa-before-us", add_card, space):
        kubectl.apply(pod(space, "before"))
    assert kubectl.get("pod", "before", "-n", space)["spec"]["schedulerName"] == "hami-scheduler"
    with mutating(program, "zz-after-us", add_card, space):
        said = kubectl.refused(pod(space, "after"))
        assert "pod requests nvidia.com/gpu and has the scheduler default-scheduler, which chooses no cards" in said
        assert "the order of their configurations' names, and reinvocationPolicy calls ours again only" in said
        # an ordinary day: it has cards when ours is asked, or is meant for another scheduler
        kubectl.apply(pod(space, "asking", gpu=1, gpumem=1000))
        meant = pod(space, "meant")
        meant["metadata"]["labels"] = {"hami.io/webhook": "ignore"}
        own = pod(space, "own")
        own["spec"]["schedulerName"] = "my-own"
        kubectl.apply(meant, own)
    names = {
        name: kubectl.get("pod", name, "-n", space)["spec"]["schedulerName"] for name in ("asking", "meant", "own")
    }
    assert names == {"asking": "hami-scheduler", "meant": "default-scheduler", "own": "my-own"}
    # whoever places them, they are charged
    assert kubectl.used(space) == {"gpu": "4"}
    kubectl.delete_all("pods", namespace=space)


def test_memory_that_another_webhook_adds_makes_a_share_of_a_whole_card(program: Deployment) -> None:
    """A stand-in for Kyverno's webhook with a rule that adds memory, as it does by a JSON patch: asked before ours, and
    after it, where API servers ask ours again. A pod that wrote its own cores keeps them.
    """
    kubectl, space = program.kubectl, namespace(program.kubectl)
    kubectl.apply(quota(space, gpu=9, cores=900))
    eventually(lambda: kubectl.used(space), {"gpu": "0", "gpucores": "0"})
    path = "/spec/containers/0/resources/limits/nvidia.com~1gpumem"

    def add_memory(asked: JSON) -> list[JSON]:
        limited = "limits" in asked["spec"]["containers"][0].get("resources", {})
        return [{"op": "add", "path": path, "value": "4000"}] if limited else []

    for name in ("aa-before-us", "zz-after-us"):
        with mutating(program, f"{name}-{space}", add_memory, space):
            kubectl.apply(pod(space, f"open-{name}", gpu=1), pod(space, f"own-{name}", gpu=1, gpucores=100))
    pods = {item["metadata"]["name"]: item for item in kubectl.get("pods", "-n", space)["items"]}
    share = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4k"}
    for name in ("aa-before-us", "zz-after-us"):
        for kind, more in (("open", {}), ("own", {"nvidia.com/gpucores": "100"})):
            resources = pods[f"{kind}-{name}"]["spec"]["containers"][0]["resources"]
            assert resources["limits"] == resources["requests"] == share | more
            assert "hami.io/defaulted-limits" not in pods[f"{kind}-{name}"]["metadata"].get("annotations", {})
    assert kubectl.used(space) == {"gpu": "4", "gpucores": "200"}
    kubectl.delete_all("pods", namespace=space)


def test_the_sidecars_of_a_service_mesh_change_nothing(program: Deployment, scheduler: Path) -> None:
    """They come after our first pass, in front of the containers with cards."""
    kubectl = program.kubectl
    space = namespace(kubectl)
    kubectl.apply(quota(space, gpu=5, mem=30000, cores=400))
    eventually(lambda: kubectl.used(space).keys(), {"gpu", "gpumem", "gpucores"})
    asked: dict[str, dict[str, int]] = {
        "whole": {"gpu": 1},
        "share": {"gpu": 1, "gpumem": 2000, "gpucores": 30},
        "native": {"gpu": 1, "gpumem": 2000},
    }
    pods = {name: pod(space, name, **amounts) for name, amounts in asked.items()}
    pods["native"]["metadata"]["annotations"] = {"native": "true"}
    with injector(program, space) as injected:
        kubectl.apply(*pods.values(), pod(space, "plain"))
    assert sorted(injected) == ["native", "plain", "share", "whole"]
    limits = {}
    for name in pods:
        spec = kubectl.get("pod", name, "-n", space)["spec"]
        every = {each["name"]: each for each in (*spec["initContainers"], *spec["containers"])}
        assert list(every) == ["istio-init", "istio-proxy", "main"]
        assert spec["schedulerName"] == "hami-scheduler"
        assert every["istio-init"]["resources"] == {}
        assert every["istio-proxy"]["resources"] == AMOUNTS
        written = every["main"]["resources"]["limits"]
        limits[name] = {key.removeprefix("nvidia.com/"): amount for key, amount in written.items()}
    assert limits == {
        "whole": {"gpu": "1", "gpucores": "100"},
        "share": {"gpu": "1", "gpumem": "2k", "gpucores": "30"},
        "native": {"gpu": "1", "gpumem": "2k"},
    }
    used = {"gpu": "3", "gpumem": "12k", "gpucores": "130"}
    assert kubectl.used(space) == used
    assert place_waiting(scheduler, space, ["cards-8g"], "whole") == {"whole": "cards-8g"}
    assert place_waiting(scheduler, space, ["cards-8g"]) == {"native": "cards-8g", "share": "cards-8g"}
    for name in pods:
        allocated = kubectl.get("pod", name, "-n", space)["metadata"]["annotations"]["hami.io/vgpu-devices-allocated"]
        assert [row.count(":") for row in allocated.split(";")[:-1]] == [0, 0, 1]  # the card is of the last container
    eventually(lambda: kubectl.used(space), used)
    kubectl.delete_all("pods", namespace=space)


def test_with_the_service_down_only_pods_that_ask_for_cards_are_refused(program: Deployment) -> None:
    kubectl = program.kubectl
    space = namespace(kubectl)
    backends, program.balancer.backends = program.balancer.backends, []
    program.balancer.break_connections()
    try:
        kubectl.apply(pod(space, "plain"))
        assert "failed calling webhook" in kubectl.refused(pod(space, "card", gpu=1))
    finally:
        program.balancer.backends = backends
    kubectl.apply(pod(space, "card", gpu=1))


def xpu_node(name: str) -> dict[str, object]:
    """A node with eight Kunlunxin P800-OAM cards."""
    cards = [
        {"id": f"{name}-{i}", "index": i, "count": 4, "devmem": 98304, "devcore": 100, "type": "XPU", "health": True}
        for i in range(8)
    ]
    notes = {"hami.io/node-register-xpu": json.dumps(cards)}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "annotations": notes}}


def test_a_vxpu_slice_is_aligned_stored_placed_and_debited(program: Deployment, scheduler: Path) -> None:
    """The API server demands that limits and requests of extended resources agree, after our patch too."""
    kubectl = program.kubectl
    space = namespace(kubectl)
    kubectl.apply(xpu_node("xpu-1"))
    hard: JSON = {"limits.kunlunxin.com/vxpu-memory": 100000, "limits.kunlunxin.com/vxpu": 4}
    kubectl.apply(quota(space, **hard))
    asked = pod(space, "slice")
    amounts = {"kunlunxin.com/vxpu": "1", "kunlunxin.com/vxpu-memory": "20480"}
    asked["spec"]["containers"][0]["resources"] = {"limits": amounts}
    message = kubectl.run("create", "-f", "-", stdin=json.dumps(asked))
    assert message.returncode == 0, message.stderr
    assert "24576" in message.stderr  # kubectl prints the warning
    resources = kubectl.get("pod", "slice", "-n", space)["spec"]["containers"][0]["resources"]
    assert resources["limits"] == resources["requests"] == amounts | {"kunlunxin.com/vxpu-memory": "24576"}
    assert place_waiting(scheduler, space, ["xpu-1"]) == {"slice": "xpu-1"}
    assert kubectl.get("pod", "slice", "-n", space)["metadata"]["annotations"]["hami.io/xpu-devices-allocated"] == (
        "xpu-1-0,XPU,24576,25:;"
    )

    def shown() -> list[list[str]]:
        lines = kubectl("describe", "quota", "gpu-quota", "-n", space).splitlines()
        return [line.split() for line in lines if line.startswith("limits.")]

    wanted = [["limits.kunlunxin.com/vxpu", "1", "4"], ["limits.kunlunxin.com/vxpu-memory", "24576", "100k"]]
    eventually(shown, wanted)
