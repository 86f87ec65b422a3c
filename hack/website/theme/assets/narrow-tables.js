// A table of three or more columns is wider than a phone: there each row becomes a list, with the headings as labels (site.css).
for (const table of document.querySelectorAll("article table:not([class])")) {
  const headings = [...table.tHead.rows[0].cells].map((cell) => cell.textContent);
  if (headings.length < 3) continue;
  table.dataset.stacks = "";
  for (const row of table.tBodies[0].rows) {
    for (const cell of row.cells) cell.dataset.heading = headings[cell.cellIndex];
  }
}
