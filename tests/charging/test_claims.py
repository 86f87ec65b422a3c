"""Claims are charged as pods are: to the same keys, by the same ledger (docs/spec/dra.md#7)."""

from __future__ import annotations

from contextlib import suppress

import pytest
from builders import accelerator_quota
from dra.objects import HAMI, NVIDIA, exactly, resource_slice, share, whole
from quota.objects import MEM, TEAM, pod, quota

from hami_webhook.admission.denial import Denied
from hami_webhook.cluster.api import JSON, Kind
from hami_webhook.dra.claim_cache import ClaimCache
from hami_webhook.dra.holders import POD_CLAIM_NAME, key_of
from hami_webhook.kube.objects import Pod
from hami_webhook.quota.claims import ClaimReader
from hami_webhook.quota.floors import floor_id

from .claim_env import BY_LIMITS, TEN, Cluster, by_both, claiming, got, owned_by, publish, spec, template

DRIVER = "gpu.example.com"


async def test_the_third_pod_is_refused_in_the_words_of_today_and_all_is_free_at_the_end() -> None:
    async with Cluster(quota(mem=20000, gpu=9)) as team:
        await publish(team, ten=TEN)
        for name in "ab":
            await team.create(claiming(name, "ten"))
        refused = await team.refused(claiming("c", "ten"))
        assert refused.code == 403
        assert refused.message == (
            "exceeding resource quota: exceeded quota: gpu-quota, requested: limits.nvidia.com/gpumem=10000, "
            "used: limits.nvidia.com/gpumem=20000, limited: limits.nvidia.com/gpumem=20000"
            " (memory: 9.8Gi requested, 19.5Gi used, 19.5Gi limited)"
        )
        await team.run(100)
        assert team.used() == {"mem": 20000, "gpu": 2}, "the recompute comes to the same"
        assert team.in_flight() == {}
        for name in "ab":
            await team.delete(name)
        await team.run(100)
        assert team.used() == {"mem": 0, "gpu": 0}
        assert team.ledger() == {}


async def test_what_waits_costs_what_it_did_when_it_came_whatever_becomes_of_its_template() -> None:
    async with Cluster(quota(mem=100000, cores=100)) as team:
        await publish(team, t=TEN)
        await team.create(claiming("a", "t"))
        for requests in (spec(exactly(memory="30Gi", cores="90")), spec(exactly(memory="1Mi"))):
            await team.cluster.delete(Kind.RESOURCE_CLAIM_TEMPLATES, "t", TEAM)
            await team.run(100)
            assert team.used() == {"mem": 10000, "cores": 10}
            await team.cluster.create(Kind.RESOURCE_CLAIM_TEMPLATES, template("t", requests))
            await team.run(100)
            assert team.used() == {"mem": 10000, "cores": 10}
        await team.create(claiming("b", "t"))
        assert team.used() == {"mem": 20000, "cores": 20}, "as for the first one that waits"


async def test_a_template_that_comes_after_its_pod_makes_it_cost_nothing_until_it_is_allocated() -> None:
    async with Cluster(quota(mem=20000)) as team:
        await publish(team)
        await team.create(claiming("a", "t"))
        assert team.used() == {"mem": 0}
        await team.cluster.create(Kind.RESOURCE_CLAIM_TEMPLATES, template("t", spec(exactly(memory="30Gi"))))
        await team.run(100)
        assert team.used() == {"mem": 0}, "else its allocation would find itself covered"


async def test_a_template_that_no_watch_has_shown_yet_is_read() -> None:
    async with Cluster(quota(mem=20000)) as team:
        await publish(team, t=TEN)
        team.core.caches.drop(Kind.RESOURCE_CLAIM_TEMPLATES, template("t"))
        await team.create(claiming("a", "t"))
        assert team.used() == {"mem": 10000}


