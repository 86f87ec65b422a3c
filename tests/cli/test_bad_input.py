"""Input that can't be used, or can't be meant: each gets a clear sentence, none a traceback."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from builders import card, container, node
from simulate.files import JSON, MEM, Simulate, pod, quota

NODE = node("n1", card("GPU-1"), card("GPU-2"))
POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: main}]}\n"


UNUSABLE = [
    ("broken JSON", "pods", '{"kind": "Pod"', "{path}:1: not JSON: "),
    ("JSON cut in a string", "pods", '{"kind": "Po', "{path}:1: not JSON: "),
    ("broken YAML", "pods", "kind: Pod\n  metadata: {", "{path}:2: not YAML: mapping values are not allowed"),
    ("a tab in YAML", "cluster", "kind: Node\nmetadata:\n\tname: x", "{path}:3: not YAML: found character"),
    ("text", "pods", "hello", "{path}:1: expected a Kubernetes object, found the string 'hello'"),
    ("a number", "cluster", "7", "{path}:1: expected a Kubernetes object, found the number 7"),
    ("a bare list", "pods", "[1]", "{path}:1: expected a Kubernetes object, found a list"),
    ("no kind", "pods", "apiVersion: v1\nmetadata: {name: x}", "{path}:1: kind is missing"),
    ("no apiVersion", "pods", "kind: Pod\nmetadata: {name: x}", "{path}:1: apiVersion is missing"),
    ("no metadata", "cluster", "apiVersion: v1\nkind: Node", "{path}:1: Node: metadata is missing"),
    ("no name", "cluster", "apiVersion: v1\nkind: Node\nmetadata: {}", "{path}:1: Node: metadata.name is missing"),
    ("a name that is a number", "pods",
     POD.replace("name: p", "name: 5"), "{path}:1: Pod: metadata.name must be a string"),
    ("a List without items", "pods", "apiVersion: v1\nkind: List", "{path}:1: a List must have items"),
    ("items that are no list", "pods", "apiVersion: v1\nkind: List\nitems: 3", "{path}:1: the items of a List must be"),
    ("bytes that are no text", "pods", b"\xff\xfe\x00", "{path}:1: not UTF-8 text"),
    ("nesting without end", "pods", "[" * 100_000, "{path}:1: nested more than 200 levels deep"),
    ("the second document", "pods", POD + "---\nkind: [", "{path}:7: not YAML: "),
    ("a node twice", "cluster", json.dumps(NODE) * 2, '{path}:1: nodes "n1" already exists'),
    (
        "a workload without a template",
        "pods",
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\nspec: {}",
        "{path}:1: Deployment 'd': spec.template is missing",
    ),
    (
        "negative replicas",
        "pods",
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\nspec: {replicas: -1, template: {spec: {}}}",
        "{path}:1: Deployment 'd': spec.replicas must be a whole number ≥ 0, not the number -1",
    ),
    (
        "absurd replicas",
        "pods",
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\nspec: {replicas: 1000000000, template: {}}",
        "{path}:1: Deployment 'd': spec.replicas must be at most 100000, not 1000000000",
    ),
    ("a negative limit", "cluster", json.dumps(quota(mem="-1")), "{path}:1: ResourceQuota "),
    ("a limit that is no quantity", "cluster", json.dumps(quota(mem="lots")), "{path}:1: ResourceQuota "),
    ("a fractional limit", "cluster", json.dumps(quota(mem="1500m")), "{path}:1: ResourceQuota "),
    ("scopes that are no list", "cluster",
     json.dumps({**quota(), "spec": {"scopes": "x"}}),
     "{path}:1: ResourceQuota 'gpu-quota': spec.scopes must be a list, not a string"),
    (
        "annotations that are a list",
        "cluster",
        "apiVersion: v1\nkind: Node\nmetadata: {name: n, annotations: [a]}",
        "{path}:1: Node ",
    ),
    ("labels that are numbers", "cluster", "apiVersion: v1\nkind: Namespace\nmetadata: {name: n, labels: {a: 1}}",
     "{path}:1: Namespace "),
    ("an empty configuration", "config", "", "{path}: is empty: all configurations are empty"),
    ("a configuration that is a list", "config", "- nvidia", "{path}:1: must be a mapping of vendor sections"),
    ("a bad resource name", "config", "nvidia: {resourceCountName: gpu}",
     "{path}:1: nvidia.resourceCountName: must be a"),
    ("a bad factor", "config", "nvidia: {resourceCountName: a.b/c, memoryFactor: -1}",
     "{path}:1: nvidia.memoryFactor: must"),
    ("a policy of a kind nobody knows", "policy", "policies: [{name: x, enforse: {}}]",
     "{path}:1: policies[0].enforse: is an unknown key (did you mean enforce?)"),
    ("a policy for an unknown vendor", "policy", "policies: [{name: x, devices: {Nvidea: {}}}]",
     "{path}:1: policies[0].devices.Nvidea: is no enabled backend key"),
    ("policies that are no YAML", "policy", "policies: [", "{path}"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("where", "content", "expected"), [row[1:] for row in UNUSABLE], ids=[row[0] for row in UNUSABLE]
)
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
    (["simulate", "--cluster", "nowhere.yaml", "-"], "hami-webhook: nowhere.yaml: no such file"),
    (["simulate", "--config", "nowhere.yaml", "-"], "hami-webhook: nowhere.yaml: "),
    (["simulate", "--policy-file", "nowhere.yaml", "-"], "hami-webhook: nowhere.yaml: "),
    (["simulate", "--cluster", "-", "-"], "hami-webhook: standard input (-) can be read only once"),
    (["simulate", "-", "-"], "hami-webhook: standard input (-) can be read only once"),
    (["simulate", "--now", "yesterday", "-"], "hami-webhook: --now must be an RFC 3339 time such as "),
    (["simulate", "--now", "2026-01-01T00:00:00", "-"], "hami-webhook: --now must be an RFC 3339 time such as "),
    (["simulate"], "hami-webhook: nothing to simulate: name PODS, or give --cluster with --waiting, --add or --remove"),
    (["simulate", "-o", "xml", "-"], "hami-webhook simulate: argument -o/--output: invalid choice: 'xml'"),
    (["simulate", "--frobnicate", "-"], "hami-webhook: unrecognized arguments: --frobnicate"),
    (["simulate", "--node-scheduler-policy", "best", "-"], "hami-webhook simulate: argument --node-scheduler-policy"),
    ([], "hami-webhook: the following arguments are required: VERB"),
    (["frobnicate"], "hami-webhook: argument VERB: invalid choice: 'frobnicate'"),
    (["certs"], "hami-webhook certs: the following arguments are required: VERB"),
    (["config"], "hami-webhook config: the following arguments are required: VERB"),
    (["config", "check"], "hami-webhook config check: the following arguments are required: FILE"),
    (["config", "check", "/"], "hami-webhook: /: "),
    (["config", "check", "nowhere.yaml"], "hami-webhook: nowhere.yaml: "),
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


DENIED = [
    (
        "memory in bytes",
        pod("p", container(gpu=1, mem="16Gi")),
        422,
        "invalid nvidia.com/gpumem value 16Gi in container main: must be an integer number of MiB between 0 and "
        "2147483647; for 16Gi write 16384",
    ),
    ("no containers", {**pod("p"), "spec": {"containers": []}}, 403, "pod has no containers"),
    (
        "limits that are a number",
        {**pod("p"), "spec": {"containers": [{"name": "m", "resources": {"limits": 5}}]}},
        400,
        "the pod can't be read: spec.containers[0].resources.limits must be an object, not a number",
    ),
]
"""Of each code one; all that admission refuses is in tests/admission."""


@pytest.mark.parametrize(("manifest", "code", "message"), [row[1:] for row in DENIED], ids=[row[0] for row in DENIED])
def test_a_pod_that_cannot_be_meant_is_denied_with_a_sentence(
    command: Simulate, manifest: JSON, code: int, message: str
) -> None:
    run = command([NODE, quota(mem="100000")], manifest)
    assert (run.status, run.err) == (0, "")
    (found,) = run.pods
    assert (found["allowed"], found["code"], found["message"]) == (False, code, message)
    assert run.used == {MEM: 0}


CARD_FIELDS = {"id": "X", "count": 1, "devmem": 1, "devcore": 1, "type": "t", "health": True}
REGISTRATIONS = [
    ("cut JSON", '[{"id":', "not valid JSON: "),
    ("cards that are numbers", "[1]", "card 0 must be a JSON object"),
    (
        "memory as text",
        json.dumps([{**CARD_FIELDS, "devmem": "1"}]),
        "card 0: devmem must be a 32-bit integer, not '1'",
    ),
    (
        "health as text",
        json.dumps([{**CARD_FIELDS, "health": "yes"}]),
        "card 0: health must be true or false, not 'yes'",
    ),
    (
        "negative slots",
        json.dumps([{**CARD_FIELDS, "count": -1}]),
        "card X: index, count, devmem and devcore must not be",
    ),
    ("a card twice", json.dumps([CARD_FIELDS, CARD_FIELDS]), "card id 'X' is repeated"),
    ("an empty id", json.dumps([{**CARD_FIELDS, "id": ""}]), "card id '' is empty"),
    ("neither form", "hello", "must be a JSON array, or cards of 7 or 9"),
    ("six fields", "GPU-1,10,7680,100,T4,0:", "card 0 has 6 fields, not 7 or 9"),
    ("a word for a number", "GPU-1,ten,7680,100,T4,0,true:", "card 0: count 'ten' is not a 32-bit integer"),
    ("a word for a boolean", "GPU-1,10,7680,100,T4,0,fine:", "card 0: health 'fine' is not a boolean"),
]


@pytest.mark.parametrize(
    ("text", "expected"), [row[1:] for row in REGISTRATIONS], ids=[row[0] for row in REGISTRATIONS]
)
def test_a_malformed_registration_takes_only_its_node_out_and_says_so(
    command: Simulate, text: str, expected: str
) -> None:
    bad = node("n0")
    bad["metadata"]["annotations"]["hami.io/node-nvidia-register"] = text
    run = command([bad, NODE], pod("p", gpu=1, mem=1))
    assert run.status == 0
    (line,) = run.err.splitlines()
    assert line.startswith(f"hami-webhook: warning: node n0: hami.io/node-nvidia-register: {expected}")
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
