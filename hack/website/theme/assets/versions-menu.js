// A menu of the versions that lie beside this one; ../versions.js has set window.siteVersions.
(() => {
  const root = new URL(document.currentScript.dataset.versions + "/", location.href);
  const here = location.href.slice(root.href.length).split("/")[0];
  const menu = document.createElement("select");
  menu.className = "site-versions";
  menu.ariaLabel = JSON.parse(document.getElementById("__config").textContent).translations["select.version"];
  for (const version of window.siteVersions || [here]) {
    menu.append(new Option(version, version, false, version === here));
  }
  menu.onchange = () => location.assign(new URL(`${menu.value}/index.html`, root));
  document.querySelector(".md-header__title").after(menu);
})();
