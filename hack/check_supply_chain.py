"""What OpenSSF Scorecard looks for in a repository, as far as the files show it: `python hack/check_supply_chain.py`.

Each check is a function whose docstring is the rule, and which yields where the rule is broken. What a forge knows
alone (protected branches, reviews, who may publish) isn't checked.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]

MAGIC = {
    b"\x7fELF": "a program of Linux",
    b"MZ": "a program of Windows",
    b"\xcf\xfa\xed\xfe": "a program of macOS",
    b"\xca\xfe\xba\xbe": "a program of macOS or Java",
    b"PK\x03\x04": "an archive",
    b"\x1f\x8b": "an archive",
    b"!<arch>": "a library",
    b"\x00asm": "a module of WebAssembly",
}
IMAGES = {".png", ".jpg", ".gif", ".ico", ".webp"}
TAGGED_ACTIONS = {"actions/checkout@v5", "actions/setup-python@v6", "actions/setup-go@v6"}
"""Of GitHub itself. Whoever publishes the repository looks their commits up, and Renovate keeps them."""
SECRETS = {
    "a private key": re.compile(r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----\s+[A-Za-z0-9+/=]{40}"),
    "an access key of AWS": re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),
    "a token of GitHub": re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{22,})\b"),
    "a token of GitLab": re.compile(r"\bglpat-[A-Za-z0-9_-]{20}"),
    "a token of Slack": re.compile(r"\bxox[abpr]-[A-Za-z0-9-]{10,}"),
    "a token of a package index": re.compile(r"\bpypi-AgE[A-Za-z0-9_-]{50,}"),
    "a password in a URL": re.compile(r"\bhttps?://[\w.-]+:[^\s/@:$<{]{3,}@[\w.-]+"),
}
PIPED = re.compile(r"\b(?:curl|wget)\b[^|\n]*\|\s*(?:sudo\s+(?:-\S+\s+)*)?(?:ba|da|z)?sh\b")
HASH = "--hash=sha256:"


@dataclass(frozen=True)
class Tree:
    """A repository's files, as paths below its root."""

    root: Path
    files: Sequence[str]

    @classmethod
    def of_git(cls, root: Path) -> Tree:
        command = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
        listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
        return cls(root, [name for name in listed.split("\0") if name and (root / name).is_file()])

    def has(self, name: str) -> bool:
        return name in self.files

    def bytes_of(self, name: str) -> bytes:
        return (self.root / name).read_bytes()

    def text(self, name: str) -> str:
        """A file's text, its continued lines joined; empty if it isn't there or is no text."""
        if not self.has(name):
            return ""
        return self.bytes_of(name).decode("utf-8", "replace").replace("\\\n", " ")

    def toml(self, name: str) -> dict[str, Any]:
        return tomllib.loads(self.bytes_of(name).decode()) if self.has(name) else {}

    def below(self, *folders: str) -> list[str]:
        return [name for name in self.files if name.startswith(folders)]

    def workflows(self) -> Iterator[tuple[str, dict[Any, Any]]]:
        for name in self.below(".github/workflows/"):
            yield name, yaml.safe_load(self.text(name)) or {}

    def scripts(self) -> Iterator[tuple[str, str]]:
        """What is run: the Dockerfile, make's and CI's files, and shell scripts, less their comments."""
        for name in self.files:
            text = self.text(name) if Path(name).suffix in {"", ".sh", ".yaml", ".yml"} else ""
            run = name in {"Dockerfile", "Makefile"} or name.startswith(".github/workflows/") or text.startswith("#!")
            if run:
                yield name, re.sub(r"(?m)(^|\s)#.*$", "", text)


def binaries(tree: Tree) -> Iterator[str]:
    """There are no programs and archives, which nobody can review."""
    for name in tree.files:
        start = tree.bytes_of(name)[:8]
        for magic, what in MAGIC.items():
            if start.startswith(magic):
                yield f"{name} is {what}"
        if name.endswith((".pyc", ".so", ".whl")):
            yield f"{name} is compiled"
        if b"\0" in tree.bytes_of(name)[:8192] and Path(name).suffix not in IMAGES and "/corpus/" not in name:
            yield f"{name} is neither text nor an image"


