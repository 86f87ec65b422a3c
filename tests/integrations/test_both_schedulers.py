"""What admission does alike for pods of Volcano and of Koordinator.

Source: docs/spec/volcano.md#5, docs/spec/koordinator.md#4 and #5.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest
from builders import container, read_node
from devices.fit_env import JSON, configured, pod
from refusals import has_node

from hami_webhook.integrations.volcano.annotation_keys import OWNED as VOLCANOS

from .koords import ALLOCATED, ISOLATED, SHARED, card, device, named
from .schedulers_env import SchedulersEnv
from .volcanoes import MEMORY, NUMBER, t4, volcano_node

KOORDINATORS = (
    ALLOCATED,
    "scheduling.koordinator.sh/bind-timestamp",
    "scheduling.koordinator.sh/gpu-minors",
)
GPU, PRIORITY, VARIABLE = "nvidia.com/gpu", "nvidia.com/priority", "CUDA_TASK_PRIORITY"


@dataclass(frozen=True)
class Integration:
    """A scheduler, what a container asks of it, and what it could not ask."""

    key: str
    scheduler: str
    limits: Mapping[str, object]
    impossible: Mapping[str, object]
    owned: Sequence[str]
    orders_queues_by: Sequence[str]

    def env(self, section: str = "", nvidia: str = "") -> SchedulersEnv:
        hami = f"nvidia: {{resourceCountName: {GPU}, {nvidia}}}"
        nodes = [volcano_node("n1", t4("GPU-a")), read_node("n2", labels=ISOLATED, capacity={SHARED: 100})]
        env = SchedulersEnv(nodes, configured(f"{hami}\n{self.key}: {{{section}}}"))
        env.state.set_device("n2", device("n2", [card(0)]))
        return env

    def pod(self, *containers: JSON, impossible: bool = False, notes: JSON | None = None, **spec: object) -> JSON:
        limits = self.impossible if impossible else self.limits
        apps = containers or (container("main", **limits),)
        return pod("p", *apps, annotations=notes, labels=ISOLATED, **spec)


BOTH = [
    Integration(
        "volcano", "volcano", {NUMBER: 1, MEMORY: 1000}, {NUMBER: 1, MEMORY: "4Gi"}, VOLCANOS,
        ("queues", "spec.priority", "priorityClassName"),
    ),
    Integration(
        "koordinator", "koord-scheduler", named(shared=1, ratio=50), named(core=7), KOORDINATORS, ("PriorityClasses",)
    ),
]  # fmt: skip
every_integration = pytest.mark.parametrize("integration", BOTH, ids=lambda integration: integration.key)
MIRROR = {"kubernetes.io/config.mirror": "hash"}
NODE = {"username": "system:node:n1", "groups": ["system:nodes", "system:authenticated"]}


@every_integration
def test_a_pod_that_has_a_node_is_refused(integration: Integration) -> None:
    assert integration.env().refusal(integration.pod(nodeName="n1")) == has_node("n1")


@every_integration
def test_a_mirror_pod_of_its_node_is_left_alone_but_may_not_forge(integration: Integration) -> None:
    mirror = integration.pod(impossible=True, notes=MIRROR, nodeName="n1")
    assert integration.env().admit(mirror, userInfo=NODE).manifest == mirror
    forged = integration.pod(notes={**MIRROR, integration.owned[0]: "{}"}, nodeName="n1")
    assert integration.owned[0] in integration.env().refusal(forged, userInfo=NODE)


@every_integration
def test_a_mirror_pod_of_anybody_else_is_a_pod_like_any_other(integration: Integration) -> None:
    """A tenant can write the annotation and, with `nodeName`, skip the scheduler and its node's admission."""
    assert integration.env().refusal(integration.pod(notes=MIRROR, nodeName="n1")) == has_node("n1")
    plain, mirror = integration.pod(), integration.pod(notes=MIRROR)
    assert integration.env().admit(mirror).scheduler == integration.env().admit(plain).scheduler
    assert integration.env().refusal(integration.pod(impossible=True, notes=MIRROR)) == integration.env().refusal(
        integration.pod(impossible=True)
    )


