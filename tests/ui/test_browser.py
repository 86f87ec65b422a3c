"""The pages of `kubectl hami ui` in Chromium: what they show, that they follow the cluster, and who can use them."""

from __future__ import annotations

import csv
import signal
import threading
from pathlib import Path
from urllib.parse import quote

import pytest
from chromium import CHROMIUM
from kubectl.test_verbs import placed
from playwright.sync_api import Browser, Page, expect
from simulate.files import pod

from hami_webhook.html_report import html_report
from hami_webhook.terminal import ShownTable

from .conftest import Ui
from .looks import WIDER_THAN_THE_SCREEN, faults_of_looks
from .objects import HTML, PATHS, UPDATED, WAITING, objects

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium-headless-shell shows the pages"),
]


def rows(page: Page) -> list[list[str]]:
    """The cells of the tables' bodies."""
    return [
        [cell.strip() for cell in row.locator("th, td").all_inner_texts()] for row in page.locator("tbody tr").all()
    ]


def test_the_overview_says_how_full_the_fleet_is_and_what_still_fits(ui: Ui) -> None:
    page = ui.page("/overview")
    assert [text.split("\n")[0] for text in page.locator(".figures li").all_inner_texts()] == [
        "5",
        "2",
        "12 %",
        "1",
        "2",
    ]
    assert [row[0].partition("\n")[0] for row in rows(page)] == [f"Model{HTML}", "NVIDIA A100-SXM4-40GB"]
    hostile, a100 = ([*map(str.strip, row)] for row in rows(page))
    assert hostile[1:] == ["1", "0", "2 %", "10 %", "39Gi", "100 %", "39Gi", "–", "–", "–"]
    assert a100[1:] == [
        *("4 ⚠ 1", "2", "14 %", "5 %", "96.5Gi", "18 %"),
        *("40Gi", "40Gi\nlinked: 40Gi", "–", "–"),
    ]
    squares = {each: page.locator(f".fleet a path.{each}").count() for each in ("level0", "level1", "level3", "sick")}
    assert squares == {"level0": 1, "level1": 1, "level3": 1, "sick": 1}
    assert page.get_by_role("region", name="models").is_visible()
    assert f"0/3 nodes are available: {HTML}" in page.get_by_role("listitem").filter(has_text=WAITING).inner_text()
    page.get_by_label("Squares by").select_option("health")
    page.get_by_label("Pools by the node label").select_option("pool")
    page.get_by_role("button", name="Show").click()
    expect(page.get_by_role("heading", name="training")).to_be_visible()
    assert page.url.endswith("/overview?by=health&pool=pool")
    page.locator(".fleet a").last.click()
    expect(page.get_by_label("Node", exact=True)).to_have_value("n1")


def test_a_page_says_within_five_seconds_that_the_program_has_ended(ui: Ui) -> None:
    page = ui.context.new_page()
    page.clock.install()
    page.goto(f"{ui.address.partition('/#')[0]}/pods")
    state = page.get_by_role("status")
    expect(state).to_have_text("live")
    assert ui.process is not None
    ui.process.send_signal(signal.SIGSTOP)
    try:
        page.clock.run_for(5000)
        expect(state).to_have_text("stale: the program doesn't answer", timeout=UPDATED)
    finally:
        ui.process.send_signal(signal.SIGCONT)
    expect(state).to_have_text("live", timeout=UPDATED)


@pytest.mark.parametrize("fault", ["refuses", "hangs"])
def test_a_page_that_is_stale_says_so(ui: Ui, fault: str) -> None:
    page, over = ui.page("/pods"), threading.Event()
    expect(page.get_by_role("status")).to_have_text("live")

    def broken(path: str) -> None:
        if fault == "hangs":
            over.wait()
        else:
            raise ConnectionError

    ui.api.on_request = broken
    try:
        expect(page.get_by_role("status")).to_contain_text("stale: the", timeout=UPDATED)
    finally:
        ui.api.on_request = lambda path: None
        over.set()
    expect(page.get_by_role("status")).to_have_text("live", timeout=UPDATED)


def test_what_a_view_shows_can_be_downloaded(ui: Ui) -> None:
    page = ui.page("/pods?q=team-a&state=waits")
    assert [row[0] for row in rows(page)] == [f"team-a/{WAITING}"]
    with page.expect_download() as download:
        page.get_by_role("link", name="CSV").click()
    text = download.value.path().read_text()
    assert [row["pod"] for row in csv.DictReader(text.splitlines())] == [WAITING]


