"""Contexts and kubeconfigs, as kubectl takes them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from hami_webhook.cluster.api import ClusterError
from hami_webhook.cluster.connect import connect, namespace_of


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
    assert namespace_of(listed, context) == namespace

    async def server() -> str:
        async with await connect(listed, context) as api:
            return str(api.configuration.host)

    assert asyncio.run(server()) == host


def test_a_context_that_is_not_there_is_refused(tmp_path: Path) -> None:
    path = str(kubeconfig(tmp_path, "one"))
    with pytest.raises(ClusterError, match="has no context 'three'; it has one"):
        namespace_of(path, "three")
    with pytest.raises(ClusterError, match="three"):
        asyncio.run(connect(path, "three"))


def test_kubeconfigs_that_are_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="can't be read; --kubeconfig or KUBECONFIG names another"):
        namespace_of(f"{tmp_path}/a:{tmp_path}/b")
