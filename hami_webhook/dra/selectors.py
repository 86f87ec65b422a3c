"""Which devices the CEL expressions of a class and a request select, evaluated within bounds (docs/spec/dra.md#4).

Tenants write these expressions. The CEL library limits iterations (10,000) and nesting (32 levels), and uses RE2. So an
evaluation takes a few milliseconds, and compiling at most some 40 ms. All expressions of a claim share one budget for
compiling and evaluating; expressions beyond its time, number or length aren't compiled. Unevaluated devices count as
selected. This can only lower the price, which is the minimum over selected devices; the allocation is charged exactly.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING, Any, TypeVar

from hami_webhook.dra.capacity import amount_of
from hami_webhook.dra.devices import Answers, DeviceModel, PublishedDevice, PublishedSlice
from hami_webhook.time_slices import Steps

if TYPE_CHECKING:
    from cel_expr_python import cel

T = TypeVar("T")

LONGEST_EXPRESSION = 10 * 1024
"""Characters, as the API server has it."""
MOST_EXPRESSIONS = 128
"""Expressions of a claim that are evaluated."""
MOST_CHARACTERS = 32 * 1024
"""Characters of all of these."""
_KEYS = re.compile(r"""\[\s*(?:"([^"\\]+)"|'([^'\\]+)')\s*\]""")
_NOT_FOUND = "NOT_FOUND"


def _double(text: str) -> float:
    return float(amount_of(text))


@cache
def _environment() -> cel.Env:
    """What expressions may use; quantities are doubles here: every whole number of bytes up to 8 PiB is one."""
    from cel_expr_python import cel  # commands that meet no expression start without it

    def member(name: str, result: cel.Type, function: Callable[..., object], *parameters: cel.Type) -> cel.FunctionDecl:
        overload = cel.Overload(f"quantity_{name}", result, [cel.Type.DOUBLE, *parameters], True, impl=function)
        return cel.FunctionDecl(name, [overload])

    quantity = cel.Overload("quantity", cel.Type.DOUBLE, [cel.Type.STRING], False, impl=_double)
    return cel.NewEnv(
        variables={"device": cel.Type.DYN},
        functions=[
            cel.FunctionDecl("quantity", [quantity]),
            member("compareTo", cel.Type.INT, lambda a, b: (a > b) - (a < b), cel.Type.DOUBLE),
            member("isGreaterThan", cel.Type.BOOL, lambda a, b: a > b, cel.Type.DOUBLE),
            member("isLessThan", cel.Type.BOOL, lambda a, b: a < b, cel.Type.DOUBLE),
        ],
    )


class _Selector:
    """A compiled expression, and the domains that it looks up, which no device need have."""

    def __init__(self, expression: str) -> None:
        self.domains = frozenset(first or second for first, second in _KEYS.findall(expression))
        self._compiled: cel.Expression | None = None
        if len(expression) <= LONGEST_EXPRESSION:
            environment = _environment()
            try:
                self._compiled = environment.compile(expression)
            except Exception:  # the library has no class for them; the API server has compiled it, by its own rules
                self._compiled = None

    def selects(self, device: Mapping[str, Any]) -> bool | None:
        """Whether a device is selected; None where that can't be evaluated."""
        if self._compiled is None:
            return None
        try:
            answer = self._compiled.eval(data={"device": device}).value()
        except Exception:  # as above: too many iterations, or a quantity that is none
            return None
        if isinstance(answer, bool):
            return answer
        # no scheduler gives a device for which an expression fails
        return False if str(answer).startswith(_NOT_FOUND) else None


@lru_cache(maxsize=256)
def _compiled(expression: str) -> _Selector:
    """The same few expressions come with every claim, and to compile one takes as long as 200 evaluations."""
    return _Selector(expression)


