"""Text from outside in sentences."""

from __future__ import annotations

import pytest

from hami_webhook.kube.message_text import quoted


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a-pod", '"a-pod"'),
        ('with "quotes" and \\', '"with \\"quotes\\" and \\\\"'),
        ("größe 显存", '"größe 显存"'),
        ("two\nlines\x1b[2J", '"two\\nlines\\u001b[2J"'),
        ("a\u202etnanet\u2066", '"a\\u202etnanet\\u2066"'),
        ("no\u00a0space", '"no\\u00a0space"'),
        ("\U000e0041", '"\\udb40\\udc41"'),
        ("x" * 70, f'"{"x" * 60}…"'),
    ],
)
def test_what_a_terminal_does_not_show_is_escaped(text: str, shown: str) -> None:
    assert quoted(text) == shown
