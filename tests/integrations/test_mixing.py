"""One GPU manager per node: pods that name several, nodes that carry several.

Source: docs/spec/volcano.md#5.7, docs/spec/koordinator.md#5.4.
"""

from __future__ import annotations

from typing import Any

import pytest
from admission.reviews import refusal, validate
from builders import container, read_node
from devices.fit_env import configured, pod
from tables import in_one_test

from hami_webhook.integrations.mixing import Mixing, pinned_nodes
from hami_webhook.kube.draft import PodDraft
from hami_webhook.kube.objects import Node

from .schedulers_env import SchedulersEnv
from .volcanoes import NUMBER, REGISTER, t4, volcano_node

JSON = dict[str, Any]
GPU = "nvidia.com/gpu"
HAMI, NVIDIA = {GPU: 1, "nvidia.com/gpumem": 5}, {GPU: 1}
VOLCANO, KOORDINATOR = {NUMBER: 1}, {"koordinator.sh/gpu.shared": 1, "koordinator.sh/gpu-memory-ratio": 50}
SECTION = (
    "nvidia: {resourceCountName: nvidia.com/gpu, resourceMemoryName: nvidia.com/gpumem, "
    "resourceCoreName: nvidia.com/gpucores}\n"
    "hygon: {resourceCountName: hygon.com/dcunum, resourceMemoryName: hygon.com/dcumem}\n"
)
DCU = {"hygon.com/dcunum": 1, "hygon.com/dcumem": 1000}
CONFLICT, ONE = "conflict, both serve nvidia.com/gpu", "can coexist in theory, use one"
UNADVISED, APART = "can coexist in theory, mixing not advised", "each counts the same card separately"


def judged(*limits: JSON, config: str = "volcano: {}") -> tuple[list[str], str]:
    """The judgements that a pod with these containers is warned of, and the refusal."""
    with_limits = pod("p", *(container(f"c{index}", **each) for index, each in enumerate(limits)))
    admitted = SchedulersEnv(vendors=configured(SECTION + config)).admit(with_limits)
    reported = [warning for warning in admitted.warnings if warning.startswith("[mixed-names]")]
    return [warning.rpartition("in one pod: ")[2] for warning in reported], admitted.message


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ([HAMI], []),
        ([HAMI, NVIDIA], []),  # HAMi serves a whole card under the same name
        ([VOLCANO], []),
        ([{"nvidia.com/gpumem": 5}, {"nvidia.com/mig-1g.5gb": 1}], [CONFLICT]),
        ([HAMI, {"nvidia.com/gpu.shared": 1}], [CONFLICT]),
        ([HAMI, VOLCANO], [ONE]),  # volcano, example 9
        ([NVIDIA, VOLCANO], [UNADVISED]),
        ([HAMI, KOORDINATOR], [APART]),
        ([VOLCANO, KOORDINATOR], [APART]),
        ([VOLCANO, {"kubernetes.io/gpu-core": 50}], [APART]),
        ([HAMI, VOLCANO, KOORDINATOR], [ONE, APART, APART]),
        ([VOLCANO, {"cambricon.com/mlu": 1}], []),
        ([DCU], []),
        ([DCU, HAMI], []),
        ([DCU, VOLCANO], []),
        ([DCU, KOORDINATOR], [APART]),
        ([{NUMBER: 0}, HAMI], []),
    ],
)
def test_a_pod_that_names_several_managers_is_warned(limits: list[JSON], said: list[str]) -> None:
    assert judged(*limits) == (said, "")


@pytest.mark.parametrize(
    ("limits", "config", "denied"),
    [
        ([HAMI, VOLCANO], "volcano: {mixedNameSets: deny}", "[mixed-names] HAMi's plugin"),
        ([NVIDIA, VOLCANO], "volcano: {mixedNameSets: deny}", "[mixed-names] NVIDIA's plugin"),
        ([HAMI, VOLCANO], "volcano: {mixedNameSets: deny, enabled: false}", ""),
        ([HAMI, {"nvidia.com/gpu.shared": 1}], "volcano: {mixedNameSets: deny}", ""),
        (
            [HAMI, KOORDINATOR],
            "koordinator: {}",
            "invalid resource device requests: nvidia.com/gpu, nvidia.com/gpumem, ",
        ),
        (
            [DCU, KOORDINATOR],
            "koordinator: {}",
            "invalid resource device requests: hygon.com/dcumem, hygon.com/dcunum, koordinator.sh",
        ),
        ([DCU], "koordinator: {}", ""),
        ([NVIDIA, KOORDINATOR], "koordinator: {}", "invalid resource device requests: nvidia.com/gpu, koordinator.sh"),
        ([HAMI, KOORDINATOR], "koordinator: {mixedNameSets: warn}", ""),
        ([VOLCANO, KOORDINATOR], "volcano: {}\nkoordinator: {}", ""),
        ([VOLCANO, KOORDINATOR], "volcano: {}\nkoordinator: {mixedNameSets: deny}", "[mixed-names] Volcano's plugin"),
        ([VOLCANO, KOORDINATOR], "volcano: {mixedNameSets: deny}\nkoordinator: {}", "[mixed-names] Volcano's plugin"),
    ],
)
def test_the_configuration_may_refuse_it(limits: list[JSON], config: str, denied: str) -> None:
    message = judged(*limits, config=config)[1]
    assert message.startswith(denied)
    assert bool(message) == bool(denied)


