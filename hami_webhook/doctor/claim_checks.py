"""Checks of what charging ResourceClaims needs, where it is turned on (docs/dra.md)."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable, Iterator

from hami_webhook.cluster.api import Kind
from hami_webhook.cluster.version import minor_version
from hami_webhook.controller.informers import OF_CLAIMS
from hami_webhook.controller.webhooks import webhooks_of
from hami_webhook.doctor.facts import Facts, Finding
from hami_webhook.doctor.process_checks import filtered_profile
from hami_webhook.dra.claim_templates import OFF
from hami_webhook.dra.cost import DeviceInventory
from hami_webhook.dra.devices import DeviceModel
from hami_webhook.dra.selectors import selected
from hami_webhook.dra.taken_resources import FILTER, taken_resources

_STATUS = "resourceclaims/status"


_GATE = "DRAConsumableCapacity"


async def claims(facts: Facts) -> AsyncIterator[Finding]:
    """Claims can be charged: their API, their reviews, drivers, classes and slices."""
    async for finding in _conversion(facts):
        yield finding
    if not facts.effective.charges_claims:
        return
    if await facts.get(f"/apis/{Kind.RESOURCE_CLAIMS.api_version}") is None:
        fault = f"doesn't serve {Kind.RESOURCE_CLAIMS.api_version}, so claims aren't charged"
        remedy = "upgrade Kubernetes to 1.34 or newer, or set dra.enabled: false in the device configuration"
        yield Finding("the API server", fault, remedy)
        return
    async for finding in _reviews(facts):
        yield finding
    facts.require(*OF_CLAIMS)
    inventory = facts.view.caches.claims.inventory
    async for finding in _scheduler(facts, inventory):
        yield finding
    for finding in (*_drivers(inventory), *_classes(facts, inventory), *_slices(inventory)):
        yield finding


async def device_classes(facts: Facts) -> AsyncIterator[Finding]:
    """Classes that take a resource which pods ask for by limits, whether claims are charged or not."""
    facts.require(Kind.DEVICE_CLASSES)
    found = taken_resources(facts.view.caches.claims.classes, facts.effective.vendors.resource_names)
    looking = await filtered_profile(facts) if found else ""
    for name, resource in sorted(found.items()):
        fault = f"takes {resource} by extendedResourceName, which pods request by limits: they get no claim of it"
        remedy = "remove its extendedResourceName"
        if looking:
            fault += f", and {looking} places none that name memory or cores of cards: its filter {FILTER} is on"
            remedy += ", or disable this filter in the profile, as our manifests do (docs/dra.md)"
        yield Finding(f"DeviceClass {name}", fault, remedy)


async def _conversion(facts: Facts) -> AsyncIterator[Finding]:
    """That limits which the webhook makes claims of get their templates from the controller."""
    processes = [(role, await facts.process(role)) for role in ("webhook", "controller")]
    modes = {role: process.settings.claims for role, process in processes if process is not None}
    if len(set(modes.values())) > 1:
        shown = ", ".join(f"{mode} for the {role}" for role, mode in modes.items())
        fault = f"differs between the two: {shown}; pods may wait for templates that nobody creates"
        yield Finding("--claims", fault, "give both Deployments the same value, as the component conversion does")
    elif set(modes.values()) - {OFF} and not facts.effective.charges_claims:
        fault = "is on, but claims aren't charged, so limits stay limits"
        yield Finding("--claims", fault, "set dra.enabled: true in the device configuration (docs/dra.md)")
    elif set(modes.values()) - {OFF} and not facts.effective.vendors.converting:
        fault = "is on, but no row of dra.devices converts, so limits stay limits"
        yield Finding("--claims", fault, "set convert: true in a row that has memory (docs/dra.md)")


async def _reviews(facts: Facts) -> AsyncIterator[Finding]:
    """That allocations are sent to us; of the manifests' configuration `webhook-configurations` says what it lacks."""
    process = await facts.process("webhook")
    if process is None or process.settings.webhook_configuration:
        return
    found = await facts.items("/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations")
    rules = (
        rule
        for configuration in found
        for hook in webhooks_of(configuration)
        if ((hook.get("clientConfig") or {}).get("service") or {}).get("path") == "/claims"
        for rule in hook.get("rules") or ()
    )
    if not any(_STATUS in (rule.get("resources") or ()) for rule in rules):
        fault = f"no webhook is asked about {_STATUS}: allocations aren't charged before they are stored"
        yield Finding("ValidatingWebhookConfigurations", fault, "apply manifests/in-hami-chart/claims.yaml")


