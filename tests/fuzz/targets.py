"""What reads input from outside: each target is a function of bytes, which checks what must hold for any of them.

The inputs that are kept are in `corpus/`, a folder for each target.
"""

from __future__ import annotations

import asyncio
import base64
import json
import struct
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from datetime import UTC, datetime
from typing import Any

import jsonpatch
import orjson
from admission.clusters import FULL, NOW, core_on, quota_cluster
from builders import card, node, pod
from devices.fit_env import CHART
from prometheus_client import CollectorRegistry
from scheduling.extender_env import ExtenderEnv

from hami_webhook import pki
from hami_webhook.cluster.loading import LoadError, load_objects
from hami_webhook.config import ConfigError
from hami_webhook.config.drivers import DraSection
from hami_webhook.device_config import enabled_vendors, load_device_config
from hami_webhook.devices.codecs import BadAnnotation, decode_pair_scores, decode_pod_devices, encode_pod_devices
from hami_webhook.devices.model import RegistrationError
from hami_webhook.devices.unhealthy_cards import decode, encode
from hami_webhook.devices.vendor import Vendor
from hami_webhook.dra.allocation import allocated
from hami_webhook.dra.cost import DeviceInventory, cost_of
from hami_webhook.dra.devices import PublishedDevices
from hami_webhook.integrations.koordinator.device_object import read_cards
from hami_webhook.kube import wire
from hami_webhook.kube.claims_wire import ResourceClaim, ResourceSlice
from hami_webhook.kube.objects import Node, Pod, ResourceQuota, checked_device
from hami_webhook.kube.quantity import Quantity, QuantityError, is_binary, parse_whole
from hami_webhook.kube.wire import MalformedObject
from hami_webhook.node.region import LARGEST, MOST_DEVICES, V1_2, BadRegion, read_region
from hami_webhook.policy.file import PolicyFile
from hami_webhook.quota import ledger
from hami_webhook.quota.accelerator_quota import read_accelerator_quota
from hami_webhook.quota.account import QuotaAccount
from hami_webhook.quota.lending import lending_faults, min_runtime
from hami_webhook.quota.pricing import charge_of
from hami_webhook.server.app import application, review_routes
from hami_webhook.server.extender_app import ExtenderApp
from hami_webhook.server.limits import ListenerLimits
from hami_webhook.server.request_metrics import RequestMetrics
from hami_webhook.simulate.manifests import pods_of
from hami_webhook.simulate.workload_file import parse_workload_table
from hami_webhook.state.cluster_cache import ClusterCache

JSON = dict[str, Any]
LONGEST_SENTENCE = 1000
"""Characters of a refusal: it goes into events, logs and answers, whatever size the input has."""
EXTENDER_PATHS = ("/filter", "/filter-simulation", "/prioritize", "/bind", "/preempt")
REVIEW_PATHS = ("/mutate", "/validate", "/webhook", "/templates", *(WARNING_PATHS := ("/quotas", "/names")))


def check_sentence(text: str) -> None:
    assert text.strip(), "a refusal without a sentence"
    assert len(text) <= LONGEST_SENTENCE, f"{len(text)} characters: {text[:100]}"


def _text(data: bytes) -> str:
    return data.decode(errors="replace")


