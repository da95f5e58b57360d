"use strict";
// The page of a report: tables sorted by a click on a column's head, claims that open and close.

const SIZES = { KB: 1e3, MB: 1e6, GB: 1e9 };

// What a cell counts as: a number, else its text; null where there is nothing, which comes last in either direction.
function valueOf(text) {
  const cell = text.trim();
  if (cell === "" || cell === "–" || cell.startsWith("✗") || cell === "not transcribed") return null;
  const found = cell.match(/^(?:up to |[<>≤≥~] ?)?([-+−]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?)(?:\s*([KMG]B)\b)?/i);
  if (!found) return cell.toLowerCase();
  return Number(found[1].replace(/,/g, "").replace("−", "-")) * (SIZES[found[2]] ?? 1);
}

// Below 0 where a comes first. Numbers come before words.
function compare(a, b, down) {
  if (a === null || b === null) return (a === null) - (b === null);
  if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
  const order = typeof a === "number" ? a - b : a.localeCompare(b);
  return down ? -order : order;
}

function sortBy(head) {
  const column = head.cellIndex;
  const body = head.closest("table").tBodies[0];
  const down = head.getAttribute("aria-sort") === "ascending";
  for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  const keyed = [...body.rows].map((row) => [valueOf(row.cells[column].textContent), row]);
  keyed.sort((a, b) => compare(a[0], b[0], down));
  body.append(...keyed.map((pair) => pair[1]));
}

function start() {
  for (const head of document.querySelectorAll("th")) {
    head.tabIndex = 0;
    head.title = "sort by this column";
    head.addEventListener("click", () => sortBy(head));
    head.addEventListener("keydown", (event) => {
      if (event.key === "Enter") sortBy(head);
    });
  }
  for (const cell of document.querySelectorAll("td")) cell.classList.toggle("long", cell.textContent.length > 60);
  const fold = document.getElementById("fold");
  fold?.addEventListener("click", () => {
    const open = fold.textContent === "open all";
    for (const claim of document.querySelectorAll(".claim")) claim.open = open;
    fold.textContent = open ? "close all" : "open all";
  });
  if (matchMedia("(max-width: 1099px)").matches) document.querySelector("nav details").open = false;
}

if (typeof document === "undefined") module.exports = { valueOf, compare };
else start();