def test_the_cluster_page_shows_each_card_as_it_is_registered_and_held(ui: Ui) -> None:
    page = ui.page("/cluster")
    model = "NVIDIA A100-SXM4-40GB"
    nodes = page.locator(".nodes summary").all()
    assert [node.inner_text().split("\n") for node in nodes] == [
        ["n1", model, "2 of 4 cards empty, 96.5Gi free, ⚠ 1 unhealthy"],
        [f"spoilt{HTML}", f"Model{HTML}", "0 of 1 card empty, 39Gi free"],
    ]
    squares = ("level0", "level3", "sick")
    assert [nodes[0].locator(f"svg path.{each}").count() for each in squares] == [1, 1, 1]
    shown = {}
    for node in nodes:
        node.click()
    for card in page.locator(".cards li").all():
        shown[card.locator("p").first.inner_text()] = [
            *card.locator("dd").all_inner_texts(),
            *card.locator("dl ~ p").all_inner_texts(),
        ]
    free = ["0 %\n0 of 10", "0 %\n0Mi of 40Gi", "0 %\n0 of 100"]
    assert shown == {
        f"GPU-1\n{model}, NVIDIA": [
            *("20 %\n2 of 10", "58 %\n23.4Gi of 40Gi", "20 %\n20 of 100"),
            *("team-a/busy", "team-b/other"),
        ],
        f"GPU-2 ⚠ unhealthy\n{model}, NVIDIA": free,
        f"GPU-3\n{model}, NVIDIA": free,
        f"GPU-4\n{model}, NVIDIA": free,
        f"GPU{HTML}\nModel{HTML}, NVIDIA": [
            *("10 %\n1 of 10", "2 %\n1000Mi of 40Gi", "10 %\n10 of 100", "team-a/held")
        ],
    }


def test_a_node_is_one_line_until_somebody_opens_it(ui: Ui) -> None:
    page = ui.page("/cluster")
    line = page.locator(".nodes details").first.bounding_box()
    assert line is not None
    assert line["height"] < 45
    assert not page.locator(".cards").first.is_visible()
    asked = ui.page("/cluster?node=n1")
    expect(asked.locator(".cards").first).to_be_visible()


def test_squares_name_their_node_and_model_to_pointers_and_to_keyboards(ui: Ui) -> None:
    page = ui.page("/overview")
    named, squares = page.locator(".named"), page.locator(".fleet a")
    first, second = "n1, NVIDIA A100-SXM4-40GB: 1 of 4 cards held", f"spoilt{HTML}, Model{HTML}: 1 of 1 card held"
    squares.last.hover()
    expect(named).to_have_text(second)
    expect(page.get_by_role("link", name=first)).to_have_attribute("tabindex", "0")
    squares.first.focus()
    expect(named).to_have_text(first)
    for key, name in (("ArrowRight", second), ("ArrowRight", second), ("ArrowLeft", first)):
        page.keyboard.press(key)
        expect(named).to_have_text(name)
    page.keyboard.press("Enter")
    expect(page.get_by_label("Node", exact=True)).to_have_value("n1")


def test_a_chart_without_samples_says_so(ui: Ui) -> None:
    drawn = """(points) => {
      const chart = document.querySelector(".chart.small");
      chart.dataset.series = JSON.stringify(points);
      dispatchEvent(new Event("resize"));
      return [chart.innerText, chart.classList.contains("empty")];
    }"""
    page = ui.page("/teams")
    assert page.evaluate(drawn, [[0], [1]]) == ["no samples yet", True]
    assert page.evaluate(drawn, [[0, 60], [1, 2]])[1] is False


def test_the_cards_that_links_join_are_a_picture_with_words(ui: Ui) -> None:
    (picture,) = ui.page("/cluster?node=n1").locator("main").get_by_role("img").all()
    assert picture.get_attribute("aria-label") == "Linked to each other: GPU-1, GPU-2; GPU-3, GPU-4"
    lines = [[line.get_attribute(end) for end in ("x1", "x2", "y2")] for line in picture.locator("line").all()]
    across = [line for line in lines if line[0] != line[1]]
    assert across == [["12", "36", "16"], ["60", "84", "24"]]


