"""Values in the syntax of Go's flag and time packages, which HAMi's chart and its users write."""

import ipaddress
import re
from typing import NamedTuple

import durationpy

from hami_webhook.kube.names import is_subdomain

_TERMS = re.compile(r"(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:ns|us|µs|μs|ms|s|m|h))+")  # U+00B5 and U+03BC
_MOST_SECONDS = (2**63 - 1) / 10**9
_LONGEST = 100
GO_BOOLS = {
    **dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True),
    **dict.fromkeys(("0", "f", "F", "FALSE", "false", "False"), False),
}
"""What Go's strconv.ParseBool reads."""
_HIGHEST_PORT = 65535


class ListenAddress(NamedTuple):
    """Where a server listens. An empty host is every interface; port 0 is any free one."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine, or this pod, can connect."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_go_duration(text: str, *, signed: bool = False) -> float:
    """Seconds of a duration as Go's time.ParseDuration reads it: `5m0s`, `1.5h`, `300ms`, `0`; to the microsecond.

    A leading `-` is refused unless `signed`. Raises ValueError with a sentence.
    """
    complaint = "must be a duration such as 300ms, 1.5s or 5m0s"
    digits = text[1:] if text[:1] in ("+", "-") else text
    negative = text.startswith("-")
    if negative and not signed:
        raise ValueError(f"{complaint}, and not negative")
    if digits == "0":
        return 0.0
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?", digits):
        raise ValueError(f"{complaint}; it lacks the unit")
    # durationpy reads days, months and digits of other scripts too, which Go refuses
    if len(digits) > _LONGEST or not _TERMS.fullmatch(digits):
        raise ValueError(complaint)
    try:
        seconds: float = durationpy.from_str(digits).total_seconds()
    except durationpy.DurationError:
        seconds = _MOST_SECONDS
    if seconds >= _MOST_SECONDS:
        raise ValueError(f"{complaint}, at most about 292 years")
    return -seconds if negative else seconds


def format_go_duration(seconds: float) -> str:
    """A duration as Go prints it: `5m0s`, `28s`, `500ms`."""
    if seconds < 1:
        return f"{seconds * 1000:g}ms"
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(int(minutes), 60)
    return f"{hours}h{minutes}m{rest:g}s" if hours else f"{minutes}m{rest:g}s" if minutes else f"{rest:g}s"


def parse_go_bool(text: str) -> bool:
    """A boolean as Go's strconv.ParseBool reads it. Raises ValueError with a sentence."""
    if text not in GO_BOOLS:
        raise ValueError("must be true or false")
    return GO_BOOLS[text]


def parse_listen_address(text: str) -> ListenAddress:
    """The host and port of `127.0.0.1:8080`, `:9395` or `[::1]:80`. Raises ValueError with a sentence."""
    complaint = "must be an address to listen on such as 127.0.0.1:8080, :9395 or [::1]:80"
    host, colon, port = text.rpartition(":")
    if not colon or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > _HIGHEST_PORT:
        raise ValueError(f"{complaint}, with a port up to {_HIGHEST_PORT}")
    if host.startswith("[") and host.endswith("]"):
        try:
            return ListenAddress(str(ipaddress.IPv6Address(host[1:-1])), int(port))
        except ValueError:
            raise ValueError(complaint) from None
    if ":" in host:
        raise ValueError(f"{complaint}; an IPv6 address needs brackets")
    if host and not is_subdomain(host.lower()):
        raise ValueError(complaint)
    return ListenAddress(host, int(port))
