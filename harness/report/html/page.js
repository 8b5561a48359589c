"use strict";
// Comparisons that may stand in a filter; = stays text, as settings are written with it.
const SIGNS = {
  "<=": (a, b) => a <= b, ">=": (a, b) => a >= b, "<": (a, b) => a < b, ">": (a, b) => a > b,
};
const FORM = /([\p{L}_][\p{L}\d_.]*)\s*(<=|>=|<|>)\s*(-?[\d.]+(?:e[+-]?\d+)?)(?=\s|$)/giu;
const ALIKE = {"ε": "epsilon", epsilon_total: "epsilon"};

function order(cell) {
  const text = cell.dataset.order;
  return text === "" ? null : text === "inf" ? Infinity : isNaN(text) ? text : Number(text);
}

function compare(a, b) {
  return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
}

// Tables and the form above them: headings sort, the form filters, and the address keeps both.
function interactive(form) {
  // Not form.dataset, as a field has that name.
  const place = document.getElementById(form.getAttribute("data-tables"));
  const boards = [...place.querySelectorAll("table")].map((table) => {
    const heads = [...table.tHead.rows[0].cells];
    return {table, heads, body: table.tBodies[0], columns: new Map(heads.map((head, at) => [head.dataset.name, at]))};
  });
  const entries = boards.flatMap(({body, columns}) => [...body.rows].map((row) => [row, columns]));
  const inputs = [...form.elements].filter((field) => field.name);
  const prefix = inputs[0].name.replace(/text$/, "");
  const text = inputs[0], lists = inputs.filter((field) => field.options);
  const numbers = inputs.filter((field) => field.type === "number");
  const more = form.querySelector("details");
  const parsed = (name) => new Map(entries.map(([row]) => [row, JSON.parse(row.dataset[name] ?? "{}")]));
  const facets = parsed("facets"), measures = parsed("measures");

  function value(row, columns, name) { // as it is printed, as far as that matters for a bound; without privacy there is none
    const found = columns.has(name) ? order(row.cells[columns.get(name)]) : measures.get(row)[name] ?? null;
    if (found === null) return name === "epsilon" ? Infinity : null;
    return typeof found === "number" && isFinite(found) ? Number(found.toPrecision(4)) : found;
  }

  function asked() { // words and bounds of the form; names that no figure has
    const bounds = [], unknown = [];
    const words = text.value.replace(FORM, (all, given, sign, limit) => {
      const name = ALIKE[given.toLowerCase()] ?? given.toLowerCase();
      if (entries.some(([row, columns]) => columns.has(name) || name in measures.get(row))) {
        bounds.push([name, sign, Number(limit)]);
      } else unknown.push(given);
      return " ";
    }).toLowerCase().split(/\s+/);
    for (const field of numbers) {
      if (field.value !== "") bounds.push([field.name.slice(prefix.length), field.dataset.sign, Number(field.value)]);
    }
    return {words, bounds, unknown};
  }

  function filter() {
    const {words, bounds, unknown} = asked();
    const chosen = lists.filter((field) => field.value);
    let shown = 0, best = null;
    for (const [row, columns] of entries) {
      const own = facets.get(row); // words may be of its task and settings, too
      const said = [row.textContent, ...Object.values(own), measures.get(row).name ?? ""].join(" ").toLowerCase();
      row.hidden = !(words.every((word) => said.includes(word))
        && chosen.every((field) => own[field.name] === field.value)
        && bounds.every(([name, sign, limit]) => {
          const own = value(row, columns, name);
          return own !== null && SIGNS[sign](own, limit);
        }));
      shown += !row.hidden;
      const score = measures.get(row).score ?? null;
      if (!row.hidden && score !== null && (best === null || score > measures.get(best).score)) best = row;
    }
    for (const {table, body} of boards) { // a task without rows is not shown
      const task = table.closest(".task");
      if (task) task.hidden = body.rows.length > 0 && [...body.rows].every((row) => row.hidden);
    }
    form.querySelector(".best").value = unknown.length ? `no number is called ${unknown.join(", ")}`
      : !bounds.length ? "" : !shown ? "nothing is within these bounds"
      : best ? `best: ${measures.get(best).name}` : "";
    form.querySelector(".shown").value = `${shown} of ${entries.length} row${entries.length === 1 ? "" : "s"}`;
    pin(); // rows that are hidden make columns narrower
  }

  function sort(heading, down) { // every task by its column of that name
    for (const {heads, body} of boards) {
      heads.forEach((head) => head.removeAttribute("aria-sort"));
      const column = heads.findIndex((head) => head.textContent === heading);
      if (column < 0) continue;
      heads[column].setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...body.rows].sort((r, s) => {
        const a = order(r.cells[column]), b = order(s.cells[column]);
        if (a === null || b === null) return (a === null) - (b === null); // empty fields stay at the end
        return down ? compare(b, a) : compare(a, b);
      });
      body.append(...rows);
    }
  }

  function pin() { // columns that stay in sight stand beside each other while the others move below them
    for (const {table, heads} of boards) {
      let left = 0;
      for (const head of heads.filter((head) => head.classList.contains("pinned"))) {
        for (const at of [2, 3]) if (head.classList.contains(`pinned-${at}`)) table.style.setProperty(`--pinned-${at}`, `${left}px`);
        left += head.offsetWidth;
      }
    }
  }

  for (const head of boards.flatMap(({heads}) => heads)) {
    head.querySelector("button").addEventListener("click", () => {
      sort(head.textContent, head.getAttribute("aria-sort") === "ascending");
      write();
    });
  }
  form.addEventListener("input", () => { filter(); write(); });
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(() => { filter(); write(); }));
  form.hidden = false;
  const resized = new ResizeObserver(pin);
  boards.forEach(({table}) => resized.observe(table));

  return {
    write(state) {
      for (const field of inputs) if (field.value) state.set(field.name, field.value);
      const head = boards.flatMap(({heads}) => heads).find((other) => other.hasAttribute("aria-sort"));
      if (head) state.set(prefix + head.getAttribute("aria-sort"), head.textContent);
    },
    read(state) {
      for (const field of inputs) {
        field.value = state.get(field.name) ?? "";
        if (field.selectedIndex === -1) field.value = ""; // no such choice
      }
      for (const way of ["ascending", "descending"]) {
        if (state.has(prefix + way)) sort(state.get(prefix + way), way === "descending");
      }
      if (more) more.open = innerWidth > 640 || [...lists, ...numbers].some((field) => field.value);
      filter();
    },
  };
}

const tables = [...document.forms].map(interactive);

function write() { // what is chosen goes into the address, so that it can be sent and comes back on a reload
  const state = new URLSearchParams();
  for (const table of tables) table.write(state);
  history.replaceState(null, "", `#${state}`);
}

function read() {
  if (location.hash.startsWith("#cell-")) { // a link into the provenance opens what it points at
    const target = document.getElementById(location.hash.slice(1));
    if (target instanceof HTMLDetailsElement) target.open = true;
    return;
  }
  if (document.getElementById(location.hash.slice(1))) return; // a part of the page
  const state = new URLSearchParams(location.hash.slice(1));
  for (const table of tables) table.read(state);
}

async function unpack(image) {
  const bytes = Uint8Array.from(atob(image.dataset.packed), (letter) => letter.charCodeAt(0));
  const text = await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  image.src = URL.createObjectURL(new Blob([text], {type: "image/svg+xml"}));
  await image.decode();
}

for (const table of tables) table.read(new URLSearchParams());
addEventListener("hashchange", read);
read();
const pictures = Promise.all([...document.querySelectorAll("img[data-packed]")].map(unpack));
