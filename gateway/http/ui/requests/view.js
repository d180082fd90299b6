// Requests: the last ones as they end, filtered, and one of them in full.
import { call } from "../shared/api.js";
import { button, field, h } from "../shared/dom.js";
import * as feed from "../shared/feed.js";
import { count, seconds, timeOfDay } from "../shared/format.js";
import { attempt } from "../shared/notices.js";
import { session } from "../shared/session.js";
import { detail } from "./detail.js";

const MOST = 500;
const SHOWN = 200;
const FILTERS = [
  ["endpoint", "Endpoint"],
  ["arm", "Arm"],
  ["key", "Key"],
  ["outcome", "Outcome"],
];

// Of the last time that the view was shown: opening a request must neither empty the list nor forget the filters.
let kept = { key: null, entries: [], wanted: {}, opened: "" };

export function mount(root, id) {
  let entries = kept.key === session.now.key ? kept.entries : [];
  let paused = false;
  let left = false;
  let drawn = null; // the id of the request in the pane
  const body = h("tbody");
  const note = h("p", { class: "soft", role: "status" });
  const back = () => (location.hash = "#/requests");
  const pane = h("aside", { class: "card detail", "aria-label": "Request", hidden: true, tabIndex: -1, onkeydown: (event) => event.key === "Escape" && back() });
  const filters = FILTERS.map(([name, title]) => ({ name, title, select: h("select", { onchange: () => draw() }, new Option("all", "")) }));
  const pause = button("Pause", () => {
    paused = !paused;
    pause.lastChild.textContent = paused ? "Continue" : "Pause";
    if (!paused) draw();
  });
  const head = ["Time", "Endpoint", "Arm", "Key", "Outcome", "First token", "Total", "Tokens"];
  const list = h(
    "div",
    { class: "card log-table scroll", tabIndex: 0, role: "region", "aria-label": "Requests" },
    h("table", {}, h("caption", { class: "hidden" }, "The last requests, the newest first"), h("thead", {}, h("tr", {}, head.map((title, at) => h("th", { scope: "col", class: at > 4 ? "number" : "" }, title)))), body),
    note,
  );
  root.append(
    h(
      "div",
      { class: "page" },
      h("div", { class: "page-head" }, h("h2", {}, "Requests"), pause),
      h("div", { class: "filters" }, filters.map(({ title, select }) => field(title, select))),
      h("div", { class: "log-and-detail" }, list, pane),
    ),
  );

  function listValues() {
    for (const { name, select } of filters) {
      const values = [...new Set(entries.map((entry) => entry[name] ?? "–"))].sort();
      if (name === "outcome" && values.some((value) => value !== "ok")) values.unshift("not ok");
      if (values.length + 1 === select.length) continue;
      const wanted = select.length > 1 ? select.value : (kept.wanted[name] ?? "");
      select.replaceChildren(new Option("all", ""), ...values.map((value) => new Option(value, value, false, value === wanted)));
    }
  }

  const matches = (entry) => filters.every(({ name, select }) => !select.value || (select.value === "not ok" ? entry.outcome !== "ok" : (entry[name] ?? "–") === select.value));

  function draw() {
    listValues();
    const found = entries.filter(matches);
    const focused = body.contains(document.activeElement) ? document.activeElement.dataset.id : null;
    body.replaceChildren(...found.slice(0, SHOWN).map(row));
    // A line that is no longer shown leaves the focus to the list.
    if (focused !== null) (body.querySelector(`[data-id="${CSS.escape(focused)}"]`) ?? list).focus();
    note.textContent = found.length ? (found.length > SHOWN ? `${SHOWN} of ${found.length} are shown.` : "") : entries.length ? "No request matches." : "No request has ended yet. Those of the console appear here, too.";
  }

  function row(entry) {
    const kind = entry.outcome === "ok" ? "good" : entry.outcome === "client_gone" ? "warn" : "bad";
    const open = h("button", { type: "button", class: "link", "data-id": entry.id, "aria-label": `Request of ${timeOfDay(entry.time)} to ${entry.endpoint ?? "nothing"}, ${entry.outcome}`, onclick: () => (location.hash = `#/requests/${entry.id}`) }, timeOfDay(entry.time));
    const tokens = entry.completion_tokens === null ? "–" : `${count(entry.prompt_tokens)} + ${count(entry.completion_tokens)}`;
    const cells = [entry.endpoint ?? "–", entry.arm ?? "–", entry.key ?? "–", h("span", { class: `badge ${kind}` }, entry.outcome.replaceAll("_", " "))];
    const numbers = [seconds(entry.first_token), seconds(entry.duration), tokens];
    return h("tr", { class: entry.id === id ? "chosen" : "", onclick: () => open.click() }, h("th", { scope: "row" }, open), cells.map((cell) => h("td", {}, cell)), numbers.map((cell) => h("td", { class: "number" }, cell)));
  }

  function openDetail() {
    const found = entries.find((entry) => entry.id === id);
    pane.hidden = !id;
    // What is open in it stays open when the log has come. A request that has ended does not change.
    if (!id || (found && drawn === id)) return;
    drawn = found ? id : null;
    const close = button("", back, { kind: "quiet", symbol: "close", label: "Close" });
    pane.replaceChildren(h("div", { class: "detail-head" }, h("h2", {}, "Request"), close), ...(found ? detail(found) : [h("p", {}, `The request ${id} is not among the last ones.`)]));
  }

  async function load() {
    const found = await attempt(() => call("/v1/console/requests"));
    if (!found || left) return;
    entries = found.sort((a, b) => b.time - a.time).slice(0, MOST);
    draw();
    openDetail();
  }

  if (entries.length) {
    draw();
    openDetail();
  }
  // Opening and closing a request mounts the view anew: the focus follows to the request, and back to its line.
  if (id) pane.focus();
  else body.querySelector(`[data-id="${CSS.escape(kept.opened)}"]`)?.focus();
  load();
  const ends = [
    feed.on("requests", (found) => {
      const known = new Set(entries.map((entry) => entry.id));
      entries = [...found.filter((entry) => !known.has(entry.id)), ...entries].sort((a, b) => b.time - a.time).slice(0, MOST);
      if (!paused) draw();
    }),
    feed.on("connected", load),
  ];
  return () => {
    left = true;
    kept = { key: session.now?.key ?? null, entries, opened: id, wanted: Object.fromEntries(filters.map(({ name, select }) => [name, select.value])) };
    ends.forEach((end) => end());
  };
}
