"""What may be written for a resource, and the sentence for what may not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hami_webhook.devices.model import BadRequest
from hami_webhook.kube.objects import Container
from hami_webhook.kube.quantity import parse_whole

MAX_INT32 = 2**31 - 1


def check_bounds(container: Container, bounds: Iterable[tuple[str, int, int, str]]) -> None:
    """Raises `BadRequest` for an amount outside its bounds (as `Vendor.bounds` has them), in limits or in requests."""
    amounts = (container.limits, container.requests)
    for name, least, most, what in bounds:
        for written in amounts:
            if name in written:
                check_whole(container.name, written, name, most, what, least)


def check_whole(
    container: str, written: Mapping[str, object], resource: str, most: int, what: str, least: int = 0
) -> None:
    """Raises `BadRequest` unless the amount of `resource` in `written` is absent or an integer `least` to `most`."""
    value = written.get(resource)
    if not resource or value is None:
        return
    amount = parse_whole(value)
    if amount is None or not least <= amount <= most:
        raise bad_amount(container, resource, value, f"{what} between {least} and {most}")


def bad_amount(container: str, resource: str, value: object, what: str) -> BadRequest:
    """The refusal of an amount, which would have to be `what`."""
    text = value if isinstance(value, str) else repr(value)
    shown = text if len(text) <= 40 else text[:37] + "..."
    return BadRequest(f"invalid {resource} value {shown} in container {container}: must be {what}")


def sixteen_gib(unit: int) -> int:
    """The units of so many MiB that are 16 GiB, for an example."""
    return -(-16 * 1024 // unit)
