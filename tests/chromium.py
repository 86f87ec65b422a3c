"""The browser of the tests: Chromium without windows, which takes half the CPU time of the whole browser."""

from __future__ import annotations

import shutil

CHROMIUM = shutil.which("chromium-headless-shell")
"""Debian has a package of this name."""