def _json(data: bytes) -> Any:
    """What a client's decoder makes of it before ours sees it; None for what isn't JSON."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return None


def _named(data: bytes) -> Any:
    """An object as the API server may send it: whatever is in it, it has a name."""
    found = _json(data)
    found = found if isinstance(found, dict) else {}
    meta = found.get("metadata")
    return {**found, "metadata": {**(meta if isinstance(meta, dict) else {}), "name": "n"}}


async def _post(app: Callable[..., Awaitable[None]], path: str, body: bytes) -> tuple[int, bytes]:
    """The status and the content that an ASGI application answers."""
    sent: list[MutableMapping[str, Any]] = []

    async def receive() -> JSON:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "root_path": "",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))],
        "client": ("127.0.0.1", 1),
    }
    await app(scope, receive, send)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])


def reviews(data: bytes) -> None:
    """Any body is answered with a review; its patch can be applied; no refusal says that reviewing failed."""

    async def run() -> None:
        registry = CollectorRegistry()
        core = core_on(await quota_cluster(FULL), vendors=CHART)
        app = application(review_routes(core.admission, ListenerLimits(), registry=registry))
        for path in REVIEW_PATHS:
            status, answer = await _post(app, path, data)
            response = orjson.loads(answer)["response"]
            assert status == 200 or (path in WARNING_PATHS and status == 400), (path, status)
            if not response["allowed"]:
                check_sentence(response["status"]["message"])
                assert response["status"]["code"] != 500, (path, response)
            elif "patch" in response and _json(data) is not None:  # fields that nobody reads may hold any number
                operations = orjson.loads(base64.b64decode(response["patch"]))
                # a copy of what is nested as deep as may be read would end in a RecursionError
                jsonpatch.apply_patch(_json(data)["request"]["object"], operations, in_place=True)

    asyncio.run(run())


def extender_bodies(data: bytes) -> None:
    """Any body is answered with 200 or 400; one that can't be used is refused in words."""

    async def run() -> None:
        env = ExtenderEnv("cooperative")
        await env.add(node("n", card("G", 8000)), node("m", card("M", 8000)), pod("p", gpu=1, mem=1000))
        requests = RequestMetrics(CollectorRegistry(), "extender", "extender request")
        app = ExtenderApp(env.extender, ListenerLimits(), requests).application()
        for path in EXTENDER_PATHS:
            status, answer = await _post(app, path, data)
            assert status in (200, 400), (path, status, answer)
            found = orjson.loads(answer) if status == 200 else {}
            if isinstance(found, dict) and found.get("Error"):
                check_sentence(found["Error"])

    asyncio.run(run())


def pods(data: bytes) -> None:
    """A pod is kept or refused in words; what it costs can always be computed."""
    state = _state()
    try:
        read = Pod.from_object(_json(data)).compact()
    except MalformedObject as error:
        return check_sentence(str(error))
    state.set_pod(read, NOW)
    charge_of(read, CHART, state.capacity, NOW, 300.0)
    state.tick(NOW + 1000)
    state.remove_pod(read.uid)
    return _check_state(state)


def nodes(data: bytes) -> None:
    """A node is kept, without the cards that can't be read; or refused in words. Other nodes stay as they are."""
    state = _state()
    try:
        read = Node.from_object(_named(data))
    except MalformedObject as error:
        return check_sentence(str(error))
    state.set_node(read, NOW)
    state.tick(NOW + 1000)
    return _check_state(state)


def _state() -> ClusterCache:
    state = ClusterCache(CHART)
    state.set_node(Node.from_object(node("plain", card("GPU-plain", 8000))), NOW)
    return state


def _check_state(state: ClusterCache) -> None:
    for problem in state.problems():
        check_sentence(problem.text)
    for view in state.views():
        assert view.name
    plain = state.view("plain")
    assert plain is not None
    assert [device.uuid for device in plain.inventories["NVIDIA"].devices] == ["GPU-plain"]


def registrations(data: bytes) -> None:
    """Each vendor reads a registration as its own, or refuses it in words."""
    for vendor in CHART.values():
        if vendor.registration.annotation:
            _check_inventory(vendor, _text(data))


def _check_inventory(vendor: Vendor, text: str) -> None:
    annotations: JSON = {vendor.registration.annotation: text}
    try:
        found = vendor.inventory(Node.from_object(node(capacity={vendor.count_name: 8}, **annotations)))
    except RegistrationError as error:
        return check_sentence(str(error))
    uuids = [device.uuid for device in found.devices] if found is not None else []
    assert len(uuids) == len(set(uuids)), uuids
    return None


