"""The templates that the controller makes for pods whose limits became claims (docs/spec/dra.md#8)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest
from builders import JSON, container, pod
from dra.objects import HAMI, exactly
from quota.objects import claiming_vendors
from replicas import events_of
from virtual_time import in_virtual_time

from hami_webhook.assembly import Core
from hami_webhook.cluster.api import Conflict, Invalid, Kind
from hami_webhook.cluster.memory import MemoryCluster
from hami_webhook.config.drivers import DriverDevices
from hami_webhook.controller import claim_templates
from hami_webhook.controller.claim_templates import ClaimTemplates
from hami_webhook.core_options import Options
from hami_webhook.dra import claim_templates as form
from hami_webhook.kube.objects import Namespace, Pod

NOW = 1_767_225_600.0
REQUEST = form.Devices(HAMI, 1, capacity=form.Capacity({"memory": "5Mi", "cores": "0"}))
SPEC = form.TemplateSpec(form.DevicesClaim((form.DevicesRequest("cards-0", REQUEST),)))
TEMPLATES, TEAM = Kind.RESOURCE_CLAIM_TEMPLATES, "team-a"


def spec_of(mebibytes: int) -> form.TemplateSpec:
    request = msgspec.structs.replace(REQUEST, capacity=form.Capacity({"memory": f"{mebibytes}Mi", "cores": "0"}))
    return form.TemplateSpec(form.DevicesClaim((form.DevicesRequest("cards-0", request),)))


class Env:
    """A namespace, and who makes its templates."""

    def __init__(self, mode: str = form.CONVERT, **labels: str) -> None:
        self.now = NOW
        self.cluster = MemoryCluster(lambda: self.now)
        self.core = Core(self.cluster, claiming_vendors(), Options(), clock=lambda: self.now)
        self.core.caches.set_namespace(Namespace(TEAM, {f"hami.io/{key}": value for key, value in labels.items()}, {}))
        self.templates = ClaimTemplates(self.cluster, self.core.view, mode, events_of(self.core), self.core.failures)

    async def put(self, kind: Kind, obj: JSON) -> None:
        if kind is TEMPLATES:
            obj = await self.cluster.create(kind, obj)
        self.notify(kind, self.core.caches.put(kind, obj))

    def drop(self, kind: Kind, obj: JSON) -> None:
        self.notify(kind, self.core.caches.drop(kind, obj))

    def notify(self, kind: Kind, change: Any) -> None:
        self.templates.subscriptions()[kind](change)

    async def after(self, seconds: float = 0) -> list[str]:
        """The templates that there are when time has passed, all of which the cache shows."""
        self.now += seconds
        await self.templates.step()
        found = self.cluster.peek_all(TEMPLATES, TEAM)
        for each in found:
            self.core.caches.put(TEMPLATES, each)
        return [each["metadata"]["name"] for each in found]

    @property
    def events(self) -> list[str]:
        return [event.note.message for event in self.cluster.events]


async def env(mode: str = form.CONVERT, **labels: str) -> Env:
    found = Env(mode, **labels)
    await found.cluster.ensure_namespace(TEAM)
    return found


def converted(name: str = "p", spec: form.TemplateSpec = SPEC, annotation: str | None = None, **fields: Any) -> JSON:
    """A pod with a claim of this template."""
    claims = [{"name": "hami-0", "resourceClaimTemplateName": spec.name}]
    text = form.annotation_of([spec]) if annotation is None else annotation
    notes = {form.TEMPLATE_SPECS: text}
    more = {"namespace": TEAM, "uid": f"uid-{name}", "annotations": notes, "resourceClaims": claims}
    return pod(name, container(), **{**more, **fields})


async def test_a_template_is_made_once_and_goes_a_while_after_its_last_pod() -> None:
    found = await env()
    await found.put(Kind.PODS, converted("a"))
    await found.put(Kind.PODS, converted("b"))
    assert await found.after() == [SPEC.name]
    (made,) = found.cluster.peek_all(TEMPLATES, TEAM)
    assert made["spec"]["spec"]["devices"]["requests"][0]["exactly"]["capacity"]["requests"]["memory"] == "5Mi"
    found.drop(Kind.PODS, converted("a"))
    assert await found.after(100) == [SPEC.name]
    await found.put(Kind.PODS, converted("b", status={"phase": "Succeeded"}))
    assert await found.after() == [SPEC.name]
    # another one that comes meanwhile keeps it
    await found.put(Kind.PODS, converted("c"))
    assert await found.after(100) == [SPEC.name]
    found.drop(Kind.PODS, converted("c"))
    await found.after()
    assert await found.after(59) == [SPEC.name]
    assert await found.after(1) == []
    assert found.events == []


async def test_a_template_that_is_deleted_under_a_waiting_pod_is_made_anew() -> None:
    found = await env()
    await found.put(Kind.PODS, converted())
    await found.after()
    for status, expected in ({}, [SPEC.name]), (_claimed(), []):
        await found.put(Kind.PODS, converted(status=status))
        (made,) = found.cluster.peek_all(TEMPLATES, TEAM)
        await found.cluster.delete(TEMPLATES, SPEC.name, TEAM)
        found.drop(TEMPLATES, made)
        assert await found.after() == expected


def _claimed() -> JSON:
    return {"resourceClaimStatuses": [{"name": "hami-0", "resourceClaimName": "p-hami-0-x"}]}


@pytest.mark.parametrize(
    ("mode", "labels", "made"),
    [
        (form.OFF, {"claims": "convert"}, False),
        (form.LABELLED, {}, False),
        (form.LABELLED, {"claims": "convert"}, True),
        (form.CONVERT, {"claims": "off"}, False),
    ],
)
async def test_templates_are_made_where_limits_become_claims(mode: str, labels: dict[str, str], made: bool) -> None:
    found = await env(mode, **labels)
    if found.templates.enabled:
        await found.put(Kind.PODS, converted())
    assert bool(await found.after()) == made
    assert found.templates.enabled == (mode != form.OFF)


BY_HAND = {"name": "c", "resourceClaimTemplateName": "t"}


@pytest.mark.parametrize(
    "obj",
    [
        converted(annotation=f'{{"{SPEC.name}": {{"devices": {{"requests": []}}}}}}'),
        converted(annotation="{"),
        pod("p", container(), namespace=TEAM, uid="u", resourceClaims=[BY_HAND]),
        pod("p", container(gpu=1), namespace=TEAM, uid="u"),
    ],
    ids=["forged", "unreadable", "somebody else's", "limits"],
)
async def test_nothing_is_made_for_other_pods(obj: JSON) -> None:
    found = await env()
    await found.put(Kind.PODS, obj)
    assert await found.after() == []
    assert found.cluster.peek_all(TEMPLATES, TEAM) == []
    assert found.events == []


class Flooded(Env):
    """A namespace with 100 templates to be made, which take 0.5 s each, and others with a pod each."""

    refusing = False

    async def flood(self, others: list[str]) -> None:
        loop = asyncio.get_running_loop()
        self.asked: list[float] = []
        self.made: dict[str, float] = {}
        create = self.cluster.create

        async def slow(kind: Kind, obj: JSON) -> JSON:
            self.now = NOW + loop.time()
            space = obj["metadata"]["namespace"]
            if space == TEAM:
                self.asked.append(loop.time())
                await asyncio.sleep(0.5)
                if self.refusing:
                    raise Conflict("busy")
            made = await create(kind, obj)
            self.made[space] = loop.time()
            return made

        self.core = Core(self.cluster, claiming_vendors(), Options(), clock=lambda: NOW + loop.time())
        self.templates = ClaimTemplates(
            self.cluster, self.core.view, form.CONVERT, events_of(self.core), self.core.failures
        )
        for space in (TEAM, *others):
            await self.cluster.ensure_namespace(space)
            self.core.caches.set_namespace(Namespace(space, {}, {}))
        self.cluster.create = slow  # type: ignore[method-assign]  # a slow API server
        for number in range(100):
            await self.put(Kind.PODS, converted(f"p{number}", spec_of(number + 1)))
        running = asyncio.create_task(self.templates.run())
        await asyncio.sleep(1.2)
        for space in others:
            await self.put(Kind.PODS, converted("ordinary", namespace=space, uid=f"uid-{space}"))
        await asyncio.sleep(60)
        running.cancel()


@in_virtual_time
async def test_very_many_slow_templates_of_one_namespace_hold_no_other_one_up() -> None:
    found, others = Flooded(), [f"team-{number}" for number in range(30)]
    await found.flood(others)
    assert {space: found.made[space] for space in others} == dict.fromkeys(others, 1.2)
    assert len(found.cluster.peek_all(TEMPLATES, TEAM)) == 100


@in_virtual_time
async def test_a_namespace_whose_templates_are_refused_is_tried_every_few_seconds_and_holds_no_other_one_up() -> None:
    found = Flooded()
    found.refusing = True
    await found.flood(["team-z"])
    assert found.made == {"team-z": 1.2}
    assert found.asked == [pytest.approx(5.5 * number) for number in range(12)]
    names = [event.note.name for event in found.cluster.events]
    assert len(names) == len(set(names)) == 12, "each in its turn"


async def test_what_very_many_pods_declare_of_a_template_is_read_once_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them wait for one that none declares, and it is looked at with each change of one of them."""
    found, read = await env(), Counter[str]()

    def declared(pod: Pod, rows: Sequence[DriverDevices]) -> Mapping[str, form.TemplateSpec]:
        read[pod.name] += 1
        return form.declared_templates(pod, rows)

    monkeypatch.setattr(claim_templates, "declared_templates", declared)
    names = [f"p{number}" for number in range(20)]
    for name in names:
        await found.put(Kind.PODS, converted(name, annotation="{}"))
        assert await found.after() == []
    assert read == dict.fromkeys(names, 1)


