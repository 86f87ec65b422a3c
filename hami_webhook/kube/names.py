"""Which names and labels' values Kubernetes accepts, and what it calls things on nodes."""

from __future__ import annotations

import re

HOSTNAME, INSTANCE_TYPE = "kubernetes.io/hostname", "node.kubernetes.io/instance-type"
"""Labels of nodes."""
NODE_STATE = "node.kubernetes.io/"
"""How the keys of taints begin that say how a node is, not what it is for."""
_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
LONGEST_SUBDOMAIN = 253
_SUBDOMAIN = re.compile(SUBDOMAIN)


def is_subdomain(text: str) -> bool:
    """Whether `text` is a DNS subdomain as Kubernetes names objects: lower case, digits, `-` and `.`, at most 253
    characters.
    """
    return len(text) <= LONGEST_SUBDOMAIN and _SUBDOMAIN.fullmatch(text) is not None


_LABEL_VALUE = re.compile(r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")


def is_label_value(text: str) -> bool:
    """Whether Kubernetes accepts `text` as a label's value (at most 63 characters)."""
    return _LABEL_VALUE.fullmatch(text) is not None
