"""The exit statuses that docs/stability.md promises, of every verb."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from builders import card, node
from kubectl.apiserver import ApiServer, calls_of, kubeconfig
from kubectl.installation import Installation
from kubectl.test_verbs import cluster
from simulate.files import JSON, listed, pod, quota, run_main

from hack.interface import commands
from hami_webhook.cli import main
from hami_webhook.kubectl.main import main as kubectl_hami

from .test_report import prometheus

PROGRAMS: dict[str, Callable[[Sequence[str]], int]] = {"hami-webhook": main, "kubectl hami": kubectl_hami}
REFUSED = quota(gpu="0")
KUBE_SCHEDULER = "kind: KubeSchedulerConfiguration\napiVersion: kubescheduler.config.k8s.io/v1\nextenders: [{}]\n"
FILES: dict[str, str | JSON] = {
    "pods.json": pod("p", gpu=1, mem=1000),
    "cluster.json": listed(node("n1", card("GPU-1"))),
    "full.json": listed(node("n1", card("GPU-1")), REFUSED),
    "too-large.json": pod("p", gpu=1, mem=60000),
    "quota.json": quota(gpu="4"),
    "misread.json": quota(mem="16Gi"),
    "kube-scheduler.yaml": KUBE_SCHEDULER,
    "device-config.yaml": "nvidia: {resourceCountName: nvidia.com/gpu}\n",
    "broken.json": "{",
    "good/hami-test.yaml": "expected: {pods: [{name: p, allowed: true}]}\n",
    "good/pods.yaml": json.dumps(pod("p", gpu=1)),
    "wrong/hami-test.yaml": "expected: {pods: [{name: p, allowed: false}]}\n",
    "wrong/pods.yaml": json.dumps(pod("p", gpu=1)),
    "broken/hami-test.yaml": "expect: {}\n",
}

DONE, FOUND, UNUSABLE = 0, 1, 2
STATUSES = """
hami-webhook serve                  2  --roles nobody
hami-webhook serve                  2  --kubeconfig none
hami-webhook serve                  2  --unknown
hami-webhook simulate               0  pods.json --cluster cluster.json
hami-webhook simulate               0  pods.json --cluster full.json
hami-webhook simulate               0  pods.json --cluster cluster.json --strict
hami-webhook simulate               1  pods.json --cluster full.json --strict
hami-webhook simulate               2  broken.json
hami-webhook simulate               2  none.json
hami-webhook simulate               0  --cluster cluster.json --waiting --add 1xn1
hami-webhook simulate               2  --cluster cluster.json --remove none
hami-webhook simulate               2
hami-webhook explain                0  p --cluster cluster.json --file pods.json
hami-webhook explain                0  p --cluster full.json --file pods.json
hami-webhook explain                2  none --cluster cluster.json
hami-webhook explain                2  p --cluster broken.json
hami-webhook explain                2
hami-webhook explain                2  waiting -n team-a --kubeconfig forbidden
hami-webhook report                 0  --prometheus PROMETHEUS
hami-webhook report                 2  --prometheus UNAVAILABLE
hami-webhook report                 2
hami-webhook certs generate         0  --dir new
hami-webhook certs generate         2  --dir good/pods.yaml
hami-webhook certs generate         2  --unknown
hami-webhook config check           0  device-config.yaml
hami-webhook config check           2  broken.json
hami-webhook config check           2  none.yaml
hami-webhook config check           2
hami-webhook config kube-scheduler  0  --from kube-scheduler.yaml
hami-webhook config kube-scheduler  2  --from broken.json
hami-webhook config kube-scheduler  2
hami-webhook kueue config           0
hami-webhook kueue config           0  --config device-config.yaml
hami-webhook kueue config           2  --config broken.json
hami-webhook quota check            0  quota.json
hami-webhook quota check            1  misread.json
hami-webhook quota check            2  pods.json
hami-webhook quota check            2  broken.json
hami-webhook quota check            2
hami-webhook test                   0  good
hami-webhook test                   1  wrong
hami-webhook test                   2  broken
hami-webhook test                   2  none
hami-webhook test                   2
hami-webhook version                0
hami-webhook version                2  --unknown
kubectl hami queue                  0
kubectl hami queue                  2  --kubeconfig none
kubectl hami advise                 0  --prometheus PROMETHEUS
kubectl hami advise                 1  --prometheus PROMETHEUS --kubeconfig forbidden
kubectl hami advise                 2  --prometheus UNAVAILABLE
kubectl hami advise                 2  --prometheus PROMETHEUS --since 5m
kubectl hami advise                 2
kubectl hami defrag                 0  --want 1xA100 --gpumem 1000
kubectl hami defrag                 1  --want 2xA100
kubectl hami defrag                 1  --want 1xA100 --kubeconfig forbidden
kubectl hami defrag                 2  --want 1xH900
kubectl hami defrag                 2  --want H100
kubectl hami defrag                 2
kubectl hami queue                  2  --unknown
kubectl hami quota                  0
kubectl hami quota                  1  none
kubectl hami quota                  2  --kubeconfig none
kubectl hami quota                  2  --unknown
kubectl hami budget                 0
kubectl hami budget                 1  none
kubectl hami budget                 2  --unknown
kubectl hami nodes                  0
kubectl hami nodes                  1  none
kubectl hami nodes                  2  --config broken.json
kubectl hami cards                  0  n1
kubectl hami cards                  1  none
kubectl hami cards                  2  --context none
kubectl hami pods                   0  waiting
kubectl hami pods                   1  none
kubectl hami pods                   2  --output text
kubectl hami idle                   0  --prometheus PROMETHEUS
kubectl hami idle                   2  --idle-for never
kubectl hami explain pod            0  waiting
kubectl hami explain pod            1  none
kubectl hami explain pod            2
kubectl hami explain pod            1  waiting --kubeconfig forbidden
kubectl hami explain quota          0  gpu-quota
kubectl hami explain quota          1  none
kubectl hami explain quota          2
kubectl hami explain node           0  n1
kubectl hami explain node           1  none
kubectl hami explain node           2
kubectl hami explain deployment     0  serve
kubectl hami explain deployment     1  none
kubectl hami explain deployment     2
kubectl hami explain job            0  serve
kubectl hami explain job            1  none
kubectl hami explain job            2
kubectl hami explain statefulset    0  serve
kubectl hami explain statefulset    1  none
kubectl hami explain statefulset    2
kubectl hami simulate               0  pods.json
kubectl hami simulate               0  pods.json --strict
kubectl hami simulate               0  --waiting --add 1xn1
kubectl hami simulate               2  --remove none
kubectl hami simulate               1  too-large.json --strict
kubectl hami simulate               2  broken.json
kubectl hami simulate               2
kubectl hami doctor                 0  --kubeconfig healthy
kubectl hami doctor                 1  --kubeconfig faulty
kubectl hami doctor                 2  --kubeconfig none
kubectl hami doctor                 2  --unknown
kubectl hami ui                     2  --kubeconfig none
kubectl hami ui                     2  --port 70000
"""
ROWS = [re.split(r" {2,}", f"{line}  ", maxsplit=2) for line in STATUSES.strip().splitlines()]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with all files."""
    monkeypatch.chdir(tmp_path)
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return tmp_path