async def test_somebody_elses_template_of_the_name_is_left_alone_and_said() -> None:
    found = await env()
    spec = {"spec": {"devices": {"requests": [{"name": "r", "exactly": exactly(memory="9Gi")}]}}}
    theirs = {"metadata": {"name": SPEC.name, "namespace": TEAM}, "spec": spec}
    await found.put(TEMPLATES, theirs)
    await found.put(Kind.PODS, converted())
    assert await found.after() == [SPEC.name]
    (event,) = found.events
    assert event.startswith(f"ResourceClaimTemplate {SPEC.name} isn't ours and requests other amounts")
    found.drop(Kind.PODS, converted())
    await found.after()
    assert await found.after(100) == [SPEC.name]


async def test_the_same_with_the_api_servers_defaults_is_no_other() -> None:
    found = await env()
    await found.put(Kind.PODS, converted())
    await found.after()
    (made,) = found.cluster.peek_all(TEMPLATES, TEAM)
    made["spec"]["spec"]["devices"]["requests"][0]["exactly"]["allocationMode"] = "ExactCount"
    found.core.caches.put(TEMPLATES, made)
    await found.put(Kind.PODS, converted("q"))
    await found.after()
    assert found.events == []


async def test_what_the_api_server_refuses_is_said_and_what_fails_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = await env()
    create = found.cluster.create
    failures: list[Exception] = [Invalid("spec is invalid"), Conflict("busy")]

    async def failing(kind: Kind, obj: JSON) -> JSON:
        if failures:
            raise failures.pop(0)
        return await create(kind, obj)

    monkeypatch.setattr(found.cluster, "create", failing)
    await found.put(Kind.PODS, converted())
    assert await found.after() == []
    assert found.events == [f"ResourceClaimTemplate {SPEC.name} can't be made for its limits: spec is invalid"]
    await found.put(Kind.PODS, converted())
    assert await found.after() == []
    assert await found.after(5) == [SPEC.name]