def workflow_permissions(tree: Tree) -> Iterator[str]:
    """Workflows have rights to read alone, unless a job says which it writes with."""
    for name, workflow in tree.workflows():
        permissions = workflow.get("permissions")
        if permissions is None:
            yield f"{name} has no permissions, so it has all that the repository gives"
        elif permissions not in ({}, {"contents": "read"}, "read-all"):
            yield f"{name}: permissions of a whole workflow must be contents: read, or none"
        for job, fields in workflow.get("jobs", {}).items():
            if fields.get("permissions") == "write-all":
                yield f"{name}: the job {job} has all rights"


def dangerous_workflows(tree: Tree) -> Iterator[str]:
    """No workflow runs a stranger's code with the repository's rights, or their text as a command."""
    for name, workflow in tree.workflows():
        triggers = [value for key, value in workflow.items() if key in ("on", True)]  # YAML 1.1 reads `on` as true
        if any("pull_request_target" in each for each in triggers):
            yield f"{name} runs on pull_request_target"
        for job, fields in workflow.get("jobs", {}).items():
            for step in fields.get("steps", []):
                if re.search(r"\$\{\{\s*github\.(event|head_ref)", str(step.get("run", ""))):
                    yield f"{name}: a step of {job} puts text of an event into a command; hand it over in env"


def actions(tree: Tree) -> Iterator[str]:
    """Actions are named by commit, or stand in TAGGED_ACTIONS."""
    used = set()
    for name, workflow in tree.workflows():
        for job in workflow.get("jobs", {}).values():
            for uses in [job.get("uses"), *(step.get("uses") for step in job.get("steps", []))]:
                if uses is None or uses.startswith("./"):
                    continue
                used.add(uses)
                if not re.search(r"@[0-9a-f]{40}$", uses) and uses not in TAGGED_ACTIONS:
                    yield f"{name}: {uses} isn't named by its commit"
    for stale in sorted(TAGGED_ACTIONS - used):
        yield f"hack/check_supply_chain.py: TAGGED_ACTIONS has {stale}, which no workflow uses"


def pinned_packages(tree: Tree) -> Iterator[str]:
    """Every package has a version and hashes, and pip installs by them, or a file that was built here."""
    lists = tree.below("requirements/")
    if not lists:
        yield "there are no requirements/*.txt"
    for name in lists:
        for line in tree.text(name).splitlines():
            if line and not line.startswith(("#", "-r ")) and not ("==" in line and HASH in line):
                yield f"{name}: {line.split()[0]} has no version or no hash"
    for name, text in tree.scripts():
        variables = re.findall(r'(?m)^(\w+)="(.*)"$', text)
        for line in re.split(r"\n|&&", text):
            command = line
            for variable, value in variables:
                command = command.replace(f"${variable}", value)
            if not re.search(r"\bpip\b.*\s(install|wheel)\s", command) or re.match(r"\s*\w+=", line):
                continue
            by_hash = "--require-hashes" in command and "-r" in command.split()
            built_here = "--no-deps" in command and re.search(r"\s(-e )?(\.|/wheels/\S+)\s*$", command)
            if not by_hash and not built_here:
                yield f"{name}: {' '.join(command.split())} goes by no hash"
    for name, text in tree.scripts():
        if re.search(r"\bgo (install|get)\b.*@latest\b|GONOSUMDB|GONOSUMCHECK|GOFLAGS=\S*-insecure|GOSUMDB=off", text):
            yield f"{name} takes Go modules unchecked, or whichever is the latest"


def licence(tree: Tree) -> Iterator[str]:
    """There is a licence, which the package names."""
    if len(tree.text("LICENSE")) < 500:
        yield "LICENSE isn't there, or too short to be one"
    if not tree.toml("pyproject.toml").get("project", {}).get("license"):
        yield "pyproject.toml names no licence"


def security_policy(tree: Tree) -> Iterator[str]:
    """SECURITY.md says how to report a vulnerability in private, and when somebody answers."""
    text = tree.text("SECURITY.md")
    if not re.search(r"(?i)report", text) or not re.search(r"(?i)private|confidential", text):
        yield "SECURITY.md doesn't say how to report in private"
    if not re.search(r"(?i)\b(days|weeks)\b", text):
        yield "SECURITY.md doesn't say when somebody answers"


