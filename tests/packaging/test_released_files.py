"""`python -m hack.release`, which is what `make release` runs, in a clone whose last commit is a release."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from helm_program import ROOT, built

from hack.lock import pins
from hack.release import OVERLAYS
from hack.render_schemas import FILES as SCHEMAS
from hami_webhook import __version__

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(built() is None or shutil.which("kubectl") is None, reason="helm and kubectl render manifests"),
]
VERSION = "9.8.7"


def run(folder: Path, *command: str | Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def clone(folder: Path) -> Path:
    """This tree's files in a repository of their own, as a commit that can be released."""
    files = run(ROOT, "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
    for name in filter(None, files):
        if (ROOT / name).is_file():
            to = folder / name
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_bytes((ROOT / name).read_bytes())
            to.chmod((ROOT / name).stat().st_mode)
    version = folder / "hami_webhook" / "__init__.py"
    version.write_text(re.sub(r'__version__ = ".*"', f'__version__ = "{VERSION}"', version.read_text()))
    changelog = folder / "CHANGELOG.md"
    message = re.sub(r"^## Unreleased\n.*?(?=^## |\Z)", "", changelog.read_text(), flags=re.MULTILINE | re.DOTALL)
    changelog.write_text(message + f"\n## {VERSION}\n\n### Upgrading\n\nNothing.\n")
    run(folder, "git", "init", "-q")
    commit(folder)
    return folder


def commit(folder: Path) -> None:
    identity = "-c", "user.name=Release", "-c", "user.email=release@example.org"
    run(folder, "git", "add", "--all")
    run(folder, "git", *identity, "commit", "-q", "-m", "release")


def release(folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hack.release"],
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """dist/ of a release."""
    folder = clone(tmp_path_factory.mktemp("release"))
    done = release(folder, IMAGE="registry.example:5000/team/hami-webhook")
    assert done.returncode == 0, done.stderr
    written = [f"dist/{path.name}" for path in sorted((folder / "dist").iterdir())]
    assert done.stdout.splitlines()[:-1] == written
    assert f"version {VERSION}" in done.stdout.splitlines()[-1]
    return folder / "dist"


def test_there_is_every_file_with_its_checksum(released: Path) -> None:
    names = {path.name for path in released.iterdir()}
    wheel = f"hami_webhook-{VERSION}-py3-none-any.whl"
    plugin = {f"kubectl-hami-{VERSION}.tar.gz", "krew.yaml"}
    described = {"hami-webhook.1", "kubectl-hami.1", "sbom.cdx.json", "provenance.intoto.json", "SHA256SUMS"}
    charts = {f"{chart}-{VERSION}.tgz" for chart in ("hami-webhook", "hami-daemon")}
    assert names == {*OVERLAYS, *plugin, *described, *SCHEMAS, wheel, *charts}
    run(released, "sha256sum", "--check", "--strict", "SHA256SUMS")
    listed = [line.split()[1] for line in (released / "SHA256SUMS").read_text().splitlines()]
    assert listed == sorted(names - {"SHA256SUMS"})


@pytest.mark.parametrize(("name", "overlay"), OVERLAYS.items())
def test_a_one_file_manifest_is_its_overlay_with_the_image_of_the_version(
    released: Path, name: str, overlay: str
) -> None:
    image = f"registry.example:5000/team/hami-webhook:{VERSION}"
    rendered = run(ROOT, "kubectl", "kustomize", ROOT / "manifests" / "overlays" / overlay)
    expected = list(yaml.safe_load_all(rendered.replace("hami-webhook:latest", image)))
    found = list(yaml.safe_load_all((released / name).read_text()))
    assert found == expected
    assert image in str(found)
    assert ":latest" not in str(found)


def test_the_package_is_the_chart_of_the_version(released: Path, tmp_path: Path) -> None:
    helm = run(ROOT, ROOT / "hack" / "helm" / "build.sh").strip()
    package = released / f"hami-webhook-{VERSION}.tgz"
    shown = yaml.safe_load(run(tmp_path, helm, "show", "chart", package))
    assert (shown["name"], shown["version"], shown["appVersion"]) == ("hami-webhook", VERSION, VERSION)
    (image,) = yaml.safe_load(shown["annotations"]["artifacthub.io/images"])
    assert image == {"name": "hami-webhook", "image": f"registry.example:5000/team/hami-webhook:{VERSION}"}
    values = "-n", "hami-system", "--set", f"image.tag={VERSION}"
    rendered = run(tmp_path, helm, "template", "hami-webhook", package, *values)
    of_tree = run(tmp_path, helm, "template", "hami-webhook", ROOT / "manifests" / "chart", *values)
    assert rendered.replace(VERSION, "V") == of_tree.replace(VERSION, "V").replace(__version__, "V")


def test_the_bill_of_materials_lists_what_is_installed(released: Path) -> None:
    bill = json.loads((released / "sbom.cdx.json").read_text())
    assert bill["bomFormat"] == "CycloneDX"
    ours = bill["metadata"]["component"]
    assert (ours["name"], ours["version"]) == ("hami-webhook", VERSION)
    found = {component["name"].lower().replace("_", "-"): component["version"] for component in bill["components"]}
    pinned = pins("all.txt")
    assert {"kubernetes", "pydantic", "uvloop", "jinja2", "nvidia-ml-py", "rich"} <= set(found)
    assert "pytest" not in found
    assert {name: version for name, version in found.items() if pinned.get(name) != version} == {}


def test_the_provenance_is_of_these_files_and_this_commit(released: Path) -> None:
    statement = json.loads((released / "provenance.intoto.json").read_text())
    sums = {line.split()[1]: line.split()[0] for line in (released / "SHA256SUMS").read_text().splitlines()}
    del sums["provenance.intoto.json"]
    assert {each["name"]: each["digest"]["sha256"] for each in statement["subject"]} == sums
    source = statement["predicate"]["buildDefinition"]["resolvedDependencies"][0]
    assert source["digest"]["gitCommit"] == run(released, "git", "rev-parse", "HEAD").strip()


def test_the_same_commit_gives_the_same_bytes(released: Path, tmp_path: Path) -> None:
    run(tmp_path, "git", "clone", "-q", released.parent, "again")
    done = release(tmp_path / "again", IMAGE="registry.example:5000/team/hami-webhook")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "again" / "dist" / "SHA256SUMS").read_text() == (released / "SHA256SUMS").read_text()
