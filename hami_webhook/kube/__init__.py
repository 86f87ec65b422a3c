"""Kubernetes' own vocabulary as pure values: quantities, objects, effective requests, quota scopes, JSON Patch."""
