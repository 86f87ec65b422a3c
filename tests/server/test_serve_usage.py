"""The role `usage`: what its API answers, whom it lets in, and what it publishes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from usage.test_samples import TEXT
from usage.test_scrape import Nodes, known, monitor, pod

from hami_webhook.server.serve_usage import FRONT_PROXY, FrontProxy, usage_routes
from hami_webhook.usage.scrape import Monitors

PREFIX = "/apis/usage.hami.io/v1alpha1"


async def answer(path: str) -> Any:
    pods = known(pod("team-a", "p"), pod("team-b", "q"), pod("team-a", "r", "n2"), monitor("n1"))
    app = Starlette(routes=usage_routes(pods, Monitors(pods, Nodes(TEXT), lambda: 1_000_000.0)))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://usage") as client:
        return (await client.get(f"{PREFIX}{path}")).json()


async def test_a_pod_has_its_containers_and_their_cards() -> None:
    assert await answer("/namespaces/team-a/pods/p") == {
        "kind": "PodUsage",
        "apiVersion": "usage.hami.io/v1alpha1",
        "metadata": {"name": "p", "namespace": "team-a"},
        "timestamp": "1970-01-12T13:46:40Z",
        "containers": [
            {
                "name": "c",
                "lastUsed": "1970-01-12T13:45:10Z",
                "devices": [
                    {"uuid": "GPU-0", "memoryBytes": 3 << 20, "memoryLimitBytes": 8 << 20, "coresPercent": 40},
                    {"uuid": "GPU-1", "memoryBytes": 5 << 20},
                ],
            }
        ],
    }


async def test_a_node_has_its_cards() -> None:
    found = await answer("/nodes/n1")
    assert found["cards"] == [{"uuid": "GPU-0", "model": "NVIDIA-A", "memoryBytes": 7 << 20, "powerWatts": 61.5}]
    assert (await answer("/nodes"))["items"] == [found]


async def test_a_list_has_the_pods_of_its_namespace_that_something_is_known_of() -> None:
    for path in ("/namespaces/team-a/pods", "/pods"):
        found = await answer(path)
        assert (found["kind"], [each["metadata"]["name"] for each in found["items"]]) == ("PodUsageList", ["p"])
    assert (await answer("/namespaces/team-c/pods"))["items"] == []


@pytest.mark.parametrize("path", ["/namespaces/team-a/pods/r", "/namespaces/team-b/pods/p", "/nodes/n2"])
async def test_what_nothing_is_known_of_is_not_found_as_the_api_server_says_it(path: str) -> None:
    found = await answer(path)
    assert (found["kind"], found["reason"], found["code"]) == ("Status", "NotFound", 404)


async def test_discovery_names_what_can_only_be_read() -> None:
    found = await answer("")
    assert {each["name"]: (each["namespaced"], each["verbs"]) for each in found["resources"]} == {
        "pods": (True, ["get", "list"]),
        "nodes": (False, ["get", "list"]),
    }


@pytest.mark.parametrize(
    ("names", "common_name", "admitted"),
    [('["a", "b"]', "b", True), ('["a", "b"]', "c", False), ("[]", "c", True), ('["a"]', "", False)],
)
def test_the_api_server_is_who_has_one_of_the_names(
    tmp_path: Path, names: str, common_name: str, admitted: bool
) -> None:
    front_proxy = FrontProxy(tmp_path / "ca")
    front_proxy.take({"requestheader-client-ca-file": "PEM", "requestheader-allowed-names": names})
    assert (tmp_path / "ca").read_text() == "PEM"
    subject = ((("organizationName", "x"),), (("commonName", common_name),))
    assert front_proxy.admits({"subject": subject}) == admitted
    assert not front_proxy.admits({})


@pytest.mark.parametrize("data", [{}, {"requestheader-client-ca-file": "PEM", "requestheader-allowed-names": "{}"}])
def test_without_an_authority_nobody_is_let_in(tmp_path: Path, data: dict[str, str]) -> None:
    front_proxy = FrontProxy(tmp_path / "ca")
    with pytest.raises(ValueError, match=f"{FRONT_PROXY} has no requestheader-client-ca-file"):
        front_proxy.take(data)
