"use strict";
/* Sorts, filters and opens the rows, which Python wrote. */
(() => {
  const byId = (id) => document.getElementById(id);
  const table = byId("blocks");
  const body = table.tBodies[0];
  const state = { sort: "order", down: false, filter: "" };

  /** The rows: their elements, what they are sorted by, and the text that the filter looks in. */
  const rows = [];
  for (const tr of body.rows) {
    if (tr.classList.contains("detail")) { rows.at(-1).detail = tr; continue; }
    const button = tr.querySelector("button");
    const row = { tr, button, order: rows.length, name: button.querySelector("b").textContent, detail: null,
      text: button.textContent.toLowerCase(), time: Number(tr.dataset.time), macs: Number(tr.dataset.macs) };
    button.addEventListener("click", () => open(row));
    rows.push(row);
  }
  const isCall = (row) => row.order === rows.length - 1;

  function open(row) {
    const wanted = row.button.getAttribute("aria-expanded") !== "true";
    row.button.setAttribute("aria-expanded", String(wanted));
    row.detail.hidden = !wanted;
  }

  // ---- order and filter ----

  function before(a, b) {
    if (state.sort === "name") return isCall(a) - isCall(b) || a.name.localeCompare(b.name, "en", { numeric: true });
    return a[state.sort] - b[state.sort];
  }

  function arrange() {
    const sign = state.down ? -1 : 1;
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
    byId("status").textContent = wanted && !shown ? `No row has “${wanted}” in its name or its layers.` : `${shown} of ${rows.length} rows.`;
  }

  byId("filter").addEventListener("input", (event) => {
    state.filter = event.target.value;
    sift();
  });
  for (const button of table.tHead.querySelectorAll("button")) {
    const key = button.dataset.sort;
    button.addEventListener("click", () => {
      state.down = state.sort === key ? !state.down : !["order", "name"].includes(key);
      state.sort = key;
      arrange();
    });
  }
  arrange();
  sift();
})();
