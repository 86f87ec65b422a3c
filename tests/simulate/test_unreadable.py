"""What of the files can't be read: left out, each fault in one line."""

from __future__ import annotations

from builders import card, node

from .files import Simulate, pod
from .test_json import ONE_NODE


def test_of_objects_with_the_same_fault_one_is_named(simulate: Simulate) -> None:
    bad = [node(name, card("x")) for name in ("n2", "n3", "n4")]
    for each, text in zip(bad, ("GPU-1,10", "GPU-1,10", "["), strict=True):
        each["metadata"]["annotations"]["hami.io/node-nvidia-register"] = text
    run = simulate([*ONE_NODE, *bad], pod("p", gpu=1, mem=1))
    starts = [line.removeprefix("hami-webhook: warning: ")[:25] for line in run.err.splitlines()]
    assert starts == ["node n2 and 1 more: hami.", "node n4: hami.io/node-nvi"]


def test_what_cannot_be_read_takes_only_that_object_out_and_is_told(simulate: Simulate) -> None:
    bad = node("n2", card("x"))
    bad["metadata"]["annotations"]["hami.io/node-nvidia-register"] = "GPU-1,10"
    unreadable = pod("torn", nodeName="n1")
    unreadable["spec"]["containers"] = "many"
    notes = {"hami.io/vgpu-node": "n1", "hami.io/vgpu-devices-allocated": "GPU-1,NVIDIA,lots,0:;"}
    garbled = pod("garbled", annotations=notes, nodeName="n1")
    run = simulate([*ONE_NODE, bad, unreadable, garbled], pod("p", gpu=1, mem=1))
    assert run.pods[0]["placement"]["node"] == "n1"
    assert run.pods[0]["failed"] == {"n2": "node unregistered"}
    torn, register, allocated = run.err.splitlines()
    assert torn == (
        "hami-webhook: warning: pod team-a/torn: left out, because spec.containers must be a list, not a string"
    )
    assert register.startswith("hami-webhook: warning: node n2: hami.io/node-nvidia-register: must be a JSON array")
    assert allocated.startswith(
        "hami-webhook: warning: pod team-a/garbled: hami.io/vgpu-devices-allocated can't be read"
    )
