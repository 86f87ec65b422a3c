"""The three paths and the quota, on an embedded cluster: docs/spec/quota.md#4, #7 and #11."""

from __future__ import annotations

import asyncio
import copy
import itertools
from collections.abc import Awaitable
from typing import Any

import pytest
from builders import GPU, JSON, MEM, container

from hami_webhook.admission.denial import Denied
from hami_webhook.admission.identities import AdmissionRules
from hami_webhook.admission.review import Review
from hami_webhook.cluster.api import Kind
from hami_webhook.cluster.memory import MemoryCluster
from hami_webhook.cluster.watches import NoWatches
from hami_webhook.kube.objects import RESERVATION
from hami_webhook.policy.rules import PolicyRule, PolicyRules
from hami_webhook.quota.ledger import LEDGER, Entry, State, encode, reservation_id

from .clusters import FULL, NOW, Broken, Recorder, core_on, ledger, quota_cluster, spent, version
from .reviews import SCHEDULER, cpu, parsed, patched, pod, refusal, review, validate


def create(obj: JSON, **more: Any) -> Review:
    return parsed(review(obj, **more))


async def denial(call: Awaitable[object]) -> Denied:
    with pytest.raises(Denied) as caught:
        await call
    return caught.value


# pods that ask for nothing


@pytest.mark.parametrize("path", ["mutate", "validate", "webhook"])
@pytest.mark.parametrize(
    "obj",
    [
        pod("p", cpu()),
        pod("p", cpu(), schedulerName="volcano"),
        pod("p", cpu(securityContext={"privileged": True}), nodeName="n", uid="u"),
    ],
    ids=["plain", "foreign", "privileged"],
)
async def test_q7_cpu_pods_are_allowed_without_io_whatever_is_broken(path: str, obj: JSON) -> None:
    cluster = Broken()
    core = core_on(cluster, watches=NoWatches(synced=False))
    answer = await getattr(core.admission, path)(create(obj))
    assert (list(answer.patch), list(answer.warnings), answer.audit) == ([], [], {})
    assert cluster.calls == []


async def test_q7_a_count_of_zero_is_allowed_without_io() -> None:
    for path in ("mutate", "validate", "webhook"):
        cluster = Broken()
        core = core_on(cluster, watches=NoWatches(synced=False))
        await getattr(core.admission, path)(create(pod(gpu=0, mem=3000, nodeName="n1")))
        assert cluster.calls == []


# /mutate


async def test_mutate_never_looks_at_quota() -> None:
    cluster = Recorder(await quota_cluster({GPU: 0}))
    core = core_on(cluster, watches=NoWatches(synced=False))
    core.caches.put(Kind.NAMESPACES, {"metadata": {"name": "team-a"}})
    answer = await core.admission.mutate(create(pod(gpu=1, mem=3000)))
    assert cluster.calls == []
    assert answer.audit == {}


async def test_a_namespace_that_isnt_cached_is_read_live() -> None:
    cluster = Recorder(await quota_cluster())
    await core_on(cluster).admission.mutate(create(pod(gpu=1, mem=3000)))
    assert cluster.calls == ["get namespaces"]


# /validate


async def test_validate_charges_under_the_pods_uid() -> None:
    cluster = await quota_cluster(FULL)
    answer = await core_on(cluster).admission.validate(create(pod(gpu=1, mem=3000, uid="u1")))
    assert spent(cluster) == {GPU: 1, MEM: 3000}
    assert ledger(cluster) == {"u1": {GPU: 1, MEM: 3000}}
    assert answer.audit == {"quota": "gpu-quota:limits.nvidia.com/gpu=1,limits.nvidia.com/gpumem=3000"}
    assert list(answer.patch) == []


async def test_the_charge_is_the_last_step() -> None:
    cluster = await quota_cluster(FULL)
    core = core_on(cluster, policies=lambda: PolicyRules((PolicyRule("r", enforce={"nvidia.com/vgpu-mode": "mig"}),)))
    for obj in (
        pod(gpu=1, mem=3000, uid="u", annotations={"hami.io/bind-phase": "x"}),
        pod(gpu=1, mem=3000, uid="u", nodeName="n"),
        pod("p", container(gpu=1, mem=3000), cpu("b", securityContext={"privileged": True}), uid="u"),
        pod(gpu=1, mem=3000, uid="u", annotations={"hami.io/device-scoring-weights": "x"}),
        pod(gpu=1, mem=3000, uid="u"),
    ):
        assert (await denial(core.admission.validate(create(obj)))).code == 403
    assert spent(cluster) == {GPU: 0, MEM: 0}


async def test_one_pod_is_charged_once_however_often_it_comes() -> None:
    cluster = await quota_cluster(FULL)
    core = core_on(cluster)
    for _ in range(3):
        await core.admission.validate(create(pod(gpu=1, mem=3000, uid="u1")))
    assert spent(cluster) == {GPU: 1, MEM: 3000}


