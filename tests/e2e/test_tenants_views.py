"""Every way of reading that the command lines and the pages have, with a tenant's rights.

The ways come from the parsers and the table of routes themselves: a new verb, output or page is walked, too.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast
from urllib.parse import unquote

import builders
import httpx
import pytest
from kubectl.ui_process import address_of, ui_routes
from starlette.routing import Route

from hami_webhook import cli
from hami_webhook.kubectl import main as kubectl_hami

from .deployment import Deployment, Kubectl
from .objects import add_node, gpu_node, namespace, pod, quota
from .scheduling import bind
from .tenants import tenant

Parser = argparse.ArgumentParser
SERVERS = {("serve",), ("ui",)}
"""Verbs that don't end; what they serve is walked below."""
HIDDEN = {"gpumem": 21379}
"""The memory of a pod that a tenant of another namespace never sees."""
OTHERS_TYPE = "secret-project-card"
RIGHTS = {
    "view": ("view", False),
    "edit": ("edit", False),
    "edit, and nodes": ("edit", True),
}


@dataclass(frozen=True)
class Tenancy:
    """A tenant with what is its own, and another tenant's namespace with a pod that waits and one that is bound."""

    user: Kubectl
    space: str
    other: str
    node: str
    folder: Path

    def leaks(self, text: str, *named: str) -> list[str]:
        """What of the other namespace is in a text, beside what the user named itself."""
        others = {self.other, f"waits-{self.other}", f"runs-{self.other}", f"quota-{self.other}", OTHERS_TYPE, "21379"}
        for each in sorted({self.other, f"waits-{self.other}"} & {*named}, key=len, reverse=True):
            text = text.replace(each, "")
        return sorted(each for each in others if re.search(rf"\b{re.escape(each)}\b", text))


@pytest.fixture(scope="module", params=RIGHTS)
def tenancy(
    request: pytest.FixtureRequest, program: Deployment, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Tenancy]:
    kubectl, folder = program.kubectl, tmp_path_factory.mktemp("tenancy")
    space, other = namespace(kubectl), namespace(kubectl)
    node = f"cards-{space}"
    add_node(kubectl, gpu_node(node, 24576, 24576), gpu=20)
    for each in (space, other):
        waiting = pod(each, f"waits-{each}", gpu=1, gpumem=2000)
        waiting["metadata"]["annotations"] = {"nvidia.com/use-gputype": OTHERS_TYPE if each == other else "A10"}
        # bound by hand, as there is no scheduler: what it holds is what it declares
        running = pod(each, f"runs-{each}", gpu=1, **(HIDDEN if each == other else {"gpumem": 3000}))
        kubectl.apply(quota(each, f"quota-{each}", gpu=4, mem=40000), waiting, running)
        assert bind(kubectl, each, f"runs-{each}", node) == ""
    role, sees_nodes = RIGHTS[request.param]
    user = tenant(kubectl, program.plane, folder, space, role=role)
    if sees_nodes:
        kubectl("create", "clusterrole", f"nodes-{space}", "--verb=get,list", "--resource=nodes")
        account = f"--serviceaccount={space}:tenant"
        kubectl("create", "clusterrolebinding", f"nodes-{space}", f"--clusterrole=nodes-{space}", account)
    (folder / "pod.json").write_text(json.dumps(pod(space, "new", gpu=1, gpumem=1000)))
    (folder / "config.yaml").write_text("nvidia: {resourceCountName: nvidia.com/gpu}\n")
    yield Tenancy(user, space, other, node, folder)
    kubectl("delete", "node", node)
    kubectl("delete", "clusterrole,clusterrolebinding", f"nodes-{space}", "--ignore-not-found")


# The command lines


def verbs_of(parser: Parser, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Parser]]:
    """Every verb that does something, with its words."""
    # argparse has no other way to its subcommands; completion goes it, too
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not below:
        yield path, parser
    for action in below:
        for name, verb in cast("dict[str, Parser]", action.choices).items():
            yield from verbs_of(verb, (*path, name))


PROGRAMS = {
    "kubectl hami": (kubectl_hami.parser(), kubectl_hami.main),
    "hami-webhook": (cli.parser(), cli.main),
}
VERBS = [
    pytest.param(program, path, id=" ".join((program, *path)))
    for program, (parser, _) in PROGRAMS.items()
    for path, _ in verbs_of(parser)
    if path not in SERVERS
]


def given(tenancy: Tenancy, path: Sequence[str], action: argparse.Action) -> list[str]:
    """What a user gives for an argument: objects of its own, of the other namespace, and of none."""
    objects = [f"waits-{tenancy.space}", f"waits-{tenancy.other}", "none-such"]
    values: dict[str, list[str] | dict[str, list[str]]] = {
        "name": {"quota": [f"quota-{tenancy.space}", "none-such"], "node": [tenancy.node], "nodes": [tenancy.node]},
        "pod": objects,
        "pods": [str(tenancy.folder / "pod.json")],
        "files": [str(tenancy.folder / "pod.json")],
        "file": [str(tenancy.folder / "config.yaml")],
        "dir": [str(tenancy.folder)],
        "base": [str(tenancy.folder / "config.yaml")],
        "prometheus": ["http://127.0.0.1:1"],
        "want": ["1xA100"],
    }
    assert action.dest in values, f"say here what {' '.join(path)} is given for {action.dest}"
    found = values[action.dest]
    return found if isinstance(found, list) else found.get(path[-1], objects)


