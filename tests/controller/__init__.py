"""The controller loops, on an injected clock."""