async def _scheduler(facts: Facts, inventory: DeviceInventory) -> AsyncIterator[Finding]:
    """That no claim makes kube-scheduler panic, which is as old as the API server, or older."""
    shared = any(device.model.shared for device in inventory.devices.all)
    if shared and minor_version(await facts.api.version()) == (1, 34):
        fault = "is Kubernetes 1.34, whose kube-scheduler panics at a claim for more shared devices than a slice has"
        remedy = "upgrade to 1.36 or newer, or close namespaces to claims (docs/dra.md)"
        yield Finding("the API server", fault, remedy)


def _drivers(inventory: DeviceInventory) -> Iterator[Finding]:
    """Drivers whose classes are there and whose devices aren't, or aren't shared."""
    rows = inventory.devices.rows
    published = inventory.devices.all
    installed = {row.driver for row in rows if not inventory.classes.keys().isdisjoint(row.device_classes)}
    installed |= {device.id.driver for device in published}
    if not installed:
        names = ", ".join(sorted({row.driver for row in rows}))
        fault = f"has neither a DeviceClass nor a ResourceSlice of {names}: there is nothing to claim"
        remedy = "install one of these drivers, add yours to dra.devices, or set dra.enabled: false"
        yield Finding("the cluster", fault, remedy)
    for driver in sorted(installed):
        models = {device.model for device in published if device.id.driver == driver}
        if not models:
            fault = "publishes no device in a ResourceSlice: its claims aren't allocated"
            yield Finding(f"driver {driver}", fault, "look at the pods of this driver on the nodes")
        elif any(map(_lacks_sharing, models)):
            fault = "has devices that aren't shared, though it publishes shares of cores: each is given away whole"
            remedy = f"on Kubernetes 1.34 and 1.35 set the feature gate {_GATE} on the API server and kube-scheduler"
            yield Finding(f"driver {driver}", fault, f"{remedy}, then restart the driver")


def _lacks_sharing(model: DeviceModel) -> bool:
    """Whether a device would be shared, but isn't: an API server without the gate drops the field."""
    return not model.shared and bool(model.row.cores) and model.qualified(model.row.cores) in model.capacity


def _classes(facts: Facts, inventory: DeviceInventory) -> Iterator[Finding]:
    """Classes that select our drivers' devices and that no row names."""
    named = {name for row in inventory.devices.rows for name in row.device_classes}
    for name in sorted(facts.view.caches.claims.classes):
        drivers = () if name in named else _drivers_of(inventory, inventory.classes[name])
        if drivers:
            fault = f"selects devices of {', '.join(drivers)}, and no row of dra.devices names it"
            fault += ": claims for it are charged when they are allocated, not when they are created"
            remedy = "add it to deviceClasses of a row of dra.devices in the device configuration"
            yield Finding(f"DeviceClass {name}", fault, remedy)


def _drivers_of(inventory: DeviceInventory, expressions: Iterable[str]) -> list[str]:
    """The drivers that a class names and whose devices it selects: what can't be evaluated counts as selected."""
    expressions = list(expressions)
    devices = selected(inventory.devices.all, expressions, seconds=1.0, clock=time.monotonic)
    found = {device.id.driver for device in devices}
    return sorted(driver for driver in found if any(driver in expression for expression in expressions))


def _slices(inventory: DeviceInventory) -> Iterator[Finding]:
    unpriced = ((each.driver, kind) for each in inventory.devices.slices() for kind in each.unpriced.values())
    for driver, kind in sorted(set(unpriced)):
        devices = f"devices of type {kind}" if kind else "devices without a type"
        fault = f"publishes {devices}, which no row of dra.devices prices: under a quota no claim gets one"
        yield Finding(f"driver {driver}", fault, "add a row for them to dra.devices in the device configuration")
    for name, text in sorted(inventory.devices.problems.items()):
        remedy = "restart its driver on that node; if it stays so, report it to the driver's makers"
        if name in inventory.devices.of_others:
            remedy = "delete it, and find its writer on the node: a driver names its pools after its node"
        yield Finding(f"ResourceSlice {name}", text, remedy)
