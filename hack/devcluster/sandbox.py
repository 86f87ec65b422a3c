"""Containers as local processes, each with a root of its own: what an image has, and how its process is started.

A container has the network namespace of its pod, and process, mount and host name namespaces of its own. Its root is a
tmpfs with the machine's /usr, the image's folders and the pod's volumes at their paths, so nothing of the machine's own
folders is hidden or touched, and all of it goes with the first process. That process runs as the user, and with the
capabilities, that the pod's security context says; requests and limits of CPU and memory are not enforced.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shlex
import shutil
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from .client import JSON
from .environment import expand
from .volumes import ConfigurationError

ROOT = Path(__file__).parents[2]
_TOOLS = {"ip": "iproute2", "unshare": "util-linux", "nsenter": "util-linux", "setpriv": "util-linux"}
"""The commands that pods are made with, and Debian's packages that have them."""
_SYSTEM = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib64", "/dev"),
    *("/etc/ld.so.cache", "/etc/ssl", "/etc/passwd", "/etc/group"),
)
"""What of the machine every root has, to read only but for devices."""


def missing() -> str:
    """What this machine lacks to run pods, and the remedy; "" if nothing."""
    packages = sorted({package for tool, package in _TOOLS.items() if shutil.which(tool) is None})
    if packages:
        return (
            f"the dev cluster's kubelet needs {' and '.join(packages)} (Debian: apt-get install {' '.join(packages)})"
        )
    effective = re.search(r"^CapEff:\s*(\w+)", Path("/proc/self/status").read_text(), re.MULTILINE)
    net_admin_and_sys_admin = 1 << 12 | 1 << 21
    if effective is None or int(effective[1], 16) & net_admin_and_sys_admin != net_admin_and_sys_admin:
        return "the dev cluster's kubelet makes network and mount namespaces, which root may; run it as root"
    return ""


@dataclass(frozen=True)
class Image:
    """What replaces a container image: folders of this machine, and what an image's configuration has."""

    folders: Sequence[Path]
    entrypoint: Sequence[str]
    user: tuple[int, int]
    environment: dict[str, str]
    versions: Path | None = None
    """Where source trees of other versions of a Python program are, each named as its tag."""


def images(programs: Path, versions: Path) -> dict[str, Image]:
    """The images there are, by their name without registry, folder and tag: ours, and the control plane's scheduler.

    Any tag of ours is the program of this tree, but those in `versions`.
    """
    environment = Path(sys.prefix)
    python = {
        "PATH": f"{environment / 'bin'}:/usr/bin:/bin",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
    }
    folders = sorted({Path(sys.base_prefix), environment, ROOT / "hami_webhook"})
    return {
        "hami-webhook": Image(folders, ["hami-webhook"], (65532, 65532), python, versions),
        "hami-webhook-root": Image(folders, ["hami-webhook"], (0, 0), python, versions),
        "kube-scheduler": Image([programs], ["kube-scheduler"], (0, 0), {"PATH": f"{programs}:/usr/bin:/bin"}),
    }


def find_image(known: dict[str, Image], name: str) -> Image:
    short, _, tag = name.rpartition("/")[2].partition("@")[0].partition(":")
    if short not in known:
        raise ConfigurationError("ErrImagePull", f"image {name}: the dev cluster has only {', '.join(known)}")
    image = known[short]
    if tag and image.versions is not None and (tree := image.versions / tag).is_dir():
        return replace(image, folders=[*image.folders, tree], environment=image.environment | {"PYTHONPATH": str(tree)})
    return image


@dataclass(frozen=True)
class Identity:
    """The user that a container's process runs as, and what setpriv is to take from it."""

    user: int
    flags: Sequence[str]

    @classmethod
    def of(cls, pod: JSON, container: JSON, image: Image) -> Identity:
        """By the security contexts of pod and container, and the image's user where they say nothing."""
        shared = pod["spec"].get("securityContext") or {}
        context = shared | (container.get("securityContext") or {})
        user, group = context.get("runAsUser", image.user[0]), context.get("runAsGroup", image.user[1])
        if context.get("runAsNonRoot") and user == 0:
            raise ConfigurationError("CreateContainerConfigError", "container has runAsNonRoot and would run as root")
        groups = {*(shared.get("supplementalGroups") or ()), *([shared["fsGroup"]] if "fsGroup" in shared else ())}
        flags = [f"--reuid={user}", f"--regid={group}"]
        flags.append(f"--groups={','.join(map(str, sorted(groups)))}" if groups else "--clear-groups")
        if context.get("allowPrivilegeEscalation") is False:
            flags.append("--no-new-privs")
        capabilities = context.get("capabilities") or {}
        if "ALL" in (capabilities.get("drop") or ()):
            kept = [f"+{name.lower()}" for name in capabilities.get("add") or ()]
            flags += ["--inh-caps=-all", f"--bounding-set={','.join(['-all', *kept])}"]
        return cls(user, flags)


