"""Whatever objects hold, the loops go on, do their work for all others, and work again once the objects are good."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from builders import card, node
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from quota.objects import ALLOCATED, GPU, LARGE, MEM, NOON, TEAM, pod, quota
from quota.quota_env import QuotaEnv
from replicas import events_of, reconciling

from hami_webhook.assembly import Core
from hami_webhook.cluster.api import JSON, Kind, Listing, WatchEvent, WatchType
from hami_webhook.cluster.memory import MemoryCluster
from hami_webhook.controller.handshakes import Handshakes
from hami_webhook.controller.informers import change_handler
from hami_webhook.controller.leader import LeaderElection, LeaseHooks, LeaseLock, LeaseName
from hami_webhook.controller.namespaces import NamespaceAnnotations
from hami_webhook.controller.node_audit import NodeAudit
from hami_webhook.controller.quotas import QuotaReconciler, ReconcileIntervals
from hami_webhook.core_options import Options
from hami_webhook.device_config import builtin_device_config, enabled_vendors
from hami_webhook.devices.placement_annotations import NODE, TIME
from hami_webhook.kube.patch import merge_patch
from hami_webhook.quota.ledger import LEDGER

CHART = enabled_vendors(builtin_device_config().config)

ANY: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=8), below, max_size=3),
    max_leaves=6,
)
DIGITS = st.sampled_from(["9" * 400, "-1", "0", "1e400", "NaN", "9223372036854775807", "18446744073709551616", "٣"])
TIMES = st.sampled_from(
    ["9999-12-31T23:59:59Z", "0001-01-01T00:00:00Z", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"]
)
NODE_KEYS = sorted(
    {
        *(vendor.registration.annotation for vendor in CHART.values()),
        *(vendor.registration.handshake for vendor in CHART.values()),
        *("volcano.sh/node-vgpu-register", "volcano.sh/node-vgpu-handshake", "hami.io/mutex.lock"),
    }
    - {""}
)
POD_KEYS = sorted(
    {
        *(NODE, TIME, "hami.io/quota-reservation", "hami.io/bind-time", "hami.io/bind-phase"),
        *(vendor.keys.allocated for vendor in CHART.values()),
        *(key for scheduler in CHART.foreign for key in scheduler.watched),
    }
)
CARDS = st.lists(st.fixed_dictionaries({}, optional=dict.fromkeys(card("x", 1), DIGITS | ANY)) | ANY, max_size=3).map(
    json.dumps
)
TEXT = (
    st.text(max_size=20)
    | DIGITS
    | TIMES
    | ANY.map(json.dumps)
    | CARDS
    | st.sampled_from(
        [
            "Requesting_9999-12-31 23:59:59",
            "Requesting_0001-01-01 00:00:00",
            "Requesting_x",
            "[" * 100_000,
            "GPU-a,10,16384,100,NVIDIA-T4,0,true,0,hami-core:",
            f"GPU-a,NVIDIA,{'9' * 400},100:;",
            "GPU-a,NVIDIA,-5,1e9:;",
            f"GPU-a,10,{'9' * 400},100,NVIDIA-T4,0,true,0,hami-core:",
            '{"gpu":[{"minor":1e400,"resources":{"koordinator.sh/gpu-memory":"' + "9" * 400 + '"}}]}',
        ]
    )
)
QUANTITIES = st.sampled_from(
    ["9223372036854775807", "1e18", "-5", "1E400", "0.5", "16Gi", "", "x", 7, None, True, 1e300]
)
ENTRIES = st.dictionaries(
    st.sampled_from(["uid-good", "u1", "x"]),
    ANY
    | st.fixed_dictionaries(
        {"s": st.sampled_from(["admitted", "waiting", "placing", 1])},
        optional={
            "t": ANY | st.sampled_from([0, -(1 << 62), 1 << 62, 253402300799]),
            "c": st.dictionaries(st.sampled_from([GPU, MEM, "x"]), ANY | st.sampled_from([1 << 62, -1])),
            "a": st.dictionaries(st.sampled_from([GPU, MEM, "x"]), ANY | st.just(1 << 62)),
        },
    ),
)


def meta(name: str, keys: list[str], **more: Any) -> st.SearchStrategy[JSON]:
    notes = st.dictionaries(st.sampled_from(keys), TEXT, max_size=4)
    return st.builds(
        lambda notes, more: {"name": name, "annotations": notes, **more},
        notes,
        st.fixed_dictionaries({}, optional=more),
    )


CHOSEN = [
    "nvidia.com/gpu",
    "nvidia.com/gpumem",
    "volcano.sh/vgpu-number",
    "koordinator.sh/gpu",
    "huawei.com/Ascend910B3",
]
NODES = st.fixed_dictionaries(
    {"metadata": meta("n1", NODE_KEYS)},
    optional={"status": st.fixed_dictionaries({"allocatable": st.dictionaries(st.sampled_from(CHOSEN), QUANTITIES)})},
)
PODS = st.builds(
    lambda meta, limits, more, status: {
        "metadata": {"namespace": TEAM, "uid": "u1", **meta},
        "spec": {"containers": [{"name": "c", "resources": {"limits": limits}}], **more},
        "status": status,
    },
    meta(
        "p1",
        POD_KEYS,
        deletionTimestamp=TIMES,
        deletionGracePeriodSeconds=st.sampled_from([0, -(1 << 63), (1 << 63) - 1]),
        creationTimestamp=TIMES,
    ),
    st.dictionaries(st.sampled_from(CHOSEN), QUANTITIES, min_size=1),
    st.fixed_dictionaries(
        {},
        optional={
            "nodeName": st.sampled_from(["n1", "gone"]),
            "activeDeadlineSeconds": st.sampled_from([0, (1 << 63) - 1]),
        },
    ),
    st.fixed_dictionaries({}, optional={"phase": st.sampled_from(["Running", "Failed", "x"])}),
)
QUOTAS = st.builds(
    lambda ledger, hard, used: {
        "metadata": {"name": "q", "namespace": TEAM, "uid": "q", "resourceVersion": "5", "annotations": ledger},
        "spec": {"hard": hard},
        "status": {"hard": hard, "used": used},
    },
    st.fixed_dictionaries({}, optional={LEDGER: TEXT | ENTRIES.map(json.dumps)}),
    st.dictionaries(st.sampled_from([GPU, MEM, "limits.koordinator.sh/gpu-memory", "cpu"]), QUANTITIES),
    st.dictionaries(st.sampled_from([GPU, MEM, "cpu"]), QUANTITIES),
)
NAMESPACES = st.fixed_dictionaries({"metadata": meta(TEAM, [*NODE_KEYS, *POD_KEYS, "hami.io/gpu-scheduler-policy"])})
DEVICES = st.fixed_dictionaries(
    {"metadata": meta("n1", NODE_KEYS), "spec": ANY | st.fixed_dictionaries({"devices": ANY})}
)


class Given(MemoryCluster):
    """A cluster whose lists show these objects; writes to them succeed and change nothing."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(clock)
        self.objects: dict[Kind, JSON] = {}
        self.written: list[Kind] = []

    async def get(self, kind: Kind, name: str, namespace: str = "") -> JSON:
        return self.objects[kind]

    async def list(self, kind: Kind, namespace: str = "", *, node: str = "") -> Listing:
        return Listing([self.objects[kind]], "9")

    async def patch(self, kind: Kind, name: str, patch: JSON, namespace: str = "") -> JSON:
        self.written.append(kind)
        return self.objects[kind]

    async def patch_status(self, kind: Kind, name: str, patch: JSON, namespace: str = "") -> JSON:
        self.written.append(kind)
        return dict(merge_patch(self.objects[kind], patch))


