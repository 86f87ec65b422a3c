"""Preemption by devices: which pods of lower priority to evict for a pod that no node takes (docs/preemption.md)."""