@every_integration
def test_a_section_that_is_off_leaves_its_pods_alone(integration: Integration) -> None:
    env = integration.env("enabled: false")
    admitted = env.admit(integration.pod(impossible=True))
    assert (admitted.manifest, admitted.warnings) == (integration.pod(impossible=True), [])
    assert env.vendors.foreign == ()
    assert not any(integration.key in name for name in (*env.vendors.resource_names, *env.vendors.quota_keys))


@every_integration
@pytest.mark.parametrize(
    ("section", "given", "stored", "warned"),
    [
        ("", None, "its own", False),
        ("", "default-scheduler", "its own", False),
        ("", "its own", "its own", False),
        ("", "mine", "mine", True),
        ("", "hami-scheduler", "hami-scheduler", True),
        ("schedulerNames: [v2, mine]", "mine", "mine", False),
        ("schedulerNames: [v2, mine]", None, "v2", False),
        ("injectSchedulerName: false", None, None, None),
        ("injectSchedulerName: false", "default-scheduler", "default-scheduler", None),
    ],
)
def test_a_pod_without_a_scheduler_gets_its_own(
    integration: Integration, section: str, given: str | None, stored: str | None, warned: bool | None
) -> None:
    """Whether the default scheduler is warned of, where it is left, differs."""
    names = {"its own": integration.scheduler}
    admitted = integration.env(section).admit(integration.pod(schedulerName=names.get(given, given) if given else ""))
    assert admitted.scheduler == (stored and names.get(stored, stored))
    if warned is not None:
        assert admitted.codes == [f"{integration.key}/scheduler"] * warned


@every_integration
def test_a_pod_with_hamis_resources_goes_to_hamis_scheduler(integration: Integration) -> None:
    mixed = integration.pod(container("a", **integration.limits), container("b", **{GPU: 1}))
    assert integration.env("mixedNameSets: warn").admit(mixed).scheduler == "hami-scheduler"


def test_the_second_of_two_schedulers_takes_no_pod_from_the_first() -> None:
    """Volcano comes first, whether or not it writes its name."""
    volcano, koordinator = BOTH
    both = container("a", **volcano.limits), container("b", **koordinator.limits)
    vendors = configured("volcano: {injectSchedulerName: false}\nkoordinator: {}")
    env = SchedulersEnv(koordinator.env().nodes, vendors)
    env.state.set_device("n2", device("n2", [card(0)]))
    assert env.admit(koordinator.pod()).scheduler == koordinator.scheduler
    assert env.admit(koordinator.pod(*both)).scheduler is None


@every_integration
def test_what_only_its_scheduler_may_write_is_removed_and_the_log_says_so(
    integration: Integration, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "hami_webhook.admission.handler")
    written = dict.fromkeys(integration.owned, "x")
    assert integration.env().admit(integration.pod(notes={**written, "mine": "x"})).notes == {"mine": "x"}
    removed = [text.partition(": ")[2] for text in caplog.messages if "removed" in text]
    assert removed == [f"annotation {key} removed: only the scheduler writes it" for key in integration.owned]


@every_integration
@pytest.mark.parametrize(("level", "stored"), [(0, "0"), ("1", "1")])
def test_priority_becomes_a_variable_unless_that_is_there(integration: Integration, level: object, stored: str) -> None:
    """Volcano's example 10. NVIDIA's own rules, which would set others, leave the pod alone."""
    made = container(
        "main", requests={**integration.limits, PRIORITY: level}, **{**integration.limits, PRIORITY: level}
    )
    admitted = integration.env(nvidia="overwriteEnv: true").admit(integration.pod(made))
    assert PRIORITY not in {**admitted.limits(), **admitted.requests()}
    assert admitted.env() == {VARIABLE: stored}
    limited = container("main", env=[{"name": VARIABLE, "value": "9"}], **{**integration.limits, PRIORITY: level})
    assert integration.env().admit(integration.pod(limited)).env() == {VARIABLE: "9"}


@every_integration
@pytest.mark.parametrize("level", [2, -1, "x", "0.5"])
def test_other_priorities_are_refused_with_what_orders_queues(integration: Integration, level: object) -> None:
    message = integration.env().refusal(integration.pod(container("main", **{**integration.limits, PRIORITY: level})))
    assert f"invalid {PRIORITY} value {level} in container main" in message
    assert all(word in message for word in integration.orders_queues_by)