@pytest.mark.parametrize(
    ("requests", "expected"),
    [
        pytest.param(spec(exactly(memory="10000Mi", count=2)), {"gpu": 2, "mem": 20000, "cores": 200}, id="count"),
        pytest.param(spec(exactly()), {"gpu": 1, "mem": 40960, "cores": 100}, id="all of the card"),
        pytest.param(
            spec([exactly(memory="30Gi"), exactly(memory="1000Mi", cores="1")]),
            {"gpu": 1, "mem": 1000, "cores": 1},
            id="the cheapest alternative",
        ),
        pytest.param(spec(exactly(adminAccess=True)), {"gpu": 0, "mem": 0, "cores": 0}, id="administrators' access"),
        pytest.param(spec(exactly(DRIVER)), {"gpu": 0, "mem": 0, "cores": 0}, id="a class of others"),
        pytest.param(spec(exactly(memory="-5Gi", cores="0")), {"gpu": 1, "mem": 1, "cores": 0}, id="less than nothing"),
    ],
)
async def test_a_pod_is_charged_what_its_claims_will_cost_at_least(requests: JSON, expected: dict[str, int]) -> None:
    async with Cluster(quota(gpu=1000, mem=100000, cores=1000)) as team:
        await publish(team, t=requests)
        await team.create(claiming("a", "t"))
        assert team.used() == expected
        await team.run(100)
        assert team.used() == expected


async def test_a_pod_asks_for_cards_of_a_vendor_in_one_way() -> None:
    async with Cluster(quota(mem=100000)) as team:
        await publish(team, t=TEN)
        refused = await team.refused(by_both(BY_LIMITS, "t"))
        assert refused.message == "cards of NVIDIA are asked for by limits and by ResourceClaims; use one of both"
        await team.create(by_both({"amd.com/gpu": "1"}, "t"))
        assert team.mem() == 10000


@pytest.mark.parametrize("shown", [True, False], ids=["seen", "not seen yet"])
async def test_nor_by_limits_and_by_a_claim_that_it_names(*, shown: bool) -> None:
    async with Cluster(quota(mem=100000)) as team:
        await publish(team)
        made = await team.make("c")
        if not shown:
            team.core.caches.drop(Kind.RESOURCE_CLAIMS, made)
        refused = await team.refused(by_both(BY_LIMITS, uses="c"))
        assert refused.code == 422
        assert refused.message == "cards of NVIDIA are asked for by limits and by ResourceClaims; use one of both"
        assert team.mem() == 10000


@pytest.mark.parametrize("request_of", [exactly("other.example.com"), {**exactly(), "adminAccess": True}])
async def test_a_pod_may_name_claims_that_hold_no_card_of_the_vendor(request_of: JSON) -> None:
    """An ordinary day: a network card by a claim, or a monitor's look at all cards."""
    async with Cluster(quota(mem=100000)) as team:
        await publish(team)
        await team.make("c", spec(request_of))
        await team.create(by_both(BY_LIMITS, uses="c"))
        assert team.mem() == 1000


async def test_a_claim_that_comes_after_its_pod_is_charged_beside_what_that_has_by_limits() -> None:
    async with Cluster(quota(mem=100000)) as team:
        await publish(team)
        await team.create(by_both(BY_LIMITS, uses="later"))
        await team.make("later")
        await team.run(100)
        assert team.mem() == 11000, "it holds both"


async def test_extended_resources_that_a_class_takes_cost_what_their_claim_will() -> None:
    async with Cluster(quota(mem=100000, gpu=9)) as team:
        await publish(team)
        await team.cluster.patch(Kind.DEVICE_CLASSES, HAMI, {"spec": {"extendedResourceName": "example.com/card"}})
        await team.drain()
        manifest = pod("a", {"name": "main", "image": "x", "resources": {"limits": {"example.com/card": "2"}}})
        await team.create(manifest)
        assert team.used() == {"mem": 81920, "gpu": 2}
        refused = await team.refused({**manifest, "metadata": {**manifest["metadata"], "name": "b"}})
        assert "gpumem=81920 (smallest eligible card)" in refused.message
        await team.run(100)
        assert team.used() == {"mem": 81920, "gpu": 2}


async def test_firstavailable_is_charged_what_it_got_and_the_rest_is_given_back() -> None:
    either = spec([exactly(memory="10000Mi"), exactly(memory="2000Mi")])
    async with Cluster(quota(mem=10000)) as team:
        await publish(team, either=either)
        await team.create(claiming("a", "either"))
        claim = await team.generate("a", "r-either", either)
        assert team.mem() == 2000, "the pod's charge covers its claim"
        await team.allocate(claim, got("10000Mi"))
        assert team.mem() == 10000
        await team.bind("a")
        await team.run(100)
        assert (team.mem(), team.ledger()) == (10000, {})
        assert (await team.refused(claiming("b", "either"))).code == 403
        await team.cluster.delete(Kind.RESOURCE_CLAIMS, claim, TEAM)
        await team.delete("a")
        await team.run(100)
        assert team.mem() == 0


