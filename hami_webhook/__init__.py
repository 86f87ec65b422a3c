"""Admission webhook, quota controller and Fit engine for accelerators shared among pods."""

import os

os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # it looks for some in every installed package, for 15 ms

__version__ = "0.4.0"