class Controller:
    """The controller's steps, on objects as given."""

    def __init__(self) -> None:
        self.now = NOON
        self.cluster = Given(lambda: self.now)
        self.core = Core(self.cluster, CHART, Options(), clock=lambda: self.now)
        self.reconciler = QuotaReconciler(*reconciling(self.core), ReconcileIntervals(), jitter=lambda: 0.5)

    def hear(self, kind: Kind, obj: JSON, type_: WatchType = WatchType.MODIFIED) -> None:
        self.cluster.objects[kind] = obj
        change_handler(kind, self.core.caches, self.core.failures, [self.reconciler])(WatchEvent(type_, obj))

    async def work(self) -> None:
        for _ in range(2):
            self.core.state.tick(self.now)
            view, events, failures = self.core.view, events_of(self.core), self.core.failures
            await Handshakes(self.cluster, view, failures).request_due()
            await NodeAudit(view, events, failures).audit()
            await NamespaceAnnotations(view, events).audit()
            self.reconciler.touch(TEAM)
            self.now += 5
            await self.reconciler.step()


GOOD_NODE = node("n1", card("GPU-a", LARGE))
GOOD_POD = pod("p1", gpu=1, mem=1000, uid="u1", annotations={ALLOCATED: "GPU-a,NVIDIA,1000,0:;"}, nodeName="n1")
GOOD_QUOTA = {**quota(mem=9000), "metadata": {**quota()["metadata"], "name": "q", "uid": "q", "resourceVersion": "6"}}


