"""A second, stock kube-scheduler called hami-scheduler, with our extender beside it, as the manifests set them up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hack.devcluster import kube_scheduler
from hack.devcluster.plane import ControlPlane, free_ports

from .deployment import ROOT, SWITCHES, SYSTEM, eventually


@dataclass
class HamiScheduler:
    """The two processes. `mode` and `flags` are the extender's."""

    plane: ControlPlane
    folder: Path
    login: Path
    mode: str
    flags: tuple[str, ...] = ()
    scheduler: subprocess.Popen[bytes] | None = None
    extender: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.port, self.metrics, self.main, self.secure = free_ports(4)

    def start_extender(self) -> None:
        environment = {**os.environ, "POD_NAME": "hami-scheduler-0", "POD_NAMESPACE": SYSTEM}
        with (self.folder / "extender.log").open("ab") as log:
            self.extender = subprocess.Popen(
                [
                    *(sys.executable, "-m", "hami_webhook", "serve", "--roles", "extender"),
                    *("--kubeconfig", str(self.login), "--extender-mode", self.mode),
                    *("--extender-bind-address", f"127.0.0.1:{self.port}"),
                    *("--http_bind", f"127.0.0.1:{self.main}", "--metrics-bind-address", f"127.0.0.1:{self.metrics}"),
                    *("--scheduler-name", "hami-scheduler", "--kube-qps", "200", "--kube-burst", "400", "-v", "1"),
                    *SWITCHES,
                    *self.flags,
                ],
                env=environment,
                stdout=log,
                stderr=log,
                cwd=ROOT,
            )
        eventually(self._ready)

    def _ready(self) -> bool:
        assert self.extender is not None
        assert self.extender.poll() is None, (self.folder / "extender.log").read_text()[-3000:]
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics}/readyz", timeout=2):
                return True
        except OSError:
            return False

    def kill_extender(self) -> None:
        assert self.extender is not None
        self.extender.send_signal(signal.SIGKILL)
        self.extender.wait()

    def start_scheduler(self) -> None:
        without = ["prioritizeVerb"] * (self.mode == "single")
        configuration = kube_scheduler.configure(self.plane, self.folder / "kube-scheduler.yaml", self.port, *without)
        certificates = self.folder / "scheduler-certs"
        command = self.plane.scheduler_command(certificates, self.secure, f"--config={configuration}")
        with (self.folder / "scheduler.log").open("ab") as log:
            self.scheduler = subprocess.Popen(command, stdout=log, stderr=log)
        time.sleep(0.5)
        assert self.scheduler.poll() is None, (self.folder / "scheduler.log").read_text()[-3000:]

    def kill_scheduler(self) -> None:
        assert self.scheduler is not None
        self.scheduler.send_signal(signal.SIGKILL)
        self.scheduler.wait()

    def close(self) -> None:
        for process in (self.scheduler, self.extender):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()


@contextmanager
def scheduling(
    plane: ControlPlane, folder: Path, login: Path, mode: str, flags: tuple[str, ...] = ()
) -> Iterator[HamiScheduler]:
    both = HamiScheduler(plane, folder, login, mode, flags)
    try:
        both.start_extender()
        both.start_scheduler()
        yield both
    finally:
        both.close()
