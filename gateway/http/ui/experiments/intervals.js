// The metrics of an experiment: for each one scale for all arms, with the band of the margin, units and counts.
import { h } from "../shared/dom.js";
import { count, number, seconds } from "../shared/format.js";

const GOOD = { better: "good", worse: "bad", "no difference": "accent" };
const TITLES = {
  time_to_first_token: "Time to first token",
  inter_token_latency: "Time between tokens",
  prompt_tokens: "Prompt tokens",
  completion_tokens: "Completion tokens",
};

export const titleOf = (metric) => TITLES[metric] ?? (metric[0].toUpperCase() + metric.slice(1)).replaceAll("_", " ");

/** How values of a metric are written: { value, difference, unit }. Rates differ by percentage points, others by percent. */
export function writing(kind) {
  const signed = (text, value) => (value > 0 ? `+${text}` : text.replace("-", "−"));
  if (kind === "rate") return { value: (v) => `${number(100 * v)} %`, difference: (v) => signed(`${number(100 * v)} pp`, v), unit: "percentage points" };
  const relative = (v) => signed(`${number(100 * v)} %`, v);
  return { value: kind === "time" ? seconds : number, difference: relative, unit: "% of the control" };
}

/** The interval of a comparison on the metric's scale; null bounds while there are too few requests. */
export function interval(comparison, kind) {
  if (kind === "rate") return { mean: comparison.difference, low: comparison.low, high: comparison.high };
  return { mean: comparison.relative, low: comparison.relative_low, high: comparison.relative_high };
}

export const marginOf = (kind, margin) => (kind === "rate" ? margin / 10 : margin);

/** The card of all metrics of the report. */
export function metricsCard({ report, metrics, margin }) {
  const names = [...new Set(report.comparisons.map((each) => each.metric))];
  const order = [...report.primary, ...names.filter((name) => !report.primary.includes(name))].filter((name) => names.includes(name));
  return h(
    "section",
    { class: "card", "aria-label": "Metrics" },
    h("h2", {}, `Compared with ${report.control}`),
    h("p", { class: "soft legend" }, `Bars are intervals that hold at every look (together ${number(100 * (1 - report.alpha))} %). The shaded band is the margin, in which a difference counts as none.`),
    h("div", { class: "metrics" }, order.map((name) => metricView(name, report, metrics[name] ?? { kind: "number" }, margin))),
  );
}

function metricView(name, report, metric, margin) {
  const found = report.comparisons.filter((each) => each.metric === name);
  const write = writing(metric.kind);
  const band = marginOf(metric.kind, margin);
  const scale = scaleOf(found.map((each) => interval(each, metric.kind)), band);
  const control = report.arms.find((arm) => arm.name === report.control);
  const mean = (arm) => arm?.geometric_means?.[name] ?? arm?.means?.[name] ?? null;
  const direction = metric.better ? `${metric.better} is better` : "no direction is better";
  return h(
    "section",
    { class: "metric", "aria-label": titleOf(name) },
    h(
      "div",
      { class: "metric-head" },
      h("h3", {}, titleOf(name)),
      report.primary.includes(name) && h("span", { class: "badge accent" }, "decides"),
      h("small", {}, `${direction} · ${report.control} ${mean(control) === null ? "–" : write.value(mean(control))}`),
    ),
    found.map((each) => row(each, write, scale, band, metric, report.arms.find((arm) => arm.name === each.arm), mean)),
    scale && axis(scale, write),
  );
}

/** One scale for all arms: symmetric around no difference, at least as wide as two margins. Null without an interval. */
function scaleOf(intervals, band) {
  const ends = intervals.flatMap(({ low, high }) => (low === null || high === null ? [] : [Math.abs(low), Math.abs(high)]));
  return ends.length ? Math.max(2 * band, ...ends) * 1.08 : null;
}

function row(comparison, write, scale, band, metric, arm, mean) {
  const { mean: at, low, high } = interval(comparison, metric.kind);
  const known = low !== null && high !== null && at !== null;
  const words = known ? `${write.difference(at)} (${write.difference(low)} to ${write.difference(high)})` : "no interval yet";
  const needed = comparison.requests_needed;
  return h(
    "div",
    { class: "comparison" },
    h("div", { class: "comparison-arm" }, h("span", {}, comparison.arm), h("small", {}, mean(arm) === null ? "–" : write.value(mean(arm)))),
    known ? bar(at, low, high, scale, band, GOOD[comparison.decision] ?? "", `${comparison.arm}: ${words}`) : h("p", { class: "soft" }, comparison.reason || "Too few requests."),
    h("div", { class: "comparison-words" }, h("span", {}, known ? words : ""), h("small", {}, `n = ${count(comparison.control_requests)} + ${count(comparison.requests)}`)),
    h(
      "div",
      { class: "comparison-word" },
      h("span", { class: `badge ${GOOD[comparison.decision] ?? ""}` }, comparison.decision),
      needed ? h("small", {}, `about ${count(needed)} more`) : null,
    ),
  );
}

/** Positions are percents of the width: 0 is -scale, 100 is +scale. */
function bar(at, low, high, scale, band, kind, label) {
  const place = (value) => 50 + (50 * value) / scale;
  const part = (name, from, to) => {
    const made = h("i", { class: name });
    made.style.left = `${place(from)}%`;
    made.style.width = `${place(to) - place(from)}%`;
    return made;
  };
  return h("div", { class: `bar-scale ${kind}`, role: "img", "aria-label": label }, part("band", -band, band), part("zero", 0, 0), part("range", low, high), part("point", at, at));
}

function axis(scale, write) {
  const ticks = [-scale / 1.08, 0, scale / 1.08];
  return h(
    "div",
    { class: "comparison axis", "aria-hidden": "true" },
    h("span"),
    h("div", { class: "ticks" }, ticks.map((tick) => h("small", {}, tick ? write.difference(tick) : "0"))),
    h("small", { class: "unit" }, write.unit),
  );
}
