"""Placement: the state of the cluster, a pod on a node, the choice among nodes."""
