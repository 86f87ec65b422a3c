"""hack/check_supply_chain.py: each check passes a good tree, and names what is broken in another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hack import check_supply_chain as checks
from hack.check_supply_chain import CHECKS, TAGGED_ACTIONS, Tree

Check = Callable[[Tree], Iterator[str]]

HASH = "--hash=sha256:" + "0" * 64
WORKFLOW = ".github/workflows/ci.yaml"
STEPS = "".join(f"    - uses: {action}\n" for action in sorted(TAGGED_ACTIONS))
GOOD = {
    "LICENSE": "All may use it.\n" * 100,
    "SECURITY.md": "Report it in private. Somebody answers within three working days.\n",
    "pyproject.toml": '[project]\nlicense = "Apache-2.0"\n[tool.ruff.lint]\nselect = ["E", "S"]\n'
    '[tool.ruff.lint.per-file-ignores]\n"tests/**" = ["S"]\n',
    "renovate.json": '{"pip_requirements": {"managerFilePatterns": ["/^requirements/.+\\\\.txt$/"]}}',
    "requirements/all.txt": f"# all\n-r node.txt\na==1 \\\n    {HASH}\n",
    "Dockerfile": "FROM python:${PYTHON} AS build\n"
    "RUN pip install --require-hashes \\\n -r requirements/all.txt && pip install --no-deps /wheels/*.whl\n"
    "FROM build\nUSER 65532:65532\n",
    "hack/setup.sh": '#!/bin/sh\nPIP="python -m pip install --no-deps"\n# pip install anything\n$PIP -e .\n',
    WORKFLOW: f"on: [push]\npermissions:\n  contents: read\njobs:\n  run:\n    steps:\n{STEPS}    - run: make\n",
    "tests/fuzz/targets.py": "def pods(data: bytes) -> None: ...\n",
    "tests/fuzz/corpus/pods/one": "\0",
    "docs/images/a.png": "\0",
    "docs/install.md": "kubectl apply -f install.yaml\n",
}


def tree(folder: Path, **changed: str | bytes | None) -> Tree:
    """The good tree with some files changed, or left out."""
    files = {name: content for name, content in {**GOOD, **changed}.items() if content is not None}
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return Tree(folder, list(files))


def edited(name: str, before: str, after: str) -> dict[str, str | bytes | None]:
    assert before in GOOD[name]
    return {name: GOOD[name].replace(before, after)}


BROKEN: list[tuple[Check, dict[str, str | bytes | None], str]] = [
    (checks.binaries, {"tool": b"\x7fELF\x02"}, "tool is a program of Linux"),
    (checks.binaries, {"a.tgz": b"\x1f\x8b\x08"}, "a.tgz is an archive"),
    (checks.binaries, {"a.pyc": "x"}, "a.pyc is compiled"),
    (checks.binaries, {"a.dat": b"a\0b"}, "a.dat is neither text nor an image"),
    (checks.secrets, {"k": "-----BEGIN " + "PRIVATE KEY-----\n" + "A" * 64}, "k has a private key"),
    (checks.secrets, {"k": "id = AKIA" + "ABCDEFGHIJKLMNOP"}, "k has an access key of AWS"),
    (checks.secrets, {"k": "ghp_" + "a" * 36}, "k has a token of GitHub"),
    (checks.secrets, {"k": "glpat-" + "a" * 20}, "k has a token of GitLab"),
    (checks.secrets, {"k": "xoxb-" + "1" * 12}, "k has a token of Slack"),
    (checks.secrets, {"k": "pypi-AgE" + "a" * 60}, "k has a token of a package index"),
    (checks.secrets, {"k": "https://me:" + "hunter2@example.org"}, "k has a password in a URL"),
    (checks.downloaded_scripts, {"a.md": "curl -fsSL https://x.example | sudo bash\n"}, "a.md pipes a download into a"),
    (
        checks.downloaded_scripts,
        {"a.sh": "wget -O- \\\n https://x.example \\\n | sh\n"},
        "a.sh pipes a download into a",
    ),
    (
        checks.pinned_packages,
        {"requirements/all.txt": "a==1\n"},
        "requirements/all.txt: a==1 has no version or no hash",
    ),
    (
        checks.pinned_packages,
        {"requirements/all.txt": f"a>=1 {HASH}\n"},
        "requirements/all.txt: a>=1 has no version or",
    ),
    (checks.pinned_packages, {"requirements/all.txt": None}, "there are no requirements/*.txt"),
    (checks.pinned_packages, edited("Dockerfile", "--require-hashes ", ""), "Dockerfile: RUN pip install -r requirem"),
    (
        checks.pinned_packages,
        edited("Dockerfile", "--no-deps ", ""),
        "Dockerfile: pip install /wheels/*.whl goes by no",
    ),
    (checks.pinned_packages, edited("hack/setup.sh", "-e .", "ruff"), "hack/setup.sh: python -m pip install --no-deps"),
    (checks.pinned_packages, {"b": "#!/bin/sh\ngo install x.example/y@latest\n"}, "b takes Go modules unchecked, or"),
    (checks.pinned_packages, {"b": "#!/bin/sh\nexport GOSUMDB=off\n"}, "b takes Go modules unchecked, or"),
    (checks.updates, {"renovate.json": None}, "renovate.json isn't there"),
    (
        checks.updates,
        edited("renovate.json", "requirements/", "constraints/"),
        "renovate.json: no pattern of pip_requirements is a",
    ),
    (checks.workflow_permissions, edited(WORKFLOW, "permissions:\n  contents: read\n", ""), f"{WORKFLOW} has no perm"),
    (checks.workflow_permissions, edited(WORKFLOW, "contents: read", "contents: write"), f"{WORKFLOW}: permissions of"),
    (checks.workflow_permissions, edited(WORKFLOW, "  run:\n", "  run:\n    permissions: write-all\n"), "the job run"),
    (checks.dangerous_workflows, edited(WORKFLOW, "push", "pull_request_target"), f"{WORKFLOW} runs on pull_request_t"),
    (
        checks.dangerous_workflows,
        edited(WORKFLOW, "run: make", "run: echo ${{ github.event.issue.title }}"),
        f"{WORKFLOW}: a step of run puts text of an event into a command",
    ),
    (checks.actions, edited(WORKFLOW, "run: make", "uses: some/action@v1"), f"{WORKFLOW}: some/action@v1 isn't named"),
    (checks.actions, edited(WORKFLOW, STEPS, ""), "TAGGED_ACTIONS has actions/checkout@v5, which no workflow uses"),
    (checks.image_user, edited("Dockerfile", "USER 65532:65532\n", ""), "Dockerfile: the last stage runs as root"),
    (checks.image_user, edited("Dockerfile", "65532:65532", "nobody"), "Dockerfile: the last stage runs as nobody"),
    (checks.base_image, edited("Dockerfile", "${PYTHON}", "3"), "Dockerfile: python:3 is whatever its"),
    (checks.licence, {"LICENSE": None}, "LICENSE isn't there, or too short to be one"),
    (checks.licence, edited("pyproject.toml", 'license = "Apache-2.0"', ""), "pyproject.toml names no licence"),
    (checks.security_policy, {"SECURITY.md": "Open an issue. It takes days."}, "SECURITY.md doesn't say how to report"),
    (checks.security_policy, edited("SECURITY.md", "days", "time"), "SECURITY.md doesn't say when somebody answers"),
    (checks.fuzzing, {"tests/fuzz/targets.py": None}, "tests/fuzz/targets.py has no function of data: bytes"),
    (checks.fuzzing, {"tests/fuzz/corpus/pods/one": None}, "tests/fuzz/corpus has no inputs"),
    (checks.static_analysis, edited("pyproject.toml", ', "S"]', "]"), "pyproject.toml: ruff's rules S aren't selected"),
    (checks.static_analysis, edited("pyproject.toml", "tests/**", "src/**"), "ruff's rules S are ignored in src/**"),
    (
        checks.static_analysis,
        edited("pyproject.toml", "select", 'ignore = ["S"]\nselect'),
        "ruff's rules S are ignored",
    ),
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_good_tree_passes(tmp_path: Path, check: Check) -> None:
    assert list(check(tree(tmp_path))) == []
    assert check in {broken for broken, _, _ in BROKEN}, "and one that is broken has its row"


@pytest.mark.parametrize(("check", "changed", "fault"), BROKEN, ids=range(len(BROKEN)))
def test_what_is_broken_is_named(
    tmp_path: Path, check: Check, changed: dict[str, str | bytes | None], fault: str
) -> None:
    found = list(check(tree(tmp_path, **changed)))
    assert any(fault in each for each in found), found


def test_an_action_may_be_named_by_its_commit(tmp_path: Path) -> None:
    changed = edited(WORKFLOW, "run: make", f"uses: some/action@{'a1' * 20}")
    assert list(checks.actions(tree(tmp_path, **changed))) == []
