"""What `kubectl get -o json` prints, what `kubectl apply` creates and `kubectl delete --all` deletes, without kubectl.

Each start of kubectl is a tenth of a second of a core, and there are thousands: tests that wait look again and again,
and each makes its objects. Two such tests at once are a busy machine.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import functools
import http.client
import json
import ssl
import tempfile
import threading
import time
import urllib.parse
from collections.abc import Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

JSON = dict[str, Any]
Key = tuple[str, str, str]
"""Kind, namespace ("" for what has none) and name of an object."""
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_DISCOVERY = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"

_METADATA = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"


class NotFound(AssertionError):
    """The API server has no such object, or no such kind."""


class _Arguments(argparse.ArgumentParser):
    """Arguments of `kubectl get` that are read here; `LookupError` for all others."""

    def __init__(self) -> None:
        super().__init__(add_help=False, allow_abbrev=False)
        self.add_argument("resource")
        self.add_argument("name", nargs="?")
        self.add_argument("-n", dest="namespace", default="default")
        self.add_argument("-A", dest="everywhere", action="store_true")
        self.add_argument("-l", dest="labels")
        self.add_argument("--field-selector", dest="fields")

    def error(self, message: str) -> NoReturn:
        raise LookupError(message)


_ARGUMENTS = _Arguments()


@dataclass(frozen=True)
class _Resource:
    path: str
    name: str
    kind: str
    version: str
    namespaced: bool
    can_be_listed: bool


@dataclass
class ApiClient:
    """The user of a kubeconfig of the tests', in JSON, with everything inside."""

    kubeconfig: str
    _resources: dict[str, _Resource] = field(default_factory=dict)
    """By name."""
    _kinds: dict[tuple[str, str], _Resource] = field(default_factory=dict)
    """By apiVersion and kind."""
    _connections: threading.local = field(default_factory=threading.local)

    def __post_init__(self) -> None:
        config = json.loads(self.kubeconfig)
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self._server = cluster["server"]
        self._tls = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
        self._headers = {"Authorization": f"Bearer {user['token']}"} if "token" in user else {}
        if not self._headers:
            with tempfile.NamedTemporaryFile() as pair:
                for part in ("certificate", "key"):
                    pair.write(base64.b64decode(user[f"client-{part}-data"]))
                pair.flush()
                self._tls.load_cert_chain(pair.name)

    def get(self, *arguments: str) -> JSON:
        """The object, or a List. Raises `LookupError` for what kubectl alone knows, `AssertionError` if refused."""
        given = _ARGUMENTS.parse_args(arguments)
        found = self._resource(given.resource)
        path = found.path
        if found.namespaced and not given.everywhere:
            path += f"/namespaces/{given.namespace}"
        path += f"/{found.name}" + (f"/{given.name}" if given.name else "")
        query = {"labelSelector": given.labels, "fieldSelector": given.fields}
        answer = self._call(f"{path}?{urllib.parse.urlencode({key: text for key, text in query.items() if text})}")
        if not given.name:
            answer = {
                "kind": "List",
                "items": [{"kind": found.kind, "apiVersion": found.version} | item for item in answer["items"]],
            }
        for item in answer.get("items", [answer]):
            item["metadata"].pop("managedFields", None)  # as kubectl does
        return answer

    def create(self, obj: JSON, *, dry_run: bool = False) -> JSON:
        """Create an object as `kubectl apply` does; the stored one. Raises as `get` does."""
        kind = obj["apiVersion"], obj["kind"]
        if kind not in self._kinds:
            self._discover()
        found = self._kinds[kind]
        meta = obj["metadata"]
        path = found.path + (f"/namespaces/{meta.get('namespace', 'default')}" if found.namespaced else "")
        notes = (meta.get("annotations") or {}) | {LAST_APPLIED: json.dumps(obj, separators=(",", ":")) + "\n"}
        query = "fieldManager=kubectl-client-side-apply&fieldValidation=Strict" + ("&dryRun=All" if dry_run else "")
        return self._call(f"{path}/{found.name}?{query}", body=obj | {"metadata": meta | {"annotations": notes}})

    def is_applied(self, obj: JSON) -> bool:
        """Whether an object is there as `create` creates it, so that `kubectl apply` would change nothing."""
        found = self._kinds[obj["apiVersion"], obj["kind"]]
        meta = obj["metadata"]
        path = found.path + (f"/namespaces/{meta.get('namespace', 'default')}" if found.namespaced else "")
        try:
            there = self._call(f"{path}/{found.name}/{meta['name']}")
        except AssertionError:
            return False
        applied = (there["metadata"].get("annotations") or {}).get(LAST_APPLIED, "{}")
        return json.loads(applied) == obj and _is_within(obj, there)

    def merge(self, patch: JSON, resource: str, name: str, namespace: str = "default") -> None:
        """Apply a merge patch. Raises as `get` does."""
        found = self._resource(resource)
        path = found.path + (f"/namespaces/{namespace}" if found.namespaced else "")
        self._call(f"{path}/{found.name}/{name}", {"Content-Type": "application/merge-patch+json"}, patch, "PATCH")

    def delete_all(self, resource: str, namespace: str | None = None, fields: str = "") -> None:
        """Delete a kind's objects, or those that a field selector selects, in one namespace or all, with no grace.

        Raises as `get` does.
        """
        found = self._resource(resource)
        spaces = [namespace]
        if found.namespaced and namespace is None:
            items = self._call(f"{found.path}/{found.name}", {"Accept": _METADATA})["items"] or ()
            spaces = sorted({item["metadata"]["namespace"] for item in items})
        for space in spaces:
            path = found.path + (f"/namespaces/{space}" if space else "")
            query = urllib.parse.urlencode({"fieldSelector": fields})
            body = {"gracePeriodSeconds": 0, "propagationPolicy": "Background"}
            self._call(f"{path}/{found.name}?{query}", body=body, method="DELETE")

    def token(self, account: str, namespace: str, seconds: int) -> str:
        """What `kubectl create token` prints."""
        found = self._resource("serviceaccounts")
        path = f"{found.path}/namespaces/{namespace}/{found.name}/{account}/token"
        made: str = self._call(path, body={"spec": {"expirationSeconds": seconds}})["status"]["token"]
        return made

    def everything(self) -> set[Key]:
        """Everything that is stored, but events."""
        self._resources.clear()
        self._kinds.clear()
        self._discover()
        found = set()
        for each in self._kinds.values():
            if not each.can_be_listed or each.kind in ("ComponentStatus", "Event"):
                continue
            with contextlib.suppress(NotFound):  # its definition is deleted just now
                items = self._call(f"{each.path}/{each.name}", {"Accept": _METADATA})["items"] or ()
                metas = [item["metadata"] for item in items]
                found |= {(each.kind, meta.get("namespace", ""), meta["name"]) for meta in metas}
        return found

    def delete(self, objects: Set[Key]) -> None:
        """Delete objects that `everything` found, with no grace; those that can't be deleted stay."""
        body = {"gracePeriodSeconds": 0, "propagationPolicy": "Background"}
        for kind, space, name in sorted(objects):
            for each in self._kinds.values():
                if each.kind == kind:
                    path = each.path + (f"/namespaces/{space}" if space else "")
                    with contextlib.suppress(AssertionError):
                        self._call(f"{path}/{each.name}/{name}", body=body, method="DELETE")

    def _resource(self, name: str) -> _Resource:
        if name not in self._resources:
            self._discover()
        return self._resources[name]

    def _discover(self) -> None:
        """All resources. A name is that of a group's preferred version, and of the first group that has it."""
        for root in ("/api", "/apis"):
            for group in self._call(root, {"Accept": _DISCOVERY})["items"]:
                for number, served in enumerate(group["versions"]):
                    of = f"{group['metadata'].get('name', '')}/{served['version']}".strip("/")
                    for each in served["resources"]:
                        kind = each["responseKind"]["kind"]
                        found = _Resource(
                            *(f"{root}/{of}", each["resource"], kind, of),
                            *(each["scope"] == "Namespaced", "list" in each["verbs"]),
                        )
                        self._kinds[of, kind] = found
                        names = (each["resource"], each["singularResource"], *each.get("shortNames", ()))
                        for known in names if number == 0 else ():
                            self._resources.setdefault(known, found)

    def _call(
        self, path: str, headers: dict[str, str] | None = None, body: JSON | None = None, method: str | None = None
    ) -> JSON:
        given = self._headers | {"Content-Type": "application/json"} | (headers or {})
        data = None if body is None else json.dumps(body).encode()
        verb = method or ("GET" if data is None else "POST")
        try:
            status, text = self._answer(verb, path, data, given)
        except (http.client.HTTPException, OSError):
            # the API server ends connections that are idle, and all of them as it ends
            try:
                status, text = self._answer(verb, path, data, given)
            except (http.client.HTTPException, OSError) as error:
                raise AssertionError(f"no answer from {self._server}: {error}") from error
        if status == 429:  # a kind was defined just now; kubectl tries again too
            time.sleep(1)
            return self._call(path, headers, body, method)
        if status >= 300:
            kind = NotFound if status == 404 else AssertionError
            said = json.loads(text)["message"] if text.startswith(b"{") else text.decode(errors="replace")
            raise kind(f"Error from server: {said}")
        found: JSON = json.loads(text)
        return found

    def _answer(self, verb: str, path: str, data: bytes | None, headers: dict[str, str]) -> tuple[int, bytes]:
        """On the thread's connection, which stays open: a TLS handshake costs more than most answers."""
        if not hasattr(self._connections, "open"):
            address = self._server.removeprefix("https://")
            self._connections.open = http.client.HTTPSConnection(address, timeout=60, context=self._tls)
        connection: http.client.HTTPSConnection = self._connections.open
        try:
            connection.request(verb, path, data, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except BaseException:
            connection.close()  # the next request opens it again
            raise


def _is_within(wanted: Any, there: Any) -> bool:
    """Whether something has all that is wanted; the API server adds defaults."""
    if isinstance(wanted, dict):
        return isinstance(there, dict) and all(_is_within(each, there.get(key)) for key, each in wanted.items())
    if isinstance(wanted, list):
        return isinstance(there, list) and len(wanted) == len(there) and all(map(_is_within, wanted, there))
    return bool(wanted == there)


def api_client(kubeconfig: Path) -> ApiClient:
    """That of a kubeconfig as it is now."""
    return _api_client(kubeconfig.read_text())


_api_client = functools.lru_cache(maxsize=32)(ApiClient)
