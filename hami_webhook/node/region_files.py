"""The shared regions of a node's containers, read from their folder (docs/spec/hami-core.md#1).

Who runs in a container may put anything there, and change it meanwhile: nothing is mapped into memory, no link is
followed, nothing but a regular file is read, and what one container put there costs no other one more than its time.
"""

from __future__ import annotations

import errno
import logging
import os
import secrets
import stat
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import NamedTuple, Protocol, TypeVar

from hami_webhook.node.region import BadRegion, Region, layout_of, read_region

logger = logging.getLogger(__name__)

MOST_CONTAINERS = 4096
"""Containers of a node that are looked for: kubelet runs 110 pods by default, and hardly more than 500."""
MOST_BYTES = 256 << 20
"""Bytes of all regions that are read at a time: 130 of the largest there are, or 30,000 with a process or two."""
_MOST_ENTRIES = 64
"""Entries of a container's folder among which its region has to be: there are two or three."""
_MOST_LEFTOVERS = 10_000
"""Folders that are looked at for being left over at a time."""
_MOST_REMOVED = 100_000
"""Files and folders in left-over ones that are removed at a time."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_OPEN = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_WHAT = {
    errno.ELOOP: "it is a link, and isn't followed",
    errno.EACCES: "it can't be opened: the permission is denied",
    errno.ENXIO: "it is no file",
    errno.ENOTDIR: "its folder is a link or a file, and isn't followed",
}


class ContainerKey(NamedTuple):
    """A container of a pod: what its folder is called after."""

    pod_uid: str
    container: str

    @property
    def folder(self) -> str:
        return f"{self.pod_uid}_{self.container}"


class RegionKey(Protocol):
    """Whose region it is; hashable."""

    @property
    def folder(self) -> str:
        """The name of the folder that it is in."""
        ...


Key = TypeVar("Key", bound=RegionKey)


class FolderError(Exception):
    """The folder of all regions can't be used; the text says what to do."""


class RegionFolder:
    """The folder with a folder for each container, or claim, at `path`."""

    def __init__(self, path: str, *, most_bytes: int = MOST_BYTES) -> None:
        self.path = path
        self._most_bytes = most_bytes
        self._last_bytes: dict[RegionKey, int] = {}

    def read(self, containers: Iterable[Key]) -> dict[Key, Region | BadRegion]:
        """The regions of these containers, and why one can't be read; without those that have none.

        Those with the fewest bytes when they were last read come first, so that large ones keep no others out. Raises
        `FolderError`.
        """
        found: dict[Key, Region | BadRegion] = {}
        read: dict[Key, int] = {}
        left = self._most_bytes
        with self._opened() as root:
            wanted = islice(containers, MOST_CONTAINERS)
            for container in sorted(wanted, key=lambda each: self._last_bytes.get(each, 0)):
                try:
                    if left < 0:
                        raise BadRegion(f"the regions of this node have more than {self._most_bytes >> 20} MiB in use")
                    with _region_file(root, container) as (file, size):
                        counted = _CountedReads(file)
                        try:
                            found[container] = read_region(counted, size)
                        finally:
                            read[container] = counted.bytes
                            left -= counted.bytes
                except FileNotFoundError:
                    continue
                except BadRegion as error:
                    found[container] = error
                except OSError as error:
                    found[container] = BadRegion(f"it can't be read: {error.strerror}")
        self._last_bytes = {container: read.get(container, self._last_bytes.get(container, 0)) for container in found}
        return found

    def write(self, container: ContainerKey, fields: Mapping[str, int]) -> None:
        """Write `recent_kernel` or `utilization_switch` of a region, and nothing else of it. Raises `BadRegion`,
        `OSError` and `FolderError`.
        """
        with self._opened() as root, _region_file(root, container, os.O_RDWR) as (file, size):
            layout = layout_of(os.pread(file, 12, 0).ljust(12, b"\0"), size)
            offsets = {"recent_kernel": layout.recent_kernel, "utilization_switch": layout.utilization_switch}
            for name, value in fields.items():
                os.pwrite(file, struct.pack("<i", value), offsets[name])

    def remove_leftovers(self, pod_uids: Collection[str], *, before: float) -> list[str]:
        """Remove the folders of containers of other pods that nobody changed since `before` (Unix seconds).

        Returns their names. Links are removed, and not followed; of very many files the rest is for another time.
        Raises `FolderError`.
        """
        removed = []
        steps = iter(range(_MOST_REMOVED))
        with self._opened() as root, os.scandir(root) as entries:
            for entry in islice(entries, _MOST_LEFTOVERS):
                uid, underscore, _ = entry.name.partition("_")
                try:
                    if not underscore or uid in pod_uids or entry.stat(follow_symlinks=False).st_mtime >= before:
                        continue
                    _remove(root, entry, steps)
                    removed.append(entry.name)
                except StopIteration:
                    logger.warning(
                        "%s/%s is left over, and has very many files: the rest goes later", self.path, entry.name
                    )
                    break
                except OSError as error:
                    logger.warning("%s/%s is left over, and can't be removed: %s", self.path, entry.name, error)
        return removed

    @contextmanager
    def _opened(self) -> Iterator[int]:
        try:
            root = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise FolderError(_folder_fault(self.path, error)) from error
        try:
            yield root
        finally:
            os.close(root)