def test_what_is_stored_is_judged_alike() -> None:
    with_limits = pod("p", container("a", **HAMI), container("b", **VOLCANO))
    with_limits["metadata"]["namespace"] = "team-a"
    code, message = refusal(validate, with_limits, known=configured(SECTION + "volcano: {mixedNameSets: deny}"))
    assert (code, message.partition("]")[0]) == (422, "[mixed-names")


# nodes

HAMI_CARDS = "GPU-a,10,16384,100,NVIDIA-T4,0,true,0,hami-core:GPU-b,10,16384,100,NVIDIA-T4,0,true,1,hami-core:"
SICK_CARD = HAMI_CARDS.replace("true,1", "false,1")
REGISTERED = "hami.io/node-nvidia-register"


def remark(node_: Node, device: JSON | None = None) -> str:
    return configured(SECTION + "volcano: {}").mixing.remark(node_, device)


@in_one_test(
    ("node_", "said"),
    [
        (read_node(), ""),
        (volcano_node("n1", t4("GPU-a")), ""),
        (read_node(**{REGISTERED: HAMI_CARDS}), ""),
        (read_node(**{REGISTERED: HAMI_CARDS}, capacity={GPU: 20}), ""),
        (read_node(**{REGISTERED: SICK_CARD}, capacity={GPU: 10}), ""),
        (read_node(**{REGISTERED: HAMI_CARDS}, capacity={GPU: 0}), ""),  # the plugin may be starting anew
        (
            read_node(**{REGISTERED: HAMI_CARDS}, capacity={GPU: 2}),
            "the kubelet offers 2 of nvidia.com/gpu, but HAMi's plugin registered 20 slots: another plugin may serve "
            "it too",
        ),
        (
            read_node(capacity={GPU: 2, NUMBER: 10}),
            f"more than one GPU manager is present: NVIDIA's plugin and Volcano's plugin: {UNADVISED}",
        ),
        (
            read_node(**{REGISTERED: HAMI_CARDS, REGISTER: f"{t4('GPU-b')}:{t4('GPU-c')}:"}),
            f"more than one GPU manager is present: HAMi's plugin and Volcano's plugin: {ONE}; registered twice: GPU-b",
        ),
        (
            read_node(**{REGISTERED: "junk"}, capacity={"koordinator.sh/gpu-core": 100}),
            f"more than one GPU manager is present: HAMi's plugin and Koordinator: {APART}",
        ),
    ],
)
def test_a_node_with_several_managers_is_remarked(node_: Node, said: str) -> None:
    assert remark(node_) == said


def test_koordinators_cards_may_be_registered_twice_too() -> None:
    device = {"spec": {"devices": [{"type": "gpu", "id": "GPU-a"}, {"type": "rdma", "id": "GPU-b"}, "junk"]}}
    both = read_node(**{REGISTERED: HAMI_CARDS}, capacity={"koordinator.sh/gpu-core": 200, GPU: 20})
    assert remark(both, device).endswith("registered twice: GPU-a")


MIXED = read_node("m", labels={"kubernetes.io/hostname": "host-m"}, capacity={GPU: 1}, **{REGISTER: f"{t4('GPU-a')}:"})


def _affinity(*values: str, operator: str = "In") -> JSON:
    expression = {"key": "kubernetes.io/hostname", "operator": operator, "values": list(values)}
    terms = [{"matchExpressions": [expression]}]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


@pytest.mark.parametrize(
    ("spec", "warned"),
    [
        ({"nodeSelector": {"kubernetes.io/hostname": "host-m"}}, True),
        ({"affinity": _affinity("other", "host-m")}, True),
        ({"affinity": _affinity("host-m", operator="NotIn")}, False),
        ({"nodeSelector": {"kubernetes.io/hostname": "m"}}, False),  # it has another host name
        ({"nodeSelector": {"kubernetes.io/hostname": "n1"}}, False),
        ({}, False),
    ],
)
def test_a_pod_that_is_pinned_to_such_a_node_is_warned(spec: JSON, warned: bool) -> None:
    with_limits = pod("p", container(**VOLCANO))
    with_limits["spec"].update(spec)
    admitted = SchedulersEnv([volcano_node("n1", t4("GPU-z")), MIXED]).admit(with_limits)
    assert admitted.codes == (["mixed-node"] if warned else [])


@pytest.mark.parametrize("raw", [{}, {"spec": None}, {"spec": {"nodeSelector": {}, "affinity": {"nodeAffinity": {}}}}])
def test_a_pod_without_a_place_is_pinned_nowhere(raw: JSON) -> None:
    assert pinned_nodes(PodDraft(raw).object) == []


def test_without_sections_nothing_is_refused() -> None:
    assert Mixing().managing(set()) == {}
