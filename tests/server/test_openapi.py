"""docs/schemas/openapi.json and docs/stability.md: paths are routes, and schemas hold what is sent."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from admission.clusters import FULL, quota_cluster
from admission.reviews import VENDORS, pod, review
from jsonschema import Draft202012Validator
from starlette.applications import Starlette
from starlette.routing import Route

from hack.interface import items
from hami_webhook.admission.denial import Denied
from hami_webhook.admission.review import Answer, allowed, denied
from hami_webhook.scheduling.protocol import (
    Filtered,
    Proposal,
    decode_args,
    decode_binding,
    decode_proposals,
    encode_filtered,
    encode_proposals,
)
from hami_webhook.server import run
from hami_webhook.server.app import application
from hami_webhook.server.extender_app import ExtenderApp
from hami_webhook.server.run import running

from .serving import served, settings_of

ROOT = Path(__file__).parents[2]
DOCUMENT = json.loads((ROOT / "docs" / "schemas" / "openapi.json").read_text())
SCHEMAS = DOCUMENT["components"]["schemas"]
BODIES = ROOT / "tests" / "fuzz" / "corpus" / "extender-bodies"


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in DOCUMENT["paths"].items():
        for method in item.keys() - {"servers"}:
            yield path, method.upper(), item[method]


def documented(flag: str) -> set[tuple[str, str]]:
    """The paths, with their methods, of the listener whose flag this is."""
    return {
        (path, method)
        for path, method, _ in operations()
        if any(flag in server["description"] for server in DOCUMENT["paths"][path]["servers"])
    }


def methods(routes: list[Route]) -> set[tuple[str, str]]:
    return {(route.path, method) for route in routes for method in (route.methods or ()) if method != "HEAD"}


async def test_every_route_of_every_listener_is_a_path_and_nothing_else_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listening: list[set[tuple[str, str]]] = []
    of_extender = ExtenderApp.application

    def recorded(routes: Any) -> Any:
        listening.append(methods(list(routes)))
        return application(routes)

    def recorded_extender(self: ExtenderApp) -> Starlette:
        found = of_extender(self)
        listening.append(methods(found.routes))  # type: ignore[arg-type]  # all of them are routes
        return found

    monkeypatch.setattr(run, "application", recorded)
    monkeypatch.setattr(ExtenderApp, "application", recorded_extender)
    async with served(tmp_path, await quota_cluster()):
        pass
    extender, main, metrics = listening
    assert main == documented("--http_bind")
    assert metrics == documented("--metrics-bind-address")
    assert extender == documented("--extender-bind-address")


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for each in value.values():
            yield from references(each)
    elif isinstance(value, list):
        for each in value:
            yield from references(each)


def test_the_document_is_whole() -> None:
    assert DOCUMENT["openapi"] == "3.1.0"
    identifiers = [operation["operationId"] for _, _, operation in operations()]
    assert len(identifiers) == len(set(identifiers))
    for _, _, operation in operations():
        assert operation["responses"]
        assert all(response["description"] for response in operation["responses"].values())
        for alternative in operation.get("security", []):
            assert alternative.keys() <= DOCUMENT["components"]["securitySchemes"].keys()
    names = {reference.removeprefix("#/components/schemas/") for reference in references(DOCUMENT)}
    assert names == set(SCHEMAS)
    for schema in SCHEMAS.values():
        Draft202012Validator.check_schema(schema)


def faults(name: str, value: Any) -> list[str]:
    validator = Draft202012Validator({"components": DOCUMENT["components"], "$ref": f"#/components/schemas/{name}"})
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(value)]


def test_reviews_and_answers_are_as_they_are_described() -> None:
    assert faults("PodReview", review(pod(gpu=1))) == []
    assert faults("PodReview", {"request": {"object": {"spec": {"containers": [1]}}}}) != []
    patch = Answer(patch=[{"op": "add", "path": "/spec/x", "value": 1}], warnings=("w",), audit={"k": "v"})
    for answer in (Answer(), patch):
        assert faults("ReviewAnswer", json.loads(allowed("admission.k8s.io/v1", "u", answer))) == []
    for denial in (Denied(403, "no"), Denied(503, "later", retry_after=1)):
        assert faults("ReviewAnswer", json.loads(denied("admission.k8s.io/v1beta1", "u", denial, "p"))) == []
    assert faults("ReviewAnswer", {"apiVersion": "v1", "kind": "AdmissionReview", "response": {}}) != []


DECODERS = {
    "filter": (decode_args, "ExtenderArgs"),
    "bind": (decode_binding, "ExtenderBindingArgs"),
    "preempt": (decode_proposals, "ExtenderPreemptionArgs"),
}


@pytest.mark.parametrize(
    "body",
    ["bind.json", "filter.json", "filter-names-repeated.json", "preempt.json", "preempt-whole-victims.json"],
)
def test_what_kube_scheduler_sends_is_as_it_is_described(body: str) -> None:
    value = json.loads((BODIES / body).read_text())
    decode, name = DECODERS[body.partition(".")[0].partition("-")[0]]
    assert not isinstance(decode(value), str)
    assert faults(name, value) == []
    assert faults(name, {}) != []


def test_what_kube_scheduler_is_answered_is_as_it_is_described() -> None:
    for filtered in (Filtered(names=["n"], failed={"m": "why"}), Filtered(nodes=[{}]), Filtered(error="why")):
        assert faults("ExtenderFilterResult", encode_filtered(filtered)) == []
    assert faults("ExtenderPreemptionResult", encode_proposals({"n": Proposal(("u",), 1)})) == []
    assert faults("ExtenderPreemptionResult", {"Error": "why"}) == []
    assert faults("ExtenderPreemptionResult", {}) != []
    assert faults("HostPriorityList", [{"Host": "n", "Score": 3}]) == []
    assert faults("ExtenderBindingResult", {"Error": ""}) == []


# Which paths a process answers, by its roles and listeners, as docs/stability.md lists them


PAGE = (Path(__file__).parents[2] / "docs" / "stability.md").read_text()
TABLE = re.findall(r"^\| (.*) \|$", PAGE.partition("## HTTP paths\n")[2].partition("\n## ")[0], re.MULTILINE)[1:]
ROWS = [[re.findall(r"`([^`]+)`", cell) for cell in row.split(" | ")] for row in TABLE]
"""The role (none: every process), the flags of the listeners, and the paths."""


@pytest.fixture(scope="module")
def known() -> set[str]:
    """The paths of the interface."""
    return {item.name.split()[-1] for item in items() if item.group == "path" and not item.name.startswith("kubectl")}


def listed(role: str, flag: str) -> set[str]:
    """The paths of a process with one role on the listener of a flag."""
    of_process = [row for row in ROWS if role in row[0] or not row[0]]
    return {path for _, flags, paths in of_process if flag in flags for path in paths}


def test_every_path_is_in_the_table(known: set[str]) -> None:
    assert {path for _, _, paths in ROWS for path in paths} == known


@pytest.mark.parametrize("role", ["webhook", "controller", "extender"])
async def test_a_process_answers_the_paths_of_its_role_and_no_others(role: str, known: set[str]) -> None:
    async with running(await quota_cluster(FULL), VENDORS, settings_of(f"--roles={role}")) as process:
        listeners = {
            "--http_bind": process.main,
            "--metrics-bind-address": process.metrics,
            **({"--extender-bind-address": process.extender} if process.extender is not None else {}),
        }
        for flag, listener in listeners.items():
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{listener.port}", timeout=10) as client:
                answered = {path for path in known if (await client.post(path)).status_code != 404}
            assert answered == listed(role, flag), flag
    assert (process.extender is not None) == (role == "extender")
