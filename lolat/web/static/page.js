// Asks anew whenever a field changes, and copies. Without it the form's button does the same.
"use strict";

(() => {
  const form = document.getElementById("form");
  const byId = (id) => document.getElementById(id);
  let due = 0;
  let told = `${query()}`; // the fields that the page, its tabs too, is of
  let asked = 0; // of the last question; an answer to an older one is not shown
  let reading = null; // the question whose network a process reads
  let next = null; // the newest one after it

  /** The fields as a query. */
  function query() {
    const all = new URLSearchParams();
    for (const [name, value] of new FormData(form)) {
      if (typeof value === "string") all.append(name, value);
    }
    return all;
  }

  /** Whether a process has to read the network; perhaps its name is not typed yet. */
  function isStrange(field = form.querySelector("[list]")) {
    return ![...field.list.options].some((option) => option.value === field.value);
  }

  /** One network is read at a time; of the questions that come meanwhile only the newest is asked. */
  function ask() {
    if (!isStrange()) return answered();
    if (reading) return (next ??= reading.then(() => { next = null; return ask(); }));
    return (reading = answered().finally(() => { reading = null; }));
  }

  async function answered() {
    const mine = ++asked;
    const question = `${query()}`;
    byId("answer").setAttribute("aria-busy", "true");
    const slow = setTimeout(() => {
      if (mine !== asked) return;
      tell("Calculating; a network that is read for the first time takes some seconds ...", "waiting");
      for (const part of others()) part.inert = true; // its link and commands are of the question before
    }, 1000);
    try {
      const reply = await fetch(`/?${question}`);
      const page = new DOMParser().parseFromString(await reply.text(), "text/html");
      if (mine === asked) show(page);
      told = question;
    } catch {
      if (mine === asked) tell("The server does not answer. If it was ended, start it again: lolat serve");
    } finally {
      clearTimeout(slow);
      if (mine === asked) {
        byId("answer").removeAttribute("aria-busy");
        for (const part of others()) part.inert = false;
      }
    }
  }

  /** The parts of the answer below its status. */
  function others() {
    return byId("answer").querySelectorAll(":scope > :not(#status)");
  }

  function tell(text, kind = "notice") {
    const notice = document.createElement("p");
    notice.className = kind;
    notice.textContent = text;
    byId("status").replaceChildren(notice);
  }

  function show(page) {
    const answer = byId("answer");
    const found = page.getElementById("answer");
    if (!found) {
      tell("The server could not answer; its terminal says why");
      return;
    }
    answer.replaceChildren(...found.childNodes);
    for (const id of ["tabs", "brief", "ticked", "sized", "folded"]) byId(id)?.replaceChildren(...page.getElementById(id).childNodes);
    answer.dataset.link = found.dataset.link;
    document.title = page.title;
    for (const line of form.querySelectorAll(".error")) {
      line.textContent = page.getElementById(line.id)?.textContent ?? "";
    }
    for (const field of form.querySelectorAll("[aria-describedby]")) {
      const twin = page.getElementById(field.id);
      if (twin?.hasAttribute("aria-invalid")) field.setAttribute("aria-invalid", "true");
      else field.removeAttribute("aria-invalid");
    }
    for (const part of form.querySelectorAll("details")) if (part.querySelector("[aria-invalid]")) part.open = true;
    history.replaceState(null, "", found.dataset.link);
    settle();
  }

  /** What there is to do after each answer. */
  function settle() {
    for (const button of document.querySelectorAll("[data-copy]")) button.hidden = false;
    const link = byId("link");
    if (link) link.value = new URL(byId("answer").dataset.link, location.href).href;
  }

  function soon(ms) {
    clearTimeout(due);
    due = setTimeout(ask, ms);
  }

  async function copy(button) {
    const source = byId(button.dataset.copy);
    source.select();
    try {
      await navigator.clipboard.writeText(source.value);
    } catch {
      document.execCommand("copy"); // where a page may not write to the clipboard; it is selected anyway
    }
    button.textContent = "Copied";
    byId("copied").textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; byId("copied").textContent = ""; }, 2000);
  }

  form.addEventListener("input", ({ target }) => {
    if (target.type === "file") return;
    if (target.checked) { // all of them, or some
      const isAll = (box) => box.value === "all";
      for (const box of form.elements.model) if (isAll(box) !== isAll(target)) box.checked = false;
    }
    soon(target.type === "checkbox" ? 0 : target.list && isStrange(target) ? 1200 : 350);
  });
  form.addEventListener("submit", (event) => {
    if (event.submitter?.id === "send") return;
    event.preventDefault();
    ask().then(() => byId("answer").scrollIntoView({ block: "nearest" }));
  });
  /** A file that is dropped anywhere is as one that was chosen. */
  function dropping(event) {
    if (!event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault();
    form.classList.toggle("dropping", event.type === "dragover");
    if (event.type !== "drop") return;
    byId("f-upload").files = event.dataTransfer.files;
    byId("f-upload").dispatchEvent(new Event("change"));
  }

  for (const kind of ["dragover", "dragleave", "drop"]) document.addEventListener(kind, dropping);
  byId("f-upload").addEventListener("change", (event) => {
    const file = event.target.files[0];
    if (!file) return;
    tell(`Reading ${file.name} ...`, "waiting");
    byId("answer").setAttribute("aria-busy", "true");
    form.requestSubmit(byId("send"));
  });
  // A list of names shows those that hold what is typed: all of them once it is typed over.
  form.querySelector("[list]").addEventListener("focus", (event) => event.target.select());
  // A tab takes along what was typed just before, which its address does not have yet.
  byId("tabs").addEventListener("click", (event) => {
    const at = [...byId("tabs").children].indexOf(event.target);
    if (at < 0 || told === `${query()}` || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    ask().then(() => location.assign(byId("tabs").children[at].href));
  });
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-copy]");
    if (button) copy(button);
  });
  // In a narrow window the answer follows the question soon: what is seldom changed is folded.
  // A wide one has no line that opens it, so all are open there.
  const narrow = matchMedia("(max-width: 56rem)");
  const fold = () => {
    for (const part of form.querySelectorAll(".fold")) part.open = !narrow.matches || Boolean(part.querySelector("[aria-invalid], .error:not(:empty)"));
  };
  narrow.addEventListener("change", fold);
  if (narrow.matches) fold();
  settle();
  byId("send").hidden = true; // a file that is chosen is sent at once
  if (location.pathname !== "/") history.replaceState(null, "", byId("answer").dataset.link); // of a form that was sent
  // What was typed before this ran, or what a browser puts back when a page is loaded again.
  const differs = (field) => {
    if (field.type === "checkbox") return field.checked !== field.defaultChecked;
    if (field.options) return [...field.options].some((option) => option.selected !== option.defaultSelected);
    return field.type !== "file" && field.type !== "hidden" && field.value !== field.defaultValue;
  };
  if ([...form.elements].filter((field) => field.name).some(differs)) soon(0);
})();
