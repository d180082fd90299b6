// Curves over time, drawn by uPlot in the page's colours.
import uPlot from "../vendor/uplot.mjs";
import { h } from "./dom.js";

const HEIGHT = 150;
const charts = new Set();
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** One of the six colours for series, as a CSS variable's name. */
export const seriesColour = (at) => `--c${(at % 6) + 1}`;

/**
 * A chart of series over time.
 *
 * @param title what is drawn, with its unit
 * @param format writes a value of the axis
 * @param options `height`, and `draw(uplot)`, called after each drawing
 * @returns {{element, set(times, series), destroy()}} `series`: [{label, values, colour, fill, dash}], values null where unknown
 */
export function chart(title, format, { height = HEIGHT, least = 0, draw = null } = {}) {
  const holder = h("div", { class: "chart" });
  const summary = h("p", { class: "hidden" });
  const element = h("figure", { class: "card figure" }, h("figcaption", {}, title), holder, summary);
  let made = null;
  let shown = null;

  function build() {
    made?.destroy();
    made = null;
    if (!shown || !holder.clientWidth) return;
    const grid = { stroke: colour("--line"), width: 1 };
    const axis = { stroke: colour("--soft"), grid, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    const [times, series] = shown;
    const options = {
      width: holder.clientWidth,
      height,
      padding: [8, 8, 0, 0],
      cursor: { y: false, points: { size: 5 } },
      legend: { show: series.length > 0, markers: { width: 0, fill: (_, at) => colour(series[at - 1]?.colour ?? seriesColour(at - 1)) } },
      scales: { y: { range: (_, low, high) => range(low, high, least) } },
      axes: [
        { ...axis, space: 70, values: (_, at) => at.map((time) => clock(time, at.at(-1) - at[0] < 300 ? 8 : 5)) },
        { ...axis, size: 58, space: 28, values: (_, at) => at.map(format) },
      ],
      series: [
        { label: "Time", value: (_, at) => (at ? clock(at) : "") },
        ...series.map((each, at) => ({
          label: each.label,
          stroke: colour(each.colour ?? seriesColour(at)),
          width: each.width ?? 1.6,
          dash: each.dash,
          points: { show: times.length < 3 },
          spanGaps: false,
          value: (_, value) => (value === null || value === undefined ? "–" : format(value)),
        })),
      ],
      bands: series.flatMap((each, at) => (each.bandTo === undefined ? [] : [{ series: [at + 1, each.bandTo + 1], fill: `${colour(each.colour ?? seriesColour(at))}2e` }])),
      hooks: { draw: draw ? [draw] : [] },
    };
    made = new uPlot(options, [times, ...series.map((each) => each.values)], holder);
  }

  const watch = new ResizeObserver(() => (made && holder.clientWidth ? made.setSize({ width: holder.clientWidth, height }) : build()));
  watch.observe(holder);
  const self = {
    element,
    set(times, series) {
      const names = (of) => of?.[1].map((each) => each.label).join("\n");
      const same = made && names(shown) === names([times, series]);
      shown = [times, series];
      if (same) made.setData([times, ...series.map((each) => each.values)]);
      else build();
      const last = series.map((each) => `${each.label}: ${format(each.values.findLast((value) => value !== null && value !== undefined) ?? null)}`);
      summary.textContent = series.length ? `Now: ${last.join(", ")}` : "No data yet";
    },
    redraw: build,
    destroy() {
      watch.disconnect();
      made?.destroy();
      charts.delete(self);
    },
  };
  charts.add(self);
  return self;
}

function range(low, high, least) {
  if (low === null || high === null || low === undefined) return [0, 1];
  const bottom = least === null ? low : Math.min(least, low);
  const room = (high - bottom || Math.abs(high) || 1) * 0.08;
  return [least === null ? bottom - room : bottom, high + room];
}

const clock = (seconds, parts = 8) => new Date(seconds * 1000).toTimeString().slice(0, parts);
const redrawAll = () => charts.forEach((each) => each.redraw());
addEventListener("themechange", redrawAll);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawAll);