async def test_an_allocation_that_does_not_fit_is_refused_with_the_quota_and_leaves_nothing() -> None:
    either = spec([exactly(memory="10000Mi"), exactly(memory="2000Mi")])
    async with Cluster(quota(mem=9000)) as team:
        await publish(team, either=either)
        await team.create(claiming("a", "either"))
        claim = await team.generate("a", "r-either", either)
        refused = await team.fails(team.allocate(claim, got("10000Mi")))
        assert refused.code == 403
        assert refused.message == (
            "exceeding resource quota: exceeded quota: gpu-quota, requested: limits.nvidia.com/gpumem=8000, "
            "used: limits.nvidia.com/gpumem=2000, limited: limits.nvidia.com/gpumem=9000"
            " (memory: 7.8Gi requested, 2Gi used, 8.8Gi limited)"
        )
        assert team.mem() == 2000
        await team.allocate(claim, got("10000Mi"), dry_run=True)
        assert team.mem() == 2000
        await team.allocate(claim, got("2000Mi"))
        await team.bind("a")
        await team.run(100)
        assert team.mem() == 2000


async def test_a_claim_by_hand_costs_once_however_many_pods_use_it() -> None:
    async with Cluster(quota(mem=20000)) as team:
        await publish(team)
        await team.make("shared")
        assert team.mem() == 10000
        for name in "abc":
            await team.create(claiming(name, uses="shared"))
        await team.allocate("shared", got("10000Mi"))
        await team.run(100)
        assert team.mem() == 10000
        await team.make("second")
        refused = await team.fails(team.make("third"))
        assert "requested: limits.nvidia.com/gpumem=10000, used: limits.nvidia.com/gpumem=20000" in refused.message
        for name in ("shared", "second"):
            await team.cluster.delete(Kind.RESOURCE_CLAIMS, name, TEAM)
        await team.run(5)
        assert team.mem() == 0, "before entries expire"


async def reviewed(team: Cluster, name: str, uid: str, memory: str = "10000Mi") -> None:
    """A claim that is reviewed, and not stored as yet. Raises `Denied`."""
    made = {"metadata": {"name": name, "namespace": TEAM, "uid": uid}, "spec": spec(exactly(memory=memory, cores="0"))}
    await team.core.claims.review(team.claim_review("CREATE", {}, made))


async def test_a_name_that_is_posted_again_and_again_is_charged_once_whichever_of_them_comes_to_be() -> None:
    """The attack, and what HAMi's webhook does of a Deployment's pods: six claims of a name before one is seen."""
    async with Cluster(quota(mem=30000)) as team:
        await publish(team)
        for number in range(6):
            await reviewed(team, "c", f"uid-{number}")
        assert team.mem() == 10000
        assert len(team.in_flight()) == 1
        await reviewed(team, "c", "uid-larger", "15000Mi")
        assert team.mem() == 15000, "the largest of them"
        await reviewed(team, "c", "uid-smaller", "1Mi")
        await team.cluster.create(Kind.RESOURCE_CLAIMS, {"metadata": {"name": "c", "namespace": TEAM}, "spec": TEN})
        await team.run(5)
        assert team.mem() == 15000, "the larger one may come once this is gone"
        await team.cluster.delete(Kind.RESOURCE_CLAIMS, "c", TEAM)
        await team.run(5)
        assert team.mem() == 15000
        await team.run(100)
        assert (team.mem(), team.ledger()) == (0, {})


async def test_a_name_that_a_claim_has_is_refused_as_the_api_server_does_and_costs_nothing() -> None:
    async with Cluster(quota(mem=30000)) as team:
        await publish(team)
        await team.make("c")
        with pytest.raises(Denied) as refused:
            await reviewed(team, "c", "uid-other")
        assert (refused.value.code, team.mem()) == (409, 10000)
        assert 'resourceclaims.resource.k8s.io "c" already exists' in refused.value.message
        await reviewed(team, "c", "uid-c")  # the same one is reviewed again


