"""The loops: caches fed by informers, and the quota reconcile queue."""
