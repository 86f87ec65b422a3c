"""What a release is refused for, what the changelog says of versions, the provenance, and the commit of a build."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from hack import release
from hack.changelog import section
from hack.provenance import LOCAL, Origin, statement
from hami_webhook import __version__
from hami_webhook.build_info import FILE_NAME, BuildInfo, build_info, commit

ROOT = Path(__file__).parents[2]
CHANGELOG = (ROOT / "CHANGELOG.md").read_text()
HEADINGS = re.findall(r"^## (\S+)", CHANGELOG, re.MULTILINE)
GOOD = f"# Changelog\n\n## {__version__}\n\n### Upgrading\n\nNothing.\n"


def test_the_changelog_has_every_version_once_and_the_newest_first() -> None:
    versions = [heading for heading in HEADINGS if heading != "Unreleased"]
    assert HEADINGS in (versions, ["Unreleased", *versions])
    numbers = [tuple(map(int, version.split("."))) for version in versions]
    assert numbers == sorted(set(numbers), reverse=True)
    assert __version__ == versions[0]


@pytest.mark.parametrize("heading", HEADINGS)
def test_the_changelog_says_what_an_upgrade_takes(heading: str) -> None:
    message = section(CHANGELOG, heading)
    assert message is not None
    assert re.search(r"^### Upgrading\n\n\S", message, re.MULTILINE)


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A repository with one commit, in place of this one."""
    monkeypatch.setattr(release, "ROOT", tmp_path)
    (tmp_path / "file").write_text("1")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "--all")
    git(tmp_path, "commit", "-q", "-m", "one")
    return tmp_path


def git(folder: Path, *words: str) -> None:
    identity = "-c", "user.name=Release", "-c", "user.email=release@example.org"
    subprocess.run(["git", *identity, *words], cwd=folder, check=True, timeout=60)


def refusal(changelog: str, image: str = "hami-webhook") -> str:
    with pytest.raises(release.ReleaseError) as found:
        release.check(changelog, image)
    return str(found.value)


@pytest.mark.parametrize(
    "image",
    ["hami-webhook", "registry.example/hami-webhook", "registry.example:5000/a/b/hami-webhook", "localhost:5000/h"],
)
def test_a_commit_with_its_changelog_can_be_released(clean: Path, image: str) -> None:
    release.check(GOOD, image)
    git(clean, "tag", f"v{__version__}")
    release.check(GOOD, image)


def test_a_tree_that_differs_from_its_commit_is_refused(clean: Path) -> None:
    (clean / "file").write_text("2")
    assert refusal(GOOD).startswith("the tree differs from its commit (file); commit or stash that first")
    git(clean, "commit", "-q", "-a", "-m", "two")
    (clean / "more").write_text("")
    assert "(more)" in refusal(GOOD)


@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize(
    ("changelog", "reason"),
    [
        ("# Changelog\n", f"CHANGELOG.md has no heading '## {__version__}', the version in hami_webhook/__init__.py"),
        (GOOD.replace(__version__, f"{__version__}1"), f"CHANGELOG.md has no heading '## {__version__}'"),
        (f"## {__version__}\n\n- Less.\n", f"CHANGELOG.md has no '### Upgrading' under '## {__version__}'"),
        (f"## {__version__}\n\n## 0.0.1\n\n### Upgrading\n", "CHANGELOG.md has no '### Upgrading' under"),
        (f"## Unreleased\n\n- More.\n\n{GOOD}", "CHANGELOG.md has changes under '## Unreleased'"),
    ],
)
def test_a_changelog_that_doesnt_have_the_version_is_refused(changelog: str, reason: str) -> None:
    assert refusal(changelog).startswith(reason)


def test_a_version_that_is_tagged_already_is_refused(clean: Path) -> None:
    git(clean, "tag", f"v{__version__}")
    git(clean, "commit", "-q", "--allow-empty", "-m", "two")
    assert refusal(GOOD).startswith(f"the tag v{__version__} is on another commit; raise __version__")


@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize("image", ["hami-webhook:1", "Hami", "a b", "registry.example/", "-x"])
def test_an_image_that_no_registry_can_have_is_refused(image: str) -> None:
    assert refusal(GOOD, image).startswith("IMAGE must be an image's name without a tag, such as registry.example/hami")


