"""Webhook configurations that somebody edited, on the embedded cluster."""

from __future__ import annotations

import asyncio
import copy
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import yaml

from hami_webhook.cluster.api import JSON, Forbidden, Kind, Unavailable
from hami_webhook.cluster.memory import MemoryCluster
from hami_webhook.cluster.object_events import ObjectEvents
from hami_webhook.controller.match_conditions import match_conditions
from hami_webhook.controller.webhooks import WebhookReconciler
from hami_webhook.device_config import builtin_device_config, enabled_vendors, load_device_config
from hami_webhook.devices.registry import Vendors

NAME = "hami-webhook-admission"
MANIFEST = Path(__file__).parents[2] / "manifests" / "base" / "webhooks.yaml"
BUILTIN = enabled_vendors(builtin_device_config().config)
RENAMED = enabled_vendors(load_device_config("nvidia: {resourceCountName: hami.io/gpu}", "renamed").config)
MUTATING, VALIDATING = Kind.MUTATING_WEBHOOKS, Kind.VALIDATING_WEBHOOKS
DIFFER = "differ from those of the device configuration"


async def always() -> bool:
    return True


class WebhooksEnv:
    """A cluster with both configurations as rendered, and the leader with a device configuration."""

    def __init__(self, vendors: Vendors = BUILTIN) -> None:
        self.cluster = MemoryCluster(lambda: 1_767_225_600.0)
        self.counts: Counter[str] = Counter()
        self.reconciler = self.leader_with(vendors, always)

    def leader_with(self, vendors: Vendors, leads: Callable[[], Awaitable[bool]]) -> WebhookReconciler:
        events = ObjectEvents(self.cluster, self.counts)
        return WebhookReconciler(self.cluster, NAME, vendors, events, leads)

    async def install(self, *kinds: Kind) -> None:
        for kind, configuration in zip((MUTATING, VALIDATING), yaml.safe_load_all(MANIFEST.read_text()), strict=True):
            if kind in (kinds or (MUTATING, VALIDATING)):
                await self.cluster.create(kind, configuration)

    async def webhooks(self, kind: Kind) -> dict[str, JSON]:
        found = copy.deepcopy(await self.cluster.get(kind, NAME))
        return {hook["name"]: hook for hook in found["webhooks"]}

    async def edit(self, kind: Kind, edit: Callable[[dict[str, JSON]], object]) -> None:
        """Change a configuration's webhooks by name, as `kubectl edit` does."""
        hooks = await self.webhooks(kind)
        edit(hooks)
        await self.cluster.patch(kind, NAME, {"webhooks": list(hooks.values())})

    def events(self) -> list[tuple[str, str, str]]:
        return [(event.note.kind, event.note.reason, event.note.message) for event in self.cluster.events]


def opened(hooks: dict[str, JSON]) -> None:
    """Let every pod pass the guard."""
    hooks["guard.webhook.hami.io"]["matchConditions"] = [{"name": "never", "expression": "false"}]


async def test_what_is_as_rendered_is_left_alone() -> None:
    env = WebhooksEnv()
    await env.install()
    before = [await env.cluster.get(kind, NAME) for kind in (MUTATING, VALIDATING)]
    assert await env.reconciler.reconcile()
    assert [await env.cluster.get(kind, NAME) for kind in (MUTATING, VALIDATING)] == before
    assert env.events() == []
    assert env.reconciler.problem == ""


async def test_conditions_follow_the_device_configuration_and_nothing_else_changes() -> None:
    env = WebhooksEnv(RENAMED)
    await env.install()
    other = {"name": "other.example", "matchConditions": [{"name": "mine", "expression": "true"}]}
    await env.edit(VALIDATING, lambda hooks: hooks.update(other=other))
    before = await env.webhooks(VALIDATING)
    await env.reconciler.reconcile()
    after = await env.webhooks(VALIDATING)
    incoming = [name for name, hook in after.items() if "'hami.io/gpu'" in str(hook["matchConditions"])]
    assert incoming == [f"{name}.webhook.hami.io" for name in ("validate", "amounts", "policy", "names")]
    for name in match_conditions(RENAMED).keys() & after.keys():
        before[name]["matchConditions"] = after[name]["matchConditions"]
    assert after == before
    assert "'hami.io/gpu'" in str((await env.webhooks(MUTATING))["mutate.webhook.hami.io"]["matchConditions"])
    assert await env.reconciler.reconcile()
    assert env.reconciler.problem == ""


