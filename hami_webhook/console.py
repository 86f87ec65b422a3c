"""What tables are printed on. It needs the extra `cli`, so it is imported where a table is printed."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from hami_webhook.terminal import without_control_characters


class SafeConsole(Console):
    """A console that shows control characters as U+FFFD: names and annotations are anybody's text."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(without_control_characters(segment.text), segment.style)
