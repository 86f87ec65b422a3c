/* global uPlot */
"use strict";

const root = document.documentElement;
const chosen = localStorage.getItem("theme");
if (chosen) root.dataset.theme = chosen;
document.getElementById("theme").addEventListener("click", () => {
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem("theme", root.dataset.theme);
  drawCharts();
});
addEventListener("beforeprint", () => { root.dataset.theme = "light"; drawCharts(); });
addEventListener("afterprint", () => {
  const kept = localStorage.getItem("theme");
  if (kept) root.dataset.theme = kept; else delete root.dataset.theme;
  drawCharts();
});
for (const link of document.querySelectorAll("header nav a")) {
  if (location.pathname.startsWith(link.getAttribute("href"))) link.setAttribute("aria-current", "page");
}

function drawCharts() {
  const text = getComputedStyle(document.body).color;
  for (const place of document.querySelectorAll(".chart")) {
    const [times, amounts] = JSON.parse(place.dataset.series);
    const small = place.classList.contains("small");
    place.replaceChildren();
    place.classList.toggle("empty", times.length < 2);
    if (times.length < 2) {
      place.textContent = small ? "no samples yet" : `${place.dataset.label}: no samples yet`;
      continue;
    }
    const values = amounts.map((each) => each / (place.dataset.divide ?? 1));
    const { color, borderColor } = getComputedStyle(place); // resolved, as a canvas knows no light-dark()
    const line = { label: place.dataset.label ?? "", stroke: color, width: 1.5, points: { show: false } };
    const axis = { stroke: text, grid: { stroke: borderColor, width: 0.5 }, size: 56 };
    new uPlot({
      width: place.clientWidth || 128, height: small ? 32 : 120, title: small ? "" : place.dataset.label,
      legend: { show: false }, cursor: { show: !small }, padding: small ? [2, 2, 2, 2] : undefined,
      scales: { y: { range: (_, least, most) => [0, Math.max(most, 1)] } },
      series: [{}, line], axes: small ? [{ show: false }, { show: false }] : [{ ...axis, size: 30, values: (_, at) => at.map(time) }, axis],
    }, [times, values], place);
  }
}

function time(seconds) {
  return new Date(seconds * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hour12: false });
}

function drawn() {
  for (const fleet of document.querySelectorAll(".fleet")) {
    (fleet.querySelector("a:focus") ?? fleet.querySelector("a"))?.setAttribute("tabindex", "0");
  }
  drawCharts();
}

// squares have names: of the one under the pointer, or of the one that has the focus, which arrow keys move
function nameSquare(event) {
  const square = event.target.closest(".fleet a");
  if (square) document.querySelector(".named").textContent = square.title;
}

function moveSquare(event) {
  const square = event.target.closest(".fleet a");
  const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!square || !step) return;
  event.preventDefault();
  const all = [...square.parentElement.children];
  const vertical = event.key === "ArrowDown" || event.key === "ArrowUp";
  let next = all.indexOf(square) + step;
  while (vertical && all[next] && (all[next].offsetTop === square.offsetTop || (all[next].offsetLeft - square.offsetLeft) * step < 0)) next += step;
  if (!all[next]) return;
  square.tabIndex = -1;
  all[next].tabIndex = 0;
  all[next].focus();
}

function keyOf(summary) {
  return summary.parentElement.dataset.key ?? summary.textContent;
}

async function load() {
  const response = await fetch(location.href);
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  const fresh = page.getElementById("live");
  if (!fresh) return;
  const live = document.getElementById("live");
  const open = new Set([...live.querySelectorAll("details[open] summary")].map(keyOf));
  for (const each of fresh.querySelectorAll("summary")) each.parentElement.open = open.has(keyOf(each));
  const focused = [...live.querySelectorAll("a, summary, [tabindex]")].indexOf(document.activeElement);
  live.replaceWith(fresh);
  if (focused >= 0) fresh.querySelectorAll("a, summary, [tabindex]")[focused]?.focus({ preventScroll: true });
  drawn();
}

let loading = false, again = false;
async function update() {
  again = true;
  if (loading) return; // of two answers the older one might come last
  loading = true;
  try {
    while (again) {
      again = false;
      await load();
    }
  } catch {
    // the program has ended: once it is back, it says its version anew
  } finally {
    loading = false;
  }
}

const state = document.getElementById("state");
const SILENT_AFTER = 5000;
let silence;

function show(kind, text) {
  if (state.dataset.kind === kind && state.textContent === text) return;
  state.dataset.kind = kind;
  state.textContent = text;
}

function heard(stale) {
  clearTimeout(silence);
  silence = setTimeout(() => show("stale", "stale: the program doesn't answer"), SILENT_AFTER);
  show(stale ? "stale" : "live", stale ? `stale: ${stale}` : "live");
}

drawn();
addEventListener("resize", drawCharts);
document.addEventListener("mouseover", nameSquare);
document.addEventListener("focusin", nameSquare);
document.addEventListener("keydown", moveSquare);
const events = new EventSource("/events");
events.addEventListener("message", (event) => {
  const live = document.getElementById("live");
  if (live.dataset.version && event.data !== live.dataset.version) update();
});
events.addEventListener("state", (event) => heard(JSON.parse(event.data).stale));
events.addEventListener("error", () => show("stale", "stale: the program doesn't answer"));
heard("");
