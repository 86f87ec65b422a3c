"""The documents name tests that exist, and their examples are right. Links are the subject of test_website_pages.py."""

from __future__ import annotations

import ast
import json
import re
from functools import cache
from pathlib import Path

import pytest
import yaml
from document_steps import new_files

from hami_webhook.cli import main
from hami_webhook.config import SETTINGS

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "manifests" / "examples"
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


@cache
def functions(path: Path) -> frozenset[str]:
    """The functions and methods that a module defines."""
    tree = ast.parse(path.read_text())
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, kinds))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_test_that_a_document_names_exists(document: Path) -> None:
    text = document.read_text()
    made = new_files(text)
    missing = [
        f"{path}::{name}"
        for path, name in re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?", text)
        if path not in made and (not (ROOT / path).is_file() or (name and name not in functions(ROOT / path)))
    ]
    assert missing == []


def test_every_promise_of_the_security_page_names_a_test() -> None:
    text = (ROOT / "docs" / "security.md").read_text()
    tables = re.findall(r"^\|[^\n]*\| test \|\n\|[-|]+\|\n((?:\|.*\n)+)", text, re.MULTILINE)
    assert len(tables) == 4
    rows = [row for table in tables for row in table.splitlines()]
    assert len(rows) > 30
    assert [row for row in rows if "`tests/" not in row.rpartition(" | ")[2]] == []


def test_every_neighbour_has_a_verdict_and_a_test() -> None:
    text = (ROOT / "docs" / "neighbours.md").read_text()
    rows = [row.strip("| ").split(" | ") for row in re.findall(r"^\| (?!neighbour)[^\n]*\|$", text, re.MULTILINE)]
    assert len(rows) > 20
    assert {verdict for _, verdict, *_ in rows} == {"works", "with a setting", "doesn't"}
    assert [row for row in rows if len(row) != 4 or not row[3].startswith("`tests/")] == []


def test_the_page_on_client_certificates_names_what_there_is() -> None:
    """Its patch fits our Deployment, and its variable is that of the flag."""
    page = (ROOT / "docs" / "api-server-authentication.md").read_text()
    (text,) = (each for each in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) if "HAMI_CLIENT_CA_FILE" in each)
    patch = yaml.safe_load(text)["spec"]["template"]["spec"]
    (container,) = patch["containers"]
    (variable,) = container["env"]
    assert [setting.env for setting in SETTINGS if setting.name == "client_ca_file"] == [variable["name"]]
    (mount,) = container["volumeMounts"]
    assert variable["value"] == f"{mount['mountPath']}/ca.crt"
    (volume,) = patch["volumes"]
    assert mount["name"] == volume["name"]
    assert f"secret generic {volume['secret']['secretName']} -n hami-system --from-file=ca.crt=" in page
    manifest = ROOT / "manifests" / "replicas" / "deployment.yaml"
    ours = next(each for each in yaml.safe_load_all(manifest.read_text()) if each["kind"] == "Deployment")
    assert ours["metadata"]["name"] == "hami-webhook"
    assert container["name"] in [each["name"] for each in ours["spec"]["template"]["spec"]["containers"]]


README = (ROOT / "README.md").read_text()


def test_the_readme_is_one_page() -> None:
    assert len(README.splitlines()) <= 130


def test_the_quota_of_the_readme_refuses_as_the_readme_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (text,) = re.findall(r"^```yaml\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    quota = yaml.safe_load(text)
    assert quota == yaml.safe_load((EXAMPLES / "quotas" / "nvidia.yaml").read_text())
    (gpu, gpumem) = re.findall(
        r"^A pod in `team-a` with `nvidia.com/gpu: (\d+)` and `nvidia.com/gpumem: (\d+)`", README, re.M
    )[0]
    limits = {"nvidia.com/gpu": int(gpu), "nvidia.com/gpumem": int(gpumem)}
    containers = [{"name": "main", "image": "cuda", "resources": {"limits": limits}}]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "team-a"},
        "spec": {"containers": containers},
    }
    (tmp_path / "pod.yaml").write_text(yaml.safe_dump_all([quota, pod]))
    assert main(["simulate", "-o", "json", str(tmp_path / "pod.yaml")]) == 0
    (outcome,) = json.loads(capsys.readouterr().out)["pods"]
    assert outcome["message"] in " ".join(README.split())


def test_the_readme_names_the_versions_of_kubernetes_that_it_was_run_on() -> None:
    found = re.search(r"test it end to end on Kubernetes (.+ kube-scheduler)\.", README)
    assert found is not None
    pinned = {path.parent.name: path.read_text() for path in (ROOT / "hack" / "controlplane").glob("*/go.mod")}
    whole = sorted(minor for minor, text in pinned.items() if "k8s.io/kubernetes/cmd/kube-apiserver" in text)
    (ahead,) = pinned.keys() - set(whole)
    assert found[1] == f"{whole[0]} to {whole[-1]}, and with {ahead}'s kube-scheduler"
