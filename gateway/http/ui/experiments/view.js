// Experiments: the verdict, the ramp, the split, the metrics, their intervals over time, pairs, and the history.
import { call } from "../shared/api.js";
import { chart } from "../shared/chart.js";
import { button, confirm, h, redraw, table } from "../shared/dom.js";
import * as feed from "../shared/feed.js";
import { count, dateAndTime, number, seconds } from "../shared/format.js";
import { attempt, notice } from "../shared/notices.js";
import { session } from "../shared/session.js";
import { marginOf, metricsCard, titleOf, writing } from "./intervals.js";
import { apply, splitCard } from "./split.js";
import { pairsCards } from "./pairs.js";

const WORDS = { better: "good", "no worse": "good", stop: "bad", "do not trust": "bad", "keep collecting": "accent" };
const ACTIONS = { update: "changed the split", create: "created the endpoint", delete: "deleted the endpoint", configure: "configured the endpoint", reset: "began the figures anew", restart_ramp: "started the ramp again" };

export function mount(root, name) {
  const page = h("div", { class: "page" });
  root.append(page);
  const compared = () => session.now.endpoints.filter((endpoint) => endpoint.has_experiment);
  let view = null;
  let shown = null;

  function open(chosen) {
    view?.leave();
    view = shown = null;
    const found = compared();
    const endpoint = found.find((each) => each.name === chosen) ?? found[0];
    if (!endpoint) {
      page.replaceChildren(h("div", { class: "empty" }, h("h2", {}, "Nothing is compared yet"), h("p", {}, "An endpoint with two served entities or more is an experiment: its requests are split between them, and their figures are compared here.")));
      return;
    }
    const select = h("select", { onchange: () => open(select.value) }, found.map((each) => new Option(each.name, each.name, false, each === endpoint)));
    const body = h("div", { class: "stack" });
    page.replaceChildren(h("div", { class: "page-head" }, h("h2", {}, "Experiments"), h("label", { class: "inline" }, h("span", {}, "Endpoint"), select)), body);
    shown = endpoint.name;
    view = new Experiment(endpoint.name, body);
  }

  open(name);
  const ends = [session.on(() => (shown && compared().some((each) => each.name === shown) ? view.splitChanged() : open(shown))), feed.on("experiments", () => view?.asks || view?.read({ shared: true }))];
  return () => {
    ends.forEach((end) => end());
    view?.leave();
  };
}

class Experiment {
  constructor(name, body) {
    this.name = name;
    this.body = body;
    this.top = h("div", { class: "stack" });
    this.split = h("div");
    this.middle = h("div", { class: "stack" });
    this.bottom = h("div", { class: "stack" });
    this.select = h("select", { onchange: () => this.drawCurve(), "aria-label": "Metric" });
    this.curve = chart("Interval over time", (value) => writing(this.kind).difference(value), {
      height: 220,
      least: null,
      draw: (plot) => this.markSplits(plot),
    });
    this.kind = "rate";
    this.curve.element.prepend(h("label", { class: "inline" }, h("span", {}, "Metric"), this.select));
    this.curve.element.hidden = true;
    body.append(this.top, this.split, this.middle, this.curve.element, this.bottom);
    this.read();
  }

  leave() {
    this.left = true;
    this.curve.destroy();
  }

  get endpoint() {
    return session.endpoint(this.name);
  }

  /** Whether a question waits for its answer, which would be drawn over. */
  get asks() {
    return this.body.querySelector(".confirm") !== null;
  }

  /** Read the experiment; `shared`: that of seconds ago, which the server has made for another tab, will do. */
  async read({ shared = false } = {}) {
    const asked = this.asks;
    const found = await attempt(() => call(`/v1/console/experiment?endpoint=${encodeURIComponent(this.name)}${shared ? "&shared" : ""}`));
    if (!found || this.left || (this.asks && !asked)) return;
    const first = !this.found;
    this.found = found;
    redraw(this.top, this.verdict(), ...(found.report.ramp ? [this.ramp()] : []));
    if (first) this.splitChanged();
    redraw(this.middle, ...(found.report.comparisons.length ? [metricsCard(found)] : []));
    this.listMetrics();
    this.drawCurve();
    redraw(this.bottom, ...pairsCards(found.report), this.history());
  }