@dataclass(frozen=True)
class Mount:
    source: Path
    target: str
    writable: bool = False


async def start(script: Path, network: Path, log: Path) -> asyncio.subprocess.Process:
    """Start a container in a network namespace. All its processes die with this one, however it ends.

    What is returned is the parent of the container's first process, and ends as that does.
    """
    with log.open("ab") as output:
        return await asyncio.create_subprocess_exec(
            *("setpriv", "--pdeathsig", "KILL", "nsenter", f"--net={network}"),
            *("unshare", "--mount", "--uts", "--propagation", "private", "--pid", "--fork", "--kill-child"),
            *("sh", "-e", str(script)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def script(
    root: Path, pod: JSON, container: JSON, image: Image, identity: Identity, variables: dict[str, str],
    mounts: Sequence[Mount], address: str,
) -> str:  # fmt: skip
    """The shell commands that make a container's root in a mount namespace of its own and become its process."""
    name = pod["metadata"]["name"]
    lines = [
        f"root={shlex.quote(str(root))}",
        "umask 022",
        f"echo {name} >/proc/sys/kernel/hostname",
        'mkdir -p "$root"',
        'mount -t tmpfs -o mode=0755 tmpfs "$root"',
        'mkdir "$root"/etc "$root"/proc',
        'mount -t proc proc "$root"/proc',
        'mkdir -m 1777 "$root"/tmp',
        f"""printf '127.0.0.1 localhost\n::1 localhost\n{address} {name}\n' >"$root"/etc/hosts""",
    ]
    of_machine = (*map(Path, _SYSTEM), *image.folders)
    for path in of_machine:
        lines += _as_it_is(path, writable=path.parts[1] == "dev")
    changed: list[Path] = []
    for mount in mounts:
        target = Path(mount.target)
        nearest = next(each for each in target.parents if each.exists())
        is_machines = any(nearest.is_relative_to(path) for path in of_machine)
        if not target.exists() and is_machines and nearest not in changed:
            changed.append(nearest)
            lines += _with_room(nearest)
        lines += _bind(mount)
    if (container.get("securityContext") or {}).get("readOnlyRootFilesystem"):
        lines += [f'mount -o remount,ro "$root"{path}' for path in ("", *changed)]
    command = [*(container.get("command") or image.entrypoint), *(container.get("args") or ())]
    process = [
        *("/usr/bin/setpriv", "--pdeathsig", "KILL", *identity.flags),
        *("/usr/bin/env", "-i", "-C", container.get("workingDir") or "/"),
        *(f"{key}={value}" for key, value in variables.items()),
        *(expand(word, variables) for word in command),
    ]
    lines.append(f'exec chroot "$root" {shlex.join(process)}')
    return "\n".join(lines) + "\n"


def _as_it_is(path: Path, *, writable: bool = False) -> list[str]:
    if path.is_symlink():
        return [f'ln -s {shlex.quote(str(path.readlink()))} "$root"{shlex.quote(str(path))}']
    return _bind(Mount(path, str(path), writable)) if path.exists() else []


def _with_room(folder: Path) -> list[str]:
    """Commands that let something be mounted in a folder of the machine's, which has no place for it."""
    content = (line for path in sorted(folder.iterdir()) for line in _as_it_is(path))
    return [f'mount -t tmpfs -o mode=0755 tmpfs "$root"{shlex.quote(str(folder))}', *content]


def _bind(mount: Mount) -> list[str]:
    source, target = shlex.quote(str(mount.source)), f'"$root"{shlex.quote(mount.target)}'
    made = f"mkdir -p {target}" if mount.source.is_dir() else f"touch {target}"
    if mount.writable:
        return [made, f"mount --rbind {source} {target}"]
    return [made, f"mount --bind {source} {target}", f"mount -o remount,bind,ro {target}"]


def kill(process: asyncio.subprocess.Process, with_signal: signal.Signals) -> None:
    """Send a signal to a container's first process: the others of its namespace die with it."""
    with contextlib.suppress(OSError):
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        for pid in map(int, children) if children else [process.pid]:
            os.kill(pid, with_signal)
