"""Durations as kubectl shows ages."""

from __future__ import annotations

_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def human_duration(seconds: float) -> str:
    """The duration in its largest unit, as kubectl shows it: `40s`, `5m12s`, `45m`, `3h20m`, `12h`, `3d4h`, `20d`.

    The next smaller unit follows while there are few of the larger one. Below zero it is `0s`.
    """
    total = max(0, int(seconds))
    if total < 2 * _MINUTE:
        return f"{total}s"
    if total < 3 * _HOUR:
        return _in(total, ("m", _MINUTE), ("s", 1), both=total < 10 * _MINUTE)
    if total < 2 * _DAY:
        return _in(total, ("h", _HOUR), ("m", _MINUTE), both=total < 8 * _HOUR)
    return _in(total, ("d", _DAY), ("h", _HOUR), both=total < 8 * _DAY)


def _in(total: int, larger: tuple[str, int], smaller: tuple[str, int], *, both: bool) -> str:
    number, rest = divmod(total, larger[1])
    left = rest // smaller[1] if both else 0
    return f"{number}{larger[0]}" + (f"{left}{smaller[0]}" if left else "")
