"use strict";

async function enter() {
  const token = location.hash.slice(1);
  if (token) {
    history.replaceState(null, "", "/");
    const response = await fetch("/login", { method: "POST", body: token });
    if (!response.ok) {
      document.getElementById("status").textContent = await response.text();
      return;
    }
  } else if (!(await fetch("/teams")).ok) {
    return;
  }
  location.replace("/overview");
}

enter();
