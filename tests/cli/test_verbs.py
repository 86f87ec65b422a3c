"""The verbs of the command line but `simulate` and `serve`, and the help of all."""

from __future__ import annotations

import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from builders import card, container, node
from cryptography import x509
from simulate.files import Simulate, pod
from tables import in_one_test

from hack.interface import commands
from hami_webhook import __version__
from hami_webhook.device_config import builtin_vendors
from hami_webhook.kube.objects import Pod
from hami_webhook.quota.pricing import ClusterCapacity, price_pending


def test_certificates_are_made_for_a_service_and_more_names(command: Simulate, tmp_path: Path) -> None:
    folder, named = tmp_path / "certs", ("--name", "10.0.0.1", "--name", "more.example")
    for service, arguments in (
        ("hami-webhook.hami-system", named),
        ("s.ns", (*named, "--force", "--service", "s", "--namespace", "ns")),
    ):
        run = command.main("certs", "generate", "--dir", str(folder), *arguments)
        assert (run.status, run.err) == (0, "")
        written = [Path(line) for line in run.out.splitlines()]
        assert sorted(written) == sorted(folder.iterdir())
        assert len(written) == 4
        assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in written if path.suffix == ".key")
        serving = x509.load_pem_x509_certificate((folder / "tls.crt").read_bytes())
        names = serving.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert {f"{service}.svc", "more.example"} <= set(names.get_values_for_type(x509.DNSName))
        assert "10.0.0.1" in map(str, names.get_values_for_type(x509.IPAddress))


def test_certificates_are_overwritten_only_by_force(command: Simulate, tmp_path: Path) -> None:
    generate = ("certs", "generate", "--dir", str(tmp_path))
    assert command.main(*generate).status == 0
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    again = command.main(*generate)
    assert (again.status, again.out) == (2, "")
    assert again.err.startswith(f"hami-webhook: {tmp_path} already has ")
    assert again.err.endswith("use --force to replace them\n")
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert command.main(*generate, "--force").status == 0
    assert all(path.read_bytes() != content for path, content in before.items())


def test_a_configuration_is_explained(command: Simulate) -> None:
    text = "nvidia: {resourceCountName: nvidia.com/gpu, resourceMemoryName: nvidia.com/gpumem, memoryFactor: 1024}\n"
    run = command.main("config", "check", command.file("c.yaml", text))
    assert (run.status, run.err) == (0, "")
    for expected in ("nvidia: NVIDIA", "nvidia.com/gpumem", "1024 MiB", "limits.nvidia.com/gpu", "quota key"):
        assert expected in run.out, expected


def test_a_configuration_with_faults_names_each_with_its_line(command: Simulate) -> None:
    text = "nvidia:\n  resourceCountName: gpu\n  memoryFactor: -1\nnvidea: {}\n"
    path = command.file("c.yaml", text)
    run = command.main("config", "check", path)
    assert (run.status, run.out) == (2, "")
    name, factor, misspelt = run.err.splitlines()
    assert name.startswith(f"hami-webhook: {path}:2: nvidia.resourceCountName: must be")
    assert factor.startswith(f"hami-webhook: {path}:3: nvidia.memoryFactor: must be")
    assert misspelt.startswith("hami-webhook: warning: ")
    assert "nvidea" in misspelt


def test_kube_scheduler_s_configuration_is_filled_in(command: Simulate, tmp_path: Path) -> None:
    text = "nvidia: {resourceCountName: a.b/gpu}\niluvatars: [{commonWord: BI, resourceCountName: a.b/bi}]\n"
    base = command.file("base.yaml", "kind: KubeSchedulerConfiguration\nextenders: [{urlPrefix: x}]\n")
    verb = "config", "kube-scheduler", "--from", base, "--device-config-file", command.file("c.yaml", text)
    run = command.main(*verb)
    assert (run.status, run.err) == (0, "")
    (extender,) = yaml.safe_load(run.out)["extenders"]
    assert extender == {"urlPrefix": "x", "managedResources": [{"name": "a.b/gpu", "ignoredByScheduler": True}]}
    target = tmp_path / "out.yaml"
    run = command.main(*verb, "--enable-iluvatar", "--to", str(target))
    assert (run.status, run.out, run.err) == (0, "", "")
    (extender,) = yaml.safe_load(target.read_text())["extenders"]
    assert [each["name"] for each in extender["managedResources"]] == ["a.b/bi", "a.b/gpu"]
    run = command.main(*verb, "--to", str(tmp_path))
    assert (run.status, run.err) == (2, f"hami-webhook: {tmp_path}: can't be written: Is a directory\n")


