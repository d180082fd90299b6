// Live: the last 15 minutes of an endpoint, an arm, or all, and the state of each backend.
import { call } from "../shared/api.js";
import { chart } from "../shared/chart.js";
import { h, redraw, table } from "../shared/dom.js";
import * as feed from "../shared/feed.js";
import { bytes, count, number, percent, seconds } from "../shared/format.js";
import { attempt } from "../shared/notices.js";

const MOST = 300; // points, as many as the server keeps
const KINDS = { ready: "good", loading: "warn", failed: "bad" };

/** title -> [format, what a point has: label -> value]; `figures` are those of what is chosen, `all` whether that is everything. */
const CHARTS = [
  ["Requests a second", number, ({ figures }) => ({ Requests: figures?.requests ?? 0 })],
  ["Time to first token", seconds, ({ figures }) => ({ "p50 ": figures?.first_token?.[0] ?? null, "p95 ": figures?.first_token?.[1] ?? null })],
  ["Time between tokens", seconds, ({ figures }) => ({ "p50 ": figures?.between_tokens?.[0] ?? null, "p95 ": figures?.between_tokens?.[1] ?? null })],
  ["Tokens a second", number, ({ figures }) => ({ Tokens: figures?.tokens ?? 0 })],
  ["Running and waiting", number, ({ point }) => ({ "Running requests": point.running, ...engines(point, "waiting", "waiting at") })],
  ["Errors a second, by kind", number, ({ point, figures, all }) => (all ? point.errors : (figures?.kinds ?? {}))],
  ["KV cache in use", percent, ({ point }) => engines(point, "kv_usage", "")],
  ["Prefix cache hits", percent, ({ point }) => engines(point, "prefix_hits", "")],
];

const engines = (point, name, words) => Object.fromEntries(Object.entries(point.engines).map(([backend, engine]) => [`${words} ${backend}`.trim(), engine[name]]));

export function mount(root) {
  let points = [];
  let left = false;
  const select = h("select", { onchange: () => draw() });
  const tiles = h("dl", { class: "tiles" });
  const charts = CHARTS.map(([title, format]) => chart(title, format));
  const backends = h("section", { class: "card", "aria-label": "Backends" });
  root.append(
    h(
      "div",
      { class: "page" },
      h("div", { class: "page-head" }, h("h2", {}, "Live"), h("label", { class: "inline" }, h("span", {}, "Show"), select)),
      tiles,
      h("div", { class: "charts" }, charts.map((each) => each.element)),
      backends,
    ),
  );

  /** What can be chosen: the value of an option is what a point has it by. */
  function list() {
    const names = (part) => [...new Set(points.flatMap((point) => Object.keys(point[part])))].sort().map((name) => [part, name]);
    const [, ...series] = names("series");
    const found = [["series", ""], ...series, ...names("by_backend")];
    const values = found.map((each) => JSON.stringify(each));
    if (values.join() === [...select.options].map((each) => each.value).join()) return;
    const wanted = select.value;
    select.replaceChildren(
      ...found.map(([part, name], at) => {
        const title = part === "by_backend" ? `Backend ${name}` : name === "" ? "All endpoints" : name.replace(":", " → ");
        return new Option(title, values[at], false, values[at] === wanted);
      }),
    );
  }

  function draw() {
    list();
    const [part, name] = JSON.parse(select.value);
    const all = part === "series" && name === "";
    const times = points.map((point) => point.time);
    charts.forEach((each, at) => {
      const found = points.map((point) => CHARTS[at][2]({ point, figures: point[part][name], all }));
      const labels = [...new Set(found.flatMap((values) => Object.keys(values)))].sort();
      each.element.hidden = !labels.length && at > 5;
      each.set(times, labels.map((label, index) => ({ label: label.trim() || label, values: found.map((values) => values[label] ?? (at === 5 ? 0 : null)), colour: at === 5 ? `--c${((index + 4) % 6) + 1}` : undefined })));
    });
    const last = points.at(-1);
    if (!last) return;
    drawTiles(last, last[part][name]);
    drawBackends(last);
  }

  function drawTiles(last, figures) {
    const tile = (name, value) => h("div", {}, h("dt", {}, name), h("dd", {}, value));
    tiles.replaceChildren(
      tile("Requests a second", number(figures?.requests ?? 0)),
      tile("First token, median", seconds(figures?.first_token?.[0] ?? null)),
      tile("Tokens a second", number(figures?.tokens ?? 0)),
      tile("Errors a second", number(figures?.errors ?? 0)),
      tile("Running now", count(last.running)),
    );
  }

  function drawBackends(last) {
    const sums = {};
    for (const point of points) {
      for (const [name, state] of Object.entries(point.backends)) {
        const sum = (sums[name] ??= { attempts: 0, retries: 0, failures: {} });
        sum.attempts += state.attempts;
        sum.retries += state.retries;
        for (const [kind, value] of Object.entries(state.failures)) sum.failures[kind] = (sum.failures[kind] ?? 0) + value;
      }
    }
    const rows = Object.entries(last.backends).map(([name, state]) => {
      const open = state.status === "ready" && state.detail;
      const engines = Object.entries(last.engines).filter(([engine]) => engine === name || engine.startsWith(`${name} `));
      const failures = Object.entries(sums[name].failures).map(([kind, value]) => `${kind.replaceAll("_", " ")} ${count(value)}`);
      return [
        name,
        h("span", { class: `badge ${open ? "warn" : KINDS[state.status]}` }, open ? "in trouble" : state.status),
        open ? "open" : "closed",
        h("span", { class: "wrap" }, state.detail || "–"),
        count(sums[name].attempts),
        h("span", { class: "wrap" }, failures.join(", ") || "–"),
        count(sums[name].retries),
        engines.length ? bytes(engines.reduce((sum, [, engine]) => sum + engine.resident_bytes, 0)) : "–",
      ];
    });
    const columns = [{ title: "Backend" }, { title: "State" }, { title: "Breaker" }, { title: "Why" }, { title: "Attempts", number: true }, { title: "Failed attempts, by reason" }, { title: "Retries", number: true }, { title: "Memory", number: true }];
    redraw(backends, h("h2", {}, "Backends, last 15 minutes"), table("Backends", columns, rows));
  }

  async function load() {
    const found = await attempt(() => call("/v1/console/live"));
    if (!found || left) return;
    points = found;
    draw();
  }

  list();
  load();
  const ends = [
    feed.on("live", (point) => {
      points = [...points, point].slice(-MOST);
      draw();
    }),
    feed.on("connected", load),
  ];
  return () => {
    left = true;
    ends.forEach((end) => end());
    charts.forEach((each) => each.destroy());
  };
}
