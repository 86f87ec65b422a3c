"""Quota: which keys are managed, what a pod is charged, the compare-and-swap charge, the recompute."""