@pytest.mark.parametrize(
    ("key", "amounts"),
    [
        ("NVIDIA", {"nvidia.com/gpumem": 3000, "nvidia.com/gpucores": 30}),
        ("AMD", {"amd.com/gpumem": 3000, "amd.com/gpucores": 30}),
        ("Ascend910B4", {"huawei.com/Ascend910B4-core": 30}),
    ],
)
def test_kueue_counts_cards_as_our_quotas_do(command: Simulate, key: str, amounts: dict[str, int]) -> None:
    run = command.main("kueue", "config")
    assert (run.status, run.err) == (0, "")
    found = {each["input"]: each for each in yaml.safe_load(run.out)["resources"]["transformations"]}
    vendors = builtin_vendors()
    requested = {vendors[key].count_name: 2, **amounts}
    totals = {}
    for name, amount in amounts.items():
        ((output, factor),) = found[name]["outputs"].items()
        totals[output.replace("/total-", "/")] = amount * int(factor) * requested[found[name]["multiplyBy"]]
    made = Pod.from_object(pod("p", container(**requested)))
    charged = price_pending(made, vendors, ClusterCapacity()).amounts
    assert totals == {name: charged[f"limits.{name}"] for name in amounts}
    assert found["nvidia.com/gpumem-percentage"] == {"input": "nvidia.com/gpumem-percentage", "strategy": "Replace"}


def test_kueue_counts_more_for_several_containers(command: Simulate) -> None:
    """What the printed comment says of both: Kueue multiplies sums."""
    out = command.main("kueue", "config").out
    assert "4 x 11000 = 44000 for Kueue" in out
    mine = [container(gpu=1, mem=10000), container(gpu=3, mem=1000)]
    charged = price_pending(Pod.from_object(pod("p", *mine)), builtin_vendors(), ClusterCapacity()).amounts
    assert charged["limits.nvidia.com/gpumem"] == 13000
    assert "13000 MiB for our quotas" in out


def test_the_version_names_what_was_built(command: Simulate) -> None:
    run = command.main("version")
    assert (run.status, run.err) == (0, "")
    assert re.fullmatch(
        rf"hami-webhook {re.escape(__version__)} \(revision .+, build date .+, Python 3\.\d+.*\)\n", run.out
    )
    assert command.main("--version").out == f"hami-webhook {__version__}\n"


@in_one_test("verb", [item.name for item in commands() if item.group == "verb" and item.name.startswith("hami")])
def test_every_verb_has_help(command: Simulate, verb: str) -> None:
    """Its flags are in docs/interface.txt, and in the manual pages."""
    run = command.main(*verb.split()[1:], "--help")
    assert (run.status, run.err) == (0, "")
    assert run.out.startswith(f"usage: {verb} ")


def test_an_interrupted_run_ends_quietly(command: Simulate, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("hami_webhook.cli.verbs.start_of", interrupted)
    run = command([node("n1", card("GPU-1"))], pod("p", gpu=1))
    assert (run.status, run.out, run.err) == (130, "", "")


@pytest.mark.integration
def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    path = tmp_path / "pods.json"
    path.write_text(
        "\n".join(f'{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"p{i}"}},"spec":{{}}}}' for i in range(900))
    )
    command = [sys.executable, "-m", "hami_webhook", "simulate", "-o", "json", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.close()
        assert b"Traceback" not in running.stderr.read()
        assert running.wait() == 141
