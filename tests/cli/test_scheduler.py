"""`scheduler`, the command of HAMi's chart, and the switches that `serve` needs for some chips."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from simulate.files import Simulate

from hami_webhook import __version__, cli
from hami_webhook.config import Settings
from hami_webhook.devices.registry import Vendors

CHART = (
    *("--http_bind=0.0.0.0:443", "--cert_file=/tls/tls.crt", "--key_file=/tls/tls.key"),
    *("--scheduler-name=hami-scheduler", "--metrics-bind-address=:9395"),
    *("--node-scheduler-policy=binpack", "--gpu-scheduler-policy=spread", "--force-overwrite-default-scheduler=true"),
    *("--leader-elect=true", "--leader-elect-resource-name=hami-scheduler"),
    *("--leader-elect-resource-namespace=kube-system", "--debug", "-v=4"),
)
"""What the chart passes with its default values."""

NEXT_CHART = (
    *("--extender-bind=127.0.0.1:9444", "--profiling-bind-address=127.0.0.1:6060"),
    *("--device-plugin-namespace=hami-system", "--device-plugin-service-account=hami-device-plugin"),
)
"""What the chart of 2.11 passes besides."""

EFFECTIVE = {
    "--http_bind=127.0.0.1:80": ("http_bind", ("127.0.0.1", 80)),
    "--cert_file=c": ("cert_file", "c"),
    "--key_file=k": ("key_file", "k"),
    "--scheduler-name=s": ("scheduler_name", "s"),
    "--node-scheduler-policy=spread": ("node_scheduler_policy", "spread"),
    "--gpu-scheduler-policy=binpack": ("gpu_scheduler_policy", "binpack"),
    "--metrics-bind-address=:9999": ("metrics_bind_address", ("", 9999)),
    "--node-label-selector=gpu=on,zone=a": ("node_label_selector", (("gpu", "on"), ("zone", "a"))),
    "--kube-qps=50": ("kube_qps", 50),
    "--kube-burst=100": ("kube_burst", 100),
    "--kube-timeout=30": ("kube_timeout", 30),
    "--node-lock-timeout=2m0s": ("node_lock_timeout", 120),
    "--node-lock-retry-timeout=0": ("node_lock_retry_timeout", 0),
    "--force-overwrite-default-scheduler=false": ("force_overwrite_default_scheduler", False),
    "--leader-elect=false": ("leader_elect", False),
    "--leader-elect-resource-name=l": ("leader_elect_resource_name", "l"),
    "--leader-elect-resource-namespace=n": ("leader_elect_resource_namespace", "n"),
    "--legacy-metrics": ("legacy_metrics", True),
    "--legacy-metrics=true": ("legacy_metrics", True),
    "--debug": ("debug", True),
    "--debug=false": ("debug", False),
    "--enable-ascend=true": ("enable_ascend", True),
    "--enable-iluvatar=true": ("enable_iluvatar", True),
    "--profiling=false": ("profiling", False),
    "--v=2": ("verbosity", 2),
    "--extender-bind=127.0.0.1:9444": ("extender_bind_address", ("127.0.0.1", 9444)),
}

SAME_ANYWAY = ("--logtostderr=true", "--alsologtostderr=true")
"""Logs go to standard error, whatever is said."""

IGNORED = (
    *("--profiling", "--stderrthreshold=2", "--log_dir=/x", "--log_file=/x", "--log_file_max_size=1", "--vmodule=a=1"),
    *("--skip_headers=true", "--skip_log_headers=true", "--add_dir_header=true", "--one_output=true"),
    *("--log_backtrace_at=a:1", "--default-mem=0", "--default-cores=0", "--default-gpu=1", "--sgpu-topology-aware"),
    *("--metax-name=x", "--metax-vcount=x", "--metax-vcore=x", "--metax-vmemory=x"),
    *("--mthreads-name=x", "--mthreads-memory=x", "--mthreads-cores=x"),
    *("--cambricon-mlu-name=x", "--cambricon-mlu-memory=x", "--cambricon-mlu-cores=x"),
    *("--dcu-name=x", "--dcu-memory=x", "--dcu-cores=x", "--hcu-name=x", "--hcu-memory=x", "--hcu-cores=x"),
    *("--profiling-bind-address=127.0.0.1:6060", "--device-plugin-namespace=n"),
    *("--kunlun-name=x", "--kunlun-vcount=x", "--kunlun-vmemory=x"),
    *("--enflame-gcu-resource-name=x", "--enflame-drs-gcu-resource-name=x", "--enflame-gcu-memory-resource-name=x"),
)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """What processes were started with."""
    found: list[Settings] = []

    async def serve(vendors: object, settings: Settings, policies: object) -> None:
        found.append(settings)

    monkeypatch.setattr("hami_webhook.server.serve_kubernetes.serve_kubernetes", serve)
    for name, value in (("POD_NAME", "hami-scheduler-0"), ("POD_NAMESPACE", "kube-system")):
        monkeypatch.setenv(name, value)
    # the level that -v=4 sets is everybody's
    monkeypatch.setattr(logging, "basicConfig", lambda **_: None)
    return found


def test_with_the_flags_of_the_chart_it_is_webhook_controller_and_extender_in_one(started: list[Settings]) -> None:
    assert cli.scheduler(CHART) == 0
    (settings,) = started
    assert settings.roles == {"webhook", "controller", "extender"}
    assert (settings.http_bind, settings.tls) == (("0.0.0.0", 443), True)
    assert (settings.extender_mode, settings.extender_bind_address) == ("single", None)
    assert settings.extender_on_main
    assert settings.webhook_configuration == ""
    assert settings.verbosity == 4
    assert (settings.leader_elect_resource_name, settings.leader_elect_resource_namespace) == (
        "hami-scheduler",
        "kube-system",
    )
    # nothing but what is true of HAMi as well, and what it doesn't say of its own flag
    assert [warning.partition(":")[0] for warning in settings.warnings] == ['--http_bind "0.0.0.0', "--debug"]


def test_with_the_flags_of_the_next_chart_the_extender_has_an_address_of_its_own(started: list[Settings]) -> None:
    assert cli.scheduler([*CHART, *NEXT_CHART]) == 0
    (settings,) = started
    assert settings.extender_bind_address == ("127.0.0.1", 9444)
    assert settings.extender_tls, "the chart's kube-scheduler speaks HTTPS there, whatever the address"
    assert not settings.extender_on_main, "who reaches the Service is no more answered as kube-scheduler"
    assert "system:serviceaccount:hami-system:hami-device-plugin" in settings.trusted_users
    ignored = [each.partition(":")[0] for each in settings.warnings if "ignored" in each]
    assert sorted(ignored) == ["--debug", "--profiling-bind-address"]


def test_without_certificates_the_next_charts_extender_is_plain(started: list[Settings]) -> None:
    assert cli.scheduler(["--scheduler-name=hami-scheduler", *NEXT_CHART]) == 0
    assert not started[0].extender_tls


def test_the_next_charts_extender_is_for_nobody_beyond_loopback(
    started: list[Settings], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """HAMi warns and answers everybody there: `/filter` and `/bind` of any pod by who reaches the port."""
    beyond = [*CHART, "--extender-bind=0.0.0.0:9444"]
    assert cli.scheduler(beyond) == 2
    assert '--extender-bind "0.0.0.0:9444": must be loopback, or come with' in capsys.readouterr().err
    assert cli.scheduler([*beyond, f"--extender-token-file={tmp_path}/token"]) == 0
    assert started[0].extender_tls


def test_a_device_plugin_named_by_hamis_flags_is_one_more(
    started: list[Settings], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.scheduler([*CHART, "--device-plugin-service-account=mine"]) == 0
    usual, mine = "system:serviceaccount:kube-system:hami-device-plugin", "system:serviceaccount:kube-system:mine"
    assert {usual, mine} <= started[0].trusted_users
    monkeypatch.delenv("POD_NAMESPACE")
    assert cli.scheduler(["--device-plugin-service-account=mine"]) == 2
    assert "--device-plugin-service-account: needs --device-plugin-namespace" in capsys.readouterr().err


@pytest.mark.parametrize("flag", EFFECTIVE)
def test_a_flag_that_hami_has_does_what_it_says(started: list[Settings], flag: str) -> None:
    assert cli.scheduler([*CHART, flag]) == 0
    (settings,) = started
    name, value = EFFECTIVE[flag]
    assert getattr(settings, name) == value
    warnings = [warning for warning in settings.warnings if warning.startswith(f"{flag.partition('=')[0]}:")]
    said = {"--legacy-metrics": ["deprecated"], "--debug": ["ignored"]}.get(flag.removesuffix("=true"), [])
    assert [word in warning for word, warning in zip(said, warnings, strict=True)] == [True] * len(said)


@pytest.mark.parametrize("flag", SAME_ANYWAY)
def test_where_logs_go_needs_no_word(started: list[Settings], flag: str) -> None:
    assert cli.scheduler([*CHART, flag]) == 0
    assert not any(flag.partition("=")[0] in warning for warning in started[0].warnings)


@pytest.mark.parametrize("flag", IGNORED)
def test_a_flag_without_effect_is_named(started: list[Settings], flag: str) -> None:
    assert cli.scheduler([*CHART, flag]) == 0
    assert any(warning.startswith(f"{flag.partition('=')[0]}: ignored, ") for warning in started[0].warnings)


def test_it_reads_the_device_configuration(
    tmp_path: Path, started: list[Settings], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.scheduler([*CHART, f"--device-config-file={tmp_path}/none.yaml"]) == 2
    assert "none.yaml" in capsys.readouterr().err
    assert started == []


def test_its_version_is_ours(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.scheduler(["version"]) == 0
    assert capsys.readouterr().out.startswith(f"hami-webhook {__version__} ")


def test_a_flag_nobody_knows_is_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.scheduler([*CHART, "--no-such-flag"])
    assert capsys.readouterr().err.count("\n") == 1


# `--enable-ascend` and `--enable-iluvatar`


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