def test_the_plugin_is_what_krew_installs(tmp_path: Path) -> None:
    wheel = tmp_path / f"hami_webhook-{__version__}-py3-none-any.whl"
    wheel.write_bytes(b"wheel")
    release.plugin(wheel, tmp_path, 0, "https://example.org/releases/")
    found = yaml.safe_load((tmp_path / "krew.yaml").read_text())
    assert (found["kind"], found["metadata"]["name"], found["spec"]["version"]) == ("Plugin", "hami", f"v{__version__}")
    (platform,) = found["spec"]["platforms"]
    archive = tmp_path / f"kubectl-hami-{__version__}.tar.gz"
    assert platform["uri"] == f"https://example.org/releases/{archive.name}"
    assert platform["sha256"] == hashlib.sha256(archive.read_bytes()).hexdigest()
    folder = tmp_path / "store"
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    # krew links to the program from a folder on the PATH, on which uv shows here what it is called with
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / platform["bin"]).symlink_to(folder / platform["bin"])
    (programs / "uv").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (programs / "uv").chmod(0o755)
    environment = {"PATH": f"{programs}:/usr/bin:/bin"}
    called = subprocess.check_output([programs / platform["bin"], "quota", "a b"], env=environment, text=True)
    assert called.splitlines()[-4:] == [f"{folder / wheel.name}[cli,ui]", "kubectl-hami", "quota", "a b"]


def test_it_ends_with_one_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hack.release"],
        cwd=ROOT,
        env={"PATH": "/nowhere"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "release: git isn't on the PATH, and a release needs it\n"


# The provenance of a release, against the fields that in-toto's Statement v1 and SLSA's provenance v1 require


def made(folder: Path, source: str) -> Any:
    (folder / "lock.txt").write_text("a==1\n")
    (folder / "file").write_bytes(b"file")
    origin = Origin("0123abcd", source, LOCAL, {"image": "hami-webhook"})
    return json.loads(statement([folder / "file"], [folder / "lock.txt"], folder, origin))


@pytest.mark.parametrize("source", ["", "https://example.org/hami-webhook"])
def test_a_statement_has_what_it_must(tmp_path: Path, source: str) -> None:
    """And nothing else: the two specifications allow no other fields."""
    of_file, of_lock = ({"sha256": hashlib.sha256(content).hexdigest()} for content in (b"file", b"a==1\n"))
    repository = {"name": "hami-webhook", "digest": {"gitCommit": "0123abcd"}}
    assert made(tmp_path, source) == {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": "file", "digest": of_file}],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "urn:hami-webhook:make-release:v1",
                "externalParameters": {"image": "hami-webhook"},
                "resolvedDependencies": [
                    repository | ({"uri": f"git+{source}"} if source else {}),
                    {"name": "lock.txt", "digest": of_lock},
                ],
            },
            "runDetails": {"builder": {"id": "urn:hami-webhook:builder:local"}},
        },
    }


def test_a_builder_that_is_no_uri_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUILDER", "my machine")
    with pytest.raises(release.ReleaseError, match="BUILDER must be a URI, such as https://"):
        release.attest(tmp_path, "hami-webhook", "DOWNLOADS")


@pytest.mark.parametrize(
    ("origin", "url"),
    [
        ("https://user:pw@example.org/hami/webhook.git\n", "https://example.org/hami/webhook.git"),
        ("https://example.org/hami-webhook\n", "https://example.org/hami-webhook"),
        ("/srv/git/hami-webhook\n", ""),
        ("git@example.org:hami/webhook.git\n", ""),
    ],
)
def test_the_repository_is_named_without_credentials(monkeypatch: pytest.MonkeyPatch, origin: str, url: str) -> None:
    monkeypatch.setattr(release, "run", lambda *_: origin)
    assert release.repository() == url


# Which commit a build says that it is of


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with one commit."""
    git = ("git", "-C", tmp_path, "-c", "user.name=n", "-c", "user.email=e@example", "-c", "commit.gpgsign=false")
    subprocess.run((*git, "init", "-q"), check=True)
    subprocess.run((*git, "commit", "-q", "--allow-empty", "-m", "one"), check=True)
    return tmp_path


def test_a_checkout_has_the_commit_that_is_checked_out(checkout: Path) -> None:
    head = subprocess.run(("git", "-C", checkout, "rev-parse", "HEAD"), capture_output=True, text=True, check=True)
    found = build_info(checkout / "hami_webhook")
    assert found.revision == head.stdout.strip()
    assert found.date.startswith("20")


def test_a_folder_without_a_record_or_a_repository_is_of_nothing_known(tmp_path: Path) -> None:
    assert build_info(tmp_path / "hami_webhook") == BuildInfo()
    (tmp_path / ".git").mkdir()  # which is no repository
    assert commit(tmp_path) == BuildInfo()


@pytest.mark.integration
def test_the_wheel_has_the_record_of_its_build(tmp_path: Path) -> None:
    command = (sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path)
    message = {"REVISION": "abc", "SOURCE_DATE_EPOCH": "1767225600", "PATH": "/usr/bin:/bin"}
    subprocess.run(command, cwd=ROOT, env=message, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        packed.extract(f"hami_webhook/{FILE_NAME}", tmp_path)
    assert json.loads((tmp_path / "hami_webhook" / FILE_NAME).read_text())["revision"] == "abc"
    assert build_info(tmp_path / "hami_webhook") == BuildInfo("abc", "2026-01-01T00:00:00+00:00")
