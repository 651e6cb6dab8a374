"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  const data = JSON.parse(byId("data").textContent);
  const { sizes, steps, sides, words, families, units, groups, glossary, stages } = data;
  const two = sides.length > 1;
  const timed = data.largest === null; // times are here for each of `sizes`, and for no other
  const familyOf = new Map(families.flatMap(([key, , terms]) => terms.map((term) => [term, key])));
  const table = byId("blocks");
  const body = table.tBodies[0];
  const BY_STAGE = -2;
  const usual = stages ? BY_STAGE : -1;
  const state = { size: data.start, fold: usual, sort: "order", down: false, filter: "" };

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

  /** A time as people say it, and its unit: beyond ten seconds nobody counts in ms. */
  const LONGEST_MS = 9999.5;
  function timeOf(ms) {
    if (ms < LONGEST_MS) return [digits(ms), "ms"];
    if (ms < 99950) return [(ms / 1e3).toFixed(1), "s"];
    const two = (value) => String(value).padStart(2, "0");
    const seconds = Math.round(ms / 1e3);
    if (seconds < 3600) return [`${Math.floor(seconds / 60)} min ${two(seconds % 60)} s`, ""];
    const minutes = Math.round(ms / 6e4);
    if (minutes < 72 * 60) return [`${Math.floor(minutes / 60)} h ${two(minutes % 60)} min`, ""];
    const hours = Math.round(ms / 36e5);
    return [`${Math.floor(hours / 24).toLocaleString("en")} days ${hours % 24} h`, ""];
  }

  const PREFIXES = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
  const prefixOf = (value) => PREFIXES.find(([factor]) => Math.abs(value) >= 0.9995 * factor) ?? [1, ""];
  function quantity(value, unit = "") {
    const [factor, prefix] = prefixOf(value);
    return prefix ? `${digits(value / factor)} ${prefix}${unit}` : `${Math.round(value)} ${unit}`.trimEnd();
  }
  const percent = (share) => `${(100 * share).toFixed(1)} %`;
  const signed = (ms) => (ms > 0 ? `+${digits(ms)}` : digits(ms).replace("-", "−"));
  const sumOf = (values) => values.reduce((a, b) => a + b, 0);
  const plural = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;

  // ---- the prediction: what Formula.shares does, for every operation at a batch size ----

  function countAt(side, name, operation, size) {
    const column = side.counts[name];
    return (column?.fixed?.[operation] ?? 0) + size * (column?.scaled?.[operation] ?? 0);
  }

  const KEPT = 32;
  function solve(side, size) {
    const kept = (side.solved ??= new Map());
    if (kept.has(size)) return kept.get(size);
    const { features, coefficients, constant, bend } = side.formula;
    const owners = side.operations.blocks;
    const table = side.times?.[size];
    let linear = 0;
    const operations = owners.map((_, at) => features.map((name, i) => {
      const ms = table ? table[i][at] : coefficients[i] * countAt(side, name, at, size);
      linear += ms;
      return ms;
    }));
    linear += constant;
    const bent = bend && linear < bend[0] ? bend[0] - bend[1] * (bend[0] - linear) : linear;
    const ratio = linear > 0 ? bent / linear : 1;
    const call = linear > 0 ? constant * ratio : bent;
    const terms = side.labels.map(() => features.map(() => 0));
    let total = call;
    operations.forEach((row, at) => row.forEach((_, i) => {
      row[i] *= ratio;
      terms[owners[at]][i] += row[i];
      total += row[i];
    }));
    const found = { operations, terms, call, total };
    if (kept.size >= KEPT) kept.delete(kept.keys().next().value);
    kept.set(size, found);
    return found;
  }

  const membersOf = new Map(sides.map((side) => {
    const found = side.labels.map(() => []);
    side.operations.blocks.forEach((block, at) => found[block].push(at));
    return [side, found];
  }));
  const countOf = (side, name, blocks) => sumOf(blocks.flatMap((block) => membersOf.get(side)[block])
    .map((at) => countAt(side, name, at, state.size)));
  const answerOf = (side) => side.answers[sizes.indexOf(state.size)];

  /** What a row costs on a side: ms, terms, MACs; null where the side has none of its blocks. */
  function cost(row, s) {
    const side = sides[s];
    const solved = solve(side, state.size);
    const whole = solved.total || 1;
    if (row.call) return { ms: solved.call, share: solved.call / whole, terms: null, macs: 0 };
    const members = row.members[s];
    if (!members.length) return null;
    const terms = side.formula.features.map((_, i) => sumOf(members.map((block) => solved.terms[block][i])));
    const ms = sumOf(terms);
    return { ms, share: ms / whole, terms, macs: countOf(side, "flops", members) };
  }

  /** Milliseconds by color; `terms`: null of the call alone. */
  function byFamily(side, terms, call) {
    const parts = new Map(families.map(([key]) => [key, 0]));
    (terms ?? []).forEach((ms, i) => {
      const key = familyOf.get(side.formula.features[i]) ?? "starting";
      parts.set(key, parts.get(key) + ms);
    });
    parts.set("call", call);
    return parts;
  }

  function mostOf(terms, features) {
    if (!terms) return data.call;
    if (!terms.length) return "nothing";
    const grouped = new Map();
    features.forEach((name, i) => {
      const group = groups[name];
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

  function grouped(depth) {
    const groups = new Map();
    const into = (key, add) => {
      if (!groups.has(key)) groups.set(key, { members: sides.map(() => []), pairs: 0, key });
      const group = groups.get(key);
      group.pairs += 1;
      add(group.members);
    };
    if (depth === BY_STAGE) {
      stages.forEach((name, number) => into(`m${name}`, (members) => sides.forEach((side, s) =>
        side.stages.forEach((own, block) => { if (own === number) members[s].push(block); }))));
      return [...groups.values()];
    }
    data.pairs.forEach((pair, number) => {
      const s = pair[0] >= 0 ? 0 : 1;
      const path = sides[s].paths[pair[s]];
      const key = depth >= 0 && path.length >= depth ? `m${depth ? path[depth - 1] : ""}` : number;
      into(key, (members) => pair.forEach((block, i) => { if (block >= 0) members[i].push(block); }));
    });
    return [...groups.values()];
  }

  function makeRows(depth) {
    const rows = grouped(depth).map((group) => {
      const s = group.members[0].length ? 0 : 1;
      const block = group.members[s][0];
      const one = group.pairs === 1 && depth !== BY_STAGE;
      const label = one ? sides[s].labels[block] : String(group.key).slice(1) || sides.map((side) => side.network).join(" and ");
      const numbers = [...new Set(group.members.map((blocks) => blocks.length))];
      const summary = one ? sides[s].summaries[block]
        : stages ? `${numbers.join(" and ")} ${numbers.length === 1 && numbers[0] === 1 ? "block" : "blocks"}` : plural(group.pairs, "block");
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

  const timeColumn = (side, s) => ({ key: s ? "time2" : "time", class: "time", head: `${side.name}, ms`,
    name: `time: ${side.name}`, width: stages ? "7.5rem" : "8.5rem" });
  const COLUMNS = [
    { key: "order", class: "number", head: "#", name: "network order", width: "2.8rem" },
    { key: "name", class: "block left", head: stages ? "images of" : "block", name: "name", width: "" },
    { class: "bars left", head: "", label: "bar", width: stages ? "24%" : two ? "34%" : "30%" },
    ...(two
      ? [...sides.flatMap((side, s) => [timeColumn(side, s),
        ...(stages ? [{ class: "sum", head: "so far", width: "5rem" }] : [])]),
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
    const sums = sides.map(() => make("td", { class: "sum" }));
    const cells = two
      ? [...numbers.flatMap((n, s) => [make("td", { class: "time" }, n), ...(stages ? [sums[s]] : [])]),
        make("td", { class: "share" })]
      : [make("td", { class: "time" }, numbers[0]), make("td", { class: "share" }),
        make("td", { class: "macs" }), make("td", { class: "most left" })];
    row.tr = make("tr", { role: "row" }, make("td", { class: "number" }, String(row.order + 1)),
      make("th", { scope: "row", role: "rowheader", class: "block" }, toggle),
      make("td", { class: "bars", "aria-hidden": "true" }, ...bars), ...cells);
    for (const cell of row.tr.querySelectorAll("td")) cell.setAttribute("role", "cell");
    Object.assign(row, { toggle, bars, numbers, sums, cells, detail: null });
  }

  // ---- what changes with the batch size ----

  function update() {
    const rows = rowsAt(state.fold);
    for (const row of rows) row.cost = sides.map((_, s) => cost(row, s));
    const longest = Math.max(...rows.flatMap((row) => row.cost.map((c) => c?.ms ?? 0))) || 1;
    const marked = new Set(answerOf(sides[0])?.marked);
    const soFar = sides.map(() => 0);
    for (const row of rows) {
      row.cost.forEach((c, s) => {
        row.numbers[s].textContent = c ? digits(c.ms) : "–";
        row.numbers[s].value = c ? String(c.ms) : "";
        row.bars[s].style.backgroundImage = c ? colors(c, sides[s], longest) : "none";
        soFar[s] += c?.ms ?? 0;
        row.sums[s].textContent = digits(soFar[s]);
      });
      const [a, b] = row.cost;
      if (two) {
        row.change = (b?.ms ?? 0) - (a?.ms ?? 0);
        row.cells.at(-1).textContent = signed(row.change);
      } else {
        row.cells[1].textContent = percent(a.share);
        row.cells[2].textContent = a.macs ? quantity(a.macs) : "–";
        const most = mostOf(a.terms, sides[0].formula.features);
        row.cells[3].textContent = words[most] ?? most;
        row.tr.classList.toggle("marked", row.one && !row.call && marked.has(row.members[0][0]));
      }
      if (row.detail) fill(row);
    }
    tellAnswers();
    tellDoubts();
    if (two) tellDifference(rows);
    const step = steps.findLastIndex((size) => size <= state.size);
    byId("batch").value = Math.max(step, 0);
    byId("batch").setAttribute("aria-valuetext", `batch size ${state.size}`);
    [...byId("bars-of-sizes").children].forEach((bar, at) => bar.classList.toggle("now", steps[at] === state.size));
  }

  /** A bar in one property: painted, never laid out. */
  function colors(c, side, longest) {
    const stops = [];
    let from = 0;
    for (const [key, ms] of byFamily(side, c.terms, c.terms ? 0 : c.ms)) {
      const to = from + (100 * ms) / longest;
      if (to > from) stops.push(`var(--${key}) ${from.toFixed(3)}% ${to.toFixed(3)}%`);
      from = to;
    }
    return `linear-gradient(90deg, ${[...stops, `transparent ${from.toFixed(3)}%`].join(", ")})`;
  }

  const totals = () => sides.map((side) => solve(side, state.size).total);
  const times = (ratio) => (ratio < 1.005 ? "as fast" : `${digits(ratio)} times as fast`);
  const command = (side, verb, more) => make("code", {}, `lolat ${verb} ${side.asked} ${more}`);

  function tellAnswers() {
    const found = totals();
    const most = Math.max(...sides.map((side, s) => answerOf(side)?.interval?.[1] ?? found[s])) * 1.04;
    byId("answers").replaceChildren(...sides.map((side, s) => {
      const answer = answerOf(side);
      const total = found[s];
      const rate = (1e3 * state.size) / total;
      const [amount, unit] = timeOf(total);
      const per = state.size > 1 ? `${digits(total / state.size)} ms a sample, ` : "";
      const all = side.labels.map((_, block) => block);
      const [macs, weights, acts] = ["flops", "weights", "acts"].map((name) => countOf(side, name, all));
      const number = make("div", {},
        ...(two ? [make("h2", {}, side.name)] : []),
        make("p", { class: "ms" }, make("data", { value: total }, amount), ...(unit ? [" ", make("small", {}, unit)] : [])),
        ...(answer?.interval ? drawn(answer, total, most) : []));
      const ratio = found[0] / total;
      const told = make("div", { class: "words" },
        ...(answer ? [make("p", {}, side.sentences[answer.sentence])] : []),
        ...(s ? [make("p", {}, ratio >= 1 ? `It is ${times(ratio)} as ${sides[0].name}.`
          : `${sides[0].name} is ${times(1 / ratio)}.`)] : []),
        make("p", { class: "dim" }, `Batch size ${state.size}: ${per}${rate < 1000 ? digits(rate) : quantity(rate)} samples a second`),
        make("p", { class: "dim" }, `${quantity(macs, "MACs")} · ${quantity(weights)} weights · ${quantity(acts)} convolution activations`),
        make("p", { class: "dim" }, side.figures),
        ...(answer?.memory ? [make("p", { class: "dim" }, answer.memory)] : []),
        insideOf(side, answer));
      return make("div", { class: s ? "answer second" : two ? "answer" : "answer only" }, number, told);
    }));
  }

  /** The interval in words, and as a band on a line from 0 that all sides share. */
  function drawn(answer, total, most) {
    const [low, high] = answer.interval;
    const ends = high < LONGEST_MS ? `${digits(low)} to ${digits(high)} ms`
      : [low, high].map((ms) => timeOf(ms).join(" ").trim()).join(" to ");
    const told = `${+(100 * answer.coverage).toFixed(4)} % sure of ${ends}`;
    const band = make("i", { class: "band" });
    const point = make("i", { class: "point" });
    band.style.left = `${(100 * low) / most}%`;
    band.style.width = `${(100 * (high - low)) / most}%`;
    point.style.left = `${(100 * total) / most}%`;
    return [make("p", {}, told), make("div", { class: "range", "aria-hidden": "true" }, band, point)];
  }

  function insideOf(side, answer) {
    if (!answer) return make("p", { class: "dim" }, "How sure this is, is not in this page for this batch size: ",
      command(side, "predict", `--batch-size ${state.size}`));
    const words = answer.domain[0].toUpperCase() + answer.domain.slice(1);
    return answer.inside !== false
      ? make("p", { class: "dim" }, words)
      : make("p", { class: "outside" }, `${words}: `, make("a", { href: "#sure" }, "see how sure this is"));
  }

  function tellDoubts() {
    byId("doubts").replaceChildren(...sides.flatMap((side) => {
      const answer = answerOf(side);
      const told = (answer?.remarks ?? []).map((i) => make("li", {}, side.remarks[i]));
      if (!told.length) told.push(make("li", {}, answer?.inside
        ? "Every block is like what was measured on the device; there is nothing to remark."
        : answer ? "There is nothing to remark." : "Not known for this batch size."));
      return [...(two ? [make("h3", {}, side.name)] : []), make("ul", {}, ...told)];
    }));
  }

  // ---- what makes the difference between two sides ----

  function tellDifference(rows) {
    const causes = sides.map((side) => {
      const solved = solve(side, state.size);
      const whole = side.formula.features.map((_, i) => sumOf(solved.terms.map((row) => row[i])));
      return byFamily(side, whole, solved.call);
    });
    byId("difference").textContent = sentence(totals(), causes, rows);
    const line = (name, key, ms, tag = "td") => make("tr", {}, make("th", { scope: "row" }, ...(key ? [swatch(key)] : []), name),
      ...ms.map((value) => make(tag, {}, digits(value))), make(tag, {}, signed(ms[1] - ms[0])));
    byId("causes").replaceChildren(
      make("caption", {}, "Milliseconds by cause"),
      make("thead", {}, make("tr", {}, ...["cause", ...sides.map((side) => side.name), "difference"].map((text, i) =>
        make("th", { scope: "col", class: i ? "" : "left" }, text)))),
      make("tbody", {}, ...families.filter(([key]) => causes.some((c) => c.get(key) > 0)).map(([key, name]) =>
        line(name, key, causes.map((c) => c.get(key))))),
      make("tfoot", {}, line("together", "", totals())));
  }

  function sentence([a, b], causes, rows) {
    const [slow, fast] = a >= b ? [0, 1] : [1, 0];
    const gap = Math.abs(a - b);
    if (gap < 0.005 * Math.max(a, b)) return "Both take the same time, within half a percent.";
    const less = families.map(([key, name]) => [causes[slow].get(key) - causes[fast].get(key), name]).sort((x, y) => y[0] - x[0]);
    const told = ([ms, name], more) => `${digits(Math.abs(ms))} ms ${more} for ${name}`;
    const saved = less.filter(([ms], i) => i === 0 || ms >= 0.2 * gap).map((one) => told(one, "less"));
    const lost = less.filter(([ms]) => ms <= -0.05 * gap).map((one) => told(one, "more"));
    const at = rows.reduce((x, y) => (Math.abs(y.change) > Math.abs(x.change) ? y : x));
    const most = rows.length > 2 ? `. The largest difference is at ${at.label}, ${digits(Math.abs(at.change))} ms` : "";
    return `${sides[fast].name} takes ${digits(gap)} ms less, ${times(Math.max(a, b) / (Math.min(a, b) || 1))}: `
      + `${saved.join(" and ")}${lost.length ? `, but ${lost.join(" and ")}` : ""}${most}.`;
  }

  const swatch = (key) => {
    const color = make("i", { class: "swatch", "aria-hidden": "true" });
    color.style.background = `var(--${key})`;
    return color;
  };

  // ---- a row that is open: where its time goes ----

  function open(row) {
    const wanted = row.toggle.getAttribute("aria-expanded") !== "true";
    row.toggle.setAttribute("aria-expanded", String(wanted));
    if (!row.detail) {
      row.detail = make("tr", { class: "detail", role: "row" },
        make("td", { role: "cell", colspan: COLUMNS.length }));
      fill(row);
    }
    row.detail.hidden = !wanted;
    if (wanted) row.tr.after(row.detail);
  }

  function fill(row) {
    const parts = sides.flatMap((side, s) => (row.cost[s] ? [make("div", {}, terms(row, side, s), ...inside(row, side, s))] : []));
    row.detail.cells[0].replaceChildren(make("div", { class: "sides" }, ...parts));
  }

  const ofSide = (side) => (two ? `: ${side.name}` : "");

  function tableOf(caption, heads, lines, foot) {
    const row = (cells) => make("tr", {}, make("th", { scope: "row" }, ...[cells[0]].flat()), ...cells.slice(1).map((cell) => make("td", {}, cell)));
    return make("div", { class: "wide", tabindex: "0", role: "region", "aria-label": caption }, make("table", {}, make("caption", {}, caption),
      make("thead", {}, make("tr", {}, ...heads.map((text, i) => make("th", { scope: "col", class: i ? "" : "left" }, text)))),
      make("tbody", {}, ...lines.map(row)), ...(foot ? [make("tfoot", {}, row(foot))] : [])));
  }

  /** A count and what a unit of it costs, in the units of the terminal. */
  function rate(name, count, ms) {
    const unit = units[name] ?? "";
    const each = count ? ms / count : 0;
    if (groups[name] === "ops") return [`${quantity(count)} ${unit}`, `${digits(each)} ms`];
    const [scale, prefix] = unit === "MACs" ? [1e9, "G"] : [1e6, "M"];
    return [unit === "MACs" ? quantity(count, unit) : `${quantity(count)} ${unit}`, `${digits(each * scale)} ms/${prefix}`];
  }

  function terms(row, side, s) {
    const c = row.cost[s];
    const lines = side.formula.features.map((name, i) => [name, c.terms?.[i] ?? 0])
      .filter(([, ms]) => ms > 0).sort((x, y) => y[1] - x[1])
      .map(([name, ms]) => [[swatch(familyOf.get(name) ?? "starting"), words[name] ?? name],
        ...rate(name, countOf(side, name, row.members[s]), ms), digits(ms), percent(ms / (c.ms || 1))]);
    if (row.call) lines.push([[swatch("call"), words[data.call]], "1", `${digits(c.ms)} ms`, digits(c.ms), "100.0 %"]);
    return tableOf(`Where the time of ${row.label} goes${ofSide(side)}`, ["cause", "count", "each", "ms", "share"], lines,
      ["together", "", "", digits(c.ms), "100 %"]);
  }

  /** The operations of a block and what a change of it would save; the blocks of a module. */
  function inside(row, side, s) {
    const blocks = row.members[s];
    if (row.call) return [];
    const solved = solve(side, state.size);
    if (!row.one) return [make("h3", {}, `Blocks of ${row.label}${ofSide(side)}`), make("ol", {}, ...blocks.map((block) =>
      make("li", {}, `${side.labels[block]} ${digits(sumOf(solved.terms[block]))} ms`)))];
    const [block] = blocks;
    const ms = row.cost[s].ms || 1;
    const lines = membersOf.get(side)[block].flatMap((at) => {
      const own = sumOf(solved.operations[at]);
      const [macs, elements, weights] = ["flops", "elements", "weights"].map((name) => countAt(side, name, at, state.size));
      if (!(own || macs || elements || weights)) return []; // what is free
      const { names, kinds } = side.operations;
      return [[[make("b", {}, names[at]), ` ${kinds[at]}`], ...[macs, elements, weights].map((n) => (n ? quantity(n) : "")),
        digits(own), percent(own / ms)]];
    });
    const found = [tableOf(`${row.label}, operation by operation${ofSide(side)}`, ["operation", "MACs", "elements", "weights", "ms", "of block"], lines)];
    const changes = side.changes.blocks[block];
    if (!changes) found.push(make("p", { class: "dim" }, "What a change of it would save: ", command(side, "explain", `--block '${row.label}'`)));
    else found.push(changesOf(`What a change of ${row.label} would save, at batch size ${data.start}${ofSide(side)}`, changes, true));
    return found;
  }

  function changesOf(caption, changes, ofBlock) {
    if (!changes.length) return make("p", { class: "dim" }, `${caption}: nothing that LoLat knows to try`);
    return tableOf(caption, ["change", "saves, ms", ...(ofBlock ? ["of block"] : []), "of network"], changes.map((c) => [
      c.by + (c.outside ? " *" : ""), digits(c.saves), ...(ofBlock ? [percent(c.ofBlock)] : []), percent(c.ofNetwork)]));
  }

  function tellChanges() {
    const starred = sides.some((side) => [side.changes.network, ...Object.values(side.changes.blocks)].flat().some((c) => c.outside));
    byId("changes").append(make("div", { class: "sides" }, ...sides.map((side) => make("div", {},
      changesOf(`Each change counted anew and predicted, at batch size ${data.start}${ofSide(side)}`, side.changes.network, false),
      ...side.changes.notes.map((note) => make("p", { class: "dim" }, note))))),
    ...(starred ? [make("p", { class: "dim" }, "* the changed network is outside the measured domain")] : []));
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
      if (row.detail && !row.detail.hidden) all.append(row.detail);
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
      if (row.detail) row.detail.hidden = !fits || row.toggle.getAttribute("aria-expanded") !== "true";
      if (!fits) continue;
      shown += 1;
      row.cost.forEach((c, s) => { ms[s] += c?.ms ?? 0; });
    }
    const told = sides.map((side, s) => {
      const { total } = solve(side, state.size);
      const part = shown < rows.length ? `, ${percent(ms[s] / (total || 1))} of the time` : "";
      return `${timeOf(ms[s]).join(" ").trim()}${two ? ` ${side.name}` : ""}${part}`;
    });
    const count = shown < rows.length ? `${shown} of ${plural(rows.length, "row")}` : plural(rows.length, "row");
    byId("status").textContent = `Batch size ${state.size}: ${count}, ${told.join("; ")}.`;
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

  /** Ranges of numbers in words: 1 to 32, 40, 48. */
  function ranges(numbers) {
    const found = [];
    for (const n of numbers) {
      if (found.length && n === found.at(-1)[1] + 1) found.at(-1)[1] = n;
      else found.push([n, n]);
    }
    return found.map(([from, to]) => (to > from ? `${from} to ${to}` : String(from))).join(", ");
  }

  /** What is wrong with a batch size, "" where nothing is. */
  function refused(size) {
    if (!Number.isInteger(size) || size < 1 || (!timed && size > data.largest)) {
      return `expected a whole number from 1${timed ? "" : ` to ${data.largest}`}`;
    }
    if (!timed || sizes.includes(size)) return "";
    return `this page has ${ranges(sizes)}; for ${size}: lolat report ${sides[0].asked} --batch-size ${size} --html FILE`;
  }

  function setUpSizes() {
    const typed = byId("size");
    const slider = byId("batch");
    const take = (size) => {
      const reason = refused(size);
      byId("size-wrong").textContent = reason;
      typed.setAttribute("aria-invalid", String(Boolean(reason)));
      if (reason) return;
      state.size = size;
      soon(update, arrange);
    };
    typed.value = state.size;
    typed.addEventListener("input", () => take(typed.value.trim() ? Number(typed.value) : NaN));
    slider.max = steps.length - 1;
    slider.disabled = steps.length < 2;
    slider.addEventListener("input", () => {
      typed.value = steps[slider.value];
      take(steps[slider.value]);
    });
    byId("least").textContent = steps[0];
    byId("most").textContent = steps.at(-1);
    const per = steps.map((size) => solve(sides[0], size).total / size);
    byId("bars-of-sizes").append(...per.map((ms, at) => {
      const bar = make("i", { title: `batch size ${steps[at]}: ${digits(ms)} ms a sample` });
      bar.style.height = `${Math.max(6, (100 * ms) / Math.max(...per))}%`;
      return bar;
    }));
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
    byId("fold").append(...(stages ? [make("option", { value: BY_STAGE }, "by size of images")]
      : [make("option", { value: -1 }, "not: every block"),
        ...Array.from({ length: Math.max(0, deepest - 1) }, (_, i) => make("option", { value: i + 1 },
          `${plural(i + 1, "name")} deep`))]),
    make("option", { value: 0 }, "all into one"));
    byId("fold").addEventListener("change", (event) => {
      state.fold = Number(event.target.value);
      soon(update, arrange);
    });
    byId("filter").addEventListener("input", (event) => {
      state.filter = event.target.value;
      soon(sift);
    });
    setUpSizes();
    byId("legend").append(...families.map(([key, name]) =>
      make("li", { title: glossary[name] ?? "" }, swatch(key), name)), make("li", {}, make("a", { href: "#words" }, "what these mean")));
    byId("compare").hidden = !two;
    tellChanges();
    update();
    arrange();
  }

  setUp();
})();