@settings(suppress_health_check=list(HealthCheck))
@given(nodes=NODES, pods=PODS, quotas=QUOTAS, namespaces=NAMESPACES, devices=DEVICES)
def test_no_object_makes_a_step_raise_and_good_objects_work_after_any(
    nodes: JSON, pods: JSON, quotas: JSON, namespaces: JSON, devices: JSON
) -> None:
    async def run() -> None:
        controller = Controller()
        for kind, obj in {
            Kind.NAMESPACES: namespaces,
            Kind.DEVICES: devices,
            Kind.NODES: nodes,
            Kind.PODS: pods,
            Kind.RESOURCE_QUOTAS: quotas,
        }.items():
            controller.hear(kind, obj)
        await controller.work()
        assert controller.core.failures == {}
        assert not any(
            text.partition(":")[0] in ("OverflowError", "ValueError", "TypeError", "KeyError", "AttributeError")
            for text in controller.core.caches.unreadable.values()
        )
        controller.hear(Kind.DEVICES, devices, WatchType.DELETED)
        for kind, obj in {Kind.NODES: GOOD_NODE, Kind.PODS: GOOD_POD, Kind.RESOURCE_QUOTAS: GOOD_QUOTA}.items():
            controller.hear(kind, obj)
        controller.cluster.written.clear()
        await controller.work()
        assert controller.core.failures == {}
        assert Kind.RESOURCE_QUOTAS in controller.cluster.written
        view = controller.core.state.view("n1")
        assert view is not None
        assert view.inventories

    asyncio.run(run())


LEASES = st.fixed_dictionaries(
    {"metadata": st.fixed_dictionaries({}, optional={"resourceVersion": ANY, "uid": ANY})},
    optional={
        "spec": ANY
        | st.fixed_dictionaries(
            {},
            optional={
                "holderIdentity": ANY | st.sampled_from(["me", "other"]),
                "leaseDurationSeconds": ANY | DIGITS | st.integers(),
                "leaseTransitions": ANY | DIGITS,
                "acquireTime": ANY | TIMES,
                "renewTime": ANY | TIMES,
            },
        )
    },
)


class Leases(MemoryCluster):
    """One Lease, as given until it is replaced."""

    lease: JSON = {}  # noqa: RUF012  each test sets it

    async def get_lease(self, namespace: str, name: str) -> JSON:
        return self.lease

    async def replace_lease(self, namespace: str, lease: JSON) -> JSON:
        self.lease = {"metadata": {**lease["metadata"], "uid": "lease"}, "spec": json.loads(json.dumps(lease["spec"]))}
        return self.lease