def command_lines(tenancy: Tenancy, path: tuple[str, ...], parser: Parser) -> Iterator[list[str]]:
    """The verb with each of its outputs and scopes, and with each of its arguments' values."""
    positional = [action for action in parser._actions if not action.option_strings]
    required = [action for action in parser._actions if action.option_strings and action.required]
    options = {option: action for action in parser._actions for option in action.option_strings}
    fixed = ["--kubeconfig", str(tenancy.user.kubeconfig)] if "--kubeconfig" in options else []
    if "--dir" in options:
        fixed += ["--dir", str(tenancy.folder / "written")]
    for action in required:
        fixed += [action.option_strings[0], given(tenancy, path, action)[0]]
    outputs = [["-o", str(each)] for each in options["-o"].choices or ()] if "-o" in options else []
    scopes = [["-n", each] for each in (tenancy.space, tenancy.other)] if "-n" in options else [[]]
    scopes += [["-A"]] if "-A" in options else []
    values = [[*given(tenancy, path, action), *([None] if action.nargs == "?" else [])] for action in positional]
    for chosen in itertools.product(*values):
        words = [each for each in chosen if each is not None]
        yield from ([*path, *fixed, *scope, *words] for scope in scopes)
        yield from ([*path, *fixed, *output, *scopes[0], *words] for output in outputs)


@pytest.mark.parametrize(("program_name", "path"), VERBS)
def test_every_verb_shows_what_the_tenant_may_see_or_says_why_not(
    program_name: str,
    path: tuple[str, ...],
    tenancy: Tenancy,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tenancy.user.kubeconfig))
    parser, main = PROGRAMS[program_name]
    lines = list(command_lines(tenancy, path, dict(verbs_of(parser))[path]))
    assert lines
    for line in lines:
        status = main(line)  # what raises here would be a traceback
        printed = capsys.readouterr()
        assert status in (0, 1, 2), line
        assert printed.out.strip() or printed.err.strip() or "--to" in line, line
        known = (f"{program_name}: ", "No resources found")
        strange = [each for each in printed.err.splitlines() if not each.startswith(known)]
        assert strange == [], line
        assert tenancy.leaks(printed.out + printed.err, *line) == [], (line, printed)


# The pages


@contextmanager
def ui(tenancy: Tenancy) -> Iterator[httpx.Client]:
    """The pages of `kubectl hami ui`, entered with the token that it prints."""
    command = ["kubectl", "hami", "ui", "-n", tenancy.space]
    environment = {**os.environ, "KUBECONFIG": str(tenancy.user.kubeconfig)}
    with (
        (tenancy.folder / "ui.log").open("w") as log,
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            address, _, token = process.stdout.readline().strip().partition("/#")
            with httpx.Client(base_url=address, timeout=60) as client:
                assert client.post("/login", content=token).status_code == 204
                yield client
        finally:
            process.kill()


def addresses(tenancy: Tenancy, route: Route) -> list[str]:
    """A route's paths with the tenant's own names, the other tenant's, and strange ones."""
    spaces = {"own": tenancy.space, "other": tenancy.other, "strange": "none such"}
    names = {"own": f"waits-{tenancy.space}", "other": f"waits-{tenancy.other}", "strange": "../" * 20}
    return sorted(
        {
            address_of(route, namespace=space, name=names[whose], card=f"node-{whose}/{names[whose]}")
            for whose, space in spaces.items()
        }
    )


@pytest.mark.usefixtures("plugin")
def test_every_page_shows_what_the_tenant_may_see_or_says_why_not(tenancy: Tenancy) -> None:
    theirs = builders.pod("new", namespace=tenancy.other, gpu=1, mem=1000)
    forms = [
        {"manifest": (tenancy.folder / "pod.json").read_text(), "copies": "1"},
        {"manifest": json.dumps(theirs), "copies": "2"},
        {"manifest": "{", "copies": "1"},
        {"manifest": "{}", "copies": "9" * 5000},
    ]
    with ui(tenancy) as client:
        walked = []
        for route in ui_routes():
            for address, method in itertools.product(addresses(tenancy, route), sorted(route.methods or ())):
                walked.append(route.path)
                if address == "/events":
                    with client.stream(method, address) as events:
                        assert method == "HEAD" or next(events.iter_lines()).startswith("data: ")
                    continue
                for form in forms if method == "POST" else [None]:
                    answer = client.request(method, address, data=form)
                    assert answer.status_code < 500, (method, address, form, answer.text)
                    assert method == "HEAD" or answer.text.strip() or answer.status_code == 204
                    assert "Traceback" not in answer.text
                    named = (unquote(address), *(form or {}).values())
                    words = re.findall(r"[\w-]+", " ".join(named))
                    assert tenancy.leaks(answer.text, *words) == [], (method, address, answer.text)
        assert {"/cluster", "/teams", "/pods", "/what-if", "/doctor", "/events"} <= {*walked}
    assert "Traceback" not in (tenancy.folder / "ui.log").read_text()