async def test_a_pod_without_a_uid_is_charged_under_the_calls() -> None:
    cluster = await quota_cluster(FULL)
    await core_on(cluster).admission.validate(create(pod(gpu=1, mem=3000), uid="call-1"))
    assert list(ledger(cluster)) == ["call-1"]


async def test_a_foreign_pod_is_charged_and_left_alone_on_every_path() -> None:
    cluster = await quota_cluster(FULL)
    core = core_on(cluster)
    obj = pod(gpu=1, mem=3000, schedulerName="volcano")
    assert list((await core.admission.mutate(create(obj))).patch) == []
    assert spent(cluster)[MEM] == 0
    stamped = patched(obj, await core.admission.webhook(create(obj)))
    assert stamped["spec"] == obj["spec"]
    assert spent(cluster)[MEM] == 3000


@pytest.mark.parametrize(
    ("labels", "scheduler", "flags", "refused"),
    [
        pytest.param({}, "default-scheduler", {}, True, id="mutation would have changed it"),
        pytest.param({}, "default-scheduler", {"force_overwrite_default_scheduler": False}, False, id="by a flag"),
        pytest.param({}, "default-scheduler", {"scheduler_name": ""}, False, id="no scheduler of ours"),
        pytest.param({"hami.io/webhook": "ignore"}, "default-scheduler", {}, False, id="opted out"),
        pytest.param({"hami.io/webhook": "x"}, "default-scheduler", {}, True, id="another label"),
        pytest.param({}, "my-own", {}, False, id="another scheduler"),
        pytest.param({}, SCHEDULER, {}, False, id="ours"),
    ],
)
def test_cards_that_came_after_mutation_are_refused_where_ours_was_to_place_them(
    labels: dict[str, str], scheduler: str, flags: dict[str, Any], *, refused: bool
) -> None:
    rules = AdmissionRules(**{"scheduler_name": SCHEDULER, **flags})
    obj = pod(gpu=1, mem=3000, labels=labels, schedulerName=scheduler)
    if refused:
        code, message = refusal(validate, obj, rules)
        assert code == 403
        assert message.startswith("pod requests nvidia.com/gpu and has the scheduler default-scheduler")
    else:
        validate(obj, rules)


# answers of section 11


@pytest.mark.parametrize("path", ["validate", "webhook"])
async def test_an_overrun_is_refused_with_only_the_keys_that_overflow(path: str) -> None:
    cluster = await quota_cluster({GPU: 2, MEM: 3000}, {GPU: 1})
    before = version(cluster)
    found = await denial(getattr(core_on(cluster).admission, path)(create(pod(gpu=1, mem=4000, uid="u"))))
    assert (found.code, found.reason, found.retry_after) == (403, "Forbidden", None)
    assert found.message == (
        "exceeding resource quota: exceeded quota: gpu-quota, requested: limits.nvidia.com/gpumem=4000, "
        "used: limits.nvidia.com/gpumem=0, limited: limits.nvidia.com/gpumem=3000"
        " (memory: 3.9Gi requested, 0Mi used, 2.9Gi limited)"
    )
    assert version(cluster) == before


@pytest.mark.parametrize("path", ["validate", "webhook"])
async def test_caches_that_arent_synced_refuse_for_now(path: str) -> None:
    cluster = await quota_cluster(FULL)
    found = await denial(
        getattr(core_on(cluster, watches=NoWatches(synced=False)).admission, path)(
            create(pod(gpu=1, mem=3000, uid="u"))
        )
    )
    assert (found.code, found.reason, found.retry_after) == (503, "ServiceUnavailable", 1)
    assert found.message == "quota: can't charge namespace team-a now: caches not synced; try again"
    assert ledger(cluster) == {}


@pytest.mark.parametrize("path", ["mutate", "validate", "webhook"])
async def test_a_namespace_nobody_knows_refuses_for_now(path: str) -> None:
    found = await denial(getattr(core_on(Broken()).admission, path)(create(pod(gpu=1, mem=3000, uid="u"))))
    assert (found.code, found.retry_after) == (503, 1)
    assert found.message == "namespace team-a isn't known yet; try again"


@pytest.mark.parametrize("path", ["validate", "webhook"])
async def test_an_api_server_that_is_down_refuses_for_now(path: str) -> None:
    core = core_on(Broken())
    core.caches.put(Kind.NAMESPACES, {"metadata": {"name": "team-a"}})
    found = await denial(getattr(core.admission, path)(create(pod(gpu=1, mem=3000, uid="u"))))
    assert (found.code, found.retry_after) == (503, 1)
    assert found.message == "quota: can't charge namespace team-a now: connection refused; try again"


