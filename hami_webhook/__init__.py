"""Admission webhook, quota controller and Fit engine for accelerators shared among pods."""

__version__ = "0.3.0"
