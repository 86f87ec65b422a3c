"""The paths that are requested of an API server: whatever names come in, none leads beyond its own object."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from yarl import URL

from hami_webhook.cluster.api import EventNote, Invalid, Kind
from hami_webhook.cluster.kubernetes import KubernetesCluster
from hami_webhook.kube.names import is_subdomain

SERVER = "https://api.test:6443"
LISTING = b'{"items": [], "metadata": {"resourceVersion": "1"}}'


class Requests:
    """A client of an API server that answers everything with an empty list, and notes method and URL."""

    def __init__(self) -> None:
        self.made: list[tuple[str, str]] = []

    async def param_serialize(self, method: str, path: str, **more: Any) -> tuple[Any, ...]:
        query = "&".join(f"{key}={URL.build(query={'x': value}).raw_query_string[2:]}"
                         for key, value in more["query_params"])  # fmt: skip
        return method, f"{SERVER}{path}" + (f"?{query}" if query else ""), more["header_params"], None, None

    async def call_api(self, method: str, url: str, *rest: Any, **more: Any) -> Any:
        self.made.append((method, str(URL(url))))  # as aiohttp normalises it

        async def parts() -> AsyncIterator[bytes]:
            yield LISTING

        response = SimpleNamespace(
            status=200, headers={}, content=SimpleNamespace(iter_any=parts), release=lambda: None
        )
        return SimpleNamespace(response=response)


def made(work: Callable[[KubernetesCluster], Awaitable[Any]]) -> list[tuple[str, str]] | None:
    """The requests that the work makes; None if a name is refused, which must come before any request."""
    requests = Requests()
    client: Any = requests
    cluster = KubernetesCluster(client)

    async def run() -> list[tuple[str, str]] | None:
        try:
            await work(cluster)
        except Invalid:
            return None
        return requests.made

    found = asyncio.run(run())
    assert found is not None or requests.made == []
    return found


CORE, LEASES = "/api/v1", "/apis/coordination.k8s.io/v1"
CALLS: dict[str, tuple[Callable[[KubernetesCluster, str, str], Awaitable[Any]], str, str]] = {
    "get": (lambda c, ns, n: c.get(Kind.PODS, n, ns), "GET", CORE + "/namespaces/{}/pods/{}"),
    "get node": (lambda c, ns, n: c.get(Kind.NODES, n), "GET", CORE + "/nodes/{1}"),
    "get namespace": (lambda c, ns, n: c.get(Kind.NAMESPACES, n), "GET", CORE + "/namespaces/{1}"),
    "patch": (lambda c, ns, n: c.patch(Kind.PODS, n, {}, ns), "PATCH", CORE + "/namespaces/{}/pods/{}"),
    "patch node": (lambda c, ns, n: c.patch(Kind.NODES, n, {}), "PATCH", CORE + "/nodes/{1}"),
    "status": (
        lambda c, ns, n: c.patch_status(Kind.RESOURCE_QUOTAS, n, {}, ns),
        "PATCH",
        CORE + "/namespaces/{}/resourcequotas/{}/status",
    ),
    "bind": (lambda c, ns, n: c.bind(ns, n, "uid", "node"), "POST", CORE + "/namespaces/{}/pods/{}/binding"),
    "event": (
        lambda c, ns, n: c.record_event(EventNote("Pod", ns, n, "u", "Normal", "BindingSucceed", "m")),
        "POST",
        CORE + "/namespaces/{0}/events",
    ),
    "get lease": (lambda c, ns, n: c.get_lease(ns, n), "GET", LEASES + "/namespaces/{}/leases/{}"),
    "replace lease": (
        lambda c, ns, n: c.replace_lease(ns, {"metadata": {"name": n}}),
        "PUT",
        LEASES + "/namespaces/{}/leases/{}",
    ),
}
names = st.one_of(
    st.text(max_size=20),
    st.from_regex(r"[a-z0-9./%?#\\-]{0,20}", fullmatch=True),
    st.lists(st.sampled_from(["..", ".", "", "a", "secrets", "%2e%2e", "x?y=z", "x#y"]), max_size=6).map("/".join),
    st.from_regex(r"[a-z]([-a-z0-9]{0,20}[a-z0-9])?", fullmatch=True),
)


@pytest.mark.parametrize("call", CALLS)
@given(namespace=names, name=names)
@example(namespace="team", name="../../../../apis/rbac.authorization.k8s.io/v1/clusterroles/admin")
@example(namespace="..", name="p")
@example(namespace="team", name="")
@example(namespace="", name="p")
def test_a_request_is_for_the_very_object_or_isnt_made(call: str, namespace: str, name: str) -> None:
    work, method, path = CALLS[call]
    requests = made(lambda cluster: work(cluster, namespace, name))
    legal = is_subdomain(namespace) or "/namespaces/{" not in path or call == "get namespace"
    if call == "event" and not namespace:
        legal, namespace = True, "default"
    named = is_subdomain(name) or call == "event"  # an event's own name is ours
    assert (requests is not None) == (legal and named)
    if requests is not None:
        assert requests == [(method, SERVER + path.format(namespace, name))]


@given(namespace=names)
def test_a_namespaces_objects_are_listed_or_nothing_is(namespace: str) -> None:
    requests = made(lambda cluster: cluster.list(Kind.RESOURCE_QUOTAS, namespace))
    assert (requests is not None) == (is_subdomain(namespace) or not namespace)
    within = f"/namespaces/{namespace}" if namespace else ""
    for _, url in requests or ():
        assert urlsplit(url).path == f"{CORE}{within}/resourcequotas"


@given(node=names)
@example(node="n1,metadata.namespace=kube-system")
def test_the_pods_of_one_node_are_listed_or_none_are(node: str) -> None:
    requests = made(lambda cluster: cluster.list(Kind.PODS, node=node))
    assert (requests is not None) == (is_subdomain(node) or not node)
    for _, url in requests or ():
        parts = urlsplit(url)
        assert parts.path == f"{CORE}/pods"
        assert parse_qs(parts.query).get("fieldSelector") == ([f"spec.nodeName={node}"] if node else None)


def test_the_error_says_what_a_name_is() -> None:
    async def run() -> None:
        client: Any = Requests()
        await KubernetesCluster(client).get(Kind.PODS, "../x", "team")

    with pytest.raises(Invalid) as caught:
        asyncio.run(run())
    assert str(caught.value) == (
        "'../x' can't be the name of a pod: names are lower case letters, digits, '-' and '.', begin and end with a "
        "letter or digit, and have at most 253 characters"
    )
