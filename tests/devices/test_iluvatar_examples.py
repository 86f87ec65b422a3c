"""The worked examples of docs/spec/iluvatar.md#14, each under its own number."""

import pytest
from builders import container

from hami_webhook.devices.placement_annotations import read_placed
from hami_webhook.kube.objects import Pod

from .fit_env import CHART, FitEnv, Placed, configured, pod
from .iluvatars import ALLOCATED, OLD, OLD_CORE, OLD_SECTION, VCORE, VGPU, VMEM, A, chip_node, old_node, with_limits
from .iluvatars import placed as where_it_goes

BUSY = pod("busy", with_limits(n=1, mem=64, core=50))
BINPACK = {"hami.io/gpu-scheduler-policy": "binpack"}


def env(*taken, cards=None):
    """`ilu-1`, with these pods on it."""
    where = FitEnv([chip_node(cards) if cards else chip_node()], vendors=CHART)
    for each in taken:
        assert isinstance(where.place(each), Placed)
    return where


def debits(result):
    assert isinstance(result, Placed), result
    return [result.debits.get(f"limits.{name}", 0) for name in (VGPU, VMEM, VCORE)]


def test_1_half_a_card():
    result = env().place(pod("p", with_limits(n=1, mem=64, core=50)))
    assert result.annotations[ALLOCATED] == "GPU-2222,BI-V150,16384,50:;"
    assert debits(result) == [1, 64, 50]


def test_2_two_cards_are_whole():
    where = env()
    admitted = where.admit(pod("p", with_limits(n=2, core=30, requests={"n": 2, "core": 30})))
    assert (admitted.limits()[VCORE], admitted.requests()[VCORE]) == ("200", "200")
    result = where.place(admitted.pod)
    assert result.annotations[ALLOCATED] == "GPU-2222,BI-V150,32768,100:GPU-1111,BI-V150,32768,100:;"
    assert debits(result) == [2, 256, 200]


@pytest.mark.parametrize(("notes", "card"), [({}, "GPU-1111"), (BINPACK, "GPU-2222")])
def test_3_spread_takes_the_idle_card_and_binpack_the_busy_one(notes, card):
    incoming = pod("p", with_limits(n=1, mem=32, core=20), annotations=notes)
    assert where_it_goes(env(BUSY), incoming) == f"{card},BI-V150,8192,20:;"


@pytest.mark.parametrize(
    ("taken", "amounts", "label"),
    [
        ({"mem": 16}, {"mem": 16, "core": 100}, "ExclusiveDeviceAllocateConflict"),
        ({"mem": 16, "core": 60}, {"mem": 16, "core": 50}, "CardInsufficientCore"),
        ({"mem": 16, "core": 100}, {"mem": 16}, "CardComputeUnitsExhausted"),
    ],
)
def test_4_cores_on_the_only_card(taken, amounts, label):
    where = env(pod("taken", with_limits(n=1, **taken)), cards=A)
    assert where_it_goes(where, pod("p", with_limits(n=1, **amounts))) == f"1/1 {label}"


def test_5_two_cards_where_one_is_in_use():
    answer = "1/2 AllocatedCardsInsufficientRequest, 1/2 CardInsufficientMemory"
    assert where_it_goes(env(BUSY), pod("p", with_limits(n=2))) == answer


def test_6_a_container_without_cards_keeps_its_slot():
    incoming = pod("p", container("side"), with_limits("main", n=1, mem=64, core=50))
    assert where_it_goes(env(), incoming) == ";GPU-2222,BI-V150,16384,50:;"


def test_7_an_init_container_shares_the_card_and_is_charged_until_it_is_over():
    result = env().place(
        pod("p", with_limits("main", n=1, mem=32, core=20), init=[with_limits("prep", n=1, mem=64, core=50)])
    )
    text = result.annotations[ALLOCATED]
    assert text == "GPU-2222,BI-V150,16384,50:;GPU-2222,BI-V150,8192,20:;"
    assert debits(result) == [1, 64, 50]
    done = {"name": "prep", "state": {"terminated": {"exitCode": 0}}}
    manifest = pod("p", with_limits("main"), init=[with_limits("prep")], annotations={ALLOCATED: text})
    after = Pod.from_object(manifest | {"status": {"initContainerStatuses": [done]}})
    assert after.init_finished
    held = read_placed(CHART["BI-V150"], after).debit(init_finished=True)
    assert (held.slots, held.memory, held.cores) == (1, 32 * 256, 20)


def test_8_bytes_are_no_units():
    message = env().admit(pod("p", with_limits(n=1, mem="16Gi"))).message
    assert message == (
        f"invalid {VMEM} value 16Gi in container main: "
        "must be a whole number of 256 MiB units (16 GiB is 64) between 0 and 8388607"
    )


def test_9_another_chip():
    assert env().place(pod(**{"iluvatar.ai/MR-V100-vgpu": 1})) == {"ilu-1": "NodeInsufficientDevice"}


def test_10_the_old_family():
    where = FitEnv([old_node()], vendors=configured(OLD_SECTION))
    admitted = where.admit(pod(**{OLD: 2}))
    assert admitted.limits() == {OLD: "2", OLD_CORE: "200"}
    result = where.place(admitted.pod)
    assert result.annotations["iluvatar.ai/predicate-gpu-idx-0"] == "1,0"
    assert result.annotations["hami.io/iluvatar-vgpu-devices-allocated"] == (
        "old-1-iluvatar-1,Iluvatar,32768,100:old-1-iluvatar-0,Iluvatar,32768,100:;"
    )
