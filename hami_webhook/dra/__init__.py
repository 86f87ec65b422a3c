"""ResourceClaims of Dynamic Resource Allocation in the terms of quotas (docs/spec/dra.md)."""
