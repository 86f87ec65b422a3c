"""Check the amounts that a pod writes for a resource, and word the refusals of invalid ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from hami_webhook.devices.model import BadRequest
from hami_webhook.kube.draft import ContainerDraft
from hami_webhook.kube.message_text import cut
from hami_webhook.kube.objects import Container
from hami_webhook.kube.quantity import Quantity, is_binary, parse_whole

if TYPE_CHECKING:
    from hami_webhook.devices.vendor import Vendor

MAX_INT32 = 2**31 - 1
MEBIBYTE = 1 << 20


def check_bounds(
    container: Container, bounds: Iterable[tuple[str, int, int, str]], counted: Vendor | None = None
) -> None:
    """Raises `BadRequest` for an amount outside its bounds (as `Vendor.bounds` has them), in limits or in requests.

    `counted`: the refusal says what to write for memory in bytes.
    """
    amounts = [each for each in (container.limits, container.requests) if each]
    for name, least, most, what in bounds:
        for written in amounts:
            if name in written:
                try:
                    check_whole(container.name, written, name, most, what, least)
                except BadRequest as error:
                    meant = meant_bytes(container, counted) if counted and name == counted.memory_name else ""
                    raise (BadRequest(f"{error}; {meant}") if meant else error) from None


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
    """Return the refusal of an invalid amount; `what` describes a valid one."""
    text = value if isinstance(value, str) else repr(value)
    shown = text if len(text) <= 40 else text[:37] + "..."
    return BadRequest(f"invalid {resource} value {shown} in container {container}: must be {what}")


def warn_of_bytes(container: ContainerDraft, counted: Vendor) -> str:
    """A sentence about memory that is written in bytes; empty for other amounts."""
    meant = meant_bytes(container, counted)
    return meant and f"{counted.memory_name} counts {unit_of(counted.memory_factor)}: {meant}"


def meant_bytes(container: Container | ContainerDraft, counted: Vendor) -> str:
    """Return the hint `for 16Gi write …` for memory with a binary suffix, if the resource counts MiB or units of them;
    otherwise empty.

    Amounts below 1Mi get no hint: 3Ki is just another form of 3072.
    """
    name, factor = counted.memory_name, counted.memory_factor
    written = container.amount(name) if name and not counted.memory_may_be_bytes else None
    if not isinstance(written, str) or not written.endswith("i") or not is_binary(written):
        return ""
    value = Quantity.parse(written).value
    units = -(-int(value) // (factor * MEBIBYTE))
    return f"for {cut(written)} write {units}" if value >= MEBIBYTE else ""


def unit_of(factor: int, *, explained: bool = False) -> str:
    """Return the name of a unit of `factor` MiB, for use in a sentence; with `explained`, followed by an example."""
    unit = "MiB" if factor == 1 else f"units of {factor} MiB"
    return f"{unit} (16 GiB is {sixteen_gib(factor)}, not 16Gi)" if explained else unit


def sixteen_gib(unit: int) -> int:
    """The units of so many MiB that are 16 GiB, for an example."""
    return -(-16 * 1024 // unit)
