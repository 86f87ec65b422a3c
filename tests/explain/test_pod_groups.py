"""What is said of a pod that starts together with others (docs/spec/queues.md#5)."""

from __future__ import annotations

from builders import bound_pod, card, node, pod

from .contexts import explained, steps

QUOTA_GATE = "hami.io/quota"


def labels(size: object) -> dict[str, str]:
    return {"hami.io/pod-group": "train", "hami.io/pod-group-size": str(size)}


def test_how_many_of_the_group_are_there() -> None:
    it = pod("it", gpu=1, labels=labels(3))
    runs = bound_pod("runs", "n1", "G1,NVIDIA,100,10:;", labels=labels(3))
    found = explained(it, node("n1", card("G1"), card("G2")), runs, gates=(QUOTA_GATE,))
    whose = "it is of pod group train, whose 3 pods are placed all or none"
    assert f"{whose}: 2 are there, 1 on nodes" in found.notes
    assert steps(found) == [["all 3 pods of pod group train must be there; 2 are"]]
    found = explained(it, node("n1", card("G1"), card("G2")), runs, pod("more", labels=labels(3)), gates=(QUOTA_GATE,))
    assert steps(found) == [["its quotas must have room for pod group train, in its turn"]]
    found = explained(pod("it", gpu=1, labels=labels("many")), node("n1", card("G1"), card("G2")))
    assert "it is of no pod group: label hami.io/pod-group-size many must be a number of pods, 1 to 256" in found.notes
