"""Evictions: who goes for whom, and how (docs/preemption.md, docs/spec/queues.md#7)."""
