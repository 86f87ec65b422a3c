"""What holds for the look of every page: it is as wide as the screen, and an audit of accessibility finds nothing."""

from __future__ import annotations

from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, ViewportSize

DESKTOP, PHONE = ViewportSize(width=1440, height=900), ViewportSize(width=390, height=844)
LOOKS = (("light", DESKTOP), ("dark", PHONE))
"""No colour depends on the width of the screen, and nothing's size on the colours."""
WIDER_THAN_THE_SCREEN = """
async () => {
  await new Promise(drawn => requestAnimationFrame(() => requestAnimationFrame(drawn)));
  const all = [...document.querySelectorAll("body *:not(.skip, .wide *, pre *)")].filter(e => e.checkVisibility());
  const wide = all.filter(e => e.getBoundingClientRect().right > innerWidth).map(e => e.outerHTML.slice(0, 200));
  return document.documentElement.scrollWidth > innerWidth ? [...wide, "the page"] : wide;
}
"""
"""Elements that reach beyond the screen, but for what scrolls by itself."""

_FIRST = {"exclude": [".fleet a:nth-child(n+30)", ".nodes details:nth-of-type(n+5)"]}
"""Of a thousand nodes the first ones are audited, which are as the others; all take minutes."""


def faults_of_looks(page: Page) -> list[Any]:
    """What is wrong with a page in the light on a desktop, and in the dark on a phone."""
    found: list[Any] = []
    for scheme, size in LOOKS:
        page.set_viewport_size(size)
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]  # one of the literals that it takes
        wide = page.evaluate(WIDER_THAN_THE_SCREEN)
        audit = Axe().run(page, _FIRST).response["violations"]
        found += [(page.url, scheme, size["width"], each) for each in wide]
        found += [
            (page.url, scheme, size["width"], each["id"], node["html"], node["failureSummary"])
            for each in audit
            for node in each["nodes"][:3]
        ]
    return found
