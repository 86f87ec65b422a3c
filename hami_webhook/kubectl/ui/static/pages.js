"use strict";

const root = document.documentElement;
const chosen = localStorage.getItem("theme");
if (chosen) root.dataset.theme = chosen;
document.getElementById("theme").addEventListener("click", () => {
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem("theme", root.dataset.theme);
});
for (const link of document.querySelectorAll("header a")) {
  if (location.pathname.startsWith(link.getAttribute("href"))) link.setAttribute("aria-current", "page");
}

async function update() {
  const response = await fetch(location.href);
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  const fresh = page.getElementById("live");
  if (!fresh) return;
  const live = document.getElementById("live");
  const open = new Set([...live.querySelectorAll("details[open] summary")].map((each) => each.textContent));
  for (const each of fresh.querySelectorAll("summary")) each.parentElement.open = open.has(each.textContent);
  const focused = [...live.querySelectorAll("a, summary, [tabindex]")].indexOf(document.activeElement);
  live.replaceWith(fresh);
  if (focused >= 0) fresh.querySelectorAll("a, summary, [tabindex]")[focused]?.focus({ preventScroll: true });
}

if (document.getElementById("live").dataset.version) {
  new EventSource("/events").addEventListener("message", (event) => {
    if (event.data !== document.getElementById("live").dataset.version) update();
  });
}
