"""Pods that another scheduler places: normalised, validated, charged and predicted here, never placed."""
