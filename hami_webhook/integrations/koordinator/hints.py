"""The three annotations by which a user steers Koordinator (docs/spec/koordinator.md#4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast, get_args

import orjson
from msgspec import Struct, field

from hami_webhook.devices.model import BadRequest
from hami_webhook.integrations.koordinator.device_object import amount
from hami_webhook.integrations.koordinator.keys import HINT, JOINT, PARTITION_SPEC
from hami_webhook.kube.selectors import LabelSelector, Operator, Requirement


class Hint(Struct, frozen=True):
    """Which cards will do, by their labels, and the topology scope they must share, if any."""

    selector: LabelSelector = field(default_factory=LabelSelector)
    scope: str = ""


class PartitionSpec(Struct, frozen=True):
    """That whole cards must make a partition; only of the best there are if `restricted`; bytes of bandwidth."""

    restricted: bool = False
    bandwidth: int | None = None


def check_hints(annotations: Mapping[str, str]) -> None:
    """Raises `BadRequest` for an annotation that Koordinator couldn't read."""
    read_hint(annotations)
    read_partition_spec(annotations)
    joint = _read(annotations, JOINT) or {}
    _texts(JOINT, "deviceTypes", joint.get("deviceTypes"))
    _text(JOINT, "requiredScope", joint.get("requiredScope"))


def read_hint(annotations: Mapping[str, str]) -> Hint:
    """What is said of GPUs. Raises `BadRequest`."""
    hints = _read(annotations, HINT) or {}
    for kind, hint in hints.items():
        _object(HINT, kind, hint)
    hint = _object(HINT, "gpu", hints.get("gpu"))
    for place in ("exclusivePolicy", "allocateStrategy"):
        _text(HINT, f"gpu.{place}", hint.get(place))
    return Hint(
        _selector(_object(HINT, "gpu.selector", hint.get("selector"))),
        _text(HINT, "gpu.requiredTopologyScope", hint.get("requiredTopologyScope")),
    )


def read_partition_spec(annotations: Mapping[str, str]) -> PartitionSpec | None:
    """What is said of partitions; None if nothing is. Raises `BadRequest`."""
    spec = _read(annotations, PARTITION_SPEC)
    if spec is None:
        return None
    policy = _text(PARTITION_SPEC, "allocatePolicy", spec.get("allocatePolicy"))
    written = spec.get("ringBusBandwidth")
    bandwidth = None if written is None else amount(written)
    if written is not None and bandwidth is None:
        raise _invalid(PARTITION_SPEC, "ringBusBandwidth must be a quantity")
    return PartitionSpec(policy == "Restricted", bandwidth)


def _selector(written: Mapping[str, Any]) -> LabelSelector:
    requirements = [
        Requirement(key, "In", (_text(HINT, f"gpu.selector.matchLabels[{key}]", value),))
        for key, value in _object(HINT, "gpu.selector.matchLabels", written.get("matchLabels")).items()
    ]
    where = "gpu.selector.matchExpressions"
    expressions = written.get("matchExpressions") or []
    if not isinstance(expressions, list):
        raise _invalid(HINT, f"{where} must be a list")
    for item in expressions:
        expression = _object(HINT, where, item)
        operator = _text(HINT, f"{where}.operator", expression.get("operator"))
        if operator not in get_args(Operator):
            raise _invalid(HINT, f"{where}.operator must be one of {', '.join(get_args(Operator))}")
        key = _text(HINT, f"{where}.key", expression.get("key"))
        values = _texts(HINT, f"{where}.values", expression.get("values"))
        requirements.append(Requirement(key, cast("Operator", operator), values))
    return LabelSelector(tuple(requirements))


def _read(annotations: Mapping[str, str], key: str) -> Mapping[str, Any] | None:
    text = annotations.get(key)
    if text is None:
        return None
    try:
        return _object(key, "it", orjson.loads(text))
    except orjson.JSONDecodeError as error:
        raise _invalid(key, f"not JSON: {error}") from error


def _object(key: str, where: str, value: Any) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise _invalid(key, f"{where} must be an object")
    return value


def _text(key: str, where: str, value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise _invalid(key, f"{where} must be a string")
    return value


def _texts(key: str, where: str, value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise _invalid(key, f"{where} must be a list of strings")
    return tuple(_text(key, where, item) for item in value)


def _invalid(key: str, why: str) -> BadRequest:
    return BadRequest(f"invalid annotation {key}: {why}")