@pytest.mark.parametrize("path", ["mutate", "validate", "webhook"])
async def test_a_review_without_any_namespace_is_malformed(path: str) -> None:
    obj = pod(gpu=1, mem=3000)
    del obj["metadata"]["namespace"]
    core = core_on(await quota_cluster(FULL))
    found = await denial(getattr(core.admission, path)(create(obj, namespace="")))
    assert (found.code, found.message) == (400, "request.namespace is missing")
    await getattr(core.admission, path)(create(obj))


# /webhook and its reservation


async def test_a_dry_run_of_the_webhook_is_judged_and_writes_nothing() -> None:
    cluster = await quota_cluster({MEM: 2000})
    core, before = core_on(cluster), version(cluster)
    fits, not_so = pod(gpu=1, mem=2000, uid="u"), pod(gpu=1, mem=3000, uid="u")
    answer = await core.admission.webhook(create(fits, dryRun=True))
    assert answer.audit["quota"] == "gpu-quota:limits.nvidia.com/gpumem=2000"
    assert RESERVATION not in patched(fits, answer)["metadata"].get("annotations", {})
    assert (await denial(core.admission.webhook(create(not_so, dryRun=True)))).code == 403
    assert version(cluster) == before


@pytest.mark.parametrize("annotations", [None, {"mine": "x"}, {RESERVATION: "invented"}])
async def test_the_webhook_charges_under_the_digest_of_what_the_pod_carries(annotations: dict[str, str] | None) -> None:
    cluster = await quota_cluster(FULL)
    obj = pod(gpu=1, mem=3000, annotations=annotations)
    answer = await core_on(cluster).admission.webhook(create(obj))
    after = patched(obj, answer)
    assert after["metadata"]["annotations"] == {**(annotations or {}), RESERVATION: "secret-1"}
    assert after["spec"]["schedulerName"] == SCHEDULER
    assert ledger(cluster) == {reservation_id("secret-1"): {GPU: 1, MEM: 3000}}
    assert answer.audit == {"quota": "gpu-quota:limits.nvidia.com/gpu=1,limits.nvidia.com/gpumem=3000"}


async def test_the_reservation_and_policys_annotations_go_into_one_patch() -> None:
    cluster = await quota_cluster(FULL)
    policies = PolicyRules((PolicyRule("r", enforce={"nvidia.com/vgpu-mode": "mig"}),))
    obj = pod(gpu=1, mem=3000)
    del obj["metadata"]
    answer = await core_on(cluster, policies=lambda: policies).admission.webhook(create(obj))
    assert patched(obj, answer)["metadata"]["annotations"] == {"nvidia.com/vgpu-mode": "mig", RESERVATION: "secret-1"}
    assert set(answer.audit) == {"quota", "policy"}


async def test_no_reservation_where_no_quota_concerns_the_pod() -> None:
    cluster = await quota_cluster()
    obj = pod(gpu=1, mem=3000)
    assert "annotations" not in patched(obj, await core_on(cluster).admission.webhook(create(obj)))["metadata"]


async def test_a_reinvocation_takes_the_reservation_over_and_charges_nothing_more() -> None:
    cluster = await quota_cluster(FULL)
    core = core_on(cluster)
    obj = pod(gpu=1, mem=3000)
    after = patched(obj, await core.admission.webhook(create(obj)))
    again = patched(after, await core.admission.webhook(create(after)))
    assert again == {**after, "metadata": {**after["metadata"], "annotations": {RESERVATION: "secret-2"}}}
    assert ledger(cluster) == {reservation_id("secret-2"): {GPU: 1, MEM: 3000}}
    assert spent(cluster) == {GPU: 1, MEM: 3000}


async def with_ledger(**entries: Entry) -> MemoryCluster:
    """A quota_cluster whose ledger has entries, with their amounts in used."""
    cluster = await quota_cluster(
        FULL, {GPU: len(entries), MEM: sum(e.amounts["limits." + MEM] for e in entries.values())}
    )
    patch = {"metadata": {"annotations": {LEDGER: encode(entries)}}}
    await cluster.patch_status(Kind.RESOURCE_QUOTAS, "gpu-quota", patch, "team-a")
    return cluster


def entry(state: State = State.ADMITTED, memory: int = 3000) -> Entry:
    return Entry(state, int(NOW), {f"limits.{GPU}": 1, f"limits.{MEM}": memory})


def carrier(uid: str, stamp: str | None = None) -> JSON:
    obj = pod("other", gpu=1, mem=3000, uid=uid, annotations={RESERVATION: stamp} if stamp else None)
    return copy.deepcopy(obj)