  splitChanged() {
    // Not while somebody moves a slider: it would jump back.
    if (this.found && !this.split.querySelector(".button.primary:enabled")) redraw(this.split, splitCard(this.endpoint, this.found.report.ramp, () => this.changed()));
  }

  changed() {
    redraw(this.split, splitCard(this.endpoint, this.found.report.ramp, () => this.changed()));
    this.read();
  }

  verdict() {
    const { report } = this.found;
    const requests = report.arms.reduce((sum, arm) => sum + arm.exposures, 0);
    const arms = report.verdict?.arms ?? [];
    const said = arms.length
      ? arms.map((arm) => h("div", { class: "said" }, h("span", { class: `badge large ${WORDS[arm.word] ?? ""}` }, `${arm.arm}: ${arm.word}`), h("p", {}, arm.reason), this.missing(arm)))
      : h("p", { class: "soft" }, "There is nothing to compare: one arm alone gets requests of clients.");
    const warnings = [
      report.sample_ratio_mismatch && "The arms' requests contradict the split (sample-ratio mismatch). Do not trust this report.",
      report.uneven_losses?.length && `Other shares of requests reach the comparison in ${report.uneven_losses.join(", ")} than in ${report.control}: the rest is a selection.`,
    ].filter(Boolean);
    return h(
      "section",
      { class: "card", "aria-label": "Verdict" },
      h("h2", {}, "Verdict"),
      said,
      warnings.map((text) => h("p", { class: "bad", role: "alert" }, text)),
      h("p", { class: "soft" }, `${count(requests)} requests since ${dateAndTime(report.since)}: ${report.arms.map((arm) => `${arm.name} ${count(arm.exposures)}`).join(", ")}.`),
    );
  }

  missing(arm) {
    const days = Object.entries(arm.days_needed).filter(([, value]) => value !== null);
    if (!days.length) return null;
    return h("small", {}, `At this traffic: ${days.map(([metric, value]) => `${titleOf(metric).toLowerCase()} in about ${value < 2 ? seconds(86400 * value) : `${number(value)} days`}`).join(", ")}.`);
  }

  ramp() {
    const { report } = this.found;
    const { ramp } = report;
    const steps = ramp.steps.map((step) => h("li", { class: step < ramp.traffic_percentage ? "past" : step === ramp.traffic_percentage ? "now" : "" }, `${step} %`));
    const next = ramp.next_percentage === null ? "There is no next step." : `Next: ${ramp.next_percentage} %${ramp.next_at ? `, at ${dateAndTime(ramp.next_at)} at the earliest` : ""}${ramp.waits_for ? `. Waits for ${ramp.waits_for}` : ""}.`;
    const last = ramp.history.at(-1);
    const kind = { running: "accent", finished: "good", rolled_back: "bad" }[ramp.status] ?? "";
    const start = button("Start the ramp", () => confirm(start, "Start: the arm begins without traffic, and the figures begin anew", () => this.send("/ramp/restart", "The ramp was started.")), { disabled: !session.now.can_change || !session.now.is_changeable });
    return h(
      "section",
      { class: "card", "aria-label": "Ramp" },
      h("h2", {}, `Ramp of ${ramp.arm}`),
      h("div", { class: "ramp" }, h("span", { class: `badge large ${kind}` }, ramp.status.replace("_", " ")), h("ol", { class: "steps", "aria-label": "Steps" }, steps)),
      h("p", {}, next),
      last && h("p", { class: "soft" }, `Last step: ${last.traffic_percentage} % since ${dateAndTime(last.since)}, because ${last.reason}.`),
      h("div", { class: "row" }, start),
    );
  }

