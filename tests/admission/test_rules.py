"""What a new pod is refused for: by one table, on every path (docs/spec/core.md#5)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import builders
import pytest
from builders import container
from devices.fit_env import configured
from hypothesis import given
from hypothesis import strategies as st
from integrations.test_mixing import SECTION
from refusals import has_node, is_privileged
from tables import in_one_test

from hami_webhook.admission import handler, rules
from hami_webhook.admission.denial import Denied
from hami_webhook.admission.new_pod import NewPod
from hami_webhook.admission.pods import is_unmanaged, read_pod
from hami_webhook.admission.requests import RequestCache
from hami_webhook.admission.rules import EVERY_POD, NAMING_POD, STATIC_POD, Rule, check_rules
from hami_webhook.devices.device_lister import NO_DEVICES
from hami_webhook.devices.registry import Vendors
from hami_webhook.kube.objects import Node
from hami_webhook.state.cluster_cache import ClusterCache

from .reviews import JSON, FakeServices, cpu, handler_of, mutate, parsed, pod, review
from .test_identities import CHART
from .test_pods import POD
from .test_static_pods import MIRROR, NODE

SPEC = Path(__file__).parents[2] / "docs" / "spec"
PATHS = pytest.mark.parametrize("path", ["mutate", "validate", "webhook"])
TABLES = {"EVERY_POD": EVERY_POD, "STATIC_POD": STATIC_POD, "NAMING_POD": NAMING_POD}


DENIED = configured(SECTION + "volcano: {mixedNameSets: deny}")


def cluster(**node: Any) -> ClusterCache:
    """One node with one card, for three pods of 8000 MiB."""
    state = ClusterCache(CHART)
    state.set_node(Node.from_object(builders.node("n1", builders.card("GPU-1", 24576)) | node), 0)
    return state


def reviewed(obj: JSON, path: str, user: JSON | None = None, known: Vendors = CHART) -> str:
    """What the pod is refused with; empty if it is allowed."""
    answering = handler_of(known=known, services=FakeServices(), device_lister=cluster())
    more: JSON = {} if user is None else {"userInfo": user}
    try:
        asyncio.run(getattr(answering, path)(parsed(review(obj, **more))))
    except Denied as denied:
        return denied.message
    return ""


def without(rule: Rule, patching: pytest.MonkeyPatch) -> None:
    """Take a rule out of all tables."""
    for name, table in TABLES.items():
        patching.setattr(handler, name, tuple(each for each in table if each is not rule))


def gpu(**spec: Any) -> JSON:
    return pod("p", container(gpu=1, mem=3000), **spec)


def group(size: int) -> JSON:
    labels = {"hami.io/pod-group": "train", "hami.io/pod-group-size": str(size)}
    return pod("p", container(gpu=1, mem=8000), labels=labels)


VGPU = container(limits={"volcano.sh/vgpu-number": "1"})
BROKEN: dict[str, tuple[JSON, str]] = {
    "has_app_containers": ({**pod(), "spec": {"containers": []}}, "pod has no containers"),
    "brings_no_allocation": (
        gpu(annotations={"hami.io/vgpu-node": "n1"}),
        "annotation hami.io/vgpu-node is written by the scheduler only; remove it from the pod",
    ),
    "brings_no_scheduler_label": (
        gpu(labels={"hami.io/vgpu-node": "n1"}),
        "label hami.io/vgpu-node is written by the scheduler only; remove it from the pod",
    ),
    "static_brings_no_allocation": (
        pod("p", VGPU, nodeName="n1", annotations={**MIRROR, "volcano.sh/vgpu-ids-new": "GPU-1,NVIDIA,10,1:;"}),
        "annotation volcano.sh/vgpu-ids-new is written by the scheduler only; remove it from the pod",
    ),
    "other_schedulers_take_it": (
        pod("p", VGPU, schedulerName="volcano", nodeName="n1"),
        has_node("n1"),
    ),
    "mixes_no_schedulers": (pod("p", container(gpu=1, mem=3000), {**VGPU, "name": "b"}), "[mixed-names]"),
    "amounts_can_be_meant": (gpu(initContainers=[container("x", gpu="1500m", mem=3000)]), "1500m"),
    "has_no_privileged_container": (
        pod("p", container(gpu=1, mem=3000), cpu("agent", securityContext={"privileged": True})),
        is_privileged("agent"),
    ),
    "has_no_node": (gpu(nodeName="n1"), has_node("n1")),
    "pod_group_can_start": (
        group(4),
        "pod group train has 4 pods, and 3 like this one fit on all nodes together; request less, or make the group"
        " smaller",
    ),
    "scoring_weights_can_be_read": (
        gpu(annotations={"hami.io/device-scoring-weights": "slot=1"}),
        'invalid hami.io/device-scoring-weights annotation "slot=1": expected slot, core, and memory weights for pod p',
    ),
}


@PATHS
@pytest.mark.parametrize("rule", [*EVERY_POD, *STATIC_POD, *NAMING_POD], ids=lambda rule: rule.check.__name__)
def test_every_rule_refuses_on_every_path_and_nothing_else_does_it_for_it(
    rule: Rule, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = rule.check.__name__
    assert name in BROKEN, (
        f"BROKEN has no row for the rule {name}: add a pod that only it refuses, and words it says then"
    )
    obj, message = BROKEN[name]
    user = NODE if rule.check is rules.static_brings_no_allocation else None
    known = DENIED if rule.check is rules.mixes_no_schedulers else CHART
    assert message in reviewed(obj, path, user, known)
    without(rule, monkeypatch)
    assert message not in reviewed(obj, "validate", user, known)


@PATHS
def test_a_group_without_a_size_is_refused_on_every_path(path: str) -> None:
    message = reviewed(gpu(labels={"hami.io/pod-group": "train"}), path, None, CHART)
    assert "add a label hami.io/pod-group-size" in message


@pytest.mark.parametrize("path", ["mutate", "webhook"])
@pytest.mark.parametrize(
    ("size", "provider", "warned"),
    [
        (3, "", False),
        (3, "aws:///eu/i-1", False),
        (4, "aws:///eu/i-1", True),
    ],
)
def test_a_group_larger_than_the_cluster_is_let_in_where_nodes_may_come(
    size: int, provider: str, warned: bool, path: str
) -> None:
    answering = handler_of(
        known=CHART, services=FakeServices(), device_lister=cluster(spec={"providerID": provider} if provider else {})
    )
    answer = asyncio.run(getattr(answering, path)(parsed(review(group(size)))))
    expected = (
        "pod group train has 4 pods, and 3 like this one fit on all nodes together; it starts when nodes are added"
    )
    assert answer.warnings == ((expected,) if warned else ())


@PATHS
@pytest.mark.parametrize("table", ["EVERY_POD", "NAMING_POD"])
def test_a_rule_that_is_added_refuses_on_every_path(table: str, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_p(new: NewPod) -> None:
        if new.pod.name == "p":
            raise Denied(403, "called p")

    monkeypatch.setattr(handler, table, (*TABLES[table], Rule(no_p, "core.md#5")))
    assert reviewed(gpu(), path) == "called p"
    assert reviewed({**gpu(), "metadata": {"name": "q", "namespace": "team-a"}}, path) == ""


@pytest.mark.parametrize(
    ("obj", "passes"),
    [
        ({"spec": {"containers": [cpu()]}}, True),
        (pod("p", cpu(), labels={"app": "web"}, annotations={"team": "a"}, initContainers=[cpu("init")]), True),
        ({"spec": {}}, False),
        ({}, False),
        (gpu(), False),
        (pod("p", container(requests={"nvidia.com/gpu": "1"})), False),
        (pod("p", cpu(), initContainers=[container("init", gpu=1)]), False),
        (pod("p", cpu(), annotations={"hami.io/vgpu-node": "n1"}), False),
        (pod("p", cpu(), labels={"hami.io/vgpu-node": "n1"}), False),
    ],
)
def test_the_cheap_look_is_all_that_ordinary_pods_get(obj: JSON, passes: bool) -> None:
    assert is_unmanaged(parsed(review(obj)).object, CHART) is passes


@given(obj=POD, more=st.sampled_from([{}, {"hami.io/vgpu-node": "n1"}, {"volcano.sh/vgpu-ids-new": "x"}]))
def test_the_cheap_look_passes_no_pod_that_breaks_a_rule(obj: JSON, more: dict[str, str]) -> None:
    meta = obj.get("metadata") or {}
    obj = {**obj, "metadata": {**meta, "annotations": {**(meta.get("annotations") or {}), **more}}}
    came = parsed(review(obj)).object
    if is_unmanaged(came, CHART):
        check_rules(EVERY_POD, NewPod(CHART, NO_DEVICES, RequestCache(CHART), read_pod(came, "team-a")))


@in_one_test("rule", [*EVERY_POD, *STATIC_POD, *NAMING_POD])
def test_a_rule_names_a_section_of_the_specification(rule: Rule) -> None:
    page, section = rule.page.split("#")
    assert f'<a id="{section}"></a>' in (SPEC / page).read_text()


@pytest.mark.parametrize(
    ("labels", "containers", "warned"),
    [
        pytest.param({"kueue.x-k8s.io/queue-name": "q"}, 2, True, id="Kueue's, of two"),
        pytest.param({"kueue.x-k8s.io/queue-name": "q"}, 1, False, id="Kueue's, of one"),
        pytest.param({"app": "x"}, 2, False, id="another's"),
    ],
)
def test_a_pod_of_kueues_with_several_containers_with_cards_is_warned(
    labels: dict[str, str], containers: int, *, warned: bool
) -> None:
    """Beside a sidecar without cards, which counts for nobody."""
    asking = [container(f"c{number}", gpu=1, mem=1000) for number in range(containers)]
    answer = mutate(pod("p", cpu(), *asking, labels=labels))
    assert [text for text in answer.warnings if "Kueue multiplies" in text] == [
        "2 containers request nvidia.com/gpu: Kueue multiplies their sums, and counts more memory and cores than "
        "quotas do; give the cards to one container, or count only cards in Kueue"
    ][: int(warned)]
