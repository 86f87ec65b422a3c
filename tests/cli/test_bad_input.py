"""Input that can't be used, or can't be meant: each gets a clear sentence, none a traceback."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from builders import REGISTER, card, container, node
from simulate.files import JSON, MEM, Simulate, pod, quota

NODE = node("n1", card("GPU-1"), card("GPU-2"))
POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: main}]}\n"
DEPLOYMENT = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: d}}\nspec: {}"


UNUSABLE = [
    pytest.param("pods", '{"kind": "Pod"', "{path}:1: not JSON: ", id="broken JSON"),
    pytest.param("pods", POD + "---\nkind: [", "{path}:7: not YAML: ", id="the second document"),
    pytest.param("pods", b"\xff\xfe\x00", "{path}:1: not UTF-8 text", id="bytes that are no text"),
    pytest.param("cluster", json.dumps(NODE) * 2, '{path}:1: nodes "n1" already exists', id="a node twice"),
    pytest.param("pods", DEPLOYMENT.format("{}"), "{path}:1: Deployment 'd': spec.template is missing", id="no pod"),
    pytest.param("pods", DEPLOYMENT.format("{replicas: -1, template: {spec: {}}}"),
                 "{path}:1: Deployment 'd': spec.replicas must be a whole number ≥ 0, not the number -1", id="-1"),
    pytest.param("pods", DEPLOYMENT.format("{replicas: 1000000000, template: {}}"),
                 "{path}:1: Deployment 'd': spec.replicas must be at most 100000, not 1000000000", id="too many"),
    pytest.param("cluster", "apiVersion: v1\nkind: Namespace\nmetadata: {name: n, labels: {a: 1}}",
                 "{path}:1: Namespace ", id="labels that are numbers"),
    pytest.param("cluster", json.dumps(quota(mem="lots")), "{path}:1: ResourceQuota ", id="no quantity"),
    pytest.param("cluster", json.dumps({**quota(), "spec": {"scopes": "x"}}),
                 "{path}:1: ResourceQuota 'gpu-quota': spec.scopes must be a list, not ", id="scopes"),
    pytest.param("config", "- nvidia", "{path}:1: must be a mapping of vendor sections", id="no configuration"),
    pytest.param("policy", "policies: [{name: x, enforse: {}}]",
                 "{path}:1: policies[0].enforse: is an unknown key (did you mean enforce?)", id="no policy"),
]  # fmt: skip
"""Of each kind of file, and of each step of reading it, one; the others are in the tests of these steps."""


@pytest.mark.parametrize(("where", "content", "expected"), UNUSABLE)
def test_a_file_that_cannot_be_used_ends_the_run_with_one_line(
    command: Simulate, tmp_path: Path, where: str, content: str | bytes, expected: str
) -> None:
    path = tmp_path / "given"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    flags = {"pods": [], "cluster": ["--cluster"], "config": ["--config"], "policy": ["--policy-file"]}[where]
    pods = [] if where == "pods" else [command.file("pods.yaml", POD)]
    run = command.main("simulate", "-o", "json", *flags, str(path), *pods)
    assert (run.status, run.out) == (2, "")
    (line,) = run.err.splitlines()
    assert line.startswith("hami-webhook: " + expected.replace("{path}", str(path)))


COMMANDS = [
    (["simulate", "nowhere.yaml"], "hami-webhook: nowhere.yaml: no such file"),
    (["simulate", "."], "hami-webhook: .: is a directory, not a file"),
    (["simulate", "--config", "nowhere.yaml", "-"], "hami-webhook: nowhere.yaml: "),
    (["simulate", "--cluster", "-", "-"], "hami-webhook: standard input (-) can be read only once"),
    (["simulate", "--now", "yesterday", "-"], "hami-webhook: --now or --at must be an RFC 3339 time such as "),
    (["simulate", "--at", "yesterday", "-"], "hami-webhook: --now or --at must be an RFC 3339 time such as "),
    (["simulate"], "hami-webhook: nothing to simulate: name PODS, or give --cluster with --waiting, --add or --remove"),
    ([], "hami-webhook: the following arguments are required: VERB"),
    (["config", "check", "/"], "hami-webhook: /: "),
    (["explain", "--kubeconfig", "nowhere", "p"], "hami-webhook: kubeconfig nowhere can't be read"),
    (["serve", "--kubeconfig", "nowhere"], "hami-webhook: kubeconfig nowhere can't be read"),
    (["serve", "--embedded-cluster", "nowhere.yaml"], "hami-webhook: nowhere.yaml: no such file"),
    (["serve", "--quota-reservation-ttl", "10s"], "hami-webhook: "),
    (["serve", "--http_bind", "nonsense"], "hami-webhook: "),
    (["certs", "generate", "--service", "Not A Name"], "hami-webhook: "),
]


@pytest.mark.parametrize(("arguments", "expected"), COMMANDS, ids=[" ".join(row[0]) or "no verb" for row in COMMANDS])
def test_a_command_that_cannot_be_meant_ends_with_one_line(
    command: Simulate, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: list[str], expected: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(POD.encode())))
    run = command.main(*arguments)
    assert (run.status, run.out) == (2, "")
    (line,) = run.err.splitlines()
    assert line.startswith(expected)
    assert list(tmp_path.iterdir()) == []


BYTES = (
    "invalid nvidia.com/gpumem value 16Gi in container main: must be an integer number of MiB between 0 and "
    "2147483647; for 16Gi write 16384"
)
DENIED = [
    pytest.param(pod("p", container(gpu=1, mem="16Gi")), 422, BYTES, id="memory in bytes"),
    pytest.param({**pod("p"), "spec": {"containers": []}}, 403, "pod has no containers", id="no containers"),
    pytest.param(
        pod("p", container("m", limits=5)),
        400,
        "the pod can't be read: spec.containers[0].resources.limits must be an object, not a number",
        id="limits that are a number",
    ),
]
"""Of each code one; all that admission refuses is in tests/admission."""


@pytest.mark.parametrize(("manifest", "code", "message"), DENIED)
def test_a_pod_that_cannot_be_meant_is_denied_with_a_sentence(
    command: Simulate, manifest: JSON, code: int, message: str
) -> None:
    run = command([NODE, quota(mem="100000")], manifest)
    assert (run.status, run.err) == (0, "")
    (found,) = run.pods
    assert (found["allowed"], found["code"], found["message"]) == (False, code, message)
    assert run.used == {MEM: 0}


def cards(*changes: JSON) -> str:
    """A registration of as many cards, each with such a field."""
    usual = {"id": "X", "count": 1, "devmem": 1, "devcore": 1, "type": "t", "health": True}
    return json.dumps([usual | change for change in changes])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[{"id":', "not valid JSON: "),
        ("[1]", "card 0 must be a JSON object"),
        (cards({"devmem": "1"}), "card 0: devmem must be a 32-bit integer, not '1'"),
        (cards({"health": "yes"}), "card 0: health must be true or false, not 'yes'"),
        (cards({"count": -1}), "card X: index, count, devmem and devcore must not be"),
        (cards({}, {}), "card id 'X' is repeated"),
        (cards({"id": ""}), "card id '' is empty"),
        ("hello", "must be a JSON array, or cards of 7 or 9"),
        ("GPU-1,10,7680,100,T4,0:", "card 0 has 6 fields, not 7 or 9"),
        ("GPU-1,ten,7680,100,T4,0,true:", "card 0: count 'ten' is not a 32-bit integer"),
        ("GPU-1,10,7680,100,T4,0,fine:", "card 0: health 'fine' is not a boolean"),
    ],
)
def test_a_malformed_registration_takes_only_its_node_out_and_says_so(
    command: Simulate, text: str, expected: str
) -> None:
    notes: JSON = {REGISTER: text}
    run = command([node("n0", **notes), NODE], pod("p", gpu=1, mem=1))
    assert run.status == 0
    (line,) = run.err.splitlines()
    assert line.startswith(f"hami-webhook: warning: node n0: {REGISTER}: {expected}")
    assert run.pods[0]["placement"]["node"] == "n1"
    assert run.pods[0]["failed"] == {"n0": "node unregistered"}


def test_an_unknown_key_of_a_configuration_is_a_warning(command: Simulate) -> None:
    config = command.file("c.yaml", "nvidia: {resourceCountName: nvidia.com/gpu, deviceSplitCuont: 3}\nnvidea: {}\n")
    run = command([NODE], pod("p", gpu=1), flags=["--config", config])
    assert run.status == 0
    assert all(line.startswith("hami-webhook: warning: ") for line in run.err.splitlines())
    assert "deviceSplitCuont" in run.err
    assert "nvidea" in run.err


@pytest.mark.integration
@pytest.mark.parametrize(
    ("arguments", "stdin", "status"),
    [
        (["simulate", "-o", "json", "-"], b"\xff", 2),
        (["simulate", "-"], b'{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p"},"spec":7}', 0),
        (["nonsense"], b"", 2),
    ],
    ids=["no text", "a bad pod", "no such verb"],
)
def test_the_program_itself_never_shows_a_traceback(
    tmp_path: Path, arguments: list[str], stdin: bytes, status: int
) -> None:
    command = [sys.executable, "-m", "hami_webhook", *arguments]
    done = subprocess.run(command, input=stdin, capture_output=True, check=False, cwd=tmp_path)
    assert done.returncode == status, done.stderr
    assert b"Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == (1 if status else 0)
