"""Writes all files that are generated from the code: `python -m hack.render`, which is what `make render` runs."""

from __future__ import annotations

import subprocess
import sys

# the last one lists what the others wrote
MODULES = ("dashboards", *(f"render_{name}" for name in ("manifests", "chart", "rights", "reference", "schemas")))

if __name__ == "__main__":
    for name in (*MODULES, "render_interface"):
        if status := subprocess.run([sys.executable, "-m", f"hack.{name}"], check=False).returncode:
            sys.exit(status)