SECRET = reservation_id("s")
RESERVATIONS = [
    ("unused", {SECRET: entry()}, None, 1, 3000),
    ("of less", {SECRET: entry(memory=100)}, None, 1, 3000),
    ("of more", {SECRET: entry(memory=4000)}, None, 2, 7000),
    ("of a pod that is there", {SECRET: entry()}, carrier("u9", "s"), 2, 6000),
    ("really another pod's uid", {"s": entry()}, carrier("s"), 2, 6000),
    ("really the uid of a pod in flight", {"s": entry()}, None, 2, 6000),
    ("of a pod that waits", {SECRET: entry(State.WAITING)}, None, 2, 6000),
    ("unknown", {}, None, 1, 3000),
]


@pytest.mark.parametrize("path", ["webhook", "validate"])
@pytest.mark.parametrize(
    ("entries", "other", "slots", "memory"), [case[1:] for case in RESERVATIONS], ids=[case[0] for case in RESERVATIONS]
)
async def test_q5_a_reservation_that_a_pod_brings_pays_for_it_only_if_it_is_unused(
    entries: dict[str, Entry], other: JSON | None, slots: int, memory: int, path: str
) -> None:
    """Other pods are looked up live: this core's caches know of none."""
    cluster = await with_ledger(**entries)
    core = core_on(cluster)
    if other is not None:
        await cluster.create(Kind.PODS, other)
    obj = pod(gpu=1, mem=3000, uid="u1" if path == "validate" else "", annotations={RESERVATION: "s"})
    answer = await getattr(core.admission, path)(create(obj))
    assert spent(cluster) == {GPU: slots, MEM: memory}
    secret = patched(obj, answer)["metadata"]["annotations"][RESERVATION]
    assert (secret != "s") == (path == "webhook")  # what a pod brought never stays the name of a charge
    assert ("u1" if path == "validate" else reservation_id(secret)) in ledger(cluster)


@pytest.mark.parametrize("path", ["webhook", "validate"])
async def test_q5_of_many_that_bring_one_reservation_one_is_paid_for(path: str) -> None:
    cluster = await with_ledger(**{SECRET: entry()})
    secrets = (f"secret-{number}" for number in itertools.count())
    cores = [core_on(cluster, new_id=lambda: next(secrets)) for _ in range(2)]
    pods = [
        pod(f"p{i}", gpu=1, mem=3000, uid=f"u{i}" if path == "validate" else "", annotations={RESERVATION: "s"})
        for i in range(3)
    ]
    await asyncio.gather(*(getattr(cores[i % 2].admission, path)(create(each)) for i, each in enumerate(pods)))
    assert spent(cluster) == {GPU: 3, MEM: 9000}
    assert len(ledger(cluster)) == 3


async def test_a_secret_that_no_ledger_knows_costs_no_list_of_pods() -> None:
    cluster = Recorder(await with_ledger(**{SECRET: entry()}))
    await core_on(cluster).admission.validate(
        create(pod(gpu=1, mem=3000, uid="u1", annotations={RESERVATION: "invented"}))
    )
    assert "list pods" not in cluster.calls
    await core_on(cluster).admission.validate(create(pod(gpu=1, mem=3000, uid="u2", annotations={RESERVATION: "s"})))
    assert "list pods" in cluster.calls


async def test_validate_after_the_webhook_charges_the_difference_a_later_mutator_made() -> None:
    cluster = await quota_cluster(FULL)
    core = core_on(cluster)
    obj = pod(gpu=1, mem=3000)
    after = patched(obj, await core.admission.webhook(create(obj)))
    after["metadata"]["uid"] = "u1"
    after["spec"]["containers"][0]["resources"]["limits"][MEM] = 4000
    await core.admission.validate(create(after))
    assert ledger(cluster) == {"u1": {GPU: 1, MEM: 4000}}
    assert spent(cluster) == {GPU: 1, MEM: 4000}


async def test_a_pod_may_come_to_validate_again_with_its_own_reservation() -> None:
    cluster = await with_ledger(**{SECRET: entry()})
    core = core_on(cluster)
    obj = pod(gpu=1, mem=3000, uid="u1", annotations={RESERVATION: "s"})
    core.caches.put(Kind.PODS, obj)
    await core.admission.validate(create(obj))
    assert list(ledger(cluster)) == ["u1"]


# beyond what a quota can hold


async def test_security_2_amounts_are_exact_beyond_what_a_quota_can_hold() -> None:
    cluster = await quota_cluster({GPU: 2**62})
    core = core_on(cluster)
    found = await denial(core.admission.validate(create(pod(gpu="9223372036854775807", mem=3000, uid="u"))))
    assert found.code == 422
    assert spent(cluster)[GPU] == 0


@pytest.mark.parametrize("path", ["mutate", "validate", "webhook"])
async def test_another_kind_is_a_mistake_in_the_configuration(path: str) -> None:
    found = await denial(getattr(core_on(Broken()).admission, path)(create(pod("p", cpu()), kind={"kind": "Node"})))
    assert found.code == 400