  async send(path, said) {
    const done = await attempt(async () => (await call(`/serving-endpoints/${encodeURIComponent(this.name)}/experiment${path}`, { method: "POST" }), true));
    if (done) notice(said, { kind: "good" });
    await session.read();
    this.changed();
  }

  // --- over time

  listMetrics() {
    const lines = this.found.report.comparisons.map(({ arm, metric }) => ({ value: JSON.stringify([arm, metric]), title: `${titleOf(metric)}, ${arm}` }));
    if (lines.length === this.select.length) return;
    const wanted = this.select.value;
    this.select.replaceChildren(...lines.map(({ value, title }) => new Option(title, value, false, value === wanted)));
  }

  drawCurve() {
    const { timeline, metrics, margin } = this.found;
    this.curve.element.hidden = !timeline.length || !this.select.value;
    if (this.curve.element.hidden) return;
    const [arm, metric] = JSON.parse(this.select.value);
    this.kind = metrics[metric]?.kind ?? "number";
    const band = marginOf(this.kind, margin);
    const times = timeline.map((point) => point.time);
    const points = timeline.map((point) => point.intervals.find((each) => each[0] === arm && each[1] === metric) ?? [arm, metric, null, null, null]);
    this.curve.set(times, [
      { label: "Highest", values: points.map((each) => each[4]), colour: "--c1", width: 1, bandTo: 1 },
      { label: "Lowest", values: points.map((each) => each[3]), colour: "--c1", width: 1 },
      { label: "Difference", values: points.map((each) => each[2]), colour: "--c1", width: 2 },
      { label: "Margin", values: times.map(() => band), colour: "--soft", width: 1, dash: [4, 4] },
      { label: "−Margin", values: times.map(() => -band), colour: "--soft", width: 1, dash: [4, 4] },
    ]);
  }

  /** A vertical line where the split changed. */
  markSplits(plot) {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.strokeStyle = getComputedStyle(document.documentElement).getPropertyValue("--warn");
    ctx.fillStyle = ctx.strokeStyle;
    ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
    for (const split of this.found.report.splits.slice(1)) {
      const at = plot.valToPos(split.since, "x", true);
      if (at < bbox.left || at > bbox.left + bbox.width) continue;
      ctx.beginPath();
      ctx.moveTo(at, bbox.top);
      ctx.lineTo(at, bbox.top + bbox.height);
      ctx.stroke();
      ctx.fillText(split.traffic_percentages.join("/"), at + 4, bbox.top + 12 * devicePixelRatio);
    }
    ctx.restore();
  }

  // --- history

  history() {
    const { changes, report } = this.found;
    const admin = session.now.can_change && session.now.is_changeable;
    const split = (shares) => Object.entries(shares).map(([arm, share]) => `${arm} ${share} %`).join(", ");
    const now = JSON.stringify(Object.fromEntries(this.endpoint.arms.map((arm) => [arm.name, arm.traffic_percentage])));
    const rows = changes.map((change) => {
      const can = admin && change.action === "update" && Object.keys(change.before).length && JSON.stringify(change.before) !== now && this.endpoint.arms.every((arm) => arm.name in change.before);
      const undo = can ? button("Undo", () => attempt(() => apply(this.name, change.before)).then(() => session.read()).then(() => this.changed()), { kind: "quiet", label: `Undo: back to ${split(change.before)}` }) : "";
      return [dateAndTime(change.time), change.by || "–", ACTIONS[change.action] ?? change.action, split(change.after), undo];
    });
    const columns = ["Time", "Key", "What", "Split after it", ""].map((title) => ({ title }));
    const reset = button("Begin the figures anew", () => confirm(reset, `Yes: forget the figures of ${report.endpoint}`, () => this.send("/reset", "The figures begin anew.")), { kind: "danger", disabled: !admin });
    return h(
      "section",
      { class: "card", "aria-label": "History" },
      h("h2", {}, "History"),
      rows.length ? table("Changes of the endpoint", columns, rows) : h("p", { class: "soft" }, "Nobody has changed this endpoint while it was served."),
      h("div", { class: "row" }, reset),
    );
  }
}
