"""The cluster as devices and usage, a pod on a node, the choice among nodes, and what a placement writes."""
