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

import yaml

from hack.devcluster.plane import ControlPlane, free_ports
from hami_webhook.device_config import builtin_device_config, enabled_vendors
from hami_webhook.scheduling.kube_scheduler import fill_in

from .deployment import ROOT, SWITCHES, SYSTEM, eventually

CONFIGURATION = ROOT / "manifests" / "scheduler" / "kube-scheduler.yaml"


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
        """kube-scheduler with the manifests' own configuration; only addresses and the kubeconfig are ours."""
        vendors = enabled_vendors(builtin_device_config().config)
        document = yaml.safe_load(fill_in(CONFIGURATION.read_text(), CONFIGURATION.name, vendors))
        document["clientConnection"] = {"kubeconfig": str(self.plane.scheduler_kubeconfig)}
        document["leaderElection"] = {"leaderElect": False}
        (extender,) = document["extenders"]
        extender["urlPrefix"] = f"http://127.0.0.1:{self.port}"
        if self.mode == "single":
            del extender["prioritizeVerb"]
        path = self.folder / "kube-scheduler.yaml"
        path.write_text(yaml.safe_dump(document))
        with (self.folder / "scheduler.log").open("ab") as log:
            self.scheduler = subprocess.Popen(
                [
                    self.plane.programs / "kube-scheduler",
                    f"--config={path}",
                    f"--authentication-kubeconfig={self.plane.scheduler_kubeconfig}",
                    f"--authorization-kubeconfig={self.plane.scheduler_kubeconfig}",
                    "--bind-address=127.0.0.1",
                    f"--secure-port={self.secure}",
                    f"--cert-dir={self.folder / 'scheduler-certs'}",
                    *self.plane.feature_gates,
                ],
                stdout=log,
                stderr=log,
            )
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
