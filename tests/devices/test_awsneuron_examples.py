"""The worked examples of the AWS Neuron page: section 14 under their numbers, and those of sections 9 and 10."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from tables import in_one_test

from hami_webhook.kube.objects import Node

from .fit_env import JSON, FitEnv, pod
from .neurons import (
    CORES,
    CORES_KEY,
    DEVICES_KEY,
    MUTEX,
    NOUSE,
    RECORD,
    USE,
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

IDS, KIND = "AWS_NEURON_IDS", "NEURON_RESOURCE_TYPE"


def on(*nodes: Node, taken: Sequence[Mapping[int, int]] = ()) -> FitEnv:
    env = FitEnv(nodes)
    occupy(env, *taken)
    return env


@in_one_test(
    ("node", "taken", "ask", "notes", "expected"),
    [
        pytest.param(inferentia(12), [busy(1)], with_limits(3), {}, whole(2, 3, 4), id="1"),
        pytest.param(inferentia(6), [busy(1, 3, 5)], with_limits(2), {}, "1/6 NumaNotFit", id="2"),
        pytest.param(inferentia(6), [busy(1, 2, 3, 4)], with_limits(2), {}, "1/6 NumaNotFit", id="2 ends"),
        pytest.param(inferentia(16), [busy(5, 14)], with_limits(8), {}, whole(*range(6, 14)), id="3"),
        pytest.param(trainium(), [busy(7)], with_limits(8), {}, whole(*range(8, 16)), id="4 eight"),
        pytest.param(trainium(), [busy(7, 13)], with_limits(8), {}, "1/16 NumaNotFit", id="4 no eight"),
        pytest.param(trainium(), [busy(1)], with_limits(4), {}, whole(4, 5, 6, 7), id="4 four"),
        pytest.param(trainium(), [], with_limits(2), {}, "1/16 NumaNotFit", id="4 two"),
        pytest.param(trainium(), [], with_limits(cores=4), {}, "1/16 NumaNotFit", id="6"),
        pytest.param(inferentia(1), [{0: 1}], with_limits(cores=2), {}, "1/1 CardInsufficientCore", id="8 cores"),
        pytest.param(
            inferentia(1), [{0: 1}], with_limits(cores=1), MUTEX, "1/1 ExclusiveDeviceAllocateConflict", id="8 mutex"
        ),
        pytest.param(
            inferentia(1), [{0: 1}, {0: 2}], with_limits(cores=1), {}, "1/1 CardTimeSlicingExhausted", id="8 slots"
        ),
        pytest.param(inferentia(6), [], with_limits(2), {NOUSE: "n1-AWSNeuron-0"}, whole(1, 2), id="9 denied"),
        pytest.param(inferentia(6), [], with_limits(1), {USE: "n1-AWSNeuron-2"}, whole(2), id="9 allowed"),
        pytest.param(
            inferentia(1), [], with_limits(1), {USE: "n1-AWSNeuron-7"}, "1/1 CardUuidMismatch", id="9 allowed elsewhere"
        ),
    ],
)
def test_on_one_node(
    node: Node, taken: list[dict[int, int]], ask: JSON, notes: dict[str, str], expected: object
) -> None:
    """Examples 1 to 4, 6, 8 and 9."""
    assert masks(on(node, taken=taken).place(pod("p", ask, annotations=notes))) == expected


def test_example_01_three_devices_of_an_inferentia_node() -> None:
    placed = on(inferentia(12)).placed(pod("p", with_limits(3)))
    assert masks(placed) == whole(0, 1, 2)
    assert placed.annotations[IDS] == "0,1,2"
    assert KIND not in placed.annotations
    assert placed.debits == {CORES_KEY: 6, DEVICES_KEY: 3}


def test_example_05_single_cores_fill_the_last_device() -> None:
    env = on(trainium())
    reported = []
    for number, ask in enumerate([with_limits(cores=1), with_limits(cores=1), with_limits(1)]):
        placed = env.placed(pod(f"p{number}", ask))
        reported.append((masks(placed), placed.annotations[IDS], placed.annotations.get(KIND)))
    assert reported == [({15: 1}, "30", CORES), ({15: 2}, "31", CORES), ({14: 3}, "14", None)]


def test_example_06_cores_of_four_whole_devices() -> None:
    placed = on(trainium()).placed(pod("p", with_limits(cores=8)))
    assert masks(placed) == whole(0, 1, 2, 3)
    assert placed.annotations[IDS] == "0,1,2,3,4,5,6,7"
    assert placed.annotations[KIND] == CORES
    assert placed.debits == {CORES_KEY: 8, DEVICES_KEY: 4}


def test_example_07_two_containers_share_a_device() -> None:
    placed = on(inferentia(1)).placed(pod("p", with_limits(cores=1), with_limits(cores=1, name="b")))
    assert placed.annotations[RECORD] == "n1-AWSNeuron-0,AWSNeuron,0,1:;n1-AWSNeuron-0,AWSNeuron,0,2:;"
    assert placed.annotations[IDS] == "0,1"
    assert placed.debits == {CORES_KEY: 2, DEVICES_KEY: 2}


def test_example_11_four_cores_a_device() -> None:
    env = on(instance("inf1.xlarge", 1, cores=4))
    device = env.placed(pod("p", with_limits(1)), keep=False)
    assert (masks(device), device.annotations[IDS]) == ({0: 15}, "0")
    assert device.debits == {CORES_KEY: 4, DEVICES_KEY: 1}
    cores = env.placed(pod("p", with_limits(cores=3)))
    assert (masks(cores), cores.annotations[IDS]) == ({0: 7}, "0,1,2")


def test_example_12_a_container_without_devices_keeps_its_slot() -> None:
    placed = on(inferentia(6)).placed(pod("p", with_limits(), with_limits(1, name="b")))
    assert placed.annotations[RECORD] == ";n1-AWSNeuron-5,AWSNeuron,0,3:;"
    assert placed.annotations[IDS] == "5"


def test_example_13_every_node_by_its_own_rule() -> None:
    placed = on(trainium("a"), inferentia(6, "b")).placed(pod("p", with_limits(3)))
    assert (placed.node, masks(placed)) == ("b", whole(0, 1, 2))
    assert on(trainium("a")).place(pod("p", with_limits(3))) == {"a": "1/16 NumaNotFit"}


def test_section_9_everything_that_is_written() -> None:
    placed = on(trainium()).placed(pod("p", with_limits(cores=1)))
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
    placed = on(inferentia(2)).placed(pod("p", with_limits(1), init=[with_limits(cores=1, name="warm")]))
    assert placed.annotations[RECORD] == f"{entry(1, 1)};{entry(1, 3)};"
    assert placed.annotations[IDS] == "2,1"
    assert placed.annotations[KIND] == CORES
