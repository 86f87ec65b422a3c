"""A machine for the documents' commands, as a reader has it: a checkout of the repository, and a shell.

The checkout is a copy, seen at the repository's own path by these shells alone: what commands write there, and the
cluster that they start, is gone with the machine.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import helm_program

from .deployment import ROOT

_LEFT_OUT = (".venv", ".git", ".dev-cluster", "dist", "*_cache", ".hypothesis")
_SECONDS = 240.0
"""For one command; `make deploy` waits for 180 s itself."""
_VOLATILE = (
    (re.compile(r"(?<![\w.-])\d+(?:d|h|m|s)(?:\d+(?:m|s))?(?![\w-])"), "AGE"),
    (re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b"), "ADDRESS"),
    (re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), "UID"),
)


def normal(text: str) -> str:
    """A text without what differs from run to run: ages, addresses, UIDs, widths of columns and of the page."""
    for pattern, name in _VOLATILE:
        text = pattern.sub(name, text)
    return " ".join(text.split())


@dataclass(frozen=True)
class Done:
    """How a command ended, and what it printed, on both outputs."""

    status: int
    output: str


@dataclass
class Shell:
    """A shell that goes on from command to command."""

    process: subprocess.Popen[str]
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    def run(self, command: str) -> Done:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        # the command on lines of its own, as a comment may end it; it reads nothing of what follows
        self.process.stdin.write(f"{{ {command}\n}} </dev/null\nprintf '\\n%s %s\\n' {self.mark} $?\n")
        self.process.stdin.flush()
        lines: list[str] = []
        watch = threading.Timer(_SECONDS, self.kill)
        watch.start()
        try:
            for line in self.process.stdout:
                if line.startswith(self.mark):
                    return Done(int(line.split()[1]), "".join(lines))
                lines.append(line)
        finally:
            watch.cancel()
        raise AssertionError(f"the shell ended in, or {_SECONDS:g} s were not enough for:\n{command}\n{''.join(lines)}")

    def kill(self) -> None:
        """End it with what it waits for; daemons have sessions of their own."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def must(self, command: str) -> str:
        done = self.run(command)
        assert done.status == 0, f"{command}\nended with {done.status}:\n{done.output}"
        return done.output


@dataclass(frozen=True)
class Machine:
    """Namespaces of mounts and processes whose first process is `first`."""

    first: int
    home: Path

    @contextlib.contextmanager
    def shell(self) -> Iterator[Shell]:
        path = f"{ROOT / '.venv' / 'bin'}:{helm_program.program().parent}:{os.environ['PATH']}"
        environment = {"PATH": path, "HOME": str(self.home), "LANG": "C.UTF-8"}
        # where the control plane's programs are
        environment["XDG_CACHE_HOME"] = os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))
        if "K8S" in os.environ:
            environment["K8S"] = os.environ["K8S"]
        command = ("nsenter", f"--target={self.first}", "--mount", "--pid", "bash", "--norc")
        with subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            text=True,
            start_new_session=True,
        ) as process:
            shell = Shell(process)
            try:
                shell.must(f"cd {ROOT}")
                yield shell
            finally:
                shell.kill()


@contextlib.contextmanager
def machine(folder: Path) -> Iterator[Machine]:
    """A machine until the block ends, with all that runs on it."""
    copy, home = folder / "repository", folder / "home"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*_LEFT_OUT), symlinks=True)
    (copy / ".venv").mkdir()
    home.mkdir()
    mount = f"mount --rbind {ROOT}/.venv {copy}/.venv && mount --rbind {copy} {ROOT} && echo up && exec sleep infinity"
    command = (
        *("setpriv", "--pdeathsig=KILL", "unshare", "--mount", "--propagation=private"),
        *("--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", mount),
    )
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "up\n"
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            yield Machine(int(children[0]), home)
        finally:
            process.kill()
