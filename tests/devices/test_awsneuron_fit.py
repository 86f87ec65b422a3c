"""How AWS Neuron devices are given, counted and charged (page sections 7 to 10), mostly as tables."""

import pytest
from builders import container

from hami_webhook.devices.debit import Debit
from hami_webhook.devices.placement_annotations import read_placed
from hami_webhook.kube.objects import Pod
from hami_webhook.quota.budget import PodBudget
from hami_webhook.quota.pricing import NoCapacity, charge_of, waiting_charge
from hami_webhook.scheduling.fit import NodeFit, fit_pod, read_pod_request

from .fit_env import CHART, NOW, FitEnv, pod
from .neurons import (
    CORES_KEY,
    DEVICES_KEY,
    INF1,
    RECORD,
    VENDOR,
    busy,
    entry,
    inferentia,
    instance,
    masks,
    occupy,
    whole,
    with_limits,
)

# 7: Fit


def test_cores_that_make_no_devices_are_refused_by_every_device():
    env = FitEnv([INF1, inferentia(3)])
    assert masks(env.place(pod("p", with_limits(cores=6)), keep=False)) == whole(0, 1, 2)
    only = FitEnv([INF1])
    assert only.place(pod("p", with_limits(cores=6)), admit=False) == {"inf1": "16/16 CardInsufficientCore"}


@pytest.mark.parametrize(
    ("kind", "block"),
    [
        ("inf2.24xlarge", whole(1, 2, 3)),
        ("INF1.x", whole(1, 2, 3)),
        ("trn1.32xlarge", "1/16 NumaNotFit"),
        ("", "1/16 NumaNotFit"),
        (None, "1/16 NumaNotFit"),
    ],
)
def test_the_instance_type_alone_is_the_topology(kind, block):
    env = FitEnv([instance(kind, 16)])
    occupy(env, {0: 2})
    assert masks(env.place(pod("p", with_limits(3)))) == block


def test_a_container_without_cores_keeps_its_device_out_of_a_block():
    env = FitEnv([inferentia(4)])
    occupy(env, {1: 0})
    assert masks(env.place(pod("p", with_limits(2)))) == whole(2, 3)


# 7.3: usage


def bound(text, inits=0, apps=1, sidecars=(), status=None):
    """A pod bound to n1 that was given this."""
    init = [container(f"i{n}", sidecar=n in sidecars) for n in range(inits)]
    made = pod("p", *(container(f"a{n}") for n in range(apps)), init=init)
    made["metadata"]["annotations"] = {RECORD: text, "hami.io/vgpu-node": "n1"}
    made["spec"]["nodeName"] = "n1"
    return Pod.from_object({**made, "status": status or {}})


RUNNING = {"containerStatuses": [{"name": "a0", "state": {"running": {}}}]}


@pytest.mark.parametrize(
    ("text", "shape", "waiting", "running"),
    [
        # slots, mask in use, cores debited
        (f"{entry(0, 1)};{entry(0, 2)};", {"apps": 2}, (2, 3, 2), (2, 3, 2)),
        (f"{entry(0, 2)};{entry(0, 1)};", {"inits": 1}, (1, 3, 1), (1, 1, 1)),
        (f"{entry(0, 2)};{entry(0, 1)};", {"inits": 1, "sidecars": [0]}, (2, 3, 2), (2, 3, 2)),
        (f"{entry(0, 14)};{entry(0, 1)};{entry(0, 2)};", {"inits": 1, "apps": 2}, (2, 15, 3), (2, 3, 2)),
        (f"{entry(0, 1)};{entry(0, 6)};{entry(0, 2)};", {"inits": 2, "sidecars": [0]}, (2, 7, 3), (2, 3, 2)),
        (f"{entry(0, 15)};;", {"inits": 1}, (1, 15, 4), (0, 0, 0)),
        (f"{entry(0, 3)};{entry(0, 3)};", {"apps": 2}, (2, 3, 2), (2, 3, 2)),
    ],
)
def test_usage_is_the_or_of_masks_and_a_debit_the_number_of_cores(text, shape, waiting, running):
    for status, expected in ((None, waiting), (RUNNING, running)):
        env = FitEnv([instance("inf1.xlarge", 1, cores=4)])
        holder = bound(text, **shape, status=status)
        env.state.set_pod(holder, NOW)
        usage = env.state.view("n1").used("AWSNeuron", "n1-AWSNeuron-0")
        slots, mask, cores = expected
        assert (usage.slots, usage.mask, usage.cores) == (slots, mask, mask.bit_count())
        amounts = charge_of(holder, CHART, env.state, NOW).amounts
        assert amounts == {k: v for k, v in ((CORES_KEY, cores), (DEVICES_KEY, slots)) if v}
        assert read_placed(VENDOR, holder).debit(init_finished=status is not None) == Debit(slots, 0, cores)


