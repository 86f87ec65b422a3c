"""`--enable-ascend` and `--enable-iluvatar`: what `serve` ignores without them, `simulate` and `config check` take."""

from __future__ import annotations

from typing import Any

import pytest
from simulate.files import Simulate

from hami_webhook.devices.registry import Vendors

CONFIG = """\
nvidia: {resourceCountName: nvidia.com/gpu}
vnpus: [{commonWord: Ascend910B3, resourceName: huawei.com/Ascend910B3, memoryAllocatable: 65536}]
"""
NPU_POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "p"},
    "spec": {"containers": [{"name": "c", "resources": {"limits": {"huawei.com/Ascend910B3": "1"}}}]},
}


@pytest.mark.parametrize(
    ("flags", "keys"),
    [
        ([], ["NVIDIA"]),
        (["--enable-iluvatar"], ["NVIDIA"]),
        (["--enable-ascend=false"], ["NVIDIA"]),
        (["--enable-ascend"], ["Ascend910B3", "NVIDIA"]),
        (["--enable-ascend=true"], ["Ascend910B3", "NVIDIA"]),
    ],
)
def test_serve_has_the_chips_only_with_their_switch(
    command: Simulate, monkeypatch: pytest.MonkeyPatch, flags: list[str], keys: list[str]
) -> None:
    served: list[Vendors] = []

    async def serve(bundle: Any, vendors: Vendors, settings: Any, policies: Any) -> None:
        served.append(vendors)

    monkeypatch.setattr("hami_webhook.server.serve_kubernetes.serve_embedded", serve)
    config, empty = command.file("device-config.yaml", CONFIG), command.file("cluster.yaml", "")
    run = command.main("serve", "--embedded-cluster", empty, "--device-config-file", config, *flags)
    assert run.status == 0
    (vendors,) = served
    assert list(vendors) == keys


def test_simulate_and_config_check_have_them_always(command: Simulate) -> None:
    config = command.file("device-config.yaml", CONFIG)
    assert command([], NPU_POD, flags=["--config", config]).pod("p")["patch"] != []
    checked = command.main("config", "check", config)
    assert checked.status == 0
    assert "limits.huawei.com/Ascend910B3" in checked.out
    assert checked.out.count("serve ignores it without --enable-ascend") == 1