def pod_devices(data: bytes) -> None:
    """What is read of an allocation is written and read back the same."""
    try:
        rows = decode_pod_devices(_text(data))
    except BadAnnotation as error:
        return check_sentence(str(error))
    assert all(entry.memory >= 0 and entry.cores >= 0 for row in rows for entry in row)
    again = decode_pod_devices(encode_pod_devices(rows))
    assert again == rows
    return None


def pair_scores(data: bytes) -> None:
    try:
        found = decode_pair_scores(_text(data))
    except RegistrationError as error:
        return check_sentence(str(error))
    assert all(isinstance(score, int) for peers in found.values() for score in peers.values())
    return None


def unhealthy_cards(data: bytes) -> None:
    """What is read of a node's unhealthy cards is written and read back the same, and what is ignored is told."""
    read, problem = decode(_text(data))
    if problem:
        check_sentence(problem)
    for found in read.values():
        check_sentence(found.sentence)
    assert decode(encode(read)) == (read, "")


def quantities(data: bytes) -> None:
    """The canonical text of a quantity is the same quantity, and its own canonical text."""
    text = _text(data)
    try:
        quantity = Quantity.parse(text)
    except QuantityError as error:
        assert parse_whole(text) is None
        assert not is_binary(text)
        return check_sentence(str(error))
    again = Quantity.parse(str(quantity))
    assert again == quantity
    assert str(again) == str(quantity)
    assert parse_whole(text) == quantity.whole()
    assert quantity.ceil() >= quantity.value if quantity.value >= 0 else quantity.ceil() <= quantity.value
    return None


def ledgers(data: bytes) -> None:
    """What is read of a ledger is written and read back the same; nothing in it is below zero."""
    entries = ledger.decode(_text(data))
    assert ledger.decode(ledger.encode(entries)) == entries
    assert all(amount >= 0 for entry in entries.values() for amount in entry.amounts.values())
    for entry in entries.values():
        entry.expired(NOW, 45.0)


def quotas(data: bytes) -> None:
    """A ResourceQuota or an AcceleratorQuota is read as an account, with what it lends, or refused in words."""
    for read in (ResourceQuota.from_object, lambda obj: read_accelerator_quota(obj, {"team-a": {"team": "a"}})):
        try:
            account = QuotaAccount.read(read(_json(data)), CHART)
        except MalformedObject as error:
            check_sentence(str(error))
            continue
        assert 0 <= min_runtime(account.quota) <= 30 * 24 * 3600
        assert all(0 <= amount <= max(0, account.hard[key]) for key, amount in account.nominal.items())
        assert all(text for _, text in lending_faults(account))


def koordinator_devices(data: bytes) -> None:
    try:
        _, found = checked_device(_named(data))
    except MalformedObject as error:
        return check_sentence(str(error))
    read_cards(found)
    return None


def claims(data: bytes) -> None:
    """A claim, with the slices and classes that it is priced by."""
    found = _json(data)
    found = found if isinstance(found, dict) else {}
    slices, classes = found.get("slices"), found.get("classes")
    try:
        claim = wire.convert(found.get("claim"), ResourceClaim, "resourceclaim")
        read = [
            wire.convert(each, ResourceSlice, "resourceslice") for each in (slices if isinstance(slices, list) else ())
        ]
        published = PublishedDevices(read, DraSection().devices)
        of_class = {} if not isinstance(classes, dict) else classes
        expressions = {name: (text,) for name, text in of_class.items() if isinstance(text, str)}
        requests = (claim.spec and claim.spec.devices and claim.spec.devices.requests) or ()
        cost = cost_of(requests, DeviceInventory(expressions, published))
        allocation = claim.status and claim.status.allocation
        held = allocated((allocation and allocation.devices and allocation.devices.results) or (), published)
    except MalformedObject as error:
        return check_sentence(str(error))
    for debit in (*cost.debits.values(), *(each.debit for each in held.devices)):
        assert min(debit.slots, debit.memory, debit.cores) >= 0
    for sentence in (*cost.problems, *held.unseen, *published.problems.values()):
        check_sentence(sentence)
    return None


