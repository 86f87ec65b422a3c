"""What is really used of cards, as the nodes' monitors measured it (docs/used.md)."""
