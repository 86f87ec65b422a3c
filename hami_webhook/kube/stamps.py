"""The annotation that says who submitted a pod (docs/spec/who.md#1)."""

SUBMITTED_BY = "hami.io/submitted-by"
"""Of a pod, and of a template of pods: the user, or all service accounts of a namespace."""
