"""`hami-webhook test DIR`: docs/spec/cli.md#test."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import pytest
from builders import accelerator_quota, card, container, node
from simulate.files import GPU, MEM, Run, Simulate, listed, pod, quota
from terminals import on_terminal

from hami_webhook.terminal import formatted

PODS = formatted(
    listed(
        node("n1", card("GPU-0")),
        quota(gpu="2", mem="9000"),
        pod("small", gpu=1, mem=1000),
        pod("large", gpu=1, mem=10000),
    ),
    "yaml",
)
RIGHT = f"""\
# What must hold.
expected:
  # of the pods
  pods:
  - name: small  # fits
    debits: {{{MEM}: 1000}}
    placement:
      node: n1

  # too much
  - {{name: large, namespace: team-a, allowed: false, message: {{contains: exceeded quota}}}}
  quotas:
  - name: gpu-quota
    used: {{{MEM}: 1000}}
# The end.
"""


@dataclass
class Folder:
    """A folder with tests, and the command on it."""

    root: Path
    command: Simulate

    def add(self, name: str, expected: str, pods: str = PODS, **files: str) -> Path:
        folder = self.root / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "pods.yaml").write_text(pods)
        for file, text in files.items():
            (folder / f"{file.replace('_', '-')}.yaml").write_text(text)
        path = folder / "hami-test.yaml"
        path.write_text(expected)
        return path

    def test(self, *flags: str) -> Run:
        return self.command.main("test", str(self.root), *flags)


@pytest.fixture
def folder(tmp_path: Path, command: Simulate) -> Folder:
    return Folder(tmp_path / "tests", command)


def test_what_is_as_expected_passes(folder: Folder) -> None:
    folder.add("team-a/quota", RIGHT)
    run = folder.test()
    assert (run.status, run.err) == (0, "")
    assert run.out == "ok    team-a/quota\n1 passed, 0 failed\n"


def test_what_differs_is_shown_by_path_with_its_line(folder: Folder) -> None:
    wrong = RIGHT.replace("node: n1", "node: n2").replace("allowed: false", "allowed: true")
    path = folder.add("quota", f"description: what team-a has\n{wrong}")
    run = folder.test()
    assert (run.status, run.err) == (1, "")
    assert run.out.splitlines() == [
        "FAIL  quota: what team-a has",
        f"      {path}:9: pods.small.placement.node",
        '      - "n2"',
        '      + "n1"',
        "      (team-a/small: allowed)",
        f'      {path}:12: pods["team-a/large"].allowed',
        "      - true",
        "      + false",
        "      (team-a/large: denied (403): exceeding resource quota: exceeded quota: gpu-quota, requested: "
        f"{MEM}=10000, used: {MEM}=1000, limited: {MEM}=9000 "
        "(memory: 9.8Gi requested, 1000Mi used, 8.8Gi limited))",
        "0 passed, 1 failed",
    ]


def test_long_values_are_shown_as_a_unified_difference(folder: Folder) -> None:
    path = folder.add("one", "expected: {pods: [{name: small, patch: [{op: add, path: /spec/x}, {op: remove}]}]}")
    assert folder.test().out.splitlines()[1:-2] == [
        f"      {path}:1: pods.small.patch",
        "      @@ -1,3 +1,3 @@",
        "        - op: add",
        "      -   path: /spec/x",
        "      - - op: remove",
        "      +   path: /spec/schedulerName",
        "      +   value: hami-scheduler",
    ]


def test_exact_tests_want_all_of_it_and_no_more(folder: Folder) -> None:
    path = folder.add("exact", "exact: true\nexpected: {}\n")
    assert folder.test().err.endswith("or let --update write them\n")
    assert folder.test("--update").out == "wrote exact\n1 passed, 0 failed\n"
    assert folder.test().status == 0
    text = path.read_text()
    path.write_text(text.replace(f"      {GPU}: 1\n", "", 1))
    run = folder.test()
    assert run.status == 1
    assert f'pods["team-a/small"].debits["{GPU}"]\n      - (nothing)\n      + 1\n' in run.out
    assert folder.test("--update").status == 0
    assert path.read_text() == text


@pytest.mark.parametrize("before", ["", "# only this\n", "description: new\n", "expected:\nexact: false\n"])
def test_a_test_that_says_nothing_gets_everything(folder: Folder, before: str) -> None:
    path = folder.add("new", before)
    assert folder.test("--update").status == 0
    assert [line for line in before.splitlines() if line not in path.read_text()] == []
    written = path.read_text()
    assert "limits.nvidia.com/gpumem: 1000" in written
    assert folder.test("--update").out.startswith("ok    new")
    assert path.read_text() == written


def test_an_update_changes_what_differs_and_keeps_the_rest(folder: Folder) -> None:
    wrong = RIGHT.replace("node: n1", "node: n2").replace(f"used: {{{MEM}: 1000}}", f"used: {{{MEM}: 7}}")
    path = folder.add("quota", wrong)
    folder.add("right", RIGHT)
    run = folder.test("--update")
    assert (run.status, run.out) == (0, "wrote quota\nok    right\n2 passed, 0 failed\n")
    block = f"  - name: small\n    debits:\n      {MEM}: 1000\n    placement:\n      node: n1\n\n"
    flow = f"  - {{name: small  # fits\n    debits: {{{MEM}: 1000}}\n    placement:\n      node: n1\n\n".replace(
        "{n", "n"
    )
    expected = RIGHT.replace(flow, block).replace(f"    used: {{{MEM}: 1000}}", f"    used:\n      {MEM}: 1000")
    assert path.read_text() == expected
    assert folder.test().status == 0


def test_an_update_leaves_what_nothing_came_out_for(folder: Folder) -> None:
    path = folder.add("one", "expected: {pods: [{name: gone, allowed: true}, {name: small, allowed: false}]}\n")
    run = folder.test("--update")
    assert run.status == 1
    assert "pods.gone" in run.out
    assert "pods.small" not in run.out
    assert path.read_text() == 'expected: {pods: [{name: gone, allowed: true}, {"name": "small", "allowed": true}]}\n'


def test_the_files_of_a_folder_count(folder: Folder) -> None:
    expected = "expected: {pods: [{name: p, warnings: [{contains: by policy no-gpu-0}], placement: {node: n9}}]}"
    folder.add(
        "all",
        expected,
        formatted(pod("p", container(limits={"a.b/gpu": "1"})), "yaml"),
        cluster=formatted(node("n9", card("GPU-0"), card("GPU-1")), "yaml"),
        device_config="nvidia: {resourceCountName: a.b/gpu}",
        policy="policies: [{name: no-gpu-0, devices: {NVIDIA: {denyUUIDs: [GPU-0]}}}]",
    )
    run = folder.test()
    assert (run.status, run.err) == (0, ""), run.out


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ("schedulerName: mine", "patch: [{op: add, path: /spec/schedulerName, value: mine}]"),
        ("nodeSchedulerPolicy: spread", "placement: {node: n2}"),
        ("gpuSchedulerPolicy: binpack", "placement: {containers: [{name: main, devices: [{uuid: GPU-1}]}]}"),
        ("preemption: false", "victims: [], placement: null"),
        ("now: 2026-05-01T00:00:00Z", 'placement: {annotations: {hami.io/vgpu-time: "1777593600"}}'),
    ],
    ids=lambda value: value.partition(":")[0],
)
def test_settings_are_those_of_the_flags_of_simulate(folder: Folder, settings: str, expected: str) -> None:
    """Each changes what becomes of a pod."""
    name = "urgent" if "preemption" in settings else "p"
    held = pod("held", gpu=1, mem=1000, nodeName="n1")
    full = pod("full", gpu=1, mem=40960, priority=1, nodeSelector={"kubernetes.io/hostname": "n3"})
    urgent = pod("urgent", gpu=1, mem=40960, priority=9, nodeSelector={"kubernetes.io/hostname": "n3"})
    held["metadata"]["annotations"] = {
        "hami.io/vgpu-node": "n1",
        "hami.io/vgpu-devices-allocated": "GPU-1,NVIDIA,1000,0:;",
    }
    objects = listed(
        node("n1", card("GPU-0"), card("GPU-1")),
        node("n2", card("GPU-2")),
        node("n3", card("GPU-3"), labels={"kubernetes.io/hostname": "n3"}),
        *(held, full, urgent),
        pod("p", gpu=1, mem=1000),
    )
    text = f"expected: {{pods: [{{name: {name}, {expected}}}]}}\n"
    path = folder.add("one", text, formatted(objects, "yaml"))
    assert folder.test().status == 1
    path.write_text(f"{settings}\n{text}")
    assert folder.test().status == 0, folder.test().out


def test_a_test_needs_no_pods_and_may_be_the_folder_itself(folder: Folder) -> None:
    text = f"pods: []\ncluster: [pods.yaml]\nexpected: {{quotas: [{{name: gpu-quota, used: {{{MEM}: 1}}}}]}}\n"
    folder.add("", text, formatted(listed(quota(mem="9"), pod("p", gpu=1, mem=1, nodeName="n")), "yaml"))
    assert folder.test().out == "ok    .\n1 passed, 0 failed\n"


def test_quotas_above_namespaces_are_expected_by_their_kind(folder: Folder) -> None:
    shared = accelerator_quota(mem=5000)
    pods = pod("small", gpu=1, mem=1000), pod("large", gpu=1, mem=10000)
    quotas = f"quotas: [{{name: AcceleratorQuota/all, used: {{{MEM}: 1000}}}}]"
    expected = f"expected: {{pods: [{{name: large, message: {{contains: AcceleratorQuota all}}}}], {quotas}}}"
    folder.add("shared", expected, formatted(listed(shared, node("n1", card("GPU-0")), *pods), "yaml"))
    assert folder.test().out == "ok    shared\n1 passed, 0 failed\n"


def test_tests_are_chosen_by_name(folder: Folder) -> None:
    for name in ("a/one", "a/two", "b"):
        folder.add(name, RIGHT)
    assert [test["name"] for test in folder.test("--name", "a/*", "-o", "json").result["tests"]] == ["a/one", "a/two"]
    run = folder.test("--name", "c")
    assert (run.status, run.out) == (2, "")
    assert run.err == "hami-webhook: --name 'c': no test is called so; there are a/one, a/two, b\n"


def test_json_has_what_differs(folder: Folder) -> None:
    path = folder.add("quota", RIGHT.replace("node: n1", "node: n2").replace("gpu-quota", "gone"))
    run = folder.test("-o", "json")
    assert run.status == 1
    assert run.result == {
        "tests": [
            {
                "name": "quota",
                "file": str(path),
                "description": "",
                "passed": False,
                "updated": False,
                "differences": [
                    {"path": "pods.small.placement.node", "line": 8, "expected": "n2", "actual": "n1"},
                    {"path": "quotas.gone", "line": 13, "expected": {"name": "gone", "used": {MEM: 1000}}},
                ],
            }
        ],
        "passed": 0,
        "failed": 1,
    }


def test_junit_has_a_failure_for_what_differs(folder: Folder) -> None:
    folder.add("a", RIGHT)
    folder.add("b", 'expected: {pods: [{name: small, message: "\\e[31m<&"}]}')
    run = folder.test("-o", "junit")
    assert run.status == 1
    suite = ElementTree.fromstring(run.out)
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    a, b = suite
    assert (a.get("name"), list(a)) == ("a", [])
    assert 'pods.small.message\n- "\\u001b[31m<&"\n+ ""\n' in (b.findtext("failure") or "")


def test_html_shows_what_differs(folder: Folder) -> None:
    folder.add("a", RIGHT)
    folder.add("b", 'description: <i>\nexpected: {pods: [{name: small, message: "\\e[31m<b>"}]}')
    run = folder.test("-o", "html")
    assert run.status == 1
    assert "<p>1 passed, 1 failed</p>" in run.out
    assert "<td>ok</td><td>a</td><td></td>" in run.out
    assert "<td>FAIL</td><td>b</td><td>&lt;i&gt;</td>" in run.out
    assert "pods.small.message\n- &#34;\\u001b[31m&lt;b&gt;&#34;\n+ &#34;&#34;\n" in run.out


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("expected: [", ":2: is not valid YAML: "),
        ("pods: pods.yaml", ':1: pods: must be a list, found the text "pods.yaml"'),
        ("now: today", ':1: now: must be an RFC 3339 time such as 2026-01-31T12:00:00Z, found the text "today"'),
        ("expected:\n  pod: []", ":2: expected.pod: is an unknown key (did you mean pods?); known are pods, quotas"),
        ("expected:\n  pods:\n  - allowed: true", ":3: expected.pods[0].name: is required, but missing"),
        (
            "expected:\n  pods:\n  - name: a\n    allow: 1",
            ":4: expected.pods[0].allow: is an unknown key (did you mean ",
        ),
        (
            "expected: {}",
            ": has no expectations: write the expected results under expected, or let --update write them",
        ),
        ("pods: [gone.yaml]\nexpected: {pods: [{name: a}]}", "gone.yaml: no such file"),
        ("config: gone.yaml\nexpected: {pods: [{name: a}]}", "gone.yaml: can't be read: No such file or directory"),
    ],
    ids=lambda value: value[:30],
)
def test_a_test_that_cant_be_used_says_what_would_be_right(folder: Folder, text: str, fault: str) -> None:
    path = folder.add("bad", text)
    folder.add("good", RIGHT)
    run = folder.test()
    assert run.status == 2
    where = str(path if fault.startswith(":") else path.parent / "")
    assert run.err.startswith(f"hami-webhook: {where}{'/' if not fault.startswith(':') else ''}{fault}"), run.err
    assert len(run.err.splitlines()) == 1
    assert run.out == "ok    good\n1 passed, 0 failed\n"
    assert path.read_text() == text


def test_a_test_without_pods_says_where_they_belong(folder: Folder) -> None:
    path = folder.add("bad", RIGHT)
    (path.parent / "pods.yaml").unlink()
    assert folder.test().err == (
        f"hami-webhook: {path}: has no pods: write them into pods.yaml, or list their files under pods\n"
    )


def test_a_folder_without_tests_is_refused(folder: Folder) -> None:
    assert folder.test().err == f"hami-webhook: DIR must be a folder, and {folder.root} is not there\n"
    folder.root.mkdir()
    run = folder.test()
    assert (run.status, run.out) == (2, "")
    assert run.err.startswith(f"hami-webhook: {folder.root}: no folder in it has a hami-test.yaml")


def test_a_file_that_cant_be_written_is_named(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder.add("one", "")

    def refuse(*_: object, **__: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "write_text", refuse)
    run = folder.test("--update")
    assert (run.status, run.err) == (2, f"hami-webhook: {path}: can't be written: Permission denied\n")


@pytest.mark.integration
def test_a_terminal_shows_how_many_tests_are_done(folder: Folder) -> None:
    folder.add("a", RIGHT)
    folder.add("b", RIGHT)
    command = [sys.executable, "-m", "hami_webhook", "test", str(folder.root)]
    shown = on_terminal(command, "stderr", {"CI": ""})
    assert "testing" in shown
    assert "2/2" in shown
    assert "\x1b[32mok" in on_terminal(command, "stdout", {"NO_COLOR": ""})


SHARED = """
kind: AcceleratorQuota
apiVersion: hami.io/v1alpha1
metadata: {name: shared}
spec:
  namespaceSelector: {}
  hard: {limits.nvidia.com/gpu: 10}
  per: {user: true, hard: {limits.nvidia.com/gpu: 1}, groups: [{group: ml, hard: {limits.nvidia.com/gpu: 2}}]}
