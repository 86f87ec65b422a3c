"""Why a pod is where it is, or isn't anywhere: node by node, card by card, with what would have to change."""
