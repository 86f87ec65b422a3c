"""Objects that somebody spoilt, as far as a real API server stores them: the process stays up, and goes on.

What it does about its own Secret and Lease is in tests/controller.
"""

from __future__ import annotations

import functools
import json
import os

import pytest

from .deployment import Deployment, eventually
from .objects import MEM, add_node, gpu_node, pod, quota
from .scheduling import messages


@pytest.fixture
def space(program: Deployment) -> str:
    """A namespace that is none of the webhooks' business: whatever is written there, the controller reads."""
    name = f"spoilt-{os.urandom(4).hex()}"
    meta = {"name": name, "labels": {"hami.io/webhook": "ignore"}}
    program.kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": meta})
    program.kubectl("wait", "serviceaccount/default", "-n", name, "--for=create", "--timeout=120s")
    return name


def test_junk_in_ledgers_nodes_and_pods(program: Deployment, space: str) -> None:
    kubectl, running = program.kubectl, dict(program.replicas)
    failures = program.metric("hami-webhook-0", "hami_webhook_loop_failures_total")
    digits = "9" * 400
    node = gpu_node("junk", 24576)
    node["metadata"]["annotations"] |= {
        "hami.io/node-handshake": "Requesting_9999-12-31 23:59:59",
        "hami.io/node-dcu-register": f"GPU-a,10,{digits},100,X,0,true:",
        "volcano.sh/node-vgpu-register": f"GPU-a,10,{digits},100,NVIDIA-T4,0,true,0,hami-core:",
        "hami.io/mutex.lock": "TIME,,",
    }
    kubectl.apply(node)
    add_node(kubectl, gpu_node("memoryless", 24576, 0), gpu=20)
    absurd = pod(space, "absurd", gpu=1, gpumem=1000)
    absurd["metadata"]["annotations"] = {
        "hami.io/vgpu-node": "junk",
        "hami.io/vgpu-time": digits,
        "hami.io/bind-time": digits,
        "hami.io/vgpu-devices-allocated": f"junk-0,NVIDIA,{digits},{digits}:;",
        "hami.io/quota-reservation": digits,
    }
    absurd["spec"] |= {
        "activeDeadlineSeconds": 2_147_483_647,
        "terminationGracePeriodSeconds": 9_223_372_036_854_775_807,
    }
    kubectl.apply(absurd, pod(space, "plain", gpu=1, gpumem=1000))
    junk = {
        "x": {"s": "admitted", "t": 253402300799, "c": {MEM: 5000}},
        "y": 1,
        "z": {"s": "placing", "t": "x", "c": []},
    }
    for name, ledger in {"garbage": "{{{", "future": json.dumps(junk), "deep": "[" * 5000}.items():
        kubectl.apply(quota(space, name, gpu=10, mem=9000))
        notes = json.dumps({"metadata": {"annotations": {"hami.io/quota-ledger": ledger}}})
        kubectl("patch", "resourcequota", name, "-n", space, "--type=merge", "-p", notes)
    kubectl.apply(quota(space, "absurd", gpu="9223372036854775807", mem="9E"))
    # `absurd` is counted by what it asks, as what it says of itself can't be read
    for name in ("garbage", "future", "deep"):
        eventually(functools.partial(kubectl.used, space, name), {"gpu": "2", "gpumem": "2k"})
    kubectl("delete", "pod", "plain", "-n", space, "--grace-period=0", "--force")
    for name in ("garbage", "future", "deep"):
        eventually(functools.partial(kubectl.used, space, name), {"gpu": "1", "gpumem": "1k"})
    eventually(lambda: "1 of 2 NVIDIA cards are registered without memory" in messages(kubectl, "default"))
    kubectl("delete", "node", "junk", "memoryless")
    # it is the process that was started, and no loop of it failed
    assert program.ready("hami-webhook-0")
    assert program.replicas == running
    assert program.metric("hami-webhook-0", "hami_webhook_loop_failures_total") == failures
