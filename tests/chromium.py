"""The browser of the tests: Chromium without windows, at half the CPU time of the whole browser's headless mode."""

from __future__ import annotations

import shutil

CHROMIUM = shutil.which("chromium-headless-shell")
"""Debian's package of this name has it."""
