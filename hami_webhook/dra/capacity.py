"""What a request takes of a device's capacity (Kubernetes' rules for consumable capacity; docs/spec/dra.md#3)."""

from __future__ import annotations

import math
from fractions import Fraction

from msgspec import Struct

from hami_webhook.kube import claims_wire as wire
from hami_webhook.kube.objects import MalformedObject
from hami_webhook.kube.quantity import MAX_INT64, Quantity, QuantityError

_NO_POLICY, _NO_RANGE = wire.RequestPolicy(), wire.ValidRange()


class ConsumableCapacity(Struct, frozen=True):
    """A device's capacity, with the rules for rounding requests; None for what its request policy leaves unset."""

    value: Fraction
    default: Fraction | None = None
    values: tuple[Fraction, ...] = ()
    least: Fraction | None = None
    most: Fraction | None = None
    step: Fraction | None = None

    @classmethod
    def of(cls, written: wire.DeviceCapacity) -> ConsumableCapacity:
        """The capacity as a slice has it. Raises `MalformedObject`."""
        policy = written.request_policy or _NO_POLICY
        limits = policy.valid_range or _NO_RANGE
        return cls(
            amount_of(written.value),
            *(_optional(policy.default), tuple(sorted(map(amount_of, policy.valid_values or ())))),
            *(_optional(limits.min), _optional(limits.max), _optional(limits.step)),
        )

    def consumed(self, requested: Fraction | None) -> Fraction | None:
        """Return the capacity that a share consumes for the requested amount (None: no amount requested); None if the
        device can't provide it.
        """
        if requested is None:
            return self.value if self.default is None else self.default
        rounded = self._rounded(requested)
        if rounded > self.value or (self.most is not None and rounded > self.most):
            return None
        return None if self.values and rounded not in self.values else rounded

    def _rounded(self, requested: Fraction) -> Fraction:
        if self.values:
            return next((each for each in self.values if each >= requested), requested)
        if self.least is None:
            return max(requested, Fraction(0))
        if requested <= self.least or not self.step:
            return max(requested, self.least)
        return self.least + math.ceil((requested - self.least) / self.step) * self.step


def amount_of(written: object) -> Fraction:
    """Parse a quantity; larger ones count as Kubernetes' largest whole number. Raises `MalformedObject`."""
    try:
        return min(Quantity.parse(written).value, Fraction(MAX_INT64))
    except QuantityError as error:
        raise MalformedObject(str(error)) from error


def _optional(written: object) -> Fraction | None:
    return None if written is None else amount_of(written)
