"use strict";
const board = document.getElementById("board");
const body = board.tBodies[0];
const heads = [...board.tHead.rows[0].cells];

function order(row, column) {
  const text = row.cells[column].dataset.order;
  return text === "" ? null : isNaN(text) ? text : Number(text);
}

function compare(a, b) {
  return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
}

function sort(head, down) {
  const column = heads.indexOf(head);
  heads.forEach((other) => other.removeAttribute("aria-sort"));
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  const rows = [...body.rows].sort((r, s) => {
    const a = order(r, column), b = order(s, column);
    if (a === null || b === null) return (a === null) - (b === null); // empty fields stay at the end
    return down ? compare(b, a) : compare(a, b);
  });
  body.append(...rows);
}

const form = document.getElementById("choose");
const fields = [...form.elements].filter((field) => field.name);
const facets = new Map([...body.rows].map((row) => [row, JSON.parse(row.dataset.facets)]));
const figures = new Map([...body.rows].map((row) => [row, JSON.parse(row.dataset.figures)]));
const bounds = fields.filter((field) => field.type === "range");

function bound(field) { // the chosen value; null: any
  const values = JSON.parse(field.dataset.values);
  return Number(field.value) ? values[Number(field.value) - 1] : null;
}

function within(row) {
  return bounds.every((field) => {
    const limit = bound(field), value = figures.get(row)[field.name];
    if (limit === null) return true;
    return value !== null && (field.dataset.upper === "true" ? value <= limit : value >= limit);
  });
}

function filter() {
  const words = form.elements.text.value.toLowerCase().split(/\s+/);
  const chosen = fields.filter((field) => field.name !== "text" && field.type !== "range" && field.value);
  for (const field of bounds) field.nextElementSibling.value = bound(field) ?? "any";
  let shown = 0, best = null;
  for (const row of body.rows) {
    const text = row.textContent.toLowerCase(), own = facets.get(row);
    row.hidden = !(words.every((word) => text.includes(word))
      && chosen.every((field) => own[field.name] === field.value) && within(row));
    shown += !row.hidden;
    const score = figures.get(row).score;
    if (!row.hidden && score !== null && (best === null || score > figures.get(best).score)) best = row;
  }
  const bounded = bounds.some((field) => Number(field.value));
  document.getElementById("best").value = !bounded ? "" : best === null ? "nothing is within these bounds"
    : `best: ${figures.get(best).name}`;
  document.getElementById("shown").value = `${shown} of ${body.rows.length} rows`;
}

function write() { // what is chosen goes into the address, so that it can be sent and comes back on a reload
  const state = new URLSearchParams();
  for (const field of fields) if (field.value && field.value !== "0") state.set(field.name, field.value);
  const head = heads.find((other) => other.hasAttribute("aria-sort"));
  if (head) state.set(head.getAttribute("aria-sort"), head.textContent);
  history.replaceState(null, "", `#${state}`);
}

function read() {
  if (location.hash.startsWith("#cell-")) { // a link into the provenance opens what it points at
    const target = document.getElementById(location.hash.slice(1));
    if (target instanceof HTMLDetailsElement) target.open = true;
    return;
  }
  const state = new URLSearchParams(location.hash.slice(1));
  for (const field of fields) {
    field.value = state.get(field.name) ?? (field.type === "range" ? "0" : "");
    if (field.selectedIndex === -1) field.value = ""; // no such choice
  }
  for (const way of ["ascending", "descending"]) {
    const head = heads.find((other) => other.textContent === state.get(way));
    if (head) sort(head, way === "descending");
  }
  filter();
}

for (const head of heads) {
  head.querySelector("button").addEventListener("click", () => {
    sort(head, head.getAttribute("aria-sort") === "ascending");
    write();
  });
}
form.addEventListener("input", () => { filter(); write(); });
form.addEventListener("submit", (event) => event.preventDefault());
form.addEventListener("reset", () => setTimeout(() => { filter(); write(); }));
addEventListener("hashchange", read);
form.hidden = false;
filter();
read();
