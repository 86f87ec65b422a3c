"""How nodes register a vendor's cards (docs/spec/node-registration.md)."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from hami_webhook.devices.model import RegistrationError

MOST_CARDS = 256
"""Cards of a vendor on a node: far more than a node has. Each is looked at, and pairs of them compared, for a pod."""


def check_number(cards: int) -> None:
    """Raises `RegistrationError` for more cards than a node can have."""
    if cards > MOST_CARDS:
        raise RegistrationError(f"{cards} cards are registered, a node can have at most {MOST_CARDS}")


class NodeRegistration(Struct, frozen=True):
    """The annotations of a node in which the device plugin lists a vendor's cards, and how they are read.

    `annotation`: the list, in JSON or in the colon form; empty where cards come from elsewhere. `others`: annotations
    that list cards in its place. A node without any of these annotations and without the vendor's resources has none of
    its cards. `handshake`: the annotation of the common health rule, empty for none. `fields`: the vendor's own JSON
    keys of the standard fields. `unterminated`: a single card in the colon form may lack its `:`. `drop_on_error`: drop
    the cards if the registration can't be read. Otherwise, the cards of the last readable registration stay.
    `gone_with_allocatable`: the cards are dropped at once when the node's allocatable count falls to 0. `missing`: the
    sentence in a pod's refusal if no node has the vendor's cards.
    """

    annotation: str = ""
    handshake: str = ""
    fields: Mapping[str, str] | None = None
    unterminated: bool = False
    drop_on_error: bool = False
    gone_with_allocatable: bool = False
    missing: str = ""
    others: tuple[str, ...] = ()
