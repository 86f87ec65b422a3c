"""Which pods start together (docs/spec/queues.md#5.1)."""

from __future__ import annotations

from typing import Any

from builders import JSON, pod
from tables import in_one_test

from hami_webhook.kube.objects import Pod
from hami_webhook.kube.pod_group import MOST_PODS, PodGroup, pod_group_fault

NAME, SIZE = "hami.io/pod-group", "hami.io/pod-group-size"
KUEUE, TOTAL = "kueue.x-k8s.io/pod-group-name", "kueue.x-k8s.io/pod-group-total-count"
FAST = "kueue.x-k8s.io/pod-group-fast-admission"
COSCHEDULING = "scheduling.x-k8s.io/pod-group"


def read(labels: JSON, annotations: JSON | None = None, **spec: Any) -> Pod:
    return Pod.from_object(pod(namespace="team", labels=labels, annotations=annotations, **spec))


@in_one_test(
    ("labels", "annotations", "spec", "found"),
    [
        ({NAME: "train", SIZE: "8"}, {}, {}, ("train", 8)),
        ({NAME: "train", SIZE: "1"}, {}, {}, None),
        ({NAME: "train", SIZE: str(MOST_PODS)}, {}, {}, ("train", MOST_PODS)),
        ({NAME: "train", SIZE: "08"}, {}, {}, ("train", 8)),
        ({NAME: "train"}, {TOTAL: "8"}, {}, None),
        ({KUEUE: "train"}, {TOTAL: "8"}, {}, ("train", 8)),
        ({KUEUE: "train", SIZE: "4"}, {TOTAL: "8"}, {}, ("train", 4)),
        ({KUEUE: "train"}, {}, {}, None),
        ({KUEUE: "train"}, {TOTAL: "1000000"}, {}, None),
        ({KUEUE: "train"}, {TOTAL: "-8"}, {}, None),
        ({}, {KUEUE: "a" * 253, TOTAL: "8"}, {}, ("a" * 253, 8)),
        ({}, {KUEUE: "a" * 254, TOTAL: "8"}, {}, None),
        ({}, {KUEUE: "train"}, {}, None),
        ({KUEUE: "old"}, {KUEUE: "new", TOTAL: "8"}, {}, ("new", 8)),
        ({NAME: "mine", SIZE: "4"}, {KUEUE: "theirs", TOTAL: "8"}, {}, ("mine", 4)),
        ({KUEUE: "serves"}, {TOTAL: "8", FAST: "true"}, {}, None),
        ({KUEUE: "serves"}, {TOTAL: "8", FAST: "false"}, {}, ("serves", 8)),
        ({KUEUE: "serves", SIZE: "4"}, {TOTAL: "8", FAST: "true"}, {}, ("serves", 4)),
        ({COSCHEDULING: "train"}, {}, {}, None),
        ({COSCHEDULING: "train", SIZE: "8"}, {}, {}, ("train", 8)),
        ({}, {}, {"schedulingGroup": {"podGroupName": "train"}}, None),
        ({SIZE: "8"}, {}, {"schedulingGroup": {"podGroupName": "train"}}, ("train", 8)),
        ({NAME: "mine", COSCHEDULING: "other", SIZE: "8"}, {}, {}, ("mine", 8)),
        ({SIZE: "8"}, {}, {}, None),
        ({}, {}, {}, None),
    ],
)
def test_a_pods_group(labels: JSON, annotations: JSON, spec: JSON, found: tuple[str, int] | None) -> None:
    group = PodGroup.of(read(labels, annotations, **spec))
    assert group == (None if found is None else PodGroup("team", *found))


OF_PODS = f"must be a number of pods, 1 to {MOST_PODS}"


@in_one_test(
    ("labels", "fault"),
    [
        ({NAME: "train", SIZE: "8"}, ""),
        ({COSCHEDULING: "train"}, ""),
        ({}, ""),
        ({NAME: "train"}, f"label {NAME} train: its size is missing; add a label {SIZE}"),
        ({SIZE: "8"}, f"label {SIZE} 8: the group's name is missing; add a label {NAME}"),
        ({NAME: "train", SIZE: "0"}, f"label {SIZE} 0 {OF_PODS}"),
        ({NAME: "train", SIZE: "257"}, f"label {SIZE} 257 {OF_PODS}"),
        ({NAME: "train", SIZE: "9" * 63}, f"label {SIZE} {'9' * 60}… {OF_PODS}"),
        ({NAME: "train", SIZE: "all"}, f"label {SIZE} all {OF_PODS}"),
        ({NAME: "train", SIZE: "٨"}, f"label {SIZE} ٨ {OF_PODS}"),
        ({NAME: "train", SIZE: ""}, f"label {SIZE}  {OF_PODS}"),
    ],
)
def test_labels_that_cannot_be_meant(labels: JSON, fault: str) -> None:
    assert pod_group_fault(read(labels)) == fault
