"""Every command of README and docs runs as it is printed, in the order of its page, and prints what the page shows."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import takewhile
from pathlib import Path

import pytest
import yaml
from document_steps import Block, blocks
from walked_documents import BEFORE, FAILS, FIRST, LAST, NOT_RUN, READY, SHOWN, WALKED, path_of

from .documents import Machine, Shell, machine, normal


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with machine(tmp_path_factory.mktemp("reader")) as found:
        yield found


def make_ready(shell: Shell, page: str) -> None:
    """What the pages before this one had the reader do."""
    if page == FIRST:
        return
    shell.must("export KUBECONFIG=$(hack/dev-cluster up 2>/dev/null)")
    shell.must("kubectl get node gpu-1 || hack/dev-cluster add-node --name gpu-1")
    if page not in LAST:
        shell.must("kubectl -n hami-system get deployment hami-webhook || make deploy")
    shell.must("kubectl delete --ignore-not-found namespace team-a")
    # their definition stays as long as there are any
    shell.must("kubectl delete acceleratorquotas --all || true")
    shell.must(READY.get(page, "true"))


@pytest.mark.parametrize("page", WALKED, ids=path_of)
def test_a_page_can_be_followed(reader: Machine, page: Path) -> None:
    path = path_of(page)
    with reader.shell() as shell:
        make_ready(shell, path)
        left = blocks(page.read_text())
        while left:
            block = left.pop(0)
            if block.language in ("sh", "console"):
                printed = normal("\n".join(run(shell, path, command) for command in block.commands))
                for output in takewhile(partial(is_output, block), left):
                    check_output(path, output, printed)
            elif block.language == "yaml":
                apply(shell, block)


def is_output(block: Block, each: Block) -> bool:
    """Whether a block shows what the commands of another print, which is before it in the same section."""
    return each.language == "text" and each.section == block.section


def run(shell: Shell, page: str, command: str) -> str:
    """What a command of a page prints; nothing where it can't run."""
    if command in NOT_RUN.get(page, {}):
        return ""
    if before := BEFORE.get(page, {}).get(command):
        shell.must(before)
    done = shell.run(command)
    expected = FAILS.get(page, {}).get(command, 0)
    assert done.status == expected, f"{page}: {command}\nended with {done.status}:\n{done.output}"
    return done.output


def check_output(page: str, output: Block, printed: str) -> None:
    if output.text.splitlines()[0] in SHOWN.get(page, {}):
        return
    shown = normal(output.text)
    assert shown in printed, f"{page} shows:\n{shown}\nand this is printed:\n{printed}"


def apply(shell: Shell, block: Block) -> None:
    """Create what a block has whole objects of."""
    objects = [each for each in yaml.safe_load_all(block.text) if isinstance(each, dict)]
    if objects and all({"apiVersion", "kind", "metadata"} <= each.keys() for each in objects):
        shell.must(f"kubectl apply -f - <<'YAML'\n{block.text}YAML")
