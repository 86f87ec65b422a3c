"""Quota of AWS Neuron cores on every path.

Source: docs/spec/quota.md#13, scenario 30; docs/spec/awsneuron.md#5, #10 and #13.
"""

from __future__ import annotations

import pytest
from builders import container

from hami_webhook.admission.denial import Denied
from hami_webhook.cluster.api import JSON, Kind

from .objects import account_of, pod, quota
from .quota_env import QuotaEnv

CORES, DEVICES = "aws.amazon.com/neuroncore", "aws.amazon.com/neuron"
CORES_KEY, DEVICES_KEY = f"limits.{CORES}", f"limits.{DEVICES}"


def instance(name: str, kind: str, devices: int, per_device: int = 2) -> JSON:
    labels = {"node.kubernetes.io/instance-type": kind}
    return {
        "metadata": {"name": name, "labels": labels},
        "status": {"capacity": {DEVICES: str(devices), CORES: str(devices * per_device)}},
    }


INF2, INF1 = instance("inf2", "inf2.48xlarge", 12), instance("inf1", "inf1.xlarge", 1, 4)


def limited(**hard: int) -> JSON:
    """A quota of `cores` and `devices`."""
    keys = {"cores": CORES_KEY, "devices": DEVICES_KEY}
    return quota(spec={"hard": {keys[key]: str(most) for key, most in hard.items()}})


def used(env: QuotaEnv) -> dict[str, int]:
    return dict(account_of(env.quota(), env.vendors).used)


def asking(resource: str, count: int, name: str = "main") -> JSON:
    return container(name, limits={resource: str(count)})


def cores(name: str, count: int) -> JSON:
    return pod(name, asking(CORES, count))


def devices(name: str, count: int) -> JSON:
    return pod(name, asking(DEVICES, count))


async def test_scenario_30_masks_are_not_added() -> None:
    async with QuotaEnv(instance("n1", "inf2.xlarge", 1), limited(cores=3)) as env:
        for name, written in (("a", "1"), ("b", "2")):
            await env.create(cores(name, 1))
            assert await env.node_of(name) == "n1"
            record = env.pod(name).annotations["hami.io/aws-neuron-devices-allocated"]
            assert record == f"n1-AWSNeuron-0,AWSNeuron,0,{written}:;"
        await env.run(2)
        assert used(env) == {CORES_KEY: 2}


async def test_section_10_three_devices_and_two_cores_fill_a_quota_of_eight() -> None:
    async with QuotaEnv(INF2, limited(cores=8)) as env:
        for manifest, total in ((devices("a", 3), 6), (cores("b", 1), 7), (cores("c", 1), 8)):
            name = manifest["metadata"]["name"]
            await env.create(manifest)
            assert await env.node_of(name) == "inf2"
            await env.run(2)
            assert used(env) == {CORES_KEY: total}
        denied = await env.refused(cores("d", 1))
        assert (denied.code, denied.message) == (
            403,
            "exceeding resource quota: exceeded quota: gpu-quota, "
            f"requested: {CORES_KEY}=1, used: {CORES_KEY}=8, limited: {CORES_KEY}=8",
        )


async def test_a_new_kind_of_node_moves_no_waiting_pods_charge() -> None:
    async with QuotaEnv(INF1, limited(cores=20)) as env:
        await env.create(devices("a", 1))
        assert used(env) == {CORES_KEY: 4}
        await env.add(INF2)
        await env.run(600)
        assert used(env) == {CORES_KEY: 4}
        await env.create(devices("b", 2))
        assert used(env) == {CORES_KEY: 8}
        assert await env.node_of("b") == "inf2"
        assert await env.node_of("a") == "inf2"
        await env.run(2)
        assert used(env) == {CORES_KEY: 6}


async def test_a_device_with_more_cores_than_the_quota_has_left_is_not_given() -> None:
    async with QuotaEnv(INF1, INF2, limited(cores=3)) as env:
        await env.create(devices("a", 1))
        assert used(env) == {CORES_KEY: 2}
        placed = await env.place("a")
        assert placed.failed["inf1"].labels() == {"ResourceQuotaNotFit"}
        assert env.pod("a").node_name == "inf2"


@pytest.mark.parametrize("path", ["/mutate", "/validate", "/webhook"])
@pytest.mark.parametrize("scheduler", ["", "volcano"])
async def test_the_shape_is_checked_on_every_path(path: str, scheduler: str) -> None:
    async with QuotaEnv(INF2, limited(cores=20)) as env:
        gate, review = env.core.admission, env.review
        manifest = cores("a", 3)
        manifest["metadata"]["uid"] = "u"
        manifest["spec"]["schedulerName"] = scheduler
        call = {"/mutate": gate.mutate, "/validate": gate.validate, "/webhook": gate.webhook}[path]
        with pytest.raises(Denied) as caught:
            await call(review(manifest))
        assert (caught.value.code, caught.value.message) == (422, f"{CORES} must be 1 or a multiple of 2, got 3")
        await env.cluster.create(Kind.NODES, INF1)
        await env.drain()
        await call(review(manifest))
