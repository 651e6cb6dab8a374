"use strict";
/* Shows the numbers of one batch size, which Python wrote, and sorts, filters and opens rows. */
(() => {
  const byId = (id) => document.getElementById(id);
  const data = JSON.parse(byId("data").textContent);
  const table = byId("blocks");
  const state = { size: data.start, sort: "order", down: false, filter: "" };

  /** The rows: their elements, their order, and the text that the filter looks in. */
  const body = table.tBodies[0];
  const rows = [];
  for (const tr of body.rows) {
    if (tr.classList.contains("detail")) { rows.at(-1).detail = tr; continue; }
    const button = tr.querySelector("button");
    const row = { tr, button, order: rows.length, label: button.querySelector("b").textContent, detail: null,
      text: button.textContent.toLowerCase(), bar: tr.querySelector(".bar"), cells: [...tr.cells].slice(3) };
    button.addEventListener("click", () => open(row));
    rows.push(row);
  }
  const isCall = (row) => row.order === rows.length - 1;

  function open(row) {
    const wanted = row.button.getAttribute("aria-expanded") !== "true";
    row.button.setAttribute("aria-expanded", String(wanted));
    row.detail.hidden = !wanted;
  }

  // ---- the numbers of a batch size ----

  function update() {
    rows.forEach((row, at) => {
      row.numbers = data.rows[state.size][at];
      row.numbers.cells.forEach((text, i) => { row.cells[i].textContent = text; });
      row.cells[0].dataset.ms = row.numbers.time;
      row.bar.style.backgroundImage = row.numbers.bar;
      row.tr.classList.toggle("marked", row.numbers.marked);
    });
    for (const part of document.querySelectorAll(".of-size")) part.hidden = Number(part.dataset.size) !== state.size;
    const elsewhere = state.size !== data.start;
    for (const part of document.querySelectorAll(".at-start")) part.hidden = elsewhere;
    for (const part of document.querySelectorAll(".at-other")) part.hidden = !elsewhere;
    byId("size").textContent = data.sizes[state.size];
    byId("batch").setAttribute("aria-valuetext", `batch size ${data.sizes[state.size]}`);
  }

  // ---- order and filter ----

  function compare() {
    if (state.sort === "order") return (a, b) => a.order - b.order;
    if (state.sort === "name") {
      return (a, b) => isCall(a) - isCall(b) || a.label.localeCompare(b.label, "en", { numeric: true });
    }
    return (a, b) => a.numbers[state.sort] - b.numbers[state.sort];
  }

  function arrange() {
    const sign = state.down ? -1 : 1;
    const before = compare();
    const all = document.createDocumentFragment();
    for (const row of [...rows].sort((a, b) => sign * before(a, b) || a.order - b.order)) {
      all.append(row.tr, ...(row.detail ? [row.detail] : []));
    }
    body.replaceChildren(all);
    for (const button of table.tHead.querySelectorAll("button")) {
      const head = button.parentElement;
      if (button.dataset.sort === state.sort) head.setAttribute("aria-sort", state.down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    }
    sift();
  }

  function sift() {
    const wanted = state.filter.trim().toLowerCase();
    let shown = 0;
    for (const row of rows) {
      const fits = row.text.includes(wanted);
      row.tr.hidden = !fits;
      if (row.detail) row.detail.hidden = !fits || row.button.getAttribute("aria-expanded") !== "true";
      shown += fits;
    }
    byId("status").textContent = wanted && !shown ? `No row has “${wanted}” in its name or its layers.` : `Batch size ${data.sizes[state.size]}: ${shown} of ${rows.length} rows.`;
  }

  // ---- controls; however many events come, the page changes once a frame ----

  const work = new Set();
  function soon(...tasks) {
    if (!work.size) {
      requestAnimationFrame(() => {
        const due = [update, arrange, sift].filter((task) => work.has(task));
        work.clear();
        for (const task of due) task();
      });
    }
    for (const task of tasks) work.add(task);
  }

  byId("batch").addEventListener("input", (event) => {
    state.size = Number(event.target.value);
    soon(update, arrange);
  });
  byId("filter").addEventListener("input", (event) => {
    state.filter = event.target.value;
    soon(sift);
  });
  for (const button of table.tHead.querySelectorAll("button")) {
    const key = button.dataset.sort;
    button.addEventListener("click", () => {
      state.down = state.sort === key ? !state.down : !["order", "name"].includes(key);
      state.sort = key;
      soon(arrange);
    });
  }
  byId("batch").disabled = data.sizes.length < 2;
  update();
  arrange();
})();
