"""The pages of `kubectl hami ui` in Chromium: what they show, that they follow the cluster, and who can use them."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from axe_playwright_python.sync_playwright import Axe
from kubectl.test_verbs import placed
from playwright.sync_api import Page, expect
from simulate.files import pod

from .conftest import Ui
from .objects import CHROMIUM, HTML, WAITING, objects

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium shows the pages")

POD = f"/pods/team-a/{quote(WAITING, safe='')}"
PATHS = ("/cluster", "/teams", "/pods", POD, "/what-if", "/doctor")
UPDATED = 60_000
"""Milliseconds after which a change that was read surely is on the page, however busy the machine is."""


def rows(page: Page) -> list[list[str]]:
    """The cells of the tables' bodies."""
    return [
        [cell.strip() for cell in row.locator("th, td").all_inner_texts()] for row in page.locator("tbody tr").all()
    ]


def test_the_cluster_page_shows_each_card_as_it_is_registered_and_held(ui: Ui) -> None:
    page = ui.page("/cluster")
    shown = {}
    for card in page.locator(".cards li").all():
        card.locator("summary").click()
        shown[card.locator("summary").inner_text()] = [
            line.strip() for line in card.locator("details").inner_text().splitlines()[1:] if line.strip()
        ]
    model = "NVIDIA A100-SXM4-40GB"
    free = f"{model}, NVIDIA: 0/10 slots, 0/40960 MiB, 0/100 cores"
    assert shown == {
        "GPU-1": [
            f"{model}, NVIDIA: 2/10 slots, 24000/40960 MiB, 20/100 cores",
            "team-a/busy",
            "team-b/other",
        ],
        "GPU-2 (unhealthy)": [free],
        "GPU-3": [free],
        "GPU-4": [free],
        f"GPU{HTML}": [f"Model{HTML}, NVIDIA: 1/10 slots, 1000/40960 MiB, 10/100 cores", "team-a/held"],
    }


def test_the_cards_that_links_join_are_a_picture_with_words(ui: Ui) -> None:
    (picture,) = ui.page("/cluster").get_by_role("img").all()
    assert picture.get_attribute("aria-label") == "Linked to each other: GPU-1, GPU-2; GPU-3, GPU-4"
    lines = [[line.get_attribute(end) for end in ("x1", "x2", "y2")] for line in picture.locator("line").all()]
    across = [line for line in lines if line[0] != line[1]]
    assert across == [["12", "36", "16"], ["60", "84", "24"]]


@pytest.mark.parametrize(
    ("field", "text", "found"),
    [
        ("Health", "unhealthy", "1 node, 1 card"),
        ("Node", "spoilt", "1 node, 1 card"),
        ("Label", "pool=training", "1 node, 4 cards"),
        ("Vendor", "NVIDIA", "2 nodes, 5 cards"),
        ("Model", "NVIDIA A100-SXM4-40GB", "1 node, 4 cards"),
    ],
)
def test_cards_are_chosen_by_what_they_are(ui: Ui, field: str, text: str, found: str) -> None:
    page = ui.page("/cluster")
    if field in ("Node", "Label"):
        page.get_by_role("textbox", name=field).fill(text)
    else:
        page.get_by_role("combobox", name=field).select_option(text)
    page.get_by_role("button", name="Show").click()
    expect(page.locator("#live")).to_contain_text(found)


def test_teams_and_pods_show_the_quotas_and_pods(ui: Ui) -> None:
    page = ui.page("/teams")
    assert [[row[0], *row[2:6]] for row in rows(page)] == [
        ["limits.nvidia.com/gpu", "2", "4", "1", "2"],
        ["limits.nvidia.com/gpumem", "50000", "60000", "30000", "21000"],
        ["limits.nvidia.com/gpu", "1", "1", "0", "1"],
    ]
    assert page.locator("section h2").all_inner_texts() == ["team-a/gpu-quota", f"team-b/quota{HTML}"]
    page = ui.page("/pods")
    model = "NVIDIA A100-SXM4-40GB"
    assert [row[:4] for row in rows(page)] == [
        ["team-a/busy", "Bound", "n1", model],
        ["team-a/held", "Bound", f"spoilt{HTML}", f"Model{HTML}"],
        [f"team-a/{WAITING}", "Waiting", "–", ""],
        ["team-b/other", "Bound", "n1", model],
    ]
    page.get_by_role("link", name=WAITING).click()
    expect(page.locator("main")).to_contain_text("fits on")