async def test_a_claim_in_use_is_freed_when_its_allocation_goes() -> None:
    async with Cluster(quota(mem=50000)) as team:
        await publish(team)
        await team.make("c", spec(exactly(memory="1000Mi")))
        await team.allocate("c", got(None))
        await team.run(100)
        assert team.mem() == 40960
        found = team.cluster.peek(Kind.RESOURCE_CLAIMS, "c", TEAM)
        await team.cluster.replace(Kind.RESOURCE_CLAIMS, {**(found or {}), "status": {}})
        await team.run(100)
        assert team.mem() == 1000


async def test_an_allocation_of_a_device_that_no_slice_shows_waits_for_it() -> None:
    async with Cluster(quota(mem=50000)) as team:
        await publish(team)
        await team.make("c", spec(exactly(memory="1000Mi")))
        refused = await team.fails(team.allocate("c", got(None, device="new")))
        assert (refused.code, refused.retry_after) == (503, 1)
        assert "device new of pool n1 of driver hami-core-gpu.project-hami.io is in no ResourceSlice" in refused.message


async def test_an_allocation_of_a_device_without_a_price_is_refused_for_good() -> None:
    kinds = [whole(name, kind="vgpu") for name in ("x0", "x1")]
    async with Cluster(quota(mem=50000)) as team:
        await publish(team, resource_slice("n1", *kinds, driver=NVIDIA))
        await team.make("c", spec(exactly(memory="1000Mi")))
        results = [{**got(None, device=name), "driver": NVIDIA} for name in ("x0", "x1")]
        refused = await team.fails(team.allocate("c", *results))
        first, second = refused.message.split("; device ")
        assert refused.code == 403
        assert first.startswith(f"quota: can't charge namespace {TEAM}: device x0 of pool n1 of driver {NVIDIA}")
        assert second.startswith(f"x1 of pool n1 of driver {NVIDIA}")


async def test_an_allocation_whose_pod_goes_while_it_is_charged_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Cluster(quota(mem=12000)) as team:
        await publish(team, ten=TEN)
        await team.create(claiming("a", "ten"))
        claim = await team.generate("a", "r-ten")
        get, reads = team.cluster.get, 0

        async def deleted_before_the_second_read(kind: Kind, name: str, namespace: str = "") -> JSON:
            nonlocal reads
            reads += kind is Kind.PODS
            if kind is Kind.PODS and reads == 2:
                await team.cluster.delete(kind, name, namespace)
            return await get(kind, name, namespace)

        monkeypatch.setattr(team.cluster, "get", deleted_before_the_second_read)
        refused = await team.fails(team.allocate(claim, got("12000Mi")))
        assert (refused.code, refused.retry_after) == (503, 1)
        assert refused.message.endswith(f"can't charge namespace {TEAM} now: pod a no longer exists; try again")
        await team.run(3)
        assert (team.mem(), team.in_flight()) == (0, {})


async def reviewed_for_a_pod(team: Cluster, memory: str) -> JSON:
    """The claim of a new pod `a`, allocated as its review allowed; it isn't stored yet."""
    await publish(team, ten=TEN)
    await team.create(claiming("a", "ten"))
    before = team.cluster.peek(Kind.RESOURCE_CLAIMS, await team.generate("a", "r-ten"), TEAM)
    assert before is not None
    return await team.review_allocation(before, got(memory))


@pytest.mark.parametrize("memory", ["10000Mi", "12000Mi"])
async def test_an_allocation_counts_while_it_is_stored_though_its_pod_is_gone(memory: str) -> None:
    async with Cluster(quota(mem=12000)) as team:
        after = await reviewed_for_a_pod(team, memory)
        await team.delete("a")
        await team.run(3)
        assert (await team.refused(claiming("b", "ten"))).code == 403
        await team.cluster.replace(Kind.RESOURCE_CLAIMS, after)
        await team.run(3)
        assert (team.mem(), team.in_flight()) == (int(memory.removesuffix("Mi")), {}), "by the claim itself"
        await team.cluster.delete(Kind.RESOURCE_CLAIMS, after["metadata"]["name"], TEAM)
        await team.run(3)
        await team.create(claiming("b", "ten"))


