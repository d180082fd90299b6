// One message on the page: text, images, calls, reasoning, and the figures of an answer.
import { tokensPerSecond } from "../shared/ask.js";
import { button, field, h } from "../shared/dom.js";
import { cost, count, number, seconds } from "../shared/format.js";
import { copyButton, markdown } from "../shared/markdown.js";

/** The element of a message. `actions`: { edit, regenerate, result }, each called with what it needs. */
export function messageView(message, actions) {
  if (message.role === "user") return userView(message, actions);
  if (message.role === "tool") {
    return h("article", { class: "message tool", "aria-label": "Result of a tool" }, h("h3", {}, "Result"), h("pre", { tabIndex: 0 }, message.text));
  }
  const made = h("article", { class: "message assistant", "aria-label": "Answer" });
  drawAnswer(made, message.answer, actions);
  return made;
}

function userView(message, actions) {
  const made = h(
    "article",
    { class: "message user", "aria-label": "Question" },
    (message.images ?? []).map((url, at) => h("img", { src: url, alt: `Attached image ${at + 1}` })),
    message.text && h("p", {}, message.text),
    h("div", { class: "tools" }, button("", () => edit(made, message, actions), { kind: "quiet", symbol: "edit", label: "Edit the question" })),
  );
  return made;
}

function edit(made, message, actions) {
  const area = h("textarea", { value: message.text, rows: Math.min(10, message.text.split("\n").length + 1), "aria-label": "Question" });
  const before = [...made.childNodes];
  const row = h(
    "div",
    { class: "row" },
    button("Ask again", () => actions.edit(message, area.value), { kind: "primary" }),
    button("Cancel", () => (made.replaceChildren(...before), made.querySelector(".tools button").focus()), { kind: "quiet" }),
  );
  made.replaceChildren(area, row);
  area.focus();
}

/** Draw an answer as far as it has come. */
export function drawAnswer(made, answer, actions = {}) {
  const running = answer.state === "waiting" || answer.state === "streaming";
  const open = made.querySelector("details.reasoning")?.open ?? false;
  made.replaceChildren(
    ...[
      answer.reasoning && reasoning(answer, open),
      answer.text && (answer.isJson ? h("pre", { class: "json", tabIndex: 0 }, pretty(answer.text)) : h("div", { class: "prose" }, markdown(answer.text))),
      ...answer.calls.map((call) => callView(call, running ? null : actions.result)),
      answer.state === "waiting" && h("p", { class: "waiting" }, "Waiting for the first token"),
      answer.state === "stopped" && h("p", { class: "note" }, "Stopped."),
      answer.error && errorView(answer),
      !running && figures(answer, actions),
    ].filter(Boolean),
  );
}

function reasoning(answer, open) {
  const done = answer.text || answer.state === "done";
  return h("details", { class: "reasoning", open }, h("summary", {}, done ? "Reasoning" : "Reasoning …"), h("div", { class: "prose" }, markdown(answer.reasoning)));
}

function callView(call, send) {
  const area = h("textarea", { rows: 2, placeholder: "what the tool returns" });
  return h(
    "section",
    { class: "call", "aria-label": `Call of ${call.name}` },
    h("h3", {}, "Calls ", h("code", {}, call.name)),
    h("pre", { tabIndex: 0 }, pretty(call.arguments)),
    send && h("div", { class: "result" }, field("Result", area), button("Send the result", () => send(call, area.value))),
  );
}

function pretty(json) {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return json; // not complete yet
  }
}

function errorView(answer) {
  const status = answer.status && answer.status !== 200 ? `${answer.status} · ` : "";
  const later = answer.retryAfter ? ` Try again in ${answer.retryAfter} s.` : "";
  return h(
    "div",
    { class: "failed", role: "alert" },
    h("p", {}, h("strong", {}, `${status}The request failed.`), ` ${answer.error}${later}`),
    answer.requestId && h("a", { href: `#/requests/${answer.requestId}` }, "See why"),
  );
}

/** Times, tokens, cost and the arm that answered. */
export function figureList(answer) {
  const { usage } = answer;
  const cached = usage?.prompt_tokens_details?.cached_tokens;
  const speed = tokensPerSecond(answer);
  return [
    answer.arm && ["Answered by", answer.arm],
    answer.firstToken !== null && ["First token", seconds(answer.firstToken / 1000)],
    answer.duration !== null && ["Total", seconds(answer.duration / 1000)],
    speed && ["Speed", `${number(speed)} tok/s`],
    usage && ["Tokens", `${count(usage.prompt_tokens)}${cached ? ` (${count(cached)} cached)` : ""} + ${count(usage.completion_tokens)}`],
    answer.cost !== null && ["Cost", cost(answer.cost)],
    answer.finish && answer.finish !== "stop" && ["Ended by", answer.finish],
    answer.ignored && ["Ignored", answer.ignored],
  ].filter(Boolean);
}

function figures(answer, actions) {
  return h(
    "footer",
    { class: "figures" },
    h("dl", {}, figureList(answer).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))),
    h(
      "div",
      { class: "tools" },
      answer.text && copyButton(() => answer.text, "Copy the answer"),
      actions.regenerate && button("", actions.regenerate, { kind: "quiet", symbol: "redo", label: "Regenerate" }),
      answer.requestId && h("a", { class: "button quiet", href: `#/requests/${answer.requestId}`, "aria-label": "Details of the request", title: "Details of the request" }, "Details"),
    ),
  );
}