def policies(data: bytes) -> None:
    try:
        PolicyFile.parse(_text(data), "policy.yaml", CHART)
    except ConfigError as error:
        _check_faults(error)


def device_configs(data: bytes) -> None:
    """A configuration that is accepted makes vendors."""
    try:
        loaded = load_device_config(_text(data), "device-config.yaml")
    except ConfigError as error:
        return _check_faults(error)
    enabled_vendors(loaded.config)
    return None


def _check_faults(error: ConfigError) -> None:
    assert error.faults
    for fault in error.faults:
        check_sentence(fault)


def manifests(data: bytes) -> None:
    """Objects as kubectl prints them, and workloads as their pods."""
    try:
        for objects in load_objects(_text(data), "objects.yaml"):
            _, sentences = pods_of([[objects]])
            for sentence in sentences:
                check_sentence(sentence)
    except LoadError as error:
        check_sentence(str(error))


def workload_tables(data: bytes) -> None:
    """A file that names more kinds that pods are made of."""
    try:
        parse_workload_table(_text(data), "workloads.yaml")
    except ConfigError as error:
        _check_faults(error)


def certificates(data: bytes) -> None:
    """What the Secret holds: authorities are left out or taken, a certificate is read or refused in words."""
    now = datetime.fromtimestamp(NOW, UTC)
    pki.valid_authorities(data, now)
    try:
        pki.needs_renewal(data, now)
    except pki.PkiError as error:
        check_sentence(str(error))


def regions(data: bytes) -> None:
    """A region is read or refused in words, in no more than nine readings and inside its file.

    It is written as its size and pieces of it: an offset, a length and the bytes; what isn't written is 0.
    """
    size, written = struct.unpack_from("<Q", data.ljust(8, b"\0"))[0], bytearray(V1_2.size)
    at = 8
    while at + 6 <= len(data):
        offset, length = struct.unpack_from("<IH", data, at)
        piece = data[at + 6 : at + 6 + length]
        written[offset : offset + len(piece)] = piece
        at += 6 + length
    check_region(written, size, size)


def check_region(content: bytes | bytearray, size: int, there: int) -> None:
    """A region of so many bytes, of which the first `there` are still there, is read within its bounds or refused."""
    total = 0
    there = min(there, len(content))

    def read(length: int, offset: int) -> bytes:
        nonlocal total
        assert 0 <= offset <= offset + length <= V1_2.size
        total += length
        return bytes(content[offset : min(offset + length, there)])

    try:
        found = read_region(read, size)
    except BadRegion as error:
        check_sentence(str(error))
        return
    assert total <= 9 * V1_2.size
    assert len(found.devices) <= MOST_DEVICES
    for device in found.devices:
        amounts = (device.limit, device.context, device.module, device.data, device.total, device.offset)
        assert all(0 <= amount <= LARGEST for amount in (*amounts, device.utilisation))
        assert device.uuid.isprintable()
        assert 0 < len(device.uuid) <= 40


TARGETS: Mapping[str, Callable[[bytes], None]] = {
    "certificates": certificates,
    "claims": claims,
    "device-configs": device_configs,
    "extender-bodies": extender_bodies,
    "koordinator-devices": koordinator_devices,
    "ledgers": ledgers,
    "manifests": manifests,
    "workload-tables": workload_tables,
    "nodes": nodes,
    "pair-scores": pair_scores,
    "pod-devices": pod_devices,
    "pods": pods,
    "policies": policies,
    "quantities": quantities,
    "quotas": quotas,
    "regions": regions,
    "registrations": registrations,
    "reviews": reviews,
    "unhealthy-cards": unhealthy_cards,
}
"""By the name of their folder in `corpus/`."""

JSON_TARGETS = frozenset(TARGETS) - {"certificates", "pod-devices", "quantities", "regions"}
"""Those whose inputs are JSON, or YAML, of which JSON is a part."""


def dumped(value: Any) -> bytes:
    """JSON as Python's own writer has it, which writes also what no strict reader takes (NaN, lone surrogates)."""
    return json.dumps(value).encode()
