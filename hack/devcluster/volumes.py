"""A pod's volumes as folders that follow the objects they come from, laid out and protected as kubelet does."""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import re
import shutil
import subprocess
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from .client import FAILURES, JSON, Client

_log = logging.getLogger(__name__)

_TOKEN_SECONDS = 600
"""How long a token lives: the API server's minimum, whatever the volume requests, so that programs see new ones."""
_RENEWAL = 0.8
_RETRY_SECONDS = 1.0
_FIELD = re.compile(r"metadata\.(annotations|labels)\['(.+)'\]")


class ConfigurationError(Exception):
    """A container can't be started as its pod is; `reason` is the one of its waiting state."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class File:
    """A file of a volume; a mode of None is the volume's default. `private`: for the pod's user or group only."""

    content: bytes
    mode: int | None = None
    private: bool = False


Files = dict[str, File]
"""Files by their path in the volume."""


def unsupported(what: str) -> ConfigurationError:
    return ConfigurationError("CreateContainerConfigError", f"the dev cluster's kubelet doesn't support {what}")


@dataclass(frozen=True, slots=True)
class Owner:
    """The owner of files: `fsGroup` of the pod, and the user that all its containers run as, if it is one."""

    group: int | None
    user: int | None

    def protect(self, path: Path, file: File, default: int) -> None:
        """Give a file that was written its mode and owner."""
        mode = default if file.mode is None else file.mode
        if file.private and (self.user is not None or self.group is not None):
            mode = 0o600
        if self.group is not None:
            mode |= 0o440
        path.chmod(mode)
        user = self.user if file.private and self.user is not None else -1
        os.chown(path, user, -1 if self.group is None else self.group)


class Volumes:
    """The volumes of a pod in subfolders of a folder. `keep` fills them and goes on following until it is cancelled.

    `host` is the folder that stands for the node's own root. Raises `ConfigurationError` if the pod has a volume of a
    kind that isn't supported.
    """

    def __init__(self, client: Client, pod: JSON, folder: Path, host: Path, owner: Owner) -> None:
        self._client = client
        self._pod = pod
        self._folder = folder
        self._owner = owner
        volumes = pod["spec"].get("volumes") or []
        self._empty = {volume["name"]: volume["emptyDir"] for volume in volumes if "emptyDir" in volume}
        self._of_host = {each["name"]: host / _host_folder(each["hostPath"]) for each in volumes if "hostPath" in each}
        others = (volume for volume in volumes if not volume.keys() & {"emptyDir", "hostPath"})
        self._projected = {volume["name"]: _sources(volume) for volume in others}
        self._filled = {volume["name"]: asyncio.Event() for volume in volumes}

    async def keep(self) -> None:
        for name in self._filled:
            self.path(name).mkdir(parents=True, exist_ok=True)
        for name in self._of_host:
            self._filled[name].set()
        for name, spec in self._empty.items():
            self._make_empty(self.path(name), spec)
            self._filled[name].set()
        async with asyncio.TaskGroup() as group:
            for name in self._projected:
                group.create_task(self._project(name))

    async def filled(self) -> None:
        """Wait until every volume has its first content: for ever, where an object doesn't exist."""
        for event in self._filled.values():
            await event.wait()

    @property
    def missing(self) -> str:
        """The volumes whose objects don't exist yet, for a message; "" if there are none."""
        names = [name for name, event in self._filled.items() if not event.is_set()]
        return f"waiting for the objects of volumes {', '.join(names)}" if names else ""

    def path(self, name: str) -> Path:
        return self._of_host.get(name, self._folder / name)

    @property
    def writable(self) -> set[str]:
        """The volumes that containers may write, unless they mount them read-only."""
        return {*self._empty, *self._of_host}

    def remove(self) -> None:
        for name in self._empty:
            if self.path(name).is_mount():
                subprocess.run(["umount", self.path(name)], check=True)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _make_empty(self, folder: Path, spec: JSON) -> None:
        if spec.get("medium") == "Memory":
            size = f"size={_bytes(spec['sizeLimit'])}" if "sizeLimit" in spec else "size=50%"
            subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", folder], check=True)
        folder.chmod(0o777)
        if self._owner.group is not None:
            os.chown(folder, -1, self._owner.group)
            folder.chmod(0o2777)

    async def _project(self, name: str) -> None:
        """Write what the sources give whenever one gives something else, once all have given something."""
        default, sources = self._projected[name]
        parts: list[Files | None] = [None] * len(sources)

        async def take(index: int, source: JSON) -> None:
            async for files in self._source(source):
                if files is None or files == parts[index]:
                    continue  # what was there once stays, as kubelet has it
                parts[index] = files
                known = [part for part in parts if part is not None]
                if len(known) == len(parts):
                    merged = {path: file for part in known for path, file in part.items()}
                    write(self.path(name), merged, default, self._owner)
                    self._filled[name].set()

        async with asyncio.TaskGroup() as group:
            for index, source in enumerate(sources):
                group.create_task(take(index, source))

    async def _source(self, source: JSON) -> AsyncIterator[Files | None]:
        """What a source gives, again after each change; None while an object or a key of it is missing."""
        ((kind, spec),) = source.items()
        if kind == "serviceAccountToken":
            async for token in tokens(self._client, self._pod, spec.get("audience", "")):
                yield {spec["path"]: File(token.encode(), private=True)}
        elif kind == "downwardAPI":
            yield {
                item["path"]: File(field(self._pod, item["fieldRef"]["fieldPath"]).encode(), item.get("mode"))
                for item in spec.get("items") or []
            }
        else:
            path = f"/api/v1/namespaces/{self._pod['metadata']['namespace']}/{_PLURALS[kind]}"
            name = spec.get("name") or spec.get("secretName")
            async for found in self._client.follow(path, fieldSelector=f"metadata.name={name}"):
                (item,) = found.values() or [None]
                yield _selected(content(item) if item else None, spec)


