"""Tests of the devices: the shared Fit pipeline and each vendor."""
