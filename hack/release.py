"""Writes what a release consists of into dist/: `make release`, or `python -m hack.release`.

The wheel, a one-file manifest for each overlay, the package of the Helm chart, `kubectl hami` for krew, manual pages,
JSON Schemas, the bill of materials of the runtime environment (CycloneDX), provenance, and the checksums of them all. A
release is made of a commit: the same commit gives the same bytes again.

IMAGE is the image's name without a tag, as in IMAGE=registry.example/hami-webhook; the tag is the version. DOWNLOADS is
the URL of the folder in which the files will be found, for krew. The provenance names the repository's URL, SOURCE, by
default that of git's origin, and the builder, which a CI system gives as the URI in BUILDER.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from hack import man_pages, provenance, render_schemas
from hack.changelog import section
from hami_webhook import __version__

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
OVERLAYS = {
    "install.yaml": "default",
    "install-cert-manager.yaml": "cert-manager",
    "install-drop-in.yaml": "drop-in",
}
"""The one-file manifests, and the overlay that each is."""

CHART_FILE = "Chart.yaml"
IN_OVERLAYS = "image: hami-webhook:latest"
NAME = re.compile(r"([a-z0-9][a-z0-9.-]*(:[0-9]+)?/)?([a-z0-9._-]+/)*[a-z0-9][a-z0-9._-]*")


class ReleaseError(Exception):
    """Why no release can be made, in a sentence."""


def run(*command: str | Path, **variables: str) -> str:
    """What a command prints; fails where it does, with what it said."""
    try:
        done = subprocess.run(
            command, cwd=ROOT, env={**os.environ, **variables}, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        raise ReleaseError(f"{command[0]} isn't on the PATH, and a release needs it") from None
    if done.returncode != 0:
        raise ReleaseError(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}".rstrip())
    return done.stdout


def check(changelog: str, image: str) -> None:
    """Raise a `ReleaseError` if the tree isn't that of a release."""
    changed = [line[3:] for line in run("git", "status", "--porcelain").splitlines()]
    if changed:
        raise ReleaseError(
            f"the tree differs from its commit ({', '.join(changed[:3])}{' …' if len(changed) > 3 else ''}); "
            "commit or stash that first, as a release is made of a commit"
        )
    notes = section(changelog, __version__)
    if notes is None:
        raise ReleaseError(
            f"CHANGELOG.md has no heading '## {__version__}', the version in hami_webhook/__init__.py; "
            "write what this version changes under one"
        )
    if "\n### Upgrading\n" not in f"\n{notes}":
        raise ReleaseError(
            f"CHANGELOG.md has no '### Upgrading' under '## {__version__}'; say there what an upgrade takes"
        )
    if section(changelog, "Unreleased"):
        raise ReleaseError(
            f"CHANGELOG.md has changes under '## Unreleased' that version {__version__} would bring; raise __version__ "
            "in hami_webhook/__init__.py, and rename that heading to it"
        )
    tag = f"v{__version__}"
    if run("git", "tag", "--list", tag) and tag not in run("git", "tag", "--points-at", "HEAD").split():
        raise ReleaseError(f"the tag {tag} is on another commit; raise __version__, or check that commit out")
    if not NAME.fullmatch(image):
        raise ReleaseError(
            f"IMAGE must be an image's name without a tag, such as registry.example/hami-webhook, not {image!r}"
        )


def manifest(overlay: str, image: str) -> str:
    """An overlay with the image of this version."""
    rendered = run("kubectl", "kustomize", ROOT / "manifests" / "overlays" / overlay)
    return rendered.replace(IN_OVERLAYS, f"image: {image}:{__version__}")


def chart(source: str, folder: Path, epoch: int, edited: Callable[[str, str], str]) -> None:
    """A chart's package, in which helm puts the time of the call: with the commit's instead.

    `edited` gives the text of a file, by its path in the chart and the text that it has.
    """
    helm = run(ROOT / "hack" / "helm" / "build.sh").strip()
    version = ("--version", __version__, "--app-version", __version__)
    printed = run(helm, "package", ROOT / "manifests" / source, *version, "--destination", folder)
    package = Path(printed.strip().rpartition(": ")[2])
    with tarfile.open(package) as packed:
        files = {member.name: packed.extractfile(member) for member in packed.getmembers()}
        contents = {name: file.read() for name, file in files.items() if file is not None}
    of_chart = {name: edited(name.partition("/")[2], text.decode()).encode() for name, text in contents.items()}
    pack(package, dict(sorted(of_chart.items(), key=lambda item: (not _is_chart_file(item[0]), item[0]))), epoch)


def _is_chart_file(name: str) -> bool:
    """Whether a file of a package is its chart's description, which comes first."""
    return name.partition("/")[2] == CHART_FILE


def with_image(path: str, text: str, image: str) -> str:
    """A file of the chart hami-webhook: its description names the image of this version."""
    return re.sub(r"image: hami-webhook:\S+", f"image: {image}:{__version__}", text) if path == CHART_FILE else text


def with_monitor_image(path: str, text: str, image: str) -> str:
    """A file of the chart hami-daemon: the image is the monitor's default."""
    if path in ("values.yaml", "README.md"):
        text = text.replace("repository: hami-webhook", f"repository: {image}").replace("`hami-webhook`", f"`{image}`")
    return text