async def test_an_edited_condition_is_put_right_with_an_event_each_time() -> None:
    env = WebhooksEnv()
    await env.install()
    for times in (1, 2):
        await env.edit(VALIDATING, opened)
        await env.reconciler.reconcile()
        (hook,) = [hook for name, hook in (await env.webhooks(VALIDATING)).items() if name.startswith("guard")]
        assert [condition["name"] for condition in hook["matchConditions"]] == ["changes-an-allocation"]
        message = f"matchConditions of guard.webhook.hami.io {DIFFER}, and were corrected"
        assert env.events() == [("ValidatingWebhookConfiguration", "WebhookConditionsMended", message)]
        assert env.counts == {"WebhookConditionsMended": times}
        await env.reconciler.reconcile()
    assert env.reconciler.problem == ""


async def test_without_the_right_to_patch_it_says_what_differs() -> None:
    env = WebhooksEnv()
    await env.install()
    await env.edit(VALIDATING, opened)

    async def forbid(step: str) -> None:
        if step == "patch:before":
            raise Forbidden("may not patch")

    env.cluster.pause = forbid
    for _ in range(2):
        assert await env.reconciler.reconcile()
        subject = f"ValidatingWebhookConfiguration {NAME}"
        problem = f"{subject}: matchConditions of guard.webhook.hami.io {DIFFER}, and can't be corrected: may not patch"
        assert env.reconciler.problem == problem
        assert env.reconciler.problems == 1
        assert env.events() == [("ValidatingWebhookConfiguration", "WebhookConditionsDiffer", problem)]
        assert env.counts == {"WebhookConditionsDiffer": 1}
    env.cluster.pause = None
    await env.reconciler.reconcile()
    assert (env.reconciler.problem, env.reconciler.problems) == ("", 0)


async def test_without_the_right_to_read_it_says_so() -> None:
    env = WebhooksEnv()

    async def forbid(step: str) -> None:
        if step == "get:before":
            raise Forbidden("may not get")

    env.cluster.pause = forbid
    await env.reconciler.reconcile()
    assert env.reconciler.problems == 2
    said = f"WebhookConfiguration {NAME} can't be compared with the device configuration: may not get"
    assert env.reconciler.problem == f"Mutating{said}; Validating{said}"
    assert {reason for _, reason, _ in env.events()} == {"WebhookConditionsUnknown"}


async def test_configurations_that_are_not_there_are_no_problem() -> None:
    env = WebhooksEnv(RENAMED)
    await env.install(VALIDATING)
    await env.reconciler.reconcile()
    assert env.reconciler.problem == ""
    assert "'hami.io/gpu'" in str(await env.webhooks(VALIDATING))


async def test_the_webhook_that_only_warns_may_fail_open() -> None:
    hooks = list(yaml.safe_load_all(MANIFEST.read_text()))[1]["webhooks"]
    (quotas,) = (hook for hook in hooks if hook["rules"][0]["resources"] == ["resourcequotas"])
    assert quotas["failurePolicy"] == "Ignore"
    env = WebhooksEnv()
    await env.install()
    await env.edit(VALIDATING, lambda hooks: hooks.pop(quotas["name"]))
    await env.reconciler.reconcile()
    message = "quotas.webhook.hami.io missing: apply the manifests again"
    assert env.events() == [("ValidatingWebhookConfiguration", "WebhookConfigurationEdited", message)]


async def test_other_edits_are_reported_and_left() -> None:
    env = WebhooksEnv()
    await env.install()

    def edit(hooks: dict[str, JSON]) -> None:
        del hooks["guard.webhook.hami.io"]
        hooks["validate.webhook.hami.io"]["failurePolicy"] = "Ignore"

    await env.edit(VALIDATING, edit)
    before = await env.webhooks(VALIDATING)
    await env.reconciler.reconcile()
    await env.reconciler.reconcile()
    assert await env.webhooks(VALIDATING) == before
    message = (
        "guard.webhook.hami.io missing: apply the manifests again; failurePolicy of validate.webhook.hami.io is "
        "Ignore: pods pass without a charge while no replica answers"
    )
    assert env.events() == [("ValidatingWebhookConfiguration", "WebhookConfigurationEdited", message)]


