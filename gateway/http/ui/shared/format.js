// Numbers and times as people read them.

const whole = new Intl.NumberFormat("en");

export const count = (value) => (value === null || value === undefined ? "–" : whole.format(value));

/** Three significant digits, without exponents for usual sizes. */
export function number(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1000) return whole.format(Math.round(value));
  return size < 0.001 ? value.toExponential(1) : String(Number(value.toPrecision(3)));
}

export function seconds(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  if (size < 0.0005) return `${number(value * 1e6)} µs`;
  if (size < 0.9995) return `${number(value * 1e3)} ms`;
  if (size < 120) return `${number(value)} s`;
  return size < 7200 ? `${number(value / 60)} min` : `${number(value / 3600)} h`;
}

export const percent = (value) => (value === null || value === undefined ? "–" : `${number(100 * value)} %`);

export function bytes(value) {
  if (!value) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const at = Math.min(units.length - 1, Math.floor(Math.log2(value) / 10));
  return `${number(value / 2 ** (10 * at))} ${units[at]}`;
}

export const cost = (value) => (value === null || value === undefined ? "–" : value === 0 ? "0" : value < 0.01 ? value.toPrecision(2) : value.toFixed(2));

const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const date = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });

export const timeOfDay = (unixSeconds) => clock.format(new Date(unixSeconds * 1000));
export const dateAndTime = (unixSeconds) => date.format(new Date(unixSeconds * 1000));

/** "1 request", "2 requests". */
export const counted = (value, one, many = `${one}s`) => `${count(value)} ${value === 1 ? one : many}`;