class Budget:
    """What compiling and evaluating the expressions of a claim, or of the claims of a pod, may take.

    `seconds`: the budget of computing time by `clock`, without the time of other tasks in between.
    """

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._seconds = seconds
        self._clock = clock
        self._expressions = MOST_EXPRESSIONS
        self._characters = MOST_CHARACTERS
        self.spent = False
        """Whether something wasn't evaluated for want of time."""

    def admits(self, expression: str) -> bool:
        """Count an expression; return whether it is within the limits of number and length.

        Call it before compiling.
        """
        if not self._expressions or len(expression) > self._characters:
            return False
        self._expressions -= 1
        self._characters -= len(expression)
        return True

    def run(self, work: Callable[[], T]) -> T | None:
        """Do a piece of work if there is time left; None if there is none."""
        if self._seconds <= 0:
            self.spent = True
            return None
        began = self._clock()
        result = work()
        self._seconds -= self._clock() - began
        return result


def rejected(each: PublishedSlice, expression: str, wanted: int, budget: Budget, *, of_class: bool) -> Steps[int]:
    """Return the bits of the devices among `wanted` that the expression rejects; devices not evaluated in time count as
    selected.

    What was found is remembered with the slice, so the next one goes on from there.
    """
    known = each.answers(expression, of_class=of_class)
    missing = wanted & ~known.evaluated
    if not missing:
        return known.rejected
    selector = budget.run(lambda: _compiled(expression))
    if selector is None:
        return known.rejected
    evaluated, refused = known
    capacities: dict[DeviceModel, Mapping[str, Mapping[str, float]]] = {}

    def selects(device: PublishedDevice) -> bool:
        capacity = capacities.get(device.model)
        if capacity is None:
            capacity = capacities[device.model] = _capacity_of(device.model, selector.domains)
        return selector.selects(_value_of(device, capacity, selector.domains)) is not False

    while missing:
        bit = missing & -missing
        missing ^= bit
        answer = budget.run(partial(selects, each.devices[bit.bit_length() - 1]))
        if answer is None:
            break
        evaluated |= bit
        refused |= 0 if answer else bit
        each.keep(expression, Answers(evaluated, refused), of_class=of_class)
        yield
    return refused


def selected(
    devices: Iterable[PublishedDevice], expressions: Sequence[str], *, seconds: float, clock: Callable[[], float]
) -> list[PublishedDevice]:
    """The devices that all expressions select, or may select."""
    until, budget = clock() + seconds, Budget(seconds, clock)
    admitted = [expression for expression in expressions if budget.admits(expression)]
    compiled = (budget.run(partial(_compiled, expression)) for expression in admitted)
    selectors = [each for each in compiled if each is not None]
    domains = frozenset[str]().union(*(each.domains for each in selectors))
    capacities: dict[DeviceModel, Mapping[str, Mapping[str, float]]] = {}
    found = []
    for device in devices:
        if selectors and clock() < until:
            capacity = capacities.get(device.model)
            if capacity is None:
                capacity = capacities[device.model] = _capacity_of(device.model, domains)
            value = _value_of(device, capacity, domains)
            if any(each.selects(value) is False for each in selectors):
                continue
        found.append(device)
    return found


def _value_of(
    device: PublishedDevice, capacity: Mapping[str, Mapping[str, float]], domains: frozenset[str]
) -> Mapping[str, Any]:
    """The variable `device`. A domain that the device lacks is empty, as in kube-scheduler."""
    attributes: dict[str, dict[str, Any]] = {domain: {} for domain in domains}
    for (domain, name), value in device.attributes.items():
        attributes.setdefault(domain, {})[name] = value
    return {
        "driver": device.id.driver,
        "attributes": attributes,
        "capacity": capacity,
        "allowMultipleAllocations": device.model.shared,
    }


def _capacity_of(model: DeviceModel, domains: frozenset[str]) -> Mapping[str, Mapping[str, float]]:
    """What `device.capacity` is of a model's devices."""
    found: dict[str, dict[str, float]] = {domain: {} for domain in domains}
    for (domain, name), capacity in model.capacity.items():
        found.setdefault(domain, {})[name] = float(capacity.value)
    return found
