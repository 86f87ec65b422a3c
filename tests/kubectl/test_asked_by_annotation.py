"""What `kubectl hami` shows of pods that ask another scheduler for cards by annotation (docs/spec/kai.md)."""

from __future__ import annotations

from builders import node
from simulate.files import pod

from .apiserver import ApiServer
from .conftest import Hami


def test_a_share_that_kai_places_is_there_with_its_costs(hami: Hami) -> None:
    """Its containers name no resource."""
    labelled = {**node("kai"), "kind": "Node"}
    labelled["metadata"]["labels"] = {"nvidia.com/gpu.memory": "80000"}
    share = pod("share", annotations={"gpu-fraction": "0.5"}, schedulerName="kai-scheduler", nodeName="kai")
    (found,) = hami(ApiServer([labelled, share]), "pods", "-o", "json").result
    assert found["amounts"] == {
        "limits.nvidia.com/gpu": 1,
        "limits.nvidia.com/gpucores": 50,
        "limits.nvidia.com/gpumem": 40000,
    }
