"""Durations as kubectl shows ages."""

from __future__ import annotations

from tables import in_one_test

from hami_webhook.kube.human_duration import human_duration

MINUTE, HOUR, DAY = 60, 3600, 86400


@in_one_test(
    ("seconds", "text"),
    [
        (-5, "0s"),
        (0.9, "0s"),
        (119, "119s"),
        (2 * MINUTE, "2m"),
        (9 * MINUTE + 59, "9m59s"),
        (10 * MINUTE + 59, "10m"),
        (3 * HOUR - 1, "179m"),
        (3 * HOUR + 59, "3h"),
        (7 * HOUR + 59 * MINUTE, "7h59m"),
        (8 * HOUR + 59 * MINUTE, "8h"),
        (2 * DAY - 1, "47h"),
        (2 * DAY + HOUR, "2d1h"),
        (8 * DAY + HOUR, "8d"),
        (400 * DAY, "400d"),
    ],
)
def test_durations_are_those_of_kubectl_ages(seconds: float, text: str) -> None:
    assert human_duration(seconds) == text
