"""Pods that wait for quota: who is next, their release, reclaim, and what they read of it."""