_PLURALS = {"configMap": "configmaps", "secret": "secrets"}


def _sources(volume: JSON) -> tuple[int, list[JSON]]:
    """The mode of a volume's files, and its sources as a projected volume lists them."""
    (kind,) = volume.keys() - {"name"}
    if kind not in ("configMap", "secret", "downwardAPI", "projected"):
        raise unsupported(f"volumes of kind {kind}")
    spec = volume[kind]
    return spec["defaultMode"], spec.get("sources") or [] if kind == "projected" else [{kind: spec}]


def _host_folder(spec: JSON) -> Path:
    """The path of a node's folder, from its root."""
    if spec.get("type") != "DirectoryOrCreate":
        raise unsupported(f"volumes of the host of type {spec.get('type') or 'none'}, but DirectoryOrCreate")
    path = Path(spec["path"])
    return path.relative_to(path.anchor)


def content(item: JSON) -> dict[str, bytes]:
    """What a ConfigMap or a Secret holds."""
    if "type" in item:  # a Secret
        return {key: base64.b64decode(text) for key, text in (item.get("data") or {}).items()}
    binary = {key: base64.b64decode(text) for key, text in (item.get("binaryData") or {}).items()}
    return binary | {key: text.encode() for key, text in (item.get("data") or {}).items()}


def _selected(data: dict[str, bytes] | None, spec: JSON) -> Files | None:
    if data is None:
        return {} if spec.get("optional") else None
    if not spec.get("items"):
        return {key: File(value) for key, value in data.items()}
    items = [item for item in spec["items"] if item["key"] in data]
    if len(items) < len(spec["items"]) and not spec.get("optional"):
        return None
    return {item["path"]: File(data[item["key"]], item.get("mode")) for item in items}


async def tokens(client: Client, pod: JSON, audience: str) -> AsyncIterator[str]:
    """Tokens of the pod's service account, bound to the pod; the next comes at four fifths of one's life."""
    meta = pod["metadata"]
    path = f"/api/v1/namespaces/{meta['namespace']}/serviceaccounts/{pod['spec']['serviceAccountName']}/token"
    reference = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"]}
    spec = {
        "audiences": [audience] if audience else None,
        "boundObjectRef": reference,
        "expirationSeconds": _TOKEN_SECONDS,
    }
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    while True:
        try:
            answer = await client.post(path, request)
        except FAILURES as error:
            _log.warning("%s: no token: %s", path, error)
            await asyncio.sleep(_RETRY_SECONDS)
            continue
        yield answer["status"]["token"]
        end = datetime.fromisoformat(answer["status"]["expirationTimestamp"])
        await asyncio.sleep((end - datetime.now(UTC)).total_seconds() * _RENEWAL)


def field(pod: JSON, path: str, addresses: tuple[str, str] = ("", "")) -> str:
    """A field of the pod as `fieldRef` names it. `addresses` are the pod's and the machine's."""
    of_map = _FIELD.fullmatch(path)
    if of_map:
        return str((pod["metadata"].get(of_map[1]) or {}).get(of_map[2], ""))
    meta, spec = pod["metadata"], pod["spec"]
    fields = {
        **{f"metadata.{name}": meta[name] for name in ("name", "namespace", "uid")},
        **{f"spec.{name}": spec.get(name, "") for name in ("nodeName", "serviceAccountName")},
        **{f"status.{name}": addresses[0] for name in ("podIP", "podIPs")},
        **{f"status.{name}": addresses[1] for name in ("hostIP", "hostIPs")},
    }
    if path not in fields:
        raise unsupported(f"the field {path}")
    return str(fields[path])


def write(folder: Path, files: Files, default: int, owner: Owner) -> None:
    """Replace the content of a volume at once, as kubelet does; `default` is the mode of files without one.

    The files are in a folder with the time in its name, `..data` is a link to that folder, and every name a link into
    `..data`. A reader sees all of the old files or all of the new ones.
    """
    now = folder / "..data"
    old = now.resolve() if now.is_symlink() else None
    new = folder / f"..{datetime.now(UTC):%Y_%m_%d_%H_%M_%S}.{uuid.uuid4().hex[:8]}"
    new.mkdir(mode=0o755)
    for path, file in files.items():
        target = new / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.content)
        owner.protect(target, file, default)
    link = folder / "..data_tmp"
    link.symlink_to(new.name)
    link.replace(now)
    names = {Path(path).parts[0] for path in files}
    for name in names:
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(f"..data/{name}")
    for entry in folder.iterdir():
        if entry.is_symlink() and entry != now and entry.name not in names:
            entry.unlink()
    if old is not None:
        shutil.rmtree(old)


def _bytes(quantity: str) -> int:
    found = re.fullmatch(r"(\d+)(Ki|Mi|Gi|k|M|G)?", str(quantity))
    if found is None:
        raise unsupported(f"the size {quantity}")
    units = {None: 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "k": 10**3, "M": 10**6, "G": 10**9}
    return int(found[1]) * units[found[2]]