def pack(to: Path, contents: Mapping[str, bytes], epoch: int, executable: str = "") -> None:
    """Write a tar.gz of files, one of which may be executed, with the time of the commit."""
    with (
        gzip.GzipFile(to, "wb", mtime=epoch) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.USTAR_FORMAT) as packed,
    ):
        for name, content in contents.items():
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.mode = len(content), epoch, 0o755 if name == executable else 0o644
            packed.addfile(member, io.BytesIO(content))


def plugin(wheel: Path, folder: Path, epoch: int, downloads: str) -> None:
    """The archive of `kubectl hami` with the wheel in it, and the manifest by which krew installs it."""
    source = ROOT / "manifests" / "krew"
    archive = folder / f"kubectl-hami-{__version__}.tar.gz"
    contents = {"kubectl-hami": (source / "kubectl-hami").read_bytes(), wheel.name: wheel.read_bytes()}
    pack(archive, contents, epoch, executable="kubectl-hami")
    checksum = hashlib.sha256(archive.read_bytes()).hexdigest()
    text = "".join((source / "hami.yaml").read_text().splitlines(keepends=True)[2:])
    for word, value in (("VERSION", __version__), ("DOWNLOADS", downloads.rstrip("/")), ("CHECKSUM", checksum)):
        text = text.replace(word, value)
    (folder / "krew.yaml").write_text(text)


def install(wheel: Path, folder: Path) -> Path:
    """Install the wheel with all extras, with the packages of requirements/all.txt; the environment's Python."""
    python = folder / "bin" / "python"
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", "--python", python)
    install = (*pip, "install", "--no-compile", "--no-deps")
    run(*install, "--require-hashes", "-r", "requirements/all.txt")
    run(*install, wheel)
    output = run(folder / "bin" / "hami-webhook", "version")
    if not output.startswith(f"hami-webhook {__version__} "):
        raise ReleaseError(f"the wheel's program should be {__version__} and says: {output.strip()}")
    return python


def bill_of_materials(python: Path, to: Path) -> None:
    """What is installed in an environment, in CycloneDX's format."""
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as ours:  # in pyproject.toml the version is dynamic
        ours.write(f'[project]\nname = "hami-webhook"\nversion = "{__version__}"\n')
        ours.flush()
        described = ("--pyproject", ours.name, "--output-reproducible", "--output-format", "JSON")
        run(sys.executable, "-m", "cyclonedx_py", "environment", *described, "--output-file", to, python)


def checksums(folder: Path) -> str:
    """The files of a folder as `sha256sum --check` reads them."""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    return "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)


def repository() -> str:
    """The URL of git's origin without credentials; empty if it has none that is a URL of the web."""
    try:
        url = run("git", "remote", "get-url", "origin").strip()
    except ReleaseError:
        return ""
    parts = urlsplit(url)
    return f"https://{parts.netloc.rpartition('@')[2]}{parts.path}" if parts.scheme in ("http", "https") else ""


def attest(folder: Path, image: str, downloads: str) -> None:
    """Write the provenance of a folder's files."""
    builder = os.environ.get("BUILDER") or provenance.LOCAL
    if not urlsplit(builder).scheme:
        raise ReleaseError(f"BUILDER must be a URI, such as https://ci.example/hami-webhook/release, not {builder!r}")
    origin = provenance.Origin(
        run("git", "rev-parse", "HEAD").strip(),
        os.environ.get("SOURCE") or repository(),
        builder,
        {"version": __version__, "image": image, "downloads": downloads},
    )
    materials = [ROOT / "requirements" / name for name in ("build.txt", "node.txt", "all.txt")]
    text = provenance.statement(sorted(folder.iterdir()), materials, ROOT, origin)
    (folder / "provenance.intoto.json").write_text(text)


def release(image: str, downloads: str) -> list[Path]:
    """Make the files in dist/, which are to be had under `downloads`; those of before go."""
    check((ROOT / "CHANGELOG.md").read_text(), image)
    epoch = run("git", "log", "-1", "--format=%ct").strip()
    with tempfile.TemporaryDirectory(prefix="hami-webhook-release-") as work:
        made = Path(work) / "dist"
        made.mkdir()
        run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", made, SOURCE_DATE_EPOCH=epoch)
        (wheel,) = made.glob("*.whl")
        for name, overlay in OVERLAYS.items():
            (made / name).write_text(manifest(overlay, image))
        chart("chart", made, int(epoch), partial(with_image, image=image))
        chart("hami-daemon", made, int(epoch), partial(with_monitor_image, image=image))
        plugin(wheel, made, int(epoch), downloads)
        bill_of_materials(install(wheel, Path(work) / "environment"), made / "sbom.cdx.json")
        man_pages.write(made, int(epoch))
        for schema in render_schemas.FILES:
            shutil.copyfile(render_schemas.FOLDER / schema, made / schema)
        attest(made, image, downloads)
        (made / "SHA256SUMS").write_text(checksums(made))
        shutil.rmtree(DIST, ignore_errors=True)
        shutil.copytree(made, DIST)
    return sorted(DIST.iterdir())


def main() -> int:
    try:
        files = release(os.environ.get("IMAGE") or "hami-webhook", os.environ.get("DOWNLOADS") or "DOWNLOADS")
    except ReleaseError as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    for path in files:
        print(path.relative_to(ROOT))
    print(f"release: version {__version__}; to publish it: git tag v{__version__} && git push origin v{__version__}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
