"""Builds the site of the documentation: `python -m hack.website` writes the version at hand into dist/site.

Each version is a folder there, with Chinese in a folder of its own; versions that are there already stay. The pages ask
nothing of any other server, and work from files.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from hack.changelog import section
from hack.website.staging import LANGUAGES, ROOT, BrokenPages, Staging, navigation
from hami_webhook import __version__

SITE = ROOT / "dist" / "site"
UNRELEASED = "dev"
THEME = Path(__file__).parent / "theme"
ROOTS = {"en": ".", "zh": ".."}
"""Where the English pages of the same version are, from the top of a language."""
DESCRIPTION = {
    "en": "Quotas that hold for accelerators which pods share on Kubernetes, HAMi-compatible",
    "zh": "Kubernetes 共享加速卡的准入、配额与调度，兼容 HAMi",
}


def configuration(language: str) -> dict[str, Any]:
    """What the generator is told, for the pages of one language."""
    up = ROOTS[language]
    return {
        "site_name": "hami-webhook",
        "site_description": DESCRIPTION[language],
        "use_directory_urls": False,
        "nav": navigation(language),
        "theme": {
            "name": "material",
            "custom_dir": str(THEME),
            "language": language,
            "font": False,  # those of the reader's system; others would be fetched
            "features": ["navigation.tabs", "navigation.indexes", "navigation.top", "content.code.copy", "toc.follow"],
            "palette": [
                {"scheme": "default", "media": "(prefers-color-scheme: light)", "toggle": _toggle("weather-night")},
                {"scheme": "slate", "media": "(prefers-color-scheme: dark)", "toggle": _toggle("weather-sunny")},
            ],
        },
        "plugins": ["search", "offline"],
        "markdown_extensions": [
            "attr_list",
            "sane_lists",
            "tables",
            {"toc": {"permalink": True, "toc_depth": 3}},
            {"pymdownx.highlight": {"anchor_linenums": True}},
            "pymdownx.superfences",
        ],
        "extra_css": ["assets/site.css"],
        "extra": {
            "polyfills": [{"path": "assets/iframe-worker.js"}],
            "homepage": "index.html",  # not the folder, of which there is a listing where pages are files
            "versions": f"{up}/..",
            "alternate": [
                {
                    "lang": other,
                    "name": name,
                    "link": f"{up}/index.html" if other == "en" else f"{up}/{other}/index.html",
                }
                for other, name in LANGUAGES.items()
            ],
        },
    }


def _toggle(icon: str) -> dict[str, str]:
    return {"icon": f"material/{icon}", "name": "Light / dark"}


def version(changelog: str) -> str:
    """What the version at hand is called: its number, or that it isn't released."""
    return UNRELEASED if section(changelog, "Unreleased") else __version__


def build(language: str, to: Path) -> None:
    """Write the pages of one language.

    Raises:
        BrokenPages: a page has to be mended first.
    """
    with tempfile.TemporaryDirectory() as folder:
        staged = Path(folder)
        Staging(language, staged / "docs").write()
        (staged / "mkdocs.yml").write_text(yaml.safe_dump(configuration(language), allow_unicode=True))
        command = [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", str(staged / "mkdocs.yml")]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        if run.returncode:
            raise BrokenPages(run.stdout + run.stderr)
        shutil.copytree(staged / "site", to)


def newest_first(versions: list[str]) -> list[str]:
    """Released versions by number, what isn't released last."""
    return sorted(versions, key=lambda name: [int(part) for part in re.findall(r"\d+", name)], reverse=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        allow_abbrev=False, prog="python -m hack.website", description="Builds the site of the documentation."
    )
    parser.add_argument("--to", type=Path, default=SITE, metavar="FOLDER", help="where all versions are (dist/site)")
    folder: Path = parser.parse_args().to
    name = version((ROOT / "CHANGELOG.md").read_text())
    with tempfile.TemporaryDirectory() as built:
        try:
            build("en", Path(built) / name)
            build("zh", Path(built) / name / "zh")
        except BrokenPages as error:
            print(error, file=sys.stderr)
            return 1
        shutil.rmtree(folder / name, ignore_errors=True)
        shutil.copytree(Path(built) / name, folder / name)
    versions = newest_first([path.name for path in folder.iterdir() if path.is_dir()])
    (folder / "versions.js").write_text(f"window.siteVersions = {json.dumps(versions)};\n")
    (folder / "index.html").write_text(
        f'<!doctype html><meta charset="utf-8"><title>hami-webhook</title>'
        f'<meta http-equiv="refresh" content="0; url={versions[0]}/index.html">'
        f'<a href="{versions[0]}/index.html">hami-webhook {versions[0]}</a>\n'
    )
    print(f"{folder / 'index.html'}: {', '.join(versions)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
