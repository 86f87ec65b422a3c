"""AWS Neuron, mostly as tables (docs/spec/awsneuron.md#2 to #10).

Which devices a container gets is in `test_awsneuron_properties.py`, against a plain reading of section 7.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest
from builders import container, read_node
from tables import in_one_test

from hami_webhook.admission.denial import Denied
from hami_webhook.admission.requests import RequestCache
from hami_webhook.devices.debit import Debit
from hami_webhook.devices.model import RegistrationError
from hami_webhook.devices.placement_annotations import read_placed
from hami_webhook.devices.pod_fit import read_pod_request
from hami_webhook.devices.registration import MOST_CARDS
from hami_webhook.devices.vendors.awsneuron import NeuronRequest
from hami_webhook.kube.objects import Node, Pod
from hami_webhook.quota.pricing import charge_of, price_pending

from .fit_env import CHART, JSON, NOW, FitEnv, configured, pod
from .neurons import (
    CORES,
    CORES_KEY,
    DEVICES,
    DEVICES_KEY,
    INF1,
    RECORD,
    TYPE,
    VENDOR,
    busy,
    entry,
    inferentia,
    instance,
    masks,
    occupy,
    trainium,
    whole,
    with_limits,
)

INT32 = 2147483647


def request(ask: JSON) -> NeuronRequest:
    found = VENDOR.request(Pod.from_object(pod("p", ask)).containers[0])
    assert isinstance(found, NeuronRequest)
    return found


# 2: configuration


def test_the_configured_names_count() -> None:
    vendors = configured("awsneuron: {resourceCountName: x/dev, resourceCoreName: x/core}")
    env = FitEnv([read_node(capacity={"x/dev": 1, "x/core": 2}, labels={TYPE: "inf2.xlarge"})], vendors)
    placed = env.placed(pod(**{"x/core": 1}))
    assert placed.annotations["NEURON_RESOURCE_TYPE"] == "x/core"
    assert placed.debits == {"limits.x/core": 1, "limits.x/dev": 1}


# 3: node side


@pytest.mark.parametrize(("devices", "cores"), [(2, 5), (2, 1), (1, 32), (MOST_CARDS + 1, MOST_CARDS + 1)])
def test_cores_that_do_not_divide_are_no_inventory_and_are_told(devices: int, cores: int) -> None:
    bad = read_node(capacity={DEVICES: devices, CORES: cores})
    with pytest.raises(RegistrationError, match=f"capacity .*{max(devices, cores)}"):
        VENDOR.inventory(bad)
    env = FitEnv([bad])
    assert env.place(pod("p", with_limits(1))) == {"n1": "node unregistered"}
    assert len(env.state.problems()) == 1


def test_a_missing_instance_type_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    env = FitEnv([instance(None, 16)])
    env.state.set_node(instance(None, 16), NOW + 1)
    reported = [record.getMessage() for record in caplog.records]
    assert reported == [f"Node n1: label {TYPE} is missing, so the rules of Trainium hold"]


# 5: admission


@in_one_test("where", ["limits", "requests"])
@in_one_test(
    ("resource", "value", "message"),
    [
        (DEVICES, "1500m", "must be an integer"),
        (DEVICES, 0, "must be greater than 0"),
        (DEVICES, -1, "must be greater than 0"),
        (DEVICES, INT32, None),
        (DEVICES, INT32 + 1, "must not exceed 2147483647"),
        (CORES, "0.5", "must be an integer"),
        (CORES, "-2", "must be greater than 0"),
        (CORES, 2 * INT32, None),
        (CORES, 2 * INT32 + 1, "must not exceed 4294967294"),
        (CORES, 1, None),
        (CORES, 2, None),
        (CORES, 6, None),
        (CORES, 3, "must be 1 or a multiple of 2, got 3"),
    ],
)
def test_amounts_are_checked_in_limits_else_in_requests(
    where: str, resource: str, value: object, message: str | None
) -> None:
    asked = {resource: str(value)}
    ask = container(**asked) if where == "limits" else container(requests=asked)
    result = FitEnv([trainium()]).admit(pod("p", ask))
    assert result.message == (f"{resource} {message}" if message else "")
    assert FitEnv([trainium()]).admit(pod("p", with_limits(), init=[{**ask, "name": "init"}])).message == result.message
    if message is None:
        assert result.pod == pod("p", ask), "nothing in a container is ever changed"


def test_limits_hide_requests_and_devices_hide_cores() -> None:
    env = FitEnv([inferentia(2)])
    assert env.admit(pod("p", with_limits(1, requests={DEVICES: 0}))).message == ""
    assert env.admit(pod("p", with_limits(1, "x"))).message == ""
    assert env.admit(pod("p", with_limits(0, 1))).message == f"{DEVICES} must be greater than 0"


@in_one_test(
    ("nodes", "cores", "refused"),
    [
        ([], 3, 2),
        ([], 6, None),
        ([INF1], 3, None),
        ([INF1], 6, 4),
        ([INF1, trainium()], 3, None),
        ([INF1, trainium()], 5, 2),
        ([instance("trn2.48xlarge", 16, cores=8, name="trn2"), INF1], 7, None),
        ([instance("trn2.48xlarge", 16, cores=8, name="trn2"), INF1], 9, 4),
        ([instance("x", 1, cores=1, name="x")], 7, None),
        ([read_node("cpu")], 3, 2),
    ],
)
def test_a_number_of_cores_must_suit_some_nodes_geometry(nodes: list[Node], cores: int, refused: int | None) -> None:
    expected = "" if refused is None else f"{CORES} must be 1 or a multiple of {refused}, got {cores}"
    assert FitEnv(nodes).admit(pod("p", with_limits(cores=cores))).message == expected


def test_a_request_is_checked_again_as_nodes_may_have_come() -> None:
    known, stored = RequestCache(CHART), Pod.from_object(pod("p", with_limits(cores=6)))
    assert known.checked_requests(stored, FitEnv([]).state)
    with pytest.raises(Denied, match="must be 1 or a multiple of 4, got 6"):
        known.checked_requests(stored, FitEnv([INF1]).state)


@pytest.mark.parametrize(
    ("containers", "warnings"),
    [
        ([with_limits(1), with_limits(2)], []),
        ([with_limits(cores=1), with_limits(cores=2), with_limits()], []),
        (
            [with_limits(1), with_limits(cores=1)],
            [
                f"some containers request {DEVICES} and some {CORES}: "
                "AWS_NEURON_IDS then has device numbers and core numbers in one list"
            ],
        ),
        ([with_limits(1, 2)], [f"container main: {CORES} is ignored, because {DEVICES} is given too"]),
    ],
)
def test_a_mixture_is_admitted_with_a_warning(containers: list[JSON], warnings: list[str]) -> None:
    named = [{**each, "name": "main" if not n else f"c{n}"} for n, each in enumerate(containers)]
    assert list(FitEnv([inferentia(6)]).admit(pod("p", *named)).warnings) == warnings


# 6: extraction


@pytest.mark.parametrize(
    ("ask", "per_device", "expected"),
    [
        (with_limits(1), 2, (1, 2)),
        (with_limits(cores=1), 2, (1, 1)),
        (with_limits(cores=6), 2, (3, 2)),
        (with_limits(cores=3), 4, (1, 3)),
        (with_limits(3), 4, (3, 4)),
        (with_limits(cores=3), 1, (3, 1)),
        (with_limits(cores=8), 4, (2, 4)),
        (with_limits(2, 7), 2, (2, 2)),
        (with_limits(cores=3), 2, None),
    ],
)
def test_a_request_is_resolved_by_the_nodes_geometry(
    ask: JSON, per_device: int, expected: tuple[int, int] | None
) -> None:
    resolved = request(ask).on(per_device)
    assert (resolved and (resolved.count, resolved.cores)) == expected
    assert resolved is None or resolved.memory.on(100) == 0


@pytest.mark.parametrize("value", [0, -1, "1500m", "x", 2 * INT32 + 1, None])
def test_a_bad_amount_that_bypassed_admission_is_no_request(value: object) -> None:
    for resource in (DEVICES, CORES):
        limits = {} if value is None else {resource: value}
        bare = Pod.from_object(pod("p", container(**limits)))
        assert VENDOR.request(bare.containers[0]) is None
        assert read_pod_request(bare, CHART, "spread") is None
    assert VENDOR.request(Pod.from_object(pod("p", with_limits(0, 1))).containers[0]) is None


# 7: Fit


def test_cores_that_make_no_devices_are_refused_by_every_device() -> None:
    env = FitEnv([INF1, inferentia(3)])
    assert masks(env.place(pod("p", with_limits(cores=6)), keep=False)) == whole(0, 1, 2)
    only = FitEnv([INF1])
    assert only.place(pod("p", with_limits(cores=6)), admit=False) == {"inf1": "16/16 CardInsufficientCore"}


def test_a_container_without_cores_keeps_its_device_out_of_a_block() -> None:
    env = FitEnv([inferentia(4)])
    occupy(env, {1: 0})
    assert masks(env.place(pod("p", with_limits(2)))) == whole(2, 3)


# 7.3: usage


def bound(text: str, inits: int = 0, apps: int = 1, sidecars: Sequence[int] = (), status: JSON | None = None) -> Pod:
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
def test_usage_is_the_or_of_masks_and_a_debit_the_number_of_cores(
    text: str, shape: JSON, waiting: tuple[int, int, int], running: tuple[int, int, int]
) -> None:
    for status, expected in ((None, waiting), (RUNNING, running)):
        env = FitEnv([instance("inf1.xlarge", 1, cores=4)])
        holder = bound(text, **shape, status=status)
        env.state.set_pod(holder, NOW)
        view, placed = env.state.view("n1"), read_placed(VENDOR, holder)
        assert view is not None
        assert placed is not None
        usage = view.used("AWSNeuron", "n1-AWSNeuron-0")
        slots, mask, cores = expected
        assert (usage.slots, usage.mask, usage.cores) == (slots, mask, mask.bit_count())
        amounts = charge_of(holder, CHART, env.state.capacity, NOW).amounts
        assert amounts == {k: v for k, v in ((CORES_KEY, cores), (DEVICES_KEY, slots)) if v}
        assert placed.debit(init_finished=status is not None) == Debit(slots, 0, cores)


# 10: quota


@pytest.mark.parametrize(
    ("nodes", "ask", "expected", "floor"),
    [
        ([], with_limits(3), (3, 6), CORES_KEY),
        ([INF1], with_limits(3), (3, 12), CORES_KEY),
        ([INF1, inferentia(6)], with_limits(3), (3, 6), CORES_KEY),
        ([], with_limits(cores=1), (1, 1), DEVICES_KEY),
        ([inferentia(6)], with_limits(cores=6), (3, 6), DEVICES_KEY),
        ([INF1], with_limits(cores=3), (1, 3), DEVICES_KEY),
        ([INF1, inferentia(6)], with_limits(cores=8), (2, 8), DEVICES_KEY),
        ([inferentia(6)], with_limits(cores=3), (1, 3), DEVICES_KEY),
    ],
)
def test_a_waiting_pod_is_charged_the_least_any_node_would_take(
    nodes: list[Node], ask: JSON, expected: tuple[int, int], floor: str
) -> None:
    charge = price_pending(Pod.from_object(pod("p", ask)), CHART, FitEnv(nodes).state.capacity)
    assert (charge.amounts[DEVICES_KEY], charge.amounts[CORES_KEY]) == expected
    assert charge.floors == {floor}
    assert not charge.derivable


def within(env: FitEnv, manifest: JSON, **left: int) -> str:
    """Where the pod goes on n1 with so much quota left: the annotation, or why not."""
    keys = {"cores": CORES_KEY, "devices": DEVICES_KEY}
    env.hard = {keys[what]: env.charged()[keys[what]] + amount for what, amount in left.items()}
    found = env.place(manifest, admit=False, keep=False)
    return found["n1"] if isinstance(found, dict) else found.annotations[RECORD]


def test_quota_comes_after_free_cores() -> None:
    env = FitEnv([inferentia(2)])
    occupy(env, busy(1))
    assert within(env, pod("p", with_limits(1)), cores=1) == "1/2 CardInsufficientCore, 1/2 ResourceQuotaNotFit"


def test_the_second_core_of_a_device_costs_one() -> None:
    """HAMi counts mask 2 as two cores."""
    env = FitEnv([inferentia(1)])
    occupy(env, busy(0))
    assert within(env, pod("p", with_limits(cores=1)), cores=1) == f"{entry(0, 2)};"


def test_the_first_block_that_the_quota_allows_is_taken() -> None:
    """The init container's device costs its pod's app containers nothing more."""
    env = FitEnv([inferentia(4)])
    manifest = pod("p", with_limits(2), init=[with_limits(1, name="i")])
    assert within(env, manifest) == f"{entry(3, 3)};{entry(0, 3)}{entry(1, 3)};"
    assert within(env, manifest, cores=4) == f"{entry(3, 3)};{entry(2, 3)}{entry(3, 3)};"
    assert within(env, manifest, cores=3) == "1/4 AllocatedCardsInsufficientRequest, 3/4 ResourceQuotaNotFit"


def test_an_init_container_moves_to_its_pods_apps_where_they_cannot_move() -> None:
    env = FitEnv([inferentia(3)])
    occupy(env, {2: 1})
    manifest = pod("p", with_limits(2), init=[with_limits(cores=1, name="i")])
    assert within(env, manifest) == f"{entry(2, 2)};{entry(0, 3)}{entry(1, 3)};"
    assert within(env, manifest, cores=4) == f"{entry(1, 1)};{entry(0, 3)}{entry(1, 3)};"


# 9 and 14: what is written

IDS, KIND = "AWS_NEURON_IDS", "NEURON_RESOURCE_TYPE"


def test_example_05_single_cores_fill_the_last_device() -> None:
    env = FitEnv([trainium()])
    reported = []
    for number, ask in enumerate([with_limits(cores=1), with_limits(cores=1), with_limits(1)]):
        placed = env.placed(pod(f"p{number}", ask))
        reported.append((masks(placed), placed.annotations[IDS], placed.annotations.get(KIND)))
    assert reported == [({15: 1}, "30", CORES), ({15: 2}, "31", CORES), ({14: 3}, "14", None)]


def test_example_06_cores_of_four_whole_devices() -> None:
    placed = FitEnv([trainium()]).placed(pod("p", with_limits(cores=8)))
    assert masks(placed) == whole(0, 1, 2, 3)
    assert placed.annotations[IDS] == "0,1,2,3,4,5,6,7"
    assert placed.annotations[KIND] == CORES
    assert placed.debits == {CORES_KEY: 8, DEVICES_KEY: 4}


def test_example_07_two_containers_share_a_device() -> None:
    placed = FitEnv([inferentia(1)]).placed(pod("p", with_limits(cores=1), with_limits(cores=1, name="b")))
    assert placed.annotations[RECORD] == "n1-AWSNeuron-0,AWSNeuron,0,1:;n1-AWSNeuron-0,AWSNeuron,0,2:;"
    assert placed.annotations[IDS] == "0,1"
    assert placed.debits == {CORES_KEY: 2, DEVICES_KEY: 2}


def test_example_11_four_cores_a_device() -> None:
    env = FitEnv([instance("inf1.xlarge", 1, cores=4)])
    device = env.placed(pod("p", with_limits(1)), keep=False)
    assert (masks(device), device.annotations[IDS]) == ({0: 15}, "0")
    assert device.debits == {CORES_KEY: 4, DEVICES_KEY: 1}
    cores = env.placed(pod("p", with_limits(cores=3)))
    assert (masks(cores), cores.annotations[IDS]) == ({0: 7}, "0,1,2")


def test_section_9_everything_that_is_written() -> None:
    placed = FitEnv([trainium()]).placed(pod("p", with_limits(cores=1)))
    assert placed.annotations == {
        "hami.io/vgpu-node": "n1",
        "hami.io/vgpu-time": "1767225600",
        "hami.io/aws-neuron-devices-allocated": "n1-AWSNeuron-15,AWSNeuron,0,1:;",
        "AWS_NEURON_IDS": "30",
        "NEURON_RESOURCE_TYPE": "aws.amazon.com/neuroncore",
        "NEURON_ALLOC_TIME": "1767225600000000000",
        "NEURON_ALLOCATED": "false",
        "aws.amazon.com/predicate-node": "n1",
    }


def test_section_9_init_containers_come_first_and_kinds_mix_in_one_list() -> None:
    placed = FitEnv([inferentia(2)]).placed(pod("p", with_limits(1), init=[with_limits(cores=1, name="warm")]))
    assert placed.annotations[RECORD] == f"{entry(1, 1)};{entry(1, 3)};"
    assert placed.annotations[IDS] == "2,1"
    assert placed.annotations[KIND] == CORES