async def take(lease: JSON) -> str:
    """Have one who leads next take a Lease that nobody renews, and give it back; what is said of the Lease."""
    now = 0.0
    cluster = Leases(lambda: NOON)
    cluster.lease = lease
    reports: asyncio.Queue[tuple[str, str]] = asyncio.Queue()

    async def report(uid: str, problem: str) -> None:
        reports.put_nowait((uid, problem))

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds
        await asyncio.sleep(0)

    election = LeaderElection(
        cluster,
        LeaseLock(LeaseName("s", "lease"), "me"),
        clock=lambda: NOON + now,
        monotonic=lambda: now,
        sleep=sleep,
        hooks=LeaseHooks(report),
    )
    leading = asyncio.Event()

    async def lead() -> None:
        leading.set()
        await asyncio.Event().wait()

    task = asyncio.ensure_future(election.run(lead))
    async with asyncio.timeout(10):
        await leading.wait()
    assert now < 40
    spec = cluster.lease["spec"]
    assert (spec["holderIdentity"], spec["leaseDurationSeconds"]) == ("me", 15)
    assert spec["leaseTransitions"] in range(1 << 31)
    _, problem = await reports.get()
    assert await reports.get() == ("lease", ""), "what it wrote itself is good"
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cluster.lease["spec"]["holderIdentity"] == ""
    return problem


@settings(suppress_health_check=list(HealthCheck))
@given(lease=LEASES)
def test_a_lease_that_nobody_renews_is_taken_whatever_it_says(lease: JSON) -> None:
    asyncio.run(take(lease))


async def test_what_is_wrong_with_a_lease_is_said() -> None:
    most = (1 << 31) - 1
    assert await take({"metadata": {}, "spec": {"leaseDurationSeconds": most, "leaseTransitions": most}}) == (
        "leaseDurationSeconds must be a whole number from 1 to 30; "
        "leaseTransitions must be a whole number from 0 to 2147483646"
    )


async def test_a_quota_whose_recompute_raises_holds_up_no_other(caplog: pytest.LogCaptureFixture) -> None:
    async with QuotaEnv(node("n1", card("GPU-L", LARGE)), quota("a", mem=9000), quota("b", mem=9000)) as env:
        await env.create(pod(gpu=1, mem=2000))
        run = env.core.recomputer.run

        async def failing(namespace: str, name: str, *args: Any, **more: Any) -> Any:
            if name == "a":
                raise OverflowError("int too large to convert to float")
            return await run(namespace, name, *args, **more)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(env.core.recomputer, "run", failing)
            env.reconciler.touch(TEAM)
            await env.run(5)
        assert (await env.cluster.get(Kind.RESOURCE_QUOTAS, "b", TEAM))["status"]["used"] == {MEM: "2k"}
        failures = env.core.failures["quotas"]
        assert failures >= 1
        failed = [each for each in caplog.records if each.getMessage() == "recomputing failed; trying again"]
        assert {(vars(each)["namespace"], vars(each)["quota"]) for each in failed} == {("team", "a")}
        await env.run(70)
        assert (await env.cluster.get(Kind.RESOURCE_QUOTAS, "a", TEAM))["status"]["used"] == {MEM: "2k"}


@pytest.mark.parametrize("part", ["caches", "reconciler"])
def test_an_object_on_which_a_cache_or_the_reconciler_fails_holds_up_no_other(
    part: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    controller = Controller()
    bad = {**quota("bad", mem=1), "status": {}}
    real = controller.reconciler.quota_changed if part == "reconciler" else controller.core.caches.put

    def failing(*args: Any) -> Any:
        if "bad" in (getattr(args[-1], "name", ""), args[-1]["metadata"]["name"] if part == "caches" else ""):
            raise OverflowError("date value out of range")
        return real(*args)

    target, name = (controller.reconciler, "quota_changed") if part == "reconciler" else (controller.core.caches, "put")
    monkeypatch.setattr(target, name, failing)
    controller.hear(Kind.RESOURCE_QUOTAS, bad)
    controller.hear(Kind.RESOURCE_QUOTAS, quota("good", mem=1))
    assert controller.core.caches.quota(TEAM, "good") is not None
    assert controller.core.failures == {"resourcequotas informer": 1}
    assert "resourcequotas informer: team/bad failed; going on without it" in caplog.text
