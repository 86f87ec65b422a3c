"""Quota of AWS Neuron cores: docs/spec/quota.md#13, scenario 30, and docs/spec/awsneuron.md#10."""

from __future__ import annotations

from builders import container

from hami_webhook.cluster.api import JSON

from .objects import account_of, pod, quota
from .quota_env import QuotaEnv

CORES, DEVICES = "aws.amazon.com/neuroncore", "aws.amazon.com/neuron"
CORES_KEY = f"limits.{CORES}"


def instance(name: str, kind: str, devices: int) -> JSON:
    labels = {"node.kubernetes.io/instance-type": kind}
    return {
        "metadata": {"name": name, "labels": labels},
        "status": {"capacity": {DEVICES: str(devices), CORES: str(devices * 2)}},
    }


INF2 = instance("inf2", "inf2.48xlarge", 12)


def limited(cores: int) -> JSON:
    return quota(spec={"hard": {CORES_KEY: str(cores)}})


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
