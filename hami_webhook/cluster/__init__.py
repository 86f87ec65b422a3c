"""The port to a cluster, and the clusters behind it."""