async def test_while_a_quota_is_above_hard_nothing_is_allocated() -> None:
    """Pods that came while no webhook answered were charged by nobody but the recompute."""
    async with Cluster(quota(mem=10000)) as team:
        await publish(team, t=TEN)
        for name in "ab":
            manifest = claiming(name, "t")
            await team.cluster.create(
                Kind.PODS, {**manifest, "metadata": {**manifest["metadata"], "uid": f"uid-{name}"}}
            )
        await team.run(100)
        assert team.mem() == 20000
        claim = await team.generate("a", "r-t")
        assert (await team.fails(team.allocate(claim, got("10000Mi")))).code == 403
        await team.delete("b")
        await team.run(100)
        await team.allocate(claim, got("10000Mi"))
        assert team.mem() == 10000


@pytest.mark.parametrize("seconds", [None, 0, 100])
async def test_two_claims_of_a_pod_are_charged_both_also_where_neither_is_seen_by_the_other(
    seconds: float | None,
) -> None:
    either = spec([exactly(memory="12000Mi"), exactly(memory="8000Mi")])
    async with Cluster(quota(mem=24000)) as team:
        await publish(team, t=either, u=either)
        await team.create(claiming("a", "t", "u"))
        claims = [await team.generate("a", f"r-{each}", either) for each in "tu"]
        assert team.mem() == 16000
        await team.run(100)
        if seconds is not None:
            for claim in claims:
                await team.run(seconds)
                await team.allocate(claim, got("12000Mi"))
        else:
            befores = [team.cluster.peek(Kind.RESOURCE_CLAIMS, each, TEAM) or {} for each in claims]
            for before in befores:
                after = {**before, "status": {"allocation": {"devices": {"results": [got("12000Mi")]}}}}
                await team.core.claims.review(team.claim_review("UPDATE", before, after))
        assert team.mem() == 24000


async def test_accelerator_quotas_and_quotas_of_some_cards_count_claims() -> None:
    some = quota("a100", mem=10000)
    some["metadata"]["annotations"] = {"hami.io/quota-device-types": "A100"}
    above = accelerator_quota("all", mem=15000)
    async with Cluster(some, quota(mem=100000), above) as team:
        await publish(
            team, resource_slice("n1", share("a0"), share("t4", "16Gi", "NVIDIA T4")), t=spec(exactly(memory="9000Mi"))
        )
        await team.create(claiming("a", "t"))
        claim = await team.generate("a", "r-t")
        await team.allocate(claim, got("9000Mi"))
        assert (team.mem(), team.mem("a100")) == (9000, 9000)
        refused = await team.refused(claiming("b", "t"))
        assert "exceeded quota: AcceleratorQuota all, requested: limits.nvidia.com/gpumem=9000" in refused.message
        await team.cluster.patch(Kind.ACCELERATOR_QUOTAS, "all", {"spec": {"hard": {MEM: "90000"}}})
        await team.drain()
        await team.create(claiming("b", "t"))
        claim = await team.generate("b", "r-t")
        refused = await team.fails(team.allocate(claim, got("9000Mi")))
        assert "exceeded quota: a100, requested: limits.nvidia.com/gpumem=9000" in refused.message
        await team.allocate(claim, got("9000Mi", device="t4"))
        await team.run(100)
        assert (team.mem(), team.mem("a100")) == (18000, 9000)


FORGED: dict[str, JSON] = {
    "with the owner reference of a pod that doesn't ask for it": owned_by("a", "another"),
    "with another pod's annotation alone": {"annotations": {POD_CLAIM_NAME: "r-t"}},
    "with the owner reference alone": {**owned_by("a", "r-t"), "annotations": {}},
}


@pytest.mark.parametrize("meta", FORGED.values(), ids=FORGED)
async def test_a_claim_is_not_covered_by_what_it_says_of_itself(meta: JSON) -> None:
    async with Cluster(quota(mem=20000)) as team:
        await publish(team, t=TEN)
        await team.create(claiming("a", "t"))
        await team.allocate(await team.generate("a", "r-t"), got("10000Mi"))
        with suppress(Denied):
            await team.make("forged", spec(exactly(memory="12000Mi", cores="1")), **meta)
            refused = await team.fails(team.allocate("forged", got("12000Mi")))
            assert "requested: limits.nvidia.com/gpumem=12000, used: limits.nvidia.com/gpumem=10000" in refused.message
        await team.run(100)
        assert team.mem() == 10000


