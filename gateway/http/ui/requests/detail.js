// One request: why it ended as it did, its times as a waterfall, its parameters, its texts, and a replay of it.
import { difference, words } from "../compare/difference.js";
import { figureList } from "../chat/message.js";
import { call } from "../shared/api.js";
import { ask, blank } from "../shared/ask.js";
import { button, field, h } from "../shared/dom.js";
import { cost, count, dateAndTime, seconds } from "../shared/format.js";
import { attempt } from "../shared/notices.js";
import { session, targets } from "../shared/session.js";

const STAGES = {
  read: "while its headers and body were read",
  describe: "while a listing was answered",
  decode: "while its body was decoded",
  manage: "while an endpoint was changed",
  route: "while its targets were chosen",
  wait: "while it waited for a backend",
  generate: "before the backend's first event",
  stream: "while the backend's answer came",
  encode: "while the answer was written",
  send: "while the client took the answer",
};

/** The nodes that show an entry of the request log. */
export function detail(entry) {
  const texts = h("div", { class: "stack" });
  if (session.now.keeps_texts) showTexts(entry, texts);
  else texts.append(h("p", { class: "soft" }, "Texts are not kept: [usage] text = true allows them, and replays."));
  return [outcome(entry), waterfall(entry), facts("Answer", answerFacts(entry)), facts("Parameters", Object.entries(entry.parameters)), texts].filter(Boolean);
}

function outcome(entry) {
  const ok = entry.outcome === "ok";
  const words = ok ? "Answered completely." : `${entry.outcome.replaceAll("_", " ")}, ${STAGES[entry.stage] ?? "at the end"}.`;
  return h(
    "div",
    { class: ok ? "why" : "why failed" },
    h("p", {}, h("strong", {}, `${entry.status} · ${words}`)),
    entry.message && h("p", {}, entry.message),
    entry.assigned && h("p", {}, `It was assigned to ${entry.assigned}; ${entry.arm} was asked last.`),
  );
}

/** Bars below each other, each from where its phase began, on the scale of the whole request. */
function waterfall(entry) {
  const { decoded, first_event: event, first_token: token, duration } = entry;
  const phases = [
    ["Read and routed", 0, decoded ?? duration],
    ["Wait and prompt", decoded, event ?? (decoded === null ? null : duration)],
    ["Up to the first token", event, token],
    [entry.streamed ? "Stream" : "Answer", token ?? event, event === null ? null : duration],
  ].filter(([, from, to]) => from !== null && to !== null && to > from);
  const rows = phases.map(([name, from, to]) => {
    const bar = h("i");
    bar.style.left = `${(100 * from) / duration}%`;
    bar.style.width = `${Math.max(0.5, (100 * (to - from)) / duration)}%`;
    return h("div", { class: "phase" }, h("dt", {}, name), h("dd", {}, h("span", { class: "track", "aria-hidden": "true" }, bar), h("span", { class: "number" }, seconds(to - from))));
  });
  return h("section", { "aria-label": "Times" }, h("h3", {}, `Times, ${seconds(duration)} in all`), h("dl", { class: "waterfall" }, rows));
}

function answerFacts(entry) {
  return [
    ["Time", dateAndTime(entry.time)],
    ["Endpoint", entry.endpoint],
    ["Arm", entry.arm],
    ["Backend", entry.backend],
    ["Protocol", `${entry.protocol}, ${entry.route}${entry.streamed ? ", streamed" : ""}`],
    ["Key", entry.key],
    ["Tokens", entry.completion_tokens === null ? null : `${count(entry.prompt_tokens)}${entry.cached_tokens ? ` (${count(entry.cached_tokens)} cached)` : ""} + ${count(entry.completion_tokens)}`],
    ["Cost", entry.cost === null ? null : cost(entry.cost)],
    ["Finish reason", entry.finish],
    ["Cache of answers", entry.cache_hit === null ? null : entry.cache_hit ? "hit" : "miss"],
    ["Asked by", entry.console ? "the console: it counts in no experiment" : null],
    ["Request id", entry.id],
    ["Trace id", entry.trace_id],
  ];
}

function facts(title, pairs) {
  const known = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "");
  if (!known.length) return null;
  return h("section", { "aria-label": title }, h("h3", {}, title), h("dl", { class: "facts plain" }, known.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, String(value))))));
}

const RECORD_DELAYS = [500, 1500, 3000]; // milliseconds: a record is written some time after its request has ended

async function showTexts(entry, area) {
  const read = () => attempt(() => call(`/v1/console/requests?id=${encodeURIComponent(entry.id)}`));
  let found = await read();
  for (const delay of RECORD_DELAYS) {
    if (!found || found.input || !area.isConnected) break;
    await new Promise((resolve) => setTimeout(resolve, delay));
    found = await read();
  }
  if (!found) return;
  if (!found.input) {
    area.append(h("p", { class: "soft" }, "The record with the texts is not written yet, or is not kept."));
    return;
  }
  area.append(
    h("details", {}, h("summary", {}, "Body of the request"), h("pre", { tabIndex: 0 }, pretty(found.input))),
    h("details", { open: true }, h("summary", {}, "Text of the answer"), h("pre", { tabIndex: 0 }, found.output)),
  );
  if (entry.protocol === "openai" && entry.route === "chat") area.append(replay(found));
}

function pretty(json) {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return json; // cut, or not JSON
  }
}

/** Ask another arm the same, and mark what differs from the answer that was given. */
function replay(found) {
  const select = h("select", {}, targets().map(({ model, title }) => new Option(title, model)));
  const text = h("pre", { tabIndex: 0, "aria-label": "Answer of the replay", role: "region", hidden: true });
  const times = h("dl", { class: "facts plain" });
  const go = async () => {
    const body = await attempt(() => JSON.parse(found.input), "The body was cut when it was recorded");
    if (!body) return;
    const target = targets().find(({ model }) => model === select.value);
    const answer = blank();
    text.hidden = false;
    const draw = () => text.replaceChildren(...difference(words(answer.text), words(found.output)).parts.map((part) => (part.same ? part.text : h("mark", {}, part.text))), answer.error && h("span", { class: "bad" }, answer.error));
    await ask({ ...body, model: target.model, stream: true, stream_options: { include_usage: true } }, target.endpoint, { answer, changed: draw });
    times.replaceChildren(...figureList(answer).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
  };
  return h("section", { class: "stack", "aria-label": "Replay" }, h("h3", {}, "Replay"), field("On", select), h("div", { class: "row" }, button("Replay", go, { symbol: "play" })), text, times);
}
