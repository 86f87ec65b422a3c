"""What runs on a node with GPUs: the probe of how they are linked."""
