// Protocols: the same question in every protocol that the gateway speaks, with the text of each answer over its raw stream.
import { errorText, failure, send } from "../shared/api.js";
import { MARK, MOST_RAW } from "../shared/ask.js";
import { field, h } from "../shared/dom.js";
import { events, lines } from "../shared/events.js";
import { pausedFor } from "../shared/feed.js";
import { seconds } from "../shared/format.js";
import { attempt } from "../shared/notices.js";
import { targets } from "../shared/session.js";
import { copyButtons } from "./snippets.js";
import { PROTOCOLS, requestOf } from "./table.js";

export function mount(root) {
  let running = null;
  const model = h("select", {}, targets().map((target) => new Option(target.title, target.model)));
  const prompt = h("textarea", { rows: 2, value: "What is the capital of France?" });
  const most = h("input", { type: "number", min: 1, value: 64 });
  const go = h("button", { class: "button primary" }, "Ask in every protocol");
  const cards = PROTOCOLS.map((protocol) => new Card(protocol));
  const requests = () => cards.forEach((card) => card.show(requestOf(card.protocol, model.value, prompt.value, Number(most.value))));
  const form = h(
    "form",
    {
      class: "card ask",
      oninput: requests,
      onsubmit: (event) => {
        event.preventDefault();
        running?.abort();
        running = new AbortController();
        requests();
        attempt(() => pausedFor(() => Promise.all(cards.map((card) => card.run(running.signal)))));
      },
    },
    field("Question", prompt),
    h("div", { class: "ask-row" }, field("Endpoint", model), field("Most tokens", most), go),
  );
  const page = h("div", { class: "page" }, h("div", { class: "page-head" }, h("h2", {}, "The same request in every protocol")), form, h("div", { class: "protocols" }, cards.map((card) => card.element)));
  root.append(page);
  requests();
  return () => running?.abort();
}

class Card {
  constructor(protocol) {
    this.protocol = protocol;
    this.status = h("span", { class: "badge", role: "status" }, "not asked");
    this.times = h("span", { class: "soft" });
    this.text = h("p", { class: "assembled" });
    this.sent = h("pre", { tabIndex: 0, "aria-label": `Request to ${protocol.name}`, role: "region" });
    this.raw = h("pre", { tabIndex: 0, "aria-label": `Raw stream of ${protocol.name}`, role: "region" });
    this.element = h(
      "section",
      { class: "card protocol", "aria-label": protocol.name },
      h("div", { class: "protocol-head" }, h("h3", {}, protocol.name), this.status, this.times),
      this.text,
      h("details", { open: true }, h("summary", {}, "Raw stream"), this.raw),
      h("details", {}, h("summary", {}, "Request"), this.sent),
      h("div", { class: "row" }, copyButtons(protocol.name, () => this.request)),
    );
  }

  show(request) {
    this.request = request;
    const headers = Object.entries(request.headers).map(([name, value]) => `${name}: ${value}\n`);
    this.sent.textContent = `POST ${request.path}\n${headers.join("")}\n${JSON.stringify(request.body, null, 2)}`;
  }

  mark(text, kind) {
    this.status.textContent = text;
    this.status.className = `badge ${kind}`;
  }

  async run(signal) {
    this.raw.textContent = this.text.textContent = this.times.textContent = "";
    this.text.className = "assembled";
    this.mark("waiting", "");
    const began = performance.now();
    let first = null;
    try {
      const { path, body, headers } = this.request;
      const answer = await send(path, { method: "POST", body, signal, more: { ...MARK, ...headers } });
      if (!answer.ok) {
        const later = answer.headers.get("retry-after");
        this.raw.textContent = `${answer.status}${later ? `  retry-after: ${later}` : ""}\n${await answer.clone().text()}`;
        throw Object.assign(await failure(answer), { shown: `${answer.status} refused` });
      }
      this.mark(`${answer.status} streaming`, "accent");
      await this.read(answer, () => (first ??= performance.now() - began));
      this.mark(`${answer.status} complete`, "good");
    } catch (error) {
      if (error.name === "AbortError") return;
      this.mark(error.shown ?? "failed", "bad");
      this.text.append(h("span", { class: "bad" }, `${this.text.textContent ? " " : ""}${error.message}`));
    }
    const total = seconds((performance.now() - began) / 1000);
    this.times.textContent = first === null ? total : `first token ${seconds(first / 1000)}, total ${total}`;
  }

  async read(answer, noteFirst) {
    let complete = this.protocol.ends === null;
    const parts = this.protocol.lines ? lines : events;
    for await (const { event, data, comment } of parts(answer.body)) {
      if (comment) continue;
      const shown = this.protocol.lines ? `${data}\n` : `${event === "message" ? "" : `event: ${event}\n`}data: ${data}\n\n`;
      if (this.raw.textContent.length < MOST_RAW) this.raw.append(shown);
      this.raw.scrollTop = this.raw.scrollHeight;
      const read = data === "[DONE]" ? {} : JSON.parse(data);
      const error = errorText(read) || errorText(read.response);
      if (error) throw Object.assign(new Error(error), { shown: "failed in the stream" });
      const piece = this.protocol.text(read);
      if (piece) {
        noteFirst();
        this.text.append(piece);
      }
      complete ||= this.protocol.ends(read, data);
    }
    if (!complete) throw Object.assign(new Error("The stream ended without its proper end."), { shown: "cut" });
  }
}