def _remove(within: int, entry: os.DirEntry[str], steps: Iterator[int], *, depth: int = 0) -> None:
    """Remove what is in an open folder, with all that is in it. Raises `OSError`, and `StopIteration` without `steps`.

    Who made it chose how deep it is. So no more than two folders are open: those within the second come beside it.
    """
    next(steps)
    if not entry.is_dir(follow_symlinks=False):
        os.unlink(entry.name, dir_fd=within)
        return
    folder = os.open(entry.name, _FOLDER, dir_fd=within)
    try:
        while entries := _first(folder):
            for each in entries:
                if depth and each.is_dir(follow_symlinks=False):
                    next(steps)
                    os.rename(each.name, secrets.token_hex(16), src_dir_fd=folder, dst_dir_fd=within)
                else:
                    _remove(folder, each, steps, depth=depth + 1)
    finally:
        os.close(folder)
    os.rmdir(entry.name, dir_fd=within)


def _first(folder: int) -> list[os.DirEntry[str]]:
    """Some of what is in an open folder."""
    with os.scandir(folder) as entries:
        return list(islice(entries, 1000))


class _CountedReads:
    """Reads a file into memory of our own, and counts what it read."""

    def __init__(self, file: int) -> None:
        self._file = file
        self.bytes = 0

    def __call__(self, length: int, offset: int) -> bytes:
        found = os.pread(self._file, length, offset)
        self.bytes += len(found)
        return found


@contextmanager
def _region_file(root: int, container: RegionKey, access: int = os.O_RDONLY) -> Iterator[tuple[int, int]]:
    """The opened region of a container, and its size. Raises `FileNotFoundError` where there is none, `BadRegion`."""
    if "/" in container.folder:
        raise FileNotFoundError(errno.ENOENT, container.folder)
    folder = _checked_open(container.folder, os.O_RDONLY | os.O_DIRECTORY, root)
    try:
        file = _checked_open(_region_name(folder), access, folder)
    finally:
        os.close(folder)
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise BadRegion("it is no file")
        if access != os.O_RDONLY and status.st_nlink != 1:
            raise BadRegion("the file has other names, and isn't written")
        yield file, status.st_size
    finally:
        os.close(file)


def _checked_open(name: str, flags: int, within: int) -> int:
    try:
        return os.open(name, flags | _OPEN, dir_fd=within)
    except OSError as error:
        if error.errno in _WHAT:
            raise BadRegion(_WHAT[error.errno]) from error
        raise


def _region_name(folder: int) -> str:
    """The name of the region in a container's folder. Raises `FileNotFoundError`, `BadRegion`."""
    with os.scandir(folder) as entries:
        names = [entry.name for entry in islice(entries, _MOST_ENTRIES + 1)]
    for name in names:
        if ".cache" in name and "libvgpu.so" not in name:
            return name
    if len(names) > _MOST_ENTRIES:
        raise BadRegion(f"its folder has more than {_MOST_ENTRIES} entries")
    raise FileNotFoundError(errno.ENOENT, "no region")


def _folder_fault(path: str, error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return (
            f"{path} doesn't exist, so no container is monitored: HAMi's device plugin creates it; HOOK_PATH names "
            "another"
        )
    if isinstance(error, PermissionError):
        return f"{path} may not be read, so no container is monitored: give this user the right to it"
    return f"{path} can't be read, so no container is monitored: {error.strerror}"
