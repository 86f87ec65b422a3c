"""`simulate` with nodes that are added or removed, and pods that wait (docs/room.md#other-nodes)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from builders import card, node

from .files import GPU, JSON, Run, Simulate, listed, pod, quota

SIZE = 40960


def held(name: str, on: str, owner: str | None = "ReplicaSet", memory: int = 30000, **spec: Any) -> JSON:
    notes = {"hami.io/vgpu-node": on, "hami.io/vgpu-devices-allocated": f"GPU-{on},NVIDIA,{memory},0:;"}
    made = pod(name, gpu=1, mem=memory, uid=f"uid-{name}", annotations=notes, nodeName=on, **spec)
    made["spec"]["schedulerName"] = "hami-scheduler"
    if owner is not None:
        reference = {"kind": owner, "name": "of", "uid": "of", "controller": True}
        made["metadata"]["ownerReferences"] = [reference]
    return {**made, "status": {"phase": "Running"}}


def waits(name: str, memory: int = 30000, **spec: Any) -> JSON:
    return pod(name, gpu=1, mem=memory, uid=f"uid-{name}", schedulerName="hami-scheduler", **spec)


def gpu_node(name: str, **more: Any) -> JSON:
    return {**node(name, card(f"GPU-{name}", SIZE)), **more}


def run(simulate: Simulate, cluster: list[JSON], *flags: str) -> Run:
    path = simulate.file("cluster.json", listed(*cluster))
    return simulate.main("simulate", "--cluster", path, "-o", "json", *flags)


CLUSTER = [gpu_node("n1"), gpu_node("n2"), held("a", "n1"), held("b", "n2"), waits("w1"), waits("w2")]


@pytest.mark.parametrize(
    ("why", "cluster", "flags", "expected", "said"),
    [
        ("nothing fits now", CLUSTER, ["--waiting"], {"w1": None, "w2": None}, "2 pods that wait for cards"),
        ("one more node", CLUSTER, ["--waiting", "--add", "1xn1"], {"w1": "n1-new-1", "w2": None},
         "1 node added: n1-new-1"),
        ("two more", CLUSTER, ["--waiting", "--add", "2xpool", "--like", "n2"],
         {"w1": "pool-new-1", "w2": "pool-new-2"}, "2 nodes added: pool-new-1, pool-new-2"),
        ("one goes", CLUSTER, ["--remove", "n1"], {"a": None}, "1 node removed, with 1 pod to be placed again"),
        ("one goes, one comes", CLUSTER, ["--remove", "n1", "--add", "1xn1"], {"a": "n1-new-1"}, "1 node removed"),
        ("who goes with its node", [gpu_node("n1"), held("d", "n1", "DaemonSet"), held("x", "n1", None)],
         ["--remove", "n1"], {}, "1 pod without an owner would end: team-a/x"),
        ("a quota refuses still", [*CLUSTER, quota(gpu="3", used={GPU: "2"})], ["--waiting", "--add", "4xn1"],
         {"w1": "n1-new-1", "w2": None}, "4 nodes added"),
        ("by priority", [*CLUSTER, waits("w3", priority=5)], ["--waiting", "--add", "1xn1"],
         {"w3": "n1-new-1", "w1": None, "w2": None}, "3 pods that wait"),
        ("a cordoned node's copy is open", [gpu_node("n1", spec={"unschedulable": True}), waits("w1")],
         ["--waiting", "--add", "1xn1"], {"w1": "n1-new-1"}, "1 node added"),
    ],
)  # fmt: skip
def test_who_is_placed(
    simulate: Simulate, why: str, cluster: list[JSON], flags: list[str], expected: JSON, said: str
) -> None:
    done = run(simulate, cluster, *flags, "--preemption", "off")
    found = {each["name"]: (each["placement"] or {}).get("node") for each in done.result["pods"]}
    assert list(found.items()) == list(expected.items()), why
    assert said in done.err


def test_a_template_says_what_a_node_is_like(simulate: Simulate, tmp_path: Path) -> None:
    template = tmp_path / "node.yaml"
    template.write_text(yaml.safe_dump(node("any", card("GPU-any", 80000))))
    done = run(simulate, CLUSTER, "--waiting", "--add", "1xbig", "--template", str(template))
    assert [each["placement"]["node"] for each in done.result["pods"]] == ["big-new-1", "big-new-1"]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--add", "1xnone"], "no node none to add others like it; the cluster has n1, n2. --like NODE or --template"),
        (["--remove", "none"], "no node none to be removed; the cluster has n1, n2"),
        (["--like", "n1"], "--like and --template say what --add adds: give --add COUNTxNAME, too"),
        (["--add", "1xn1", "--like", "n1", "--template", "f"], "give --like or --template, not both"),
        ([], "nothing to simulate: name PODS, or give --cluster with --waiting, --add or --remove"),
    ],
)
def test_bad_input_by_sentence(simulate: Simulate, flags: list[str], said: str) -> None:
    done = run(simulate, CLUSTER, *flags)
    assert (done.status, done.out, said in done.err, done.err.count("\n")) == (2, "", True, 1), done.err


@pytest.mark.parametrize(
    "text", ["x", "0xn1", "1001xn1", "1xN1", "1x", "9" * 100 + "xn1", "0000000019999xn1", "1x../n1"]
)
def test_what_is_no_number_of_nodes(simulate: Simulate, text: str) -> None:
    done = run(simulate, CLUSTER, "--add", text)
    assert (done.status, done.out) == (2, "")
    assert "must be a number from 1 to 1000, x, and the name of a node in lower case" in done.err


def test_an_owner_that_a_tenant_makes_up_changes_what_is_shown_of_its_own_pod_only(simulate: Simulate) -> None:
    """A tenant's pod says that it has an owner, a placement and a charge: it is admitted and charged like any."""
    lies = held("lies", "n1", "ReplicaSet", memory=100)
    lies["metadata"]["annotations"] |= {"hami.io/quota-reservation": "x", "hami.io/vgpu-time": "1"}
    cluster = [gpu_node("n1"), gpu_node("n2"), lies, quota(gpu="0", used={GPU: "1"})]
    done = run(simulate, cluster, "--remove", "n1")
    (found,) = done.result["pods"]
    assert (found["allowed"], found["code"]) == (False, 403)


def test_on_an_ordinary_day_pods_that_run_stay(simulate: Simulate) -> None:
    """Nothing waits, and another node comes: the run has the new pod alone, where it would be without that node."""
    new = simulate.file("new.json", pod("new", gpu=1, mem=1000))
    quiet = CLUSTER[:4]
    plain, added = run(simulate, quiet, new), run(simulate, quiet, new, "--waiting", "--add", "1xn1")
    assert plain.err == ""
    assert added.err.splitlines()[-1] == "hami-webhook: 0 pods that wait for cards"
    for done in (plain, added):
        assert [(each["name"], each["placement"]["node"]) for each in done.result["pods"]] == [("new", "n1")]