def downloaded_scripts(tree: Tree) -> Iterator[str]:
    """Nothing that was downloaded is run unseen, not even in a document."""
    for name in tree.files:
        if PIPED.search(tree.text(name)) and not name.startswith("tests/"):
            yield f"{name} pipes a download into a shell"


def image_user(tree: Tree) -> Iterator[str]:
    """The image's last stage has a user by number, who isn't root."""
    stages = re.split(r"(?m)^FROM ", tree.text("Dockerfile"))[1:]
    users = re.findall(r"(?m)^USER (\S+)", stages[-1]) if stages else []
    if not users or not re.fullmatch(r"[1-9][0-9]*(:[1-9][0-9]*)?", users[-1]):
        yield f"Dockerfile: the last stage runs as {users[-1] if users else 'root'}; USER must be a number above 0"


def base_image(tree: Tree) -> Iterator[str]:
    """The base image is named by its content, or its tag is a build argument, which can name it."""
    text = tree.text("Dockerfile")
    stages = set(re.findall(r"(?m)^FROM \S+ AS (\S+)", text))
    for image in re.findall(r"(?m)^FROM (\S+)", text):
        by_argument = re.search(r":\$(\w+|\{\w+\})$", image)
        if image not in stages and "@sha256:" not in image and not by_argument:
            yield f"Dockerfile: {image} is whatever its tag is today; add its digest, or make the tag an argument"


def secrets(tree: Tree) -> Iterator[str]:
    """Nothing looks like a secret that gives access to something."""
    for name in tree.files:
        for what, pattern in SECRETS.items():
            if pattern.search(tree.text(name)):
                yield f"{name} has {what}"


def fuzzing(tree: Tree) -> Iterator[str]:
    """What reads something from outside is fuzzed, from inputs that are kept."""
    if not re.search(r"(?m)^def \w+\(data: bytes\)", tree.text("tests/fuzz/targets.py")):
        yield "tests/fuzz/targets.py has no function of data: bytes"
    if not tree.below("tests/fuzz/corpus/"):
        yield "tests/fuzz/corpus has no inputs"


def static_analysis(tree: Tree) -> Iterator[str]:
    """ruff's rules for security (S) hold in the package."""
    ruff = tree.toml("pyproject.toml").get("tool", {}).get("ruff", {}).get("lint", {})
    if "S" not in ruff.get("select", []):
        yield "pyproject.toml: ruff's rules S aren't selected"
    if "S" in ruff.get("ignore", []):
        yield "pyproject.toml: ruff's rules S are ignored"
    for pattern, rules in ruff.get("per-file-ignores", {}).items():
        if "S" in rules and not pattern.startswith(("tests/", "hack/")):
            yield f"pyproject.toml: ruff's rules S are ignored in {pattern}"


def updates(tree: Tree) -> Iterator[str]:
    """A tool proposes newer versions of everything that is pinned."""
    if not tree.has("renovate.json"):
        yield "renovate.json isn't there"
        return
    settings = json.loads(tree.bytes_of("renovate.json"))
    patterns = settings.get("pip_requirements", {}).get("managerFilePatterns", [])
    for name in tree.below("requirements/"):
        if not any(re.search(pattern.strip("/"), name) for pattern in patterns):
            yield f"renovate.json: no pattern of pip_requirements is about {name}"


CHECKS: Sequence[Callable[[Tree], Iterator[str]]] = (
    *(binaries, secrets, downloaded_scripts, pinned_packages, updates),
    *(workflow_permissions, dangerous_workflows, actions, image_user, base_image),
    *(licence, security_policy, fuzzing, static_analysis),
)


def main() -> int:
    tree = Tree.of_git(ROOT)
    broken = 0
    for check in CHECKS:
        for fault in check(tree):
            broken += 1
            print(f"{check.__name__}: {fault}. {check.__doc__}")
    print(f"{len(CHECKS)} checks of the supply chain, {broken} faults")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
