"""`--watch` in a process of its own, as a user leaves it running."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path

from simulate.files import GPU, quota

from .apiserver import ApiServer, serving

PROGRAM = "import sys; from hami_webhook.kubectl.main import main; sys.exit(main())"


def test_it_shows_a_change_once_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    paths: queue.Queue[str] = queue.Queue()
    api = ApiServer([quota({GPU: "4"}, used={GPU: "1"})], on_request=paths.put)
    with serving(api, tmp_path) as kubeconfig:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, "quota", "--watch"],
            env={**os.environ, "KUBECONFIG": str(kubeconfig)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        deadline = threading.Timer(120, process.kill)
        deadline.start()
        try:
            assert process.stdout is not None
            heading, first = (process.stdout.readline().split() for _ in range(2))
            assert (heading[3], first[3]) == ("USED", "1")
            while not paths.empty():
                paths.get()
            # another round shows the same, and isn't printed
            for _ in range(2):
                while paths.get(timeout=60) != "/api/v1/resourcequotas":
                    pass
            api.objects[:] = [quota({GPU: "4"}, used={GPU: "3"})]
            heading, second = (process.stdout.readline().split() for _ in range(2))
            assert (heading[3], second[3]) == ("USED", "3")
            process.send_signal(signal.SIGINT)
            assert process.wait() == 130
        finally:
            deadline.cancel()
            process.kill()
            process.communicate()