@pytest.mark.parametrize(
    ("field", "text", "found"),
    [
        ("Health", "unhealthy", "1 node, 1 card,"),
        ("Node", "spoilt", "1 node, 1 card,"),
        ("Label", "pool=training", "1 node, 4 cards,"),
        ("Vendor", "NVIDIA", "2 nodes, 5 cards,"),
        ("Model", "NVIDIA A100-SXM4-40GB", "1 node, 4 cards,"),
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
    memory = ["team-a/gpu-quota", "limits.nvidia.com/gpumem", "83 %\n48.8Gi of 58.6Gi", "9.8Gi", "20.5Gi", "29.3Gi"]
    found = [
        ["team-a/gpu-quota", "limits.nvidia.com/gpu", "50 %\n2 of 4", "2", "2", "1"],
        memory,
        [f"team-b/quota{HTML}", "limits.nvidia.com/gpu", "full\n1 of 1", "0", "1", "0"],
    ]
    assert [row[:6] for row in rows(page)] == found
    page.get_by_role("link", name="Used of hard").click()
    expect(page.locator("th[aria-sort]")).to_have_text("Used of hard")
    assert [row[:6] for row in rows(page)] == [found[2], memory, found[0]]
    full, free = page.locator(".bar.full span"), page.locator(".bar:not(.full) span").first
    colour = "each => getComputedStyle(each).color"
    assert full.evaluate(colour) != free.evaluate(colour)
    page = ui.page("/pods")
    model = "NVIDIA A100-SXM4-40GB"
    assert [row[:4] for row in rows(page)] == [
        ["team-a/busy", "●\nBound", "n1", model],
        ["team-a/held", "●\nBound", f"spoilt{HTML}", f"Model{HTML}"],
        [f"team-a/{WAITING}", f"○\nWaiting\n0/3 nodes are available: {HTML}", "–", ""],
        ["team-b/other", "●\nBound", "n1", model],
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
    summary = cards.locator("summary", has_text="n1").first
    summary.focus()
    cards.keyboard.press("Enter")
    try:
        ui.api.objects[:] = [*objects(), placed("newcomer")]
        expect(page.get_by_role("link", name="team-a/newcomer")).to_be_visible(timeout=UPDATED)
        held = cards.get_by_role("link", name="team-a/newcomer")
        expect(held).to_be_visible(timeout=UPDATED)  # so the node is open still
        expect(cards.locator("summary", has_text="n1").first).to_be_focused()
    finally:
        ui.api.objects[:] = objects()
    expect(page.get_by_role("link", name="team-a/newcomer")).to_have_count(0, timeout=UPDATED)


@pytest.mark.parametrize(
    ("clicks", "answer"),
    [
        (["NVIDIA A100-SXM4-40GB"], "1 node, 4 cards, 1 held by pods. 23.4Gi of 160Gi promised."),
        ([], "linked: 40Gi"),
        ([f"team-a/{WAITING}"], "fits on"),
        (["Teams", "team-a/gpu-quota"], "holds 1 slot of Model"),
        ([f"team-b/quota{HTML}"], "limits.nvidia.com/gpu"),
    ],
    ids=["how full", "linked cards", "why it waits", "what a team holds", "which quota is nearly full"],
)
def test_the_first_questions_are_answered_within_two_clicks(ui: Ui, clicks: list[str], answer: str) -> None:
    assert len(clicks) <= 2
    page = ui.page("/overview")
    for name in clicks:
        page.get_by_role("link", name=name, exact=True).first.click()
    expect(page.locator("main")).to_contain_text(answer)


@pytest.mark.parametrize("path", PATHS)
def test_everybody_can_use_a_page(ui: Ui, path: str) -> None:
    page = ui.page(path)
    assert page.locator("main img, main script").count() == 0
    assert unreached_by_keyboard(page) == []
    page.reload()
    page.locator("summary").evaluate_all("all => all.forEach(each => each.click())")
    assert faults_of_looks(page) == []


def unreached_by_keyboard(page: Page) -> list[str]:
    """What can be clicked or scrolled, but not reached by the tabulator so that one sees it.

    Of the squares of the Overview, of which there may be thousands, one is reached; arrow keys lead to the others.
    """
    page.evaluate(
        """window.left = new Set([...document.querySelectorAll(
             'a:not([tabindex="-1"]), button, input, select, textarea, summary, pre, [tabindex="0"]'
           )].filter(e => e.checkVisibility()))"""
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
    assert page.locator("main img, main script").count() == 0
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
    assert background(page) == "rgb(9, 9, 11)"
    page.get_by_role("button", name="Light or dark").click()
    assert background(page) == "rgb(255, 255, 255)"
    page.reload()
    assert background(page) == "rgb(255, 255, 255)"
    page.evaluate("localStorage.clear()")


def test_on_paper_a_page_has_light_colours_and_says_what_it_is_of(ui: Ui) -> None:
    page = ui.page("/overview")
    page.emulate_media(color_scheme="dark", media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("getComputedStyle(document.querySelector('h2')).color") == "rgb(9, 9, 11)"
    assert page.get_by_role("navigation").count() == page.get_by_role("button").count() == 0
    expect(page.locator(".printed")).to_contain_text("read at 20")
    assert page.evaluate(WIDER_THAN_THE_SCREEN) == []
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.evaluate("document.documentElement.dataset.theme") is None


def test_without_the_token_a_browser_sees_nothing(ui: Ui) -> None:
    ui.context.clear_cookies()
    page = ui.page("/")
    expect(page.locator("#status")).to_contain_text("it lets you in")
    response = page.goto(f"{ui.address.partition('#')[0]}cluster")
    assert response is not None
    assert response.status == 403
    page.goto(ui.address)
    page.wait_for_url("**/overview")
    page.go_back()
    assert "#" not in page.url
    ui.faults[:] = [fault for fault in ui.faults if "status of 403" not in fault]


def test_a_report_has_the_look_of_the_pages(browser: Browser, tmp_path: Path) -> None:
    amounts = [["team-a", "NVIDIA", "A100 " * 20, "placed", *["1,234,567.8"] * 5]]
    headings = ["namespace", "vendor", "model", "state", "card hours", "gib hours", "core hours", "used", "used gib"]
    table = ShownTable("Hours", headings, amounts, amounts=frozenset(headings[4:]))
    file = tmp_path / "report.html"
    file.write_text(html_report("Showback", "What pods held.", [table], [("a", "- expected\n+ found " * 40)]))
    page = browser.new_page()
    page.goto(file.as_uri())
    assert faults_of_looks(page) == []
    page.close()
