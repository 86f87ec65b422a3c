"""A real Kubernetes control plane on loopback, for the end-to-end tests and for trying things out."""
