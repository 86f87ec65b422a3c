"""Copies what the web pages load from npm packages into the package: `python -m hack.vendor_web` (needs npm).

`hack/web_packages` names the packages with their hashes. The copies are committed, so that nobody who builds or
installs the package needs npm or a network; a test holds them against `files.sha256` there.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = Path(__file__).parent / "web_packages"
VENDORED = ROOT / "hami_webhook" / "kubectl" / "ui" / "static" / "vendor"
SUMS = PACKAGES / "files.sha256"
FILES = {
    "@knadh/oat/oat.min.css": "oat.css",
    "@knadh/oat/LICENSE": "oat.LICENSE",
    "uplot/dist/uPlot.iife.min.js": "uplot.js",
    "uplot/dist/uPlot.min.css": "uplot.css",
    "uplot/LICENSE": "uplot.LICENSE",
}


def sums() -> str:
    """A line for each file that is there, as sha256sum writes it."""
    files = sorted(VENDORED.iterdir())
    return "".join(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files)


def main() -> None:
    if shutil.which("npm") is None:
        sys.exit("vendor_web: npm is needed (Debian: apt-get install npm)")
    with tempfile.TemporaryDirectory() as folder:
        for name in ("package.json", "package-lock.json"):
            shutil.copy(PACKAGES / name, folder)
        subprocess.run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=folder, check=True)
        shutil.rmtree(VENDORED, ignore_errors=True)
        VENDORED.mkdir()
        for source, name in FILES.items():
            shutil.copy(Path(folder, "node_modules", source), VENDORED / name)
    SUMS.write_text(sums(), encoding="utf-8")


if __name__ == "__main__":
    main()