def api_of(name: str) -> ApiServer:
    """The API server that a kubeconfig of this name leads to."""
    if name == "forbidden":
        return ApiServer(cluster(), only="team-b")
    if name == "cluster":
        spec = {"replicas": 1, "selector": {}}
        meta = {"name": "serve", "namespace": "team-a"}
        kinds = ("Deployment", "Job", "StatefulSet")
        return ApiServer([*cluster(), *({"kind": kind, "metadata": meta, "spec": spec} for kind in kinds)])
    installation = Installation()
    if name == "faulty":
        installation.remove("Secret", "hami-webhook-tls")
    return installation.api


@pytest.mark.parametrize(("verb", "status", "arguments"), ROWS, ids=[" ".join(row).strip() for row in ROWS])
def test_the_exit_status_is_as_promised(
    verb: str,
    status: str,
    arguments: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = arguments.split()
    program = next(each for each in PROGRAMS if verb.startswith(f"{each} "))
    api = next((name for name in ("forbidden", "healthy", "faulty") if name in words), "cluster")
    config = str(kubeconfig(folder, "http://api.example"))
    monkeypatch.setattr("hami_webhook.cluster.connect._Client.call_api", calls_of(api_of(api)))
    monkeypatch.setattr("hami_webhook.doctor.cluster_checks._SETTLED", 0.0)
    monkeypatch.setenv("KUBECONFIG", config)
    with prometheus() as (url, _):
        places = {api: config, "PROMETHEUS": url, "UNAVAILABLE": f"{url}/none"}
        line = [*verb.removeprefix(program).split(), *(places.get(word, word) for word in words)]
        run = run_main(PROGRAMS[program], line, capsys)
    assert run.status == int(status), run.err
    if run.status == UNUSABLE:
        assert run.out == "" or verb == "hami-webhook test"  # the other folders' results
        assert run.err != ""
        assert "Traceback" not in run.err


LONG_RUNNING = {"hami-webhook serve", "kubectl hami ui"}
"""They end when they are told to: tests/server/test_run.py and tests/kubectl/test_processes.py."""


def leaves() -> Iterator[str]:
    """The verbs that do something."""
    verbs = sorted(item.name for item in commands() if item.group == "verb")
    for verb in verbs:
        if not any(other.startswith(f"{verb} ") for other in verbs):
            yield verb


def test_every_verb_is_tried() -> None:
    tried = {(verb, int(status)) for verb, status, _ in ROWS}
    verbs = {*leaves()}
    for verb in verbs:
        assert (verb, UNUSABLE) in tried, verb
        assert (verb, DONE) in tried or verb in LONG_RUNNING, verb
    assert {verb for verb, _ in tried} == verbs


def test_the_page_names_the_verbs_that_end_with_1() -> None:
    page = (Path(__file__).parents[2] / "docs" / "stability.md").read_text()
    (row,) = re.findall(r"^\| 1 \| (.*) \|$", page, re.MULTILINE)
    named = set(re.findall(r"`((?:hami-webhook|kubectl hami) [a-z ]+?)(?: --strict)?`", row))
    assert named == {verb for verb, status, _ in ROWS if int(status) == FOUND}
