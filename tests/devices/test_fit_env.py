"""The environment of the vendors' tests itself: admission, Fit and debits as the whole program has them."""

from builders import read_node

from .fit_env import FitEnv, Placed, pod

CARD = '[{"id":"GPU-0","count":2,"devmem":8000,"devcore":100,"type":"NVIDIA A10","mode":"hami-core","health":true}]'
N1 = read_node("n1", capacity={"nvidia.com/gpu": 2}, **{"hami.io/node-nvidia-register": CARD})


def with_limits(name: str, memory: int) -> dict[str, object]:
    return pod(name, **{"nvidia.com/gpu": 1, "nvidia.com/gpumem": memory})


def test_a_placed_pod_takes_its_share_until_it_is_removed() -> None:
    env = FitEnv([N1])
    placed = env.place(with_limits("a", 5000))
    assert isinstance(placed, Placed)
    assert placed.annotations["hami.io/vgpu-devices-allocated"] == "GPU-0,NVIDIA,5000,0:;"
    assert placed.debits == {"limits.nvidia.com/gpu": 1, "limits.nvidia.com/gpumem": 5000}
    assert env.place(with_limits("b", 5000)) == {"n1": "1/1 CardInsufficientMemory"}
    env.remove("a")
    assert isinstance(env.place(with_limits("b", 5000)), Placed)


def test_a_quota_holds_for_all_pods_together() -> None:
    env = FitEnv([N1], hard={"limits.nvidia.com/gpumem": 5000})
    assert env.waiting(with_limits("a", 3000)) == {"limits.nvidia.com/gpu": 1, "limits.nvidia.com/gpumem": 3000}
    assert isinstance(env.place(with_limits("a", 3000)), Placed)
    assert env.used("NVIDIA", "GPU-0") == (1, 3000, 0)
    assert env.place(with_limits("b", 2001)) == {"n1": "1/1 ResourceQuotaNotFit"}
    assert isinstance(env.place(with_limits("b", 2000)), Placed)


def test_admission_refuses_with_a_sentence() -> None:
    refused = FitEnv([N1]).admit(pod(**{"nvidia.com/gpu": "1500m"}))
    assert refused.pod is None
    assert "nvidia.com/gpu" in refused.message