"""
TWO_PODS = "".join(
    f"""---
kind: Pod
apiVersion: v1
metadata: {{name: {name}, namespace: team-a, annotations: {{hami.io/submitted-by: {user}}}}}
spec: {{containers: [{{name: main, resources: {{limits: {{nvidia.com/gpu: 1, nvidia.com/gpumem: 100}}}}}}]}}
"""
    for name, user in (("a", "bob"), ("b", "carol"))
)


@pytest.mark.parametrize(
    ("user", "second"),
    [("as: alice\nasGroups: [web]\n", "(user alice)"), ("as: alice\nasGroups: [web, ml]\n", ""), ("", "")],
)
def test_pods_are_those_of_the_user_or_else_of_their_stamps(folder: Folder, user: str, second: str) -> None:
    denial = f", message: {{contains: '{second}'}}" if second else ""
    outcome = f"{{name: b, allowed: {'false' if second else 'true'}{denial}}}"
    expected = f"expected: {{pods: [{{name: a, allowed: true}}, {outcome}]}}\n"
    folder.add("users", user + expected, TWO_PODS, cluster=SHARED)
    run = folder.test()
    assert (run.status, run.err) == (0, ""), run.out


def test_a_user_is_a_name(folder: Folder) -> None:
    folder.add("users", "as: ''\nexpected: {pods: [{name: small}]}\n")
    assert "as: must be the name of a user, as the API server has it" in folder.test().err