@pytest.mark.parametrize(
    "edit",
    [
        lambda rule: rule["operations"].remove("UPDATE"),
        lambda rule: rule["resources"].remove("pods/status"),
        lambda rule: rule.update(resources=["pods", "pods/status", "pods/log"]),
        lambda rule: rule.update(apiVersions=["v2"]),
        lambda rule: rule.update(scope="Cluster"),
    ],
)
async def test_edited_rules_are_reported_and_left(edit: Callable[[JSON], None]) -> None:
    env = WebhooksEnv()
    await env.install()
    await env.edit(VALIDATING, lambda hooks: edit(hooks["guard.webhook.hami.io"]["rules"][0]))
    before = await env.webhooks(VALIDATING)
    await env.reconciler.reconcile()
    assert await env.webhooks(VALIDATING) == before
    message = (
        "rules of guard.webhook.hami.io aren't those of the manifests: requests that they leave out aren't reviewed"
    )
    assert env.events() == [("ValidatingWebhookConfiguration", "WebhookConfigurationEdited", message)]


async def test_rules_written_in_another_way_are_the_same() -> None:
    env = WebhooksEnv()
    await env.install()

    def split(hooks: dict[str, JSON]) -> None:
        (rule,) = hooks["guard.webhook.hami.io"]["rules"]
        hooks["guard.webhook.hami.io"]["rules"] = [{**rule, "resources": [name]} for name in rule["resources"]]

    await env.edit(VALIDATING, split)
    await env.reconciler.reconcile()
    assert env.events() == []


async def test_somebody_else_s_write_meanwhile_is_kept() -> None:
    env = WebhooksEnv()
    await env.install()
    await env.edit(VALIDATING, opened)

    def bundle(hooks: dict[str, JSON]) -> None:
        for hook in hooks.values():
            hook["clientConfig"]["caBundle"] = "bmV3"

    async def write(step: str) -> None:
        if step == "patch:before":
            env.cluster.pause = None
            await env.edit(VALIDATING, bundle)

    env.cluster.pause = write
    assert not await env.reconciler.reconcile()
    assert await env.reconciler.reconcile()
    hooks = (await env.webhooks(VALIDATING)).values()
    assert {hook["clientConfig"]["caBundle"] for hook in hooks} == {"bmV3"}
    assert env.counts == {"WebhookConditionsMended": 1}


async def test_who_lost_the_lease_meanwhile_leaves_what_its_successor_wrote() -> None:
    """A process with the configuration of before, which stood still until now."""
    env = WebhooksEnv(RENAMED)
    await env.install()
    await env.reconciler.reconcile()
    written = await env.webhooks(VALIDATING)

    async def lost() -> bool:
        return False

    former = env.leader_with(BUILTIN, lost)
    assert await former.reconcile()
    assert await env.webhooks(VALIDATING) == written
    assert former.problem == ""


async def test_who_can_not_read_the_lease_writes_nothing() -> None:
    env = WebhooksEnv()
    await env.install()
    await env.edit(VALIDATING, opened)

    async def unknown() -> bool:
        raise Unavailable("down")

    await env.leader_with(BUILTIN, unknown).reconcile()
    assert (await env.webhooks(VALIDATING))["guard.webhook.hami.io"]["matchConditions"][0]["name"] == "never"
    await env.reconciler.reconcile()
    assert (await env.webhooks(VALIDATING))["guard.webhook.hami.io"]["matchConditions"][0]["name"] != "never"


async def test_a_cluster_that_does_not_answer_ends_nothing() -> None:
    env = WebhooksEnv()
    await env.install()
    await env.edit(VALIDATING, opened)
    pauses = []

    async def fail(step: str) -> None:
        if step == "get:before":
            raise Unavailable("down")

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        env.cluster.pause = None
        if len(pauses) == 3:
            raise asyncio.CancelledError

    env.cluster.pause = fail
    with pytest.raises(asyncio.CancelledError):
        await env.reconciler.lead(sleep)
    assert pauses == [10.0, 10.0, 10.0]
    assert env.counts == {"WebhookConditionsMended": 1}


async def test_without_a_name_none_are_looked_at() -> None:
    env = WebhooksEnv()
    await env.install()
    await env.edit(VALIDATING, opened)
    reconciler = WebhookReconciler(env.cluster, "", BUILTIN, ObjectEvents(env.cluster, env.counts), always)
    await asyncio.wait_for(reconciler.lead(), 5)
    assert (reconciler.problem, env.events()) == ("", [])
    assert (await env.webhooks(VALIDATING))["guard.webhook.hami.io"]["matchConditions"][0]["name"] == "never"
