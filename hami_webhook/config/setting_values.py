"""Readers of the text of flags and environment variables: each raises ValueError with a sentence."""

import re
from collections.abc import Callable
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import NamedTuple

from hami_webhook.config.fields import is_name, is_qualified
from hami_webhook.config.go_syntax import ListenAddress, parse_go_duration, parse_listen_address
from hami_webhook.kube.names import is_subdomain

ROLES = ("webhook", "controller", "extender")
NODE_ROLE = "node"
USAGE_ROLE = "usage"
"""The role of a process on each node with GPUs, which has none of the others'."""
HAMIS_MONITOR_PORT = 9394
"""Where HAMi's vGPUmonitor serves its metrics, whose place the role `node` takes."""
NODE_POLICIES = ("binpack", "spread")
CARD_POLICIES = ("binpack", "spread", "numa", "numa-first", "mutex", "topology-aware")

Network = IPv4Network | IPv6Network

_LARGEST_DIGITS = 18
_EVERYONE = frozenset({"system:authenticated", "system:unauthenticated", "system:serviceaccounts", "system:anonymous"})
_USER_OF_SERVICE_ACCOUNT = "system:serviceaccount:"


class ServiceAccount(NamedTuple):
    """A service account; an empty namespace means this process's own."""

    namespace: str
    name: str

    @property
    def username(self) -> str:
        """Its `userInfo.username` in reviews."""
        return f"{_USER_OF_SERVICE_ACCOUNT}{self.namespace}:{self.name}"


class Identities(NamedTuple):
    """Users and groups as the API server names them in `userInfo`."""

    users: frozenset[str]
    groups: frozenset[str]


def whole(least: int, most: int) -> Callable[[str], int]:
    """A reader of whole numbers in a closed range."""

    def read(text: str) -> int:
        if not re.fullmatch(r"[0-9]+", text) or len(text) > _LARGEST_DIGITS or not least <= int(text) <= most:
            raise ValueError(f"must be a whole number from {least} to {most}")
        return int(text)

    return read


def rate(text: str) -> float:
    """Requests a second, above 0 and at most 100000."""
    highest = 100_000
    if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6})?", text) or not 0 < float(text) <= highest:
        raise ValueError(f"must be a number above 0 and at most {highest}")
    return float(text)


def duration(least: str, most: str) -> Callable[[str], float]:
    """A reader of durations in a closed range, in seconds."""
    shortest, longest = parse_go_duration(least), parse_go_duration(most)

    def read(text: str) -> float:
        seconds = parse_go_duration(text)
        if not shortest <= seconds <= longest:
            raise ValueError(f"must be a duration from {least} to {most}")
        return seconds

    return read


def path(text: str) -> str:
    """A path, or nothing."""
    if "\0" in text:
        raise ValueError("must be a path, which holds no NUL character")
    return text


def object_name(text: str) -> str:
    """The name of a Kubernetes object, or nothing."""
    if text and not is_subdomain(text):
        raise ValueError("must be a Kubernetes name (lower case letters, digits, - and .), or empty")
    return text


def optional_listen_address(text: str) -> ListenAddress | None:
    """An address to listen on, or nothing."""
    return parse_listen_address(text) if text else None


def one_of(*words: str) -> Callable[[str], str]:
    """A reader of one of a few words."""

    def read(text: str) -> str:
        if text not in words:
            raise ValueError(f"must be {', '.join(words[:-1])} or {words[-1]}")
        return text

    return read


def node_policy(text: str) -> str:
    """`spread`, or `binpack` for anything else (docs/spec/core.md#2.1)."""
    return "spread" if text == "spread" else "binpack"


def card_policy(text: str) -> str:
    """A card policy or a comma list of them; a single unknown one acts as `spread` (docs/spec/core.md#2.1 and #7.4)."""
    items = listed(text)
    return ",".join(items) if len(items) > 1 or (items and items[0] in CARD_POLICIES) else "spread"


def listed(text: str) -> list[str]:
    """The items of a comma list, trimmed, without blanks and repetitions, in their order."""
    return list(dict.fromkeys(item.strip() for item in text.split(",") if item.strip()))


def roles(text: str) -> frozenset[str]:
    """The roles of this process, at least one."""
    names = listed(text)
    if names in ([NODE_ROLE], [USAGE_ROLE]):
        return frozenset(names)
    if not names or not set(names) <= set(ROLES):
        raise ValueError(f"must be a comma list of {', '.join(ROLES)}, at least one, or {NODE_ROLE} or {USAGE_ROLE}")
    return frozenset(names)


def label_selector(text: str) -> tuple[tuple[str, str], ...]:
    """Labels that nodes must have: `k=v,k2=v2`, in that order."""
    labels: dict[str, str] = {}
    for item in listed(text):
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals or not is_qualified(key) or (value and not is_name(value)):
            raise ValueError(f"must be a comma list of labels such as gpu=on,zone=a; {item} isn't a label=value")
        if labels.setdefault(key, value) != value:
            raise ValueError(f"must give the label {key} one value, not two")
    return tuple(labels.items())


def service_accounts(text: str) -> tuple[ServiceAccount, ...]:
    """Service accounts: `NAMESPACE/NAME`, or `NAME` for this process's own namespace."""
    accounts = []
    for item in listed(text):
        namespace, slash, name = item.rpartition("/")
        if not is_subdomain(name) or (slash and not is_subdomain(namespace)):
            raise ValueError(f"must be a comma list of NAMESPACE/NAME or NAME; {item} isn't one")
        accounts.append(ServiceAccount(namespace, name))
    return tuple(accounts)


def user_names(text: str) -> frozenset[str]:
    """Users as the API server names them; no groups."""
    found = identities(text)
    if found.groups:
        raise ValueError(f"must be a comma list of user names, without groups such as {min(found.groups)}")
    return found.users


def networks(text: str) -> tuple[Network, ...]:
    """Ranges of addresses, as a NetworkPolicy has them."""
    found = []
    for item in listed(text):
        try:
            found.append(ip_network(item if "/" in item else ""))
        except ValueError:
            raise ValueError(
                f"must be a comma list of CIDRs such as 10.0.0.0/28 or fd00::1/128; {item} isn't one"
            ) from None
    return tuple(found)


def identities(text: str) -> Identities:
    """Users (`NAME`) and groups (`group:NAME`) as the API server sends them; none that would mean everyone."""
    users: set[str] = set()
    groups: set[str] = set()
    for item in listed(text):
        is_group = item.startswith("group:")
        name = item.removeprefix("group:")
        if name in _EVERYONE:
            raise ValueError(f"must not name {name}, which would let everyone forge allocations")
        if not name or "*" in name or any(character.isspace() for character in name):
            raise ValueError(f"must be a comma list of user names and group:NAME, without wildcards; {item} isn't one")
        if name.startswith("system:node:") or name == "system:nodes":
            raise ValueError(f"must not name {name}: a node may already write for the pods on it, and no others")
        (groups if is_group else users).add(name)
    return Identities(frozenset(users), frozenset(groups))
