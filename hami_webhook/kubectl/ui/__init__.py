"""Read-only web pages of a cluster for the user whose kubeconfig reads it."""
