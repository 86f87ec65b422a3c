"""What is read of the folder of regions, whatever its containers put there."""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from hami_webhook.node import region_files
from hami_webhook.node.region import V0, V1_1, V1_2, BadRegion, Layout, Region
from hami_webhook.node.region_files import ContainerKey, FolderError, RegionFolder

from .regions import region

OWN, OTHER = ContainerKey("uid-1", "main"), ContainerKey("uid-2", "main")


@pytest.fixture
def folder(tmp_path: Path) -> RegionFolder:
    """Two containers, of which the other one is as it should be."""
    for container in (OWN, OTHER):
        (tmp_path / container.folder).mkdir()
        (tmp_path / container.folder / "libvgpu.so.cache").touch()
    put(tmp_path, OTHER, region(slots=[{0: (0, 0, 0, 0, 7)}]))
    return RegionFolder(str(tmp_path))


def put(path: Path, container: ContainerKey, content: bytes | bytearray) -> Path:
    file = path / container.folder / "9f8e.cache"
    file.write_bytes(content)
    return file


def problem(folder: RegionFolder, container: ContainerKey = OWN) -> str:
    """Why a container isn't read, while the other one is."""
    found = folder.read([container, OTHER])
    other, own = found[OTHER], found[container]
    assert isinstance(other, Region)
    assert other.devices[0].total == 7
    assert isinstance(own, BadRegion)
    return str(own)


def test_containers_without_a_folder_or_a_region_are_left_out(folder: RegionFolder, tmp_path: Path) -> None:
    nowhere = ContainerKey("uid-3", "main")
    assert list(folder.read([OWN, OTHER, nowhere])) == [OTHER]


def test_a_container_name_is_what_follows_the_first_underscore(folder: RegionFolder, tmp_path: Path) -> None:
    odd = ContainerKey("uid-4", "with_underscore")
    (tmp_path / "uid-4_with_underscore").mkdir()
    put(tmp_path, odd, region())
    assert isinstance(folder.read([odd])[odd], Region)


def _link_to_shadow(file: Path) -> None:
    file.symlink_to("/etc/shadow")


def _link_to_another_container(file: Path) -> None:
    file.symlink_to(file.parents[1] / OTHER.folder / "9f8e.cache")


def _fifo(file: Path) -> None:
    os.mkfifo(file)


def _folder(file: Path) -> None:
    file.mkdir()


def _socket(file: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(file))


def _tebibyte(file: Path) -> None:
    file.write_bytes(region())
    os.truncate(file, 1 << 40)


def _empty(file: Path) -> None:
    file.touch()


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (_link_to_shadow, "it is a link, and isn't followed"),
        (_link_to_another_container, "it is a link, and isn't followed"),
        (_fifo, "it is no file"),
        (_folder, "it is no file"),
        (_socket, "it is no file"),
        (_tebibyte, "it has 1099511627776 bytes, where version 1.1 has 2008952"),
        (_empty, "it ends at 0 bytes, in the middle of a field"),
    ],
    ids=lambda value: value.__name__.strip("_") if callable(value) else "",
)
def test_what_is_no_region_costs_its_container_only(
    folder: RegionFolder, tmp_path: Path, made: Callable[[Path], None], why: str
) -> None:
    made(tmp_path / OWN.folder / "9f8e.cache")
    assert problem(folder) == why


def test_a_folder_that_is_a_link_is_not_followed(folder: RegionFolder, tmp_path: Path) -> None:
    linked = ContainerKey("uid-5", "main")
    (tmp_path / linked.folder).symlink_to(tmp_path / OTHER.folder)
    assert problem(folder, linked) == "its folder is a link or a file, and isn't followed"


def test_no_name_leads_out_of_the_folder(folder: RegionFolder, tmp_path: Path) -> None:
    outside = ContainerKey("uid-1_main/../uid-2", "main")
    assert folder.read([outside]) == {}


def test_a_region_among_too_many_files_is_not_looked_for(folder: RegionFolder, tmp_path: Path) -> None:
    for number in range(200):
        (tmp_path / OWN.folder / f"{number}.so").touch()
    assert problem(folder) == "its folder has more than 64 entries"