def test_what_if_tries_a_pasted_pod(ui: Ui) -> None:
    page = ui.page("/what-if")
    page.get_by_label("Pods or workloads").fill(str(pod("new", gpu=1, mem=2000)))
    page.get_by_label("Copies").fill("2")
    page.get_by_role("button", name="Try").click()
    expect(page.get_by_role("region", name="Pods")).to_contain_text("new-1")
    expect(page.locator("main")).to_contain_text("2 pods: ")


def test_doctor_names_each_check(ui: Ui) -> None:
    assert "webhook-configurations" in ui.page("/doctor").locator("main").inner_text()


def test_a_page_follows_the_cluster_and_keeps_what_its_reader_opened(ui: Ui) -> None:
    page, cards = ui.page("/pods"), ui.page("/cluster")
    summary = cards.locator("summary", has_text="GPU-1").first
    summary.focus()
    cards.keyboard.press("Enter")
    try:
        ui.api.objects[:] = [*objects(), placed("newcomer")]
        expect(page.get_by_role("link", name="team-a/newcomer")).to_be_visible(timeout=UPDATED)
        held = cards.get_by_role("link", name="team-a/newcomer")
        expect(held).to_be_visible(timeout=UPDATED)  # so the card is open still
        expect(cards.locator("summary", has_text="GPU-1").first).to_be_focused()
    finally:
        ui.api.objects[:] = objects()
    expect(page.get_by_role("link", name="team-a/newcomer")).to_have_count(0, timeout=UPDATED)


@pytest.mark.parametrize("path", PATHS)
def test_everybody_can_use_a_page(ui: Ui, path: str) -> None:
    page = ui.page(path)
    assert page.locator("img, main script").count() == 0
    assert unreached_by_keyboard(page) == []
    page.reload()
    for summary in page.locator("summary").all():
        summary.click()
    assert serious_faults(page) == []
    page.emulate_media(color_scheme="dark")
    assert serious_faults(page) == []
    page.set_viewport_size({"width": 360, "height": 640})
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def serious_faults(page: Page) -> list[str]:
    """What an audit of accessibility says."""
    return [
        f"{each['id']}: {node['html']} {node['failureSummary']}"
        for each in Axe().run(page).response["violations"]
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"]
    ]


def unreached_by_keyboard(page: Page) -> list[str]:
    """What can be clicked or scrolled, but not reached by the tabulator so that one sees it."""
    page.evaluate(
        """window.left = new Set([...document.querySelectorAll(
             'a, button, input, select, textarea, summary, pre, [tabindex="0"]')].filter(e => e.checkVisibility()))"""
    )
    for _ in range(page.evaluate("left.size")):
        page.keyboard.press("Tab")
        page.evaluate(
            "getComputedStyle(document.activeElement).outlineStyle !== 'none' && left.delete(document.activeElement)"
        )
    found: list[str] = page.evaluate("[...left].map(each => each.outerHTML)")
    return found


@pytest.mark.parametrize(
    "path", [f"/cluster?node={quote(HTML)}&label={quote(HTML)}", f"/pods/team-a/{quote(HTML, '')}"]
)
def test_html_of_an_address_is_text(ui: Ui, path: str) -> None:
    page = ui.page(path)
    assert page.locator("img, main script").count() == 0
    assert HTML in page.inner_text("main") + page.locator("input").evaluate_all("all => all.map(e => e.value).join()")
    ui.faults[:] = [fault for fault in ui.faults if "status of 404" not in fault]


def test_the_first_tab_leads_to_the_contents(ui: Ui) -> None:
    page = ui.page("/cluster")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="To the contents")).to_be_in_viewport()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    expect(page.get_by_label("Node", exact=True)).to_be_focused()


def test_colours_follow_the_system_until_somebody_chooses(ui: Ui) -> None:
    def background(page: Page) -> str:
        return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    page = ui.page("/teams")
    assert background(page) == "rgb(255, 255, 255)"
    page.emulate_media(color_scheme="dark")
    assert background(page) == "rgb(21, 24, 28)"
    page.get_by_role("button", name="Light or dark").click()
    assert background(page) == "rgb(255, 255, 255)"
    page.reload()
    assert background(page) == "rgb(255, 255, 255)"
    page.evaluate("localStorage.clear()")


def test_without_the_token_a_browser_sees_nothing(ui: Ui) -> None:
    ui.context.clear_cookies()
    page = ui.page("/")
    expect(page.locator("#status")).to_contain_text("it lets you in")
    response = page.goto(f"{ui.address.partition('#')[0]}cluster")
    assert response is not None
    assert response.status == 403
    page.goto(ui.address)
    page.wait_for_url("**/cluster")
    page.go_back()
    assert "#" not in page.url
    ui.faults[:] = [fault for fault in ui.faults if "status of 403" not in fault]
