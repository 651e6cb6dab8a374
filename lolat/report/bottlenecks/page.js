"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  const data = JSON.parse(byId("data").textContent);
  const { batches, sides, words, families } = data;
  const two = sides.length > 1;
  const familyOf = new Map(families.flatMap(([key, , terms]) => terms.map((term) => [term, key])));
  const table = byId("blocks");
  const body = table.tBodies[0];
  const state = { batch: data.start, fold: -1, sort: "order", down: false, filter: "" };

  // ---- elements and numbers; a name only ever becomes the text of an element ----

  function make(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name === "class") element.className = value;
      else if (name === "on") for (const [event, act] of Object.entries(value)) element.addEventListener(event, act);
      else element.setAttribute(name, value);
    }
    element.append(...children);
    return element;
  }

  function digits(value) {
    const size = Math.abs(value);
    if (size >= 99.95) return value.toFixed(0);
    if (size >= 9.995) return value.toFixed(1);
    if (size >= 0.9995) return value.toFixed(2);
    return size >= 0.01 || size === 0 ? value.toFixed(3) : String(Number(value.toPrecision(2)));
  }

  const PREFIXES = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
  const prefixOf = (value) => PREFIXES.find(([factor]) => Math.abs(value) >= 0.9995 * factor) ?? [1, ""];
  function quantity(value) {
    const [factor, prefix] = prefixOf(value);
    return prefix ? `${digits(value / factor)} ${prefix}` : String(Math.round(value));
  }
  const percent = (share) => `${(100 * share).toFixed(1)} %`;
  const plural = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;

  // ---- the prediction: what Formula.shares does, for every block at a batch size ----

  const countAt = (column, block, at) =>
    column.at ? column.at[at][block] : column.fixed[block] + batches[at] * column.scaled[block];

  function solve(side, at) {
    const kept = (side.solved ??= new Map());
    if (kept.has(at)) return kept.get(at);
    const { features, coefficients, constant, bend } = side.formula;
    const columns = features.map((name) => side.counts[name]);
    let linear = 0;
    const terms = side.labels.map((_, block) => columns.map((column, i) => {
      const ms = coefficients[i] * countAt(column, block, at);
      linear += ms;
      return ms;
    }));
    linear += constant;
    const bent = bend && linear < bend[0] ? bend[0] - bend[1] * (bend[0] - linear) : linear;
    const ratio = linear > 0 ? bent / linear : 1;
    const call = linear > 0 ? constant * ratio : bent;
    let total = call;
    for (const row of terms) for (let i = 0; i < row.length; i++) total += row[i] *= ratio;
    const found = { terms, call, total, ratio };
    kept.set(at, found);
    return found;
  }

  /** What a row costs on a side: ms, terms, MACs; null where the side has none of its blocks. */
  function cost(row, s) {
    const side = sides[s];
    const solved = solve(side, state.batch);
    const whole = solved.total || 1;
    if (row.call) return { ms: solved.call, share: solved.call / whole, terms: null, macs: 0 };
    const members = row.members[s];
    if (!members.length) return null;
    const terms = side.formula.features.map(() => 0);
    let macs = 0;
    for (const block of members) {
      solved.terms[block].forEach((ms, i) => { terms[i] += ms; });
      macs += countAt(side.counts.flops, block, state.batch);
    }
    const ms = terms.reduce((a, b) => a + b, 0);
    return { ms, share: ms / whole, terms, macs };
  }

  function mostOf(terms, features) {
    if (!terms) return data.call;
    const grouped = new Map();
    features.forEach((name, i) => {
      const group = data.groups[name];
      grouped.set(group, (grouped.get(group) ?? 0) + terms[i]);
    });
    const [most, ms] = [...grouped].reduce((a, b) => (b[1] > a[1] ? b : a));
    return ms > 0 ? most : "nothing";
  }

  // ---- rows: blocks, or the modules that they are folded into ----

  const foldings = new Map();
  function rowsAt(depth) {
    if (!foldings.has(depth)) foldings.set(depth, makeRows(depth));
    return foldings.get(depth);
  }

  function makeRows(depth) {
    const groups = new Map();
    data.pairs.forEach((pair, number) => {
      const s = pair[0] >= 0 ? 0 : 1;
      const path = sides[s].paths[pair[s]];
      const key = depth >= 0 && path.length >= depth ? `m${depth ? path[depth - 1] : ""}` : number;
      if (!groups.has(key)) groups.set(key, { members: sides.map(() => []), pairs: 0, key });
      const group = groups.get(key);
      group.pairs += 1;
      pair.forEach((block, i) => { if (block >= 0) group.members[i].push(block); });
    });
    const rows = [...groups.values()].map((group) => {
      const s = group.members[0].length ? 0 : 1;
      const block = group.members[s][0];
      const one = group.pairs === 1;
      const label = one ? sides[s].labels[block] : String(group.key).slice(1) || sides[0].network;
      const summary = one ? sides[s].summaries[block] : plural(group.pairs, "block");
      return { ...group, one, label, summary };
    });
    rows.push({ members: sides.map(() => []), call: true, one: true, label: data.call,
      summary: "fixed cost, once a pass" });
    rows.forEach((row, order) => {
      row.order = order;
      const inside = row.members.flatMap((blocks, s) =>
        blocks.map((block) => `${sides[s].labels[block]} ${sides[s].summaries[block]}`));
      row.search = [row.label, row.summary, ...inside].join(" ").toLowerCase();
      addElements(row);
    });
    return rows;
  }

  const COLUMNS = [
    { key: "order", class: "number", head: "#", name: "network order", width: "2.8rem" },
    { key: "name", class: "block left", head: "block", width: "" },
    { class: "bars left", head: "", label: "bar", width: two ? "34%" : "30%" },
    ...(two
      ? [...sides.map((side, s) => ({ key: s ? "time2" : "time", class: "time", head: `${side.name}, ms`,
        name: `time: ${side.name}`, width: "8.5rem" })),
      { key: "change", class: "share", head: "difference", name: "difference", width: "6.5rem" }]
      : [{ key: "time", class: "time", head: "ms", name: "time", width: "5rem" },
        { class: "share", head: "share", width: "5rem" },
        { key: "macs", class: "macs", head: "MACs", width: "5.4rem" },
        { class: "most left", head: "most of it is", width: "11rem" }]),
  ];

  function addElements(row) {
    const toggle = make("button", { type: "button", "aria-expanded": "false", on: { click: () => open(row) } },
      make("b", {}, row.label), " ", make("span", {}, row.summary));
    const bars = sides.map((_, s) => make("i", { class: s ? "bar second" : "bar" }));
    const numbers = sides.map(() => make("data"));
    const cells = two
      ? [...numbers.map((n) => make("td", { class: "time" }, n)), make("td", { class: "share" })]
      : [make("td", { class: "time" }, numbers[0]), make("td", { class: "share" }),
        make("td", { class: "macs" }), make("td", { class: "most left" })];
    row.tr = make("tr", { role: "row" }, make("td", { class: "number" }, String(row.order + 1)),
      make("th", { scope: "row", role: "rowheader", class: "block" }, toggle),
      make("td", { class: "bars", "aria-hidden": "true" }, ...bars), ...cells);
    for (const cell of row.tr.querySelectorAll("td")) cell.setAttribute("role", "cell");
    Object.assign(row, { toggle, bars, numbers, cells, receipt: null });
  }

  // ---- what changes with the batch size ----

  function update() {
    const rows = rowsAt(state.fold);
    for (const row of rows) row.cost = sides.map((_, s) => cost(row, s));
    const longest = Math.max(...rows.flatMap((row) => row.cost.map((c) => c?.ms ?? 0))) || 1;
    const marked = new Set(sides[0].answers[state.batch].marked);
    for (const row of rows) {
      row.cost.forEach((c, s) => {
        row.numbers[s].textContent = c ? digits(c.ms) : "–";
        row.numbers[s].value = c ? String(c.ms) : "";
        row.bars[s].style.backgroundImage = c ? colors(c, sides[s], longest) : "none";
      });
      const [a, b] = row.cost;
      if (two) {
        row.change = (b?.ms ?? 0) - (a?.ms ?? 0);
        row.cells[2].textContent = row.change > 0 ? `+${digits(row.change)}` : digits(row.change).replace("-", "−");
      } else {
        row.cells[1].textContent = percent(a.share);
        row.cells[2].textContent = a.macs ? quantity(a.macs) : "–";
        const most = mostOf(a.terms, sides[0].formula.features);
        row.cells[3].textContent = words[most] ?? most;
        row.tr.classList.toggle("marked", row.one && !row.call && marked.has(row.members[0][0]));
      }
      if (row.receipt) fill(row);
    }
    tellAnswers();
    tellDoubts();
    byId("batch-shown").textContent = batches[state.batch];
    byId("batch").setAttribute("aria-valuetext", `batch size ${batches[state.batch]}`);
    [...byId("sizes").children].forEach((bar, at) => bar.classList.toggle("now", at === state.batch));
  }

  /** A bar in one property: painted, never laid out. */
  function colors(c, side, longest) {
    const parts = new Map(families.map(([key]) => [key, 0]));
    if (c.terms) side.formula.features.forEach((name, i) => {
      const key = familyOf.get(name) ?? "starting";
      parts.set(key, parts.get(key) + c.terms[i]);
    });
    else parts.set("call", c.ms);
    const stops = [];
    let from = 0;
    for (const [key, ms] of parts) {
      const to = from + (100 * ms) / longest;
      if (to > from) stops.push(`var(--${key}) ${from.toFixed(3)}% ${to.toFixed(3)}%`);
      from = to;
    }
    return `linear-gradient(90deg, ${[...stops, `transparent ${from.toFixed(3)}%`].join(", ")})`;
  }

  function tellAnswers() {
    const size = batches[state.batch];
    const totals = sides.map((side) => solve(side, state.batch).total);
    byId("answers").replaceChildren(...sides.map((side, s) => {
      const answer = side.answers[state.batch];
      const total = totals[s];
      const rate = (1e3 * size) / total;
      const per = size > 1 ? `${digits(total / size)} ms a sample, ` : "";
      const [parameters, macs, activations] = side.figures.map(quantity);
      const [low, high] = (answer.interval ?? []).map(digits);
      const number = make("div", {},
        ...(two ? [make("h2", {}, side.name)] : []),
        make("p", { class: "ms" }, make("data", { value: total }, digits(total)), " ", make("small", {}, "ms")),
        ...(low ? [make("p", {}, `${+(100 * answer.coverage).toFixed(4)} % sure of ${low} to ${high} ms`)] : []));
      const told = make("div", { class: "words" },
        make("p", {}, answer.sentence),
        ...(s ? [make("p", {}, `It takes ${digits(total / totals[0])} times as long as ${sides[0].name}.`)] : []),
        make("p", { class: "dim" }, `Batch size ${size}: ${per}${rate < 1000 ? digits(rate) : quantity(rate)} samples a second`),
        make("p", { class: "dim" }, `${parameters} parameters, ${macs} MACs, ${activations} activations a sample`),
        insideOf(answer));
      return make("div", { class: s ? "answer second" : two ? "answer" : "answer only" }, number, told);
    }));
  }

  function insideOf(answer) {
    const words = answer.domain[0].toUpperCase() + answer.domain.slice(1);
    return answer.inside !== false
      ? make("p", { class: "dim" }, words)
      : make("p", { class: "outside" }, `${words}: `, make("a", { href: "#sure" }, "see how sure this is"));
  }

  function tellDoubts() {
    byId("doubts").replaceChildren(...sides.flatMap((side) => {
      const answer = side.answers[state.batch];
      const told = answer.remarks.map((i) => make("li", {}, side.remarks[i]));
      if (!told.length) told.push(make("li", {}, answer.inside
        ? "Every block is like what was measured on the device; there is nothing to remark."
        : "There is nothing to remark."));
      return [...(two ? [make("h3", {}, side.name)] : []), make("ul", {}, ...told)];
    }));
  }

  // ---- receipts ----

  function open(row) {
    const wanted = row.toggle.getAttribute("aria-expanded") !== "true";
    row.toggle.setAttribute("aria-expanded", String(wanted));
    if (!row.receipt) {
      row.receipt = make("tr", { class: "receipt", role: "row" },
        make("td", { role: "cell", colspan: COLUMNS.length }));
      fill(row);
    }
    row.receipt.hidden = !wanted;
    if (wanted) row.tr.after(row.receipt);
  }

  function fill(row) {
    const parts = sides.map((side, s) => receipt(row, side, s)).filter(Boolean);
    if (!row.one) parts.push(make("div", {}, make("h3", {}, `Blocks of ${row.label}`), make("ol", {}, ...row.members.flatMap((blocks, s) => blocks.map((block) => make("li", {}, `${sides[s].labels[block]} `
        + `${digits(solve(sides[s], state.batch).terms[block].reduce((a, b) => a + b, 0))} ms`))))));
    row.receipt.cells[0].replaceChildren(make("div", { class: "sides" }, ...parts));
  }

  function receipt(row, side, s) {
    const c = row.cost[s];
    if (!c) return null;
    const { features, coefficients } = side.formula;
    const { ratio } = solve(side, state.batch);
    const lines = features.map((name, i) => {
      const units = c.terms ? row.members[s].reduce((sum, block) => sum + countAt(side.counts[name], block, state.batch), 0) : 0;
      return { name, units, ms: c.terms?.[i] ?? 0, each: coefficients[i] * ratio };
    }).filter((line) => line.ms > 0).sort((a, b) => b.ms - a.ms);
    if (row.call) lines.push({ name: data.call, units: 1, ms: c.ms, each: c.ms });
    const head = ["term", "count", "each", "ms", "share"];
    return make("table", {},
      make("caption", {}, `What ${row.label} costs${two ? `: ${side.name}` : ""}`),
      make("thead", {}, make("tr", {}, ...head.map((text, i) => make("th", { scope: "col", class: i ? "" : "left" }, text)))),
      make("tbody", {}, ...lines.map((line) => {
        const [factor, prefix] = prefixOf(line.units);
        return make("tr", {}, make("th", { scope: "row" }, words[line.name] ?? line.name),
          make("td", {}, quantity(line.units)),
          make("td", {}, `${digits(line.each * factor)} ms${prefix ? ` / ${prefix}` : ""}`),
          make("td", {}, digits(line.ms)), make("td", {}, percent(line.ms / (c.ms || 1))));
      })),
      make("tfoot", {}, make("tr", {}, make("th", { scope: "row", colspan: 3 }, "together"),
        make("td", {}, digits(c.ms)), make("td", {}, "100 %"))));
  }

  // ---- order and filter ----

  const longestOf = (row) => Math.max(...row.cost.map((c) => c?.ms ?? 0));
  const ORDERS = {
    order: [(a, b) => a.order - b.order, false],
    name: [(a, b) => Boolean(a.call) - Boolean(b.call) || a.label.localeCompare(b.label, "en", { numeric: true }), false],
    time: [(a, b) => (two ? (a.cost[0]?.ms ?? -1) - (b.cost[0]?.ms ?? -1) : longestOf(a) - longestOf(b)), true],
    time2: [(a, b) => (a.cost[1]?.ms ?? -1) - (b.cost[1]?.ms ?? -1), true],
    macs: [(a, b) => sum(a, "macs") - sum(b, "macs"), true],
    change: [(a, b) => Math.abs(a.change) - Math.abs(b.change), true],
  };
  const sum = (row, what) => row.cost.reduce((found, c) => Math.max(found, c?.[what] ?? 0), 0);

  function arrange() {
    const [compare] = ORDERS[state.sort];
    const sign = state.down ? -1 : 1;
    const rows = [...rowsAt(state.fold)].sort((a, b) => sign * compare(a, b) || a.order - b.order);
    const all = document.createDocumentFragment();
    for (const row of rows) {
      all.append(row.tr);
      if (row.receipt && !row.receipt.hidden) all.append(row.receipt);
    }
    body.replaceChildren(all);
    for (const column of COLUMNS) {
      if (state.sort === column.key) column.th.setAttribute("aria-sort", state.down ? "descending" : "ascending");
      else column.th.removeAttribute("aria-sort");
    }
    byId("sort").value = state.sort;
    sift();
  }

  function sift() {
    const rows = rowsAt(state.fold);
    const wanted = state.filter.trim().toLowerCase();
    let shown = 0;
    const ms = sides.map(() => 0);
    for (const row of rows) {
      const fits = row.search.includes(wanted);
      row.tr.hidden = !fits;
      if (row.receipt) row.receipt.hidden = !fits || row.toggle.getAttribute("aria-expanded") !== "true";
      if (!fits) continue;
      shown += 1;
      row.cost.forEach((c, s) => { ms[s] += c?.ms ?? 0; });
    }
    const told = sides.map((side, s) => {
      const { total } = solve(side, state.batch);
      const part = shown < rows.length ? `, ${percent(ms[s] / (total || 1))} of the time` : "";
      return `${digits(ms[s])} ms${two ? ` ${side.name}` : ""}${part}`;
    });
    const count = shown < rows.length ? `${shown} of ${plural(rows.length, "row")}` : plural(rows.length, "row");
    byId("status").textContent = `Batch size ${batches[state.batch]}: ${count}, ${told.join("; ")}.`;
  }

  // ---- controls; however many events come, the page changes once a frame ----

  let due = null;
  function soon(...work) {
    if (due) { work.forEach((one) => due.add(one)); return; }
    due = new Set(work);
    requestAnimationFrame(() => {
      const todo = due;
      due = null;
      if (todo.has(update)) update();
      if (todo.has(arrange)) arrange();
      else if (todo.has(sift)) sift();
    });
  }

  function sortBy(key) {
    state.down = state.sort === key ? !state.down : ORDERS[key][1];
    state.sort = key;
    soon(arrange);
  }

  function setUp() {
    table.classList.toggle("two", two);
    table.querySelector("colgroup").append(...COLUMNS.map((column) => {
      const col = make("col", { class: column.class });
      col.style.width = column.width;
      return col;
    }));
    table.tHead.rows[0].append(...COLUMNS.map((column) => {
      column.th = make("th", { scope: "col", role: "columnheader", class: column.class });
      if (column.key) column.th.append(make("button", { type: "button", on: { click: () => sortBy(column.key) },
        ...(column.name === "network order" && { "aria-label": "network order" }) }, column.head));
      else column.th.append(column.label ? make("span", { class: "unseen" }, column.label) : column.head);
      return column.th;
    }));
    byId("sort").append(...COLUMNS.filter((column) => column.key).map((column) =>
      make("option", { value: column.key }, column.name ?? column.head)));
    byId("sort").addEventListener("change", (event) => {
      state.sort = event.target.value;
      state.down = ORDERS[state.sort][1];
      soon(arrange);
    });
    const deepest = Math.max(0, ...sides.flatMap((side) => side.paths.map((path) => path.length)));
    byId("fold").append(make("option", { value: -1 }, "not: every block"),
      ...Array.from({ length: Math.max(0, deepest - 1) }, (_, i) => make("option", { value: i + 1 },
        `${plural(i + 1, "name")} deep`)),
      make("option", { value: 0 }, "all into one"));
    byId("fold").addEventListener("change", (event) => {
      state.fold = Number(event.target.value);
      soon(update, arrange);
    });
    byId("filter").addEventListener("input", (event) => {
      state.filter = event.target.value;
      soon(sift);
    });
    const slider = byId("batch");
    byId("least").textContent = batches[0];
    byId("most").textContent = batches.at(-1);
    slider.max = batches.length - 1;
    slider.value = state.batch;
    slider.disabled = batches.length < 2;
    slider.addEventListener("input", () => {
      state.batch = Number(slider.value);
      soon(update, arrange);
    });
    const per = batches.map((size, at) => solve(sides[0], at).total / size);
    byId("sizes").append(...per.map((ms, at) => {
      const bar = make("i", { title: `batch size ${batches[at]}: ${digits(ms)} ms a sample` });
      bar.style.height = `${Math.max(6, (100 * ms) / Math.max(...per))}%`;
      return bar;
    }));
    byId("legend").append(...families.map(([key, name]) => {
      const color = make("i", { "aria-hidden": "true" });
      color.style.background = `var(--${key})`;
      return make("li", {}, color, name);
    }));
    update();
    arrange();
  }

  setUp();
})();