def test_a_file_without_permission_is_told(
    folder: RegionFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, OWN, region())
    real = os.open

    def refusing(path: str, flags: int, *, dir_fd: int | None = None) -> int:
        if path == "9f8e.cache" and os.readlink(f"/proc/self/fd/{dir_fd}").endswith(OWN.folder):
            raise PermissionError(13, "Permission denied")
        return real(path, flags, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", refusing)
    assert problem(folder) == "it can't be opened: the permission is denied"


def test_a_file_that_shrinks_and_grows_while_it_is_read_ends_nothing(folder: RegionFolder, tmp_path: Path) -> None:
    file = put(tmp_path, OWN, content := region(slots=[{}] * 500))
    stop = threading.Event()

    def change() -> None:
        while not stop.is_set():
            os.truncate(file, 100)
            file.write_bytes(content)

    changing = threading.Thread(target=change)
    changing.start()
    try:
        kinds: set[type] = set()
        while kinds != {Region, BadRegion}:
            found = folder.read([OWN, OTHER])
            assert isinstance(found[OTHER], Region)
            kinds.add(type(found[OWN]))
    finally:
        stop.set()
        changing.join()


def test_folders_of_others_cost_nothing(folder: RegionFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(10_000):
        (tmp_path / f"{number}_gone").mkdir()
    opened: list[str] = []
    real = os.open

    def counting(path: str, flags: int, *, dir_fd: int | None = None) -> int:
        opened.append(path)
        return real(path, flags, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", counting)
    assert list(folder.read([OTHER])) == [OTHER]
    assert opened == [str(tmp_path), OTHER.folder, "9f8e.cache"]


def test_no_more_containers_are_looked_for_than_a_node_has(folder: RegionFolder) -> None:
    crowd = [ContainerKey("uid-9", f"c{number}") for number in range(region_files.MOST_CONTAINERS)]
    assert folder.read([*crowd, OTHER]) == {}


def test_large_regions_keep_no_small_one_out(tmp_path: Path) -> None:
    folder = RegionFolder(str(tmp_path), most_bytes=3 << 20)
    large = [ContainerKey(f"a-{number}", "main") for number in range(4)]
    for container in (*large, OTHER):
        (tmp_path / container.folder).mkdir()
        put(tmp_path, container, region(slots=[{}] * (1 if container == OTHER else 1024)))
    while isinstance(folder.read([*large, OTHER])[OTHER], BadRegion):
        pass  # until each has been read once, nobody knows which are large
    found = folder.read([*large, OTHER])
    assert isinstance(found[OTHER], Region)
    assert [str(each) for each in found.values() if isinstance(each, BadRegion)] == [
        "the regions of this node have more than 3 MiB in use"
    ] * 2


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (None, "doesn't exist, so no container is monitored: HAMi's device plugin creates it; HOOK_PATH names another"),
        (PermissionError(13, "Permission denied"), "may not be read, so no container is monitored: give this user"),
        (NotADirectoryError(20, "Not a directory"), "can't be read, so no container is monitored: Not a directory"),
    ],
    ids=["not there", "no right", "no folder"],
)
def test_a_folder_that_cannot_be_read_is_told_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError | None, why: str
) -> None:
    def refusing(*_: object) -> int:
        assert error is not None
        raise error

    path = tmp_path / "containers"
    if error is not None:
        monkeypatch.setattr(os, "open", refusing)
    with pytest.raises(FolderError, match=f"^{path} {why}"):
        RegionFolder(str(path)).read([OWN])


@pytest.mark.parametrize("layout", [V0, V1_1, V1_2])
def test_the_two_fields_are_written_and_nothing_else(folder: RegionFolder, tmp_path: Path, layout: Layout) -> None:
    before = region(layout, slots=[{0: (1, 2, 3, 4, 5)}], tail=(0, 3, 1))
    file = put(tmp_path, OWN, before)
    folder.write(OWN, {"recent_kernel": -1, "utilization_switch": 1})
    struct.pack_into("<2i", before, layout.proc_num + 4, 1, -1)
    assert file.read_bytes() == before


@pytest.mark.parametrize("made", [_link_to_another_container, _tebibyte, _empty, _fifo, _folder])
def test_what_is_no_region_is_not_written(folder: RegionFolder, tmp_path: Path, made: Callable[[Path], None]) -> None:
    made(tmp_path / OWN.folder / "9f8e.cache")
    before = (tmp_path / OTHER.folder / "9f8e.cache").read_bytes()
    with pytest.raises((BadRegion, OSError)):
        folder.write(OWN, {"recent_kernel": -1})
    assert (tmp_path / OTHER.folder / "9f8e.cache").read_bytes() == before


def test_a_file_with_other_names_is_not_written(folder: RegionFolder, tmp_path: Path) -> None:
    os.link(tmp_path / OTHER.folder / "9f8e.cache", tmp_path / OWN.folder / "9f8e.cache")
    with pytest.raises(BadRegion, match="other names"):
        folder.write(OWN, {"recent_kernel": -1})