def test_an_init_container_and_an_app_that_follows_use_the_same_cores():
    env = FitEnv([inferentia(2)])
    placed = env.place(pod("p", with_limits(2), init=[with_limits(2, name="warm")]))
    assert placed.annotations[RECORD] == f"{entry(0, 3)}{entry(1, 3)};" * 2
    assert placed.debits == {CORES_KEY: 4, DEVICES_KEY: 2}


# 10: quota


@pytest.mark.parametrize(
    ("nodes", "ask", "expected", "floor"),
    [
        ([], with_limits(3), (3, 6), CORES_KEY),
        ([inferentia(6)], with_limits(3), (3, 6), CORES_KEY),
        ([INF1], with_limits(3), (3, 12), CORES_KEY),
        ([INF1, inferentia(6)], with_limits(3), (3, 6), CORES_KEY),
        ([], with_limits(cores=1), (1, 1), DEVICES_KEY),
        ([inferentia(6)], with_limits(cores=6), (3, 6), DEVICES_KEY),
        ([INF1], with_limits(cores=3), (1, 3), DEVICES_KEY),
        ([INF1, inferentia(6)], with_limits(cores=8), (2, 8), DEVICES_KEY),
        ([INF1, inferentia(6)], with_limits(cores=6), (3, 6), DEVICES_KEY),
        ([inferentia(6)], with_limits(cores=3), (1, 3), DEVICES_KEY),
    ],
)
def test_a_waiting_pod_is_charged_the_least_any_node_would_take(nodes, ask, expected, floor):
    charge = waiting_charge(Pod.from_object(pod("p", ask)), CHART, FitEnv(nodes).state)
    assert (charge.amounts[DEVICES_KEY], charge.amounts[CORES_KEY]) == expected
    assert charge.floors == {floor}
    assert not charge.derivable


def test_a_waiting_pods_containers_are_charged_at_their_peak():
    incoming = Pod.from_object(
        pod("p", with_limits(1), with_limits(cores=1, name="b"), init=[with_limits(2, name="i")])
    )
    assert waiting_charge(incoming, CHART, NoCapacity()).amounts == {DEVICES_KEY: 2, CORES_KEY: 4}


def within(env, manifest, **limits):
    """Where the pod goes on n1 with so much quota left: the annotation, or why not."""
    incoming = Pod.from_object(manifest)
    ask = read_pod_request(incoming, CHART, "spread")
    names = {"cores": CORES_KEY, "devices": DEVICES_KEY}
    budget = PodBudget({names[key]: limit for key, limit in limits.items()}, incoming.kinds, CHART)
    view = env.state.view("n1")
    result = fit_pod(view, ask, CHART, budget)
    return VENDOR.encode(result.rows, view.node, NOW)[RECORD] if isinstance(result, NodeFit) else str(result)


def test_quota_comes_after_free_cores():
    env = FitEnv([inferentia(2)])
    occupy(env, busy(1))
    assert within(env, pod("p", with_limits(1)), cores=1) == "1/2 CardInsufficientCore, 1/2 ResourceQuotaNotFit"


def test_the_second_core_of_a_device_costs_one():
    """HAMi counts mask 2 as two cores."""
    env = FitEnv([inferentia(1)])
    occupy(env, busy(0))
    assert within(env, pod("p", with_limits(cores=1)), cores=1) == f"{entry(0, 2)};"


def test_the_first_block_that_the_quota_allows_is_taken():
    """The init container's device costs its pod's app containers nothing more."""
    env = FitEnv([inferentia(4)])
    manifest = pod("p", with_limits(2), init=[with_limits(1, name="i")])
    assert within(env, manifest) == f"{entry(3, 3)};{entry(0, 3)}{entry(1, 3)};"
    assert within(env, manifest, cores=4) == f"{entry(3, 3)};{entry(2, 3)}{entry(3, 3)};"
    assert within(env, manifest, cores=3) == "1/4 AllocatedCardsInsufficientRequest, 3/4 ResourceQuotaNotFit"


def test_an_init_container_moves_to_its_pods_apps_where_they_cannot_move():
    env = FitEnv([inferentia(3)])
    occupy(env, {2: 1})
    manifest = pod("p", with_limits(2), init=[with_limits(cores=1, name="i")])
    assert within(env, manifest) == f"{entry(2, 2)};{entry(0, 3)}{entry(1, 3)};"
    assert within(env, manifest, cores=4) == f"{entry(1, 1)};{entry(0, 3)}{entry(1, 3)};"
