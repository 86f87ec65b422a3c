"""Contexts and kubeconfigs, as kubectl takes them."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path

import pytest
from aiohttp import web
from http_server import http_server

from hami_webhook.cluster.api import ClusterError
from hami_webhook.cluster.connect import CONNECTIONS_OF_A_READ, connect, names_of
from hami_webhook.cluster.kubernetes import KubernetesCluster
from hami_webhook.kubectl.main import main, parser

from . import apiserver


def kubeconfig(folder: Path, name: str, namespace: str = "") -> Path:
    """A kubeconfig with one context, of the name of its file."""
    context = {"cluster": name, "user": name} | ({"namespace": namespace} if namespace else {})
    path = folder / name
    path.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": name, "cluster": {"server": f"http://{name}.example"}}],
                "users": [{"name": name, "user": {}}],
                "contexts": [{"name": name, "context": context}],
                "current-context": name,
            }
        )
    )
    return path


@pytest.mark.parametrize(
    ("context", "namespace", "host"),
    [
        ("", "b", "http://two.example"),
        ("one", "default", "http://one.example"),
        ("two", "b", "http://two.example"),
    ],
)
def test_several_files_are_one_kubeconfig(tmp_path: Path, context: str, namespace: str, host: str) -> None:
    paths = [tmp_path / "none", kubeconfig(tmp_path, "two", "b"), kubeconfig(tmp_path, "one")]
    listed = ":".join(map(str, paths))
    assert names_of(listed, context).namespace == namespace

    async def server() -> str:
        async with await connect(listed, context) as api:
            return str(api.configuration.host)

    assert asyncio.run(server()) == host


def test_a_kubeconfig_is_read_by_the_fast_parser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("yaml.safe_load", None)  # the slow one, for all but tests
    path = str(kubeconfig(tmp_path, "one"))
    assert names_of(path).cluster == "one"

    async def host() -> str:
        async with await connect(path) as api:
            return str(api.configuration.host)

    assert asyncio.run(host()) == "http://one.example"


def test_a_context_that_is_not_there_is_refused(tmp_path: Path) -> None:
    path = str(kubeconfig(tmp_path, "one"))
    with pytest.raises(ClusterError, match="has no context 'three'; it has one"):
        names_of(path, "three")
    with pytest.raises(ClusterError, match="three"):
        asyncio.run(connect(path, "three"))


def test_a_kubeconfig_that_is_there_and_cannot_be_read_is_not_taken_for_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = kubeconfig(tmp_path, "config")
    monkeypatch.setattr("hami_webhook.cluster.connect._DEFAULT", path)
    monkeypatch.setattr("os.access", lambda *_: False)  # root may read everything
    with pytest.raises(ClusterError, match=f"kubeconfig {path} can't be read"):
        names_of()


def test_a_read_of_many_lists_opens_few_connections(tmp_path: Path) -> None:
    clients = set()

    def answer(request: web.BaseRequest, _: bytes) -> web.Response:
        assert request.transport is not None
        clients.add(request.transport.get_extra_info("peername"))
        return web.json_response({})

    async def read(url: str) -> None:
        client = await connect(str(apiserver.kubeconfig(tmp_path, url)), connections=CONNECTIONS_OF_A_READ)
        async with KubernetesCluster(client) as cluster:
            await asyncio.gather(*(cluster.call("GET", f"/api/v1/{number}") for number in range(9)))

    with http_server(answer) as url:
        asyncio.run(read(url))
    assert len(clients) == CONNECTIONS_OF_A_READ


@pytest.mark.parametrize("text", ["\x00", "[", "- a", "contexts: 3", "apiVersion: v1"])
def test_a_kubeconfig_that_is_none_is_refused_in_a_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(ClusterError, match="can't be used") as caught:
        names_of(str(path))
    assert "\n" not in str(caught.value)


def test_a_silent_api_server_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("hami_webhook.kubectl.live.LONGEST_WAIT", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listener:  # the kernel takes connections, and nobody answers
        path = kubeconfig(tmp_path, "silent")
        path.write_text(path.read_text().replace("silent.example", f"127.0.0.1:{listener.getsockname()[1]}"))
        assert main(["quota", "--kubeconfig", str(path)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert line.startswith("kubectl hami: the API server didn't answer GET /apis/apps/v1/namespaces/hami-system/")


@pytest.mark.parametrize("order", [["--kubeconfig", "F", "quota"], ["quota", "--kubeconfig", "F"]])
def test_a_dead_api_server_is_a_sentence_in_any_order_of_flags(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], order: list[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]  # on which nobody listens any longer
    path = kubeconfig(tmp_path, "dead")
    path.write_text(path.read_text().replace("dead.example", f"127.0.0.1:{port}"))
    assert main([str(path) if word == "F" else word for word in order]) == 2
    assert capsys.readouterr().err == (
        f"kubectl hami: the API server at 127.0.0.1:{port} can't be reached (connection refused): is it running, and "
        "is this the right one? --kubeconfig and --context name another\n"
    )


def test_flags_of_the_cluster_may_stand_before_the_verb_and_the_last_one_counts() -> None:
    def read(*words: str) -> tuple[str, str, str]:
        found = parser().parse_args(words)
        return found.kubeconfig, found.namespace, found.system_namespace

    expected = ("F", "team-a", "hami-system")
    assert read("--kubeconfig", "F", "-n", "team-a", "quota") == expected
    assert read("quota", "--kubeconfig", "F", "-n", "team-a") == expected
    assert read("-n", "team-a", "explain", "--kubeconfig", "F", "pod", "p") == expected
    assert read("-n", "x", "pods", "-n", "team-a", "--kubeconfig", "F") == expected
    assert read("quota") == ("", "", "hami-system")


def test_kubeconfigs_that_are_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="can't be read; --kubeconfig or KUBECONFIG names another"):
        names_of(f"{tmp_path}/a:{tmp_path}/b")