async def test_claims_that_were_not_charged_push_nobody_above_hard() -> None:
    """Many that say that they are a pod's, of which it takes the first by name; and others of it that are large."""
    huge = spec(exactly(memory="9Ei", cores="1"))
    async with Cluster(quota(mem=30000)) as team:
        await publish(team, t=TEN, u=TEN)
        await team.create(claiming("a", "t", "u"))
        for name in "zyx":
            await team.make(name, huge, **owned_by("a", "r-u"))
            await team.run(100)
            assert team.mem() == 20000
        await team.allocate(await team.generate("a", "r-t"), got("10000Mi"))
        await team.run(100)
        assert team.mem() == 20000, "and not 9Ei that wait"
        gated = claiming("b", "t")
        gated["spec"]["schedulingGates"] = [{"name": "example.com/wait"}]
        await team.create(gated)
        await team.cluster.delete(Kind.RESOURCE_CLAIM_TEMPLATES, "t", TEAM)
        await team.cluster.create(Kind.RESOURCE_CLAIM_TEMPLATES, template("t", huge))
        moved = {**gated, "metadata": {**gated["metadata"], "uid": "uid-b"}}
        moved["spec"] = {**gated["spec"], "nodeSelector": {"pool": "other"}}
        assert floor_id(Pod.from_object(moved), team.vendors) == floor_id(Pod.from_object(gated), team.vendors)
        await team.run(100)
        assert team.mem() == 30000


async def test_a_claim_in_the_generated_ones_place_is_charged_what_it_gets() -> None:
    async with Cluster(quota(mem=20000)) as team:
        await publish(team, t=TEN)
        await team.create(claiming("a", "t"))
        await team.generate("a", "r-t", spec(exactly(memory="30Gi")), name="forged")
        refused = await team.fails(team.allocate("forged", got("30Gi")))
        assert "requested: limits.nvidia.com/gpumem=20720, used: limits.nvidia.com/gpumem=10000" in refused.message


async def test_a_claim_of_a_pod_that_is_not_there_is_charged_when_something_is_allocated() -> None:
    async with Cluster(quota(mem=20000)) as team:
        await publish(team)
        await team.make("orphan", spec(exactly(memory="30Gi")), **owned_by("nobody", "r-t"))
        assert team.mem() == 0
        refused = await team.fails(team.allocate("orphan", got("30Gi")))
        assert "requested: limits.nvidia.com/gpumem=30720, used: limits.nvidia.com/gpumem=0" in refused.message
        await team.allocate("orphan", got("20000Mi"))
        await team.run(100)
        assert team.mem() == 20000


async def test_what_no_device_can_satisfy_is_said_to_who_asks_for_it() -> None:
    async with Cluster(quota(mem=10**7)) as env:
        never = spec(exactly(memory="999Gi"))
        await publish(env, never=never)
        made = {"metadata": {"name": "c", "namespace": TEAM, "uid": "uid-c"}, "spec": never}
        answer = await env.core.claims.review(env.claim_review("CREATE", {}, made))
        sentence = f"request r0: no device of class {HAMI} that is published now can satisfy it"
        assert list(answer.warnings) == [sentence]
        for name, text in (("never", sentence), ("absent", "there is no ResourceClaimTemplate absent")):
            reviewed = await env.core.admission.validate(env.review(claiming(name, name)))
            assert list(reviewed.warnings) == [text]


@pytest.mark.parametrize("namespaces", [8, 9])
async def test_claims_of_many_namespaces_are_listed_at_once_and_those_of_others_left_out(namespaces: int) -> None:
    async with Cluster() as team:
        names = [f"n{number}" for number in range(namespaces)]
        for name in (*names, "other"):
            await team.cluster.ensure_namespace(name)
            made = {"metadata": {"name": "c", "namespace": name, "uid": name}, "spec": TEN}
            await team.cluster.create(Kind.RESOURCE_CLAIMS, made)
        found = await ClaimReader(team.cluster, ClaimCache(())).of(names)
        assert [key_of(claim)[0] for claim in found] == names


async def test_nobody_gets_more_by_amounts_that_nothing_has() -> None:
    async with Cluster(quota(gpu=1000, mem=100000)) as team:
        await publish(team, huge=spec(exactly(memory="9Ei", count=10**9)))
        assert (await team.refused(claiming("a", "huge"))).code == 403
