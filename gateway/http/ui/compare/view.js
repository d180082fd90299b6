// Compare: one question to two to four endpoints or arms at once, side by side.
import { figureList } from "../chat/message.js";
import * as settings from "../chat/settings.js";
import { ask, blank, bodyOf } from "../shared/ask.js";
import { button, field, h } from "../shared/dom.js";
import { percent } from "../shared/format.js";
import { attempt } from "../shared/notices.js";
import { session, targets } from "../shared/session.js";
import { copyButtons } from "../protocols/snippets.js";
import { difference, words } from "./difference.js";

const [LEAST, MOST] = [2, 4];
const PLACE = "interlingua.compare";

export function mount(root) {
  const view = new Compare(root);
  const end = session.on(() => view.columns.forEach((column) => column.list()));
  return () => {
    view.stop();
    end();
  };
}

class Compare {
  constructor(root) {
    this.columns = [];
    this.settings = settings.load();
    this.running = null;
    this.input = h("textarea", { rows: 3, value: "What is the capital of France?" });
    this.by = h("select", {}, new Option("words", "words"), new Option("tokens, where the answers have them", "tokens"));
    this.grid = h("div", { class: "columns" });
    this.go = h("button", { class: "button primary" }, "Ask all");
    this.more = button("Add a column", () => this.add(), { symbol: "plus", kind: "quiet" });
    const form = h(
      "form",
      { class: "card ask", onsubmit: (event) => (event.preventDefault(), this.running ? this.stop() : this.askAll()) },
      field("Question", this.input),
      h("div", { class: "row" }, this.go, this.more, h("label", { class: "inline" }, h("span", {}, "Mark differences by"), this.by)),
      h("details", {}, h("summary", {}, "Settings for all"), settings.panel((found) => (this.settings = found))),
    );
    root.append(h("div", { class: "page" }, h("div", { class: "page-head" }, h("h2", {}, "Compare")), form, this.grid));
    const names = remembered();
    for (let at = 0; at < Math.max(LEAST, Math.min(MOST, names.length)); at += 1) this.add(names[at]);
  }

  add(model = null) {
    const found = targets().map((each) => each.model);
    const free = found.find((each) => each.includes(":") && !this.columns.some((column) => column.select.value === each));
    const column = new Column(model ?? free ?? found[this.columns.length] ?? found[0], () => this.remove(column), () => this.remember());
    this.columns.push(column);
    this.grid.append(column.element);
    this.arrange();
  }

  remove(column) {
    column.element.remove();
    this.columns = this.columns.filter((each) => each !== column);
    this.arrange();
  }

  arrange() {
    this.more.disabled = this.columns.length >= MOST;
    this.columns.forEach((column, at) => column.place(at, this.columns.length > LEAST));
    this.remember();
  }

  remember() {
    sessionStorage.setItem(PLACE, JSON.stringify(this.columns.map((column) => column.select.value)));
  }

  async askAll() {
    const text = this.input.value.trim();
    if (!text) return;
    const stop = (this.running = new AbortController());
    this.go.textContent = "Stop";
    const first = this.columns[0];
    // Log-probabilities are what OpenAI's protocol returns tokens with.
    const given = { ...this.settings, logprobs: this.by.value === "tokens" };
    await attempt(() =>
      Promise.all(this.columns.map((column) => column.ask(text, given, stop.signal, () => this.columns.forEach((each) => each !== first && each.mark(first.answer))))),
    );
    if (this.running === stop) this.stop();
  }

  stop() {
    this.running?.abort();
    this.running = null;
    this.go.textContent = "Ask all";
  }
}

function remembered() {
  try {
    return JSON.parse(sessionStorage.getItem(PLACE)) ?? [];
  } catch {
    return [];
  }
}

class Column {
  constructor(model, remove, chosen) {
    this.wanted = model;
    this.answer = null;
    this.select = h("select", { onchange: chosen });
    this.text = h("div", { class: "answer", tabIndex: 0, role: "region" });
    this.facts = h("dl", { class: "facts" });
    this.close = button("", remove, { kind: "quiet", symbol: "close", label: "Remove the column" });
    this.request = null;
    this.raw = h("pre", { tabIndex: 0, role: "region" });
    this.more = h("details", { hidden: true }, h("summary", {}, "Raw stream"), this.raw);
    this.copies = h("div", { class: "row" });
    this.element = h("section", { class: "card column" }, h("div", { class: "column-head" }, this.select, this.close), this.text, this.facts, this.more, this.copies);
    this.list();
  }

  list() {
    const wanted = this.select.value || this.wanted;
    this.select.replaceChildren(...targets().map(({ model, title }) => new Option(title, model, false, model === wanted)));
  }

  place(at, removable) {
    const name = String.fromCharCode(65 + at);
    this.isFirst = at === 0;
    this.select.setAttribute("aria-label", `Endpoint ${name}`);
    this.text.setAttribute("aria-label", `Answer ${name}`);
    this.raw.setAttribute("aria-label", `Raw stream ${name}`);
    this.name = name;
    this.close.hidden = !removable;
  }

  async ask(text, given, signal, changed) {
    const target = targets().find((each) => each.model === this.select.value);
    this.answer = blank();
    this.text.replaceChildren(h("p", { class: "waiting" }, "Waiting for the first token"));
    this.facts.replaceChildren();
    const body = bodyOf(target.model, [{ role: "user", content: text }], given);
    this.request = { path: "/v1/chat/completions", body, headers: {} };
    this.copies.replaceChildren(...copyButtons(this.name, () => this.request));
    this.more.hidden = false;
    let waiting = false;
    const draw = () => {
      waiting = false;
      this.draw();
      changed();
    };
    await ask(body, target.endpoint, {
      answer: this.answer,
      signal,
      changed: () => {
        if (!waiting) requestAnimationFrame(draw);
        waiting = true;
      },
    });
    draw();
  }

  draw() {
    const { answer } = this;
    this.raw.textContent = answer.raw;
    if (this.isFirst || !this.text.querySelector("mark")) this.text.replaceChildren(answer.text);
    if (answer.reasoning) this.text.prepend(h("details", {}, h("summary", {}, "Reasoning"), answer.reasoning));
    for (const call of answer.calls) this.text.append(h("pre", {}, `${call.name}(${call.arguments})`));
    if (answer.error) this.text.append(h("p", { class: "bad" }, `${answer.status || ""} ${answer.error}`));
    if (answer.state === "stopped") this.text.append(h("p", { class: "soft" }, "Stopped."));
    this.showFacts(figureList(answer));
  }

  showFacts(facts) {
    this.facts.replaceChildren(...facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
  }

  /** Mark what the first column's answer does not have. */
  mark(first) {
    if (!first?.text || !this.answer?.text) return;
    const byTokens = this.answer.tokens.length > 0 && first.tokens.length > 0;
    const units = (answer) => (byTokens ? answer.tokens : words(answer.text));
    const { parts, equal, total } = difference(units(this.answer), units(first));
    const extra = [...this.text.children].filter((child) => child.tagName !== "MARK");
    this.text.replaceChildren(...parts.map((part) => (part.same ? part.text : h("mark", {}, part.text))), ...extra);
    const done = this.answer.duration !== null && first.duration !== null;
    this.showFacts([...figureList(this.answer), ...(done ? [[byTokens ? "Tokens as in A" : "Words as in A", `${equal} of ${total}, ${percent(total ? equal / total : 1)}`]] : [])]);
  }
}
