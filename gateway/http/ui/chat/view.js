// Chat: a conversation with an endpoint, or with one of its arms.
import { ask, blank, bodyOf } from "../shared/ask.js";
import { button, h, redraw, relabel } from "../shared/dom.js";
import { attempt } from "../shared/notices.js";
import { session, targets } from "../shared/session.js";
import { begun, load, save, titleOf, wire } from "./conversations.js";
import { read } from "./images.js";
import { drawAnswer, messageView } from "./message.js";
import * as settings from "./settings.js";

const FRAME = 60; // milliseconds between two drawings of an answer
const MODEL = "interlingua.model";
const IDEAS = ["What is the capital of France?", "Tell me a short story.", "What is 12 + 7?"];

export function mount(root) {
  const chat = new Chat(root);
  const end = session.on(() => chat.listTargets());
  return () => {
    chat.stop();
    end();
  };
}

class Chat {
  constructor(root) {
    this.conversations = load();
    this.open = this.conversations[0] ?? this.begin();
    this.settings = settings.load();
    this.images = [];
    this.running = null;
    this.build(root);
    this.listTargets();
    this.draw();
  }

  build(root) {
    this.list = h("ul", { class: "list" });
    this.log = h("div", { class: "log", role: "log", "aria-label": "Conversation", "aria-live": "off", tabIndex: 0 });
    this.status = h("p", { class: "hidden", role: "status" });
    this.model = h("select", { onchange: () => sessionStorage.setItem(MODEL, this.model.value) });
    this.side = h("aside", { class: "side history", "aria-label": "Conversations" }, button("New conversation", () => this.renew(), { symbol: "plus", kind: "wide" }), this.list);
    this.panel = h("aside", { class: "side settings", "aria-label": "Settings", hidden: true }, h("h2", {}, "Settings"), settings.panel((found) => (this.settings = found)));
    const toggle = button("Settings", () => this.toggle(this.panel, toggle), { kind: "quiet", symbol: "settings", "aria-expanded": "false" });
    const history = button("History", () => this.toggle(this.side, history), { kind: "quiet history-toggle", symbol: "down", "aria-expanded": "false" });
    const head = h("div", { class: "chat-head" }, history, h("label", { class: "inline" }, h("span", {}, "Endpoint"), this.model), toggle);
    // Images may be dropped anywhere on the conversation.
    const dropped = { ondragover: (event) => event.preventDefault(), ondrop: (event) => this.attach(event.dataTransfer.files, event) };
    this.side.addEventListener("keydown", ({ key }) => key === "Escape" && this.side.classList.contains("shown") && history.click());
    this.panel.addEventListener("keydown", ({ key }) => key === "Escape" && toggle.click());
    root.append(this.side, h("section", { class: "talk", "aria-label": "Chat", ...dropped }, head, this.log, this.composer(), this.status), this.panel);
  }

  toggle(panel, control) {
    const shown = panel === this.panel ? (panel.hidden = !panel.hidden, !panel.hidden) : panel.classList.toggle("shown");
    control.setAttribute("aria-expanded", String(shown));
    (shown ? panel.querySelector("button, textarea") : control).focus();
  }

  composer() {
    this.input = h("textarea", {
      rows: 1,
      placeholder: "Ask something",
      "aria-label": "Message",
      onkeydown: (event) => {
        if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
        event.preventDefault();
        this.submit();
      },
      onpaste: (event) => event.clipboardData.files.length && this.attach(event.clipboardData.files, event),
    });
    const files = h("input", { type: "file", accept: "image/*", multiple: true, hidden: true, onchange: () => this.attach(files.files).then(() => (files.value = "")) });
    this.previews = h("div", { class: "previews" });
    this.send = button("", () => (this.running ? this.stop() : this.submit()), { kind: "primary round", symbol: "send", label: "Send" });
    const pick = button("", () => files.click(), { kind: "quiet", symbol: "image", label: "Attach an image" });
    return h(
      "form",
      {
        class: "composer",
        onsubmit: (event) => event.preventDefault(),
      },
      this.previews,
      h("div", { class: "composer-row" }, pick, files, this.input, this.send),
    );
  }

  listTargets() {
    const wanted = this.model.value || sessionStorage.getItem(MODEL) || session.now.default;
    const found = targets();
    this.model.replaceChildren(...found.map(({ model, title }) => new Option(title, model, false, model === wanted)));
    this.send.disabled = !found.length;
  }

  begin() {
    const made = begun();
    this.conversations.unshift(made);
    return made;
  }

  renew() {
    this.stop();
    if (this.open.messages.length) this.open = this.begin();
    this.draw();
    this.side.classList.remove("shown");
    this.input.focus();
  }

  // --- drawing

  draw() {
    redraw(this.list, ...this.conversations.filter((each) => each.messages.length || each === this.open).map((each) => this.entry(each)));
    const { messages } = this.open;
    redraw(this.log, ...(messages.length ? messages.map((message) => messageView(message, this.actions(message))) : [this.welcome()]));
    this.log.scrollTop = this.log.scrollHeight;
  }

  entry(conversation) {
    const title = titleOf(conversation);
    return h(
      "li",
      {},
      h("button", { type: "button", class: "entry", "aria-current": conversation === this.open ? "true" : null, onclick: () => this.choose(conversation) }, title),
      button("", () => this.forget(conversation), { kind: "quiet", symbol: "close", label: `Delete ${title}` }),
    );
  }

  welcome() {
    if (!targets().length) {
      return h("div", { class: "empty" }, h("h2", {}, "No endpoint to chat with"), h("p", {}, "Endpoints for chat appear here as soon as the configuration has one that this key may ask."));
    }
    return h(
      "div",
      { class: "empty" },
      h("h2", {}, "Ask a model"),
      h("p", {}, "Drop or paste images. What is asked here counts in no experiment."),
      h("div", { class: "ideas" }, IDEAS.map((idea) => button(idea, () => ((this.input.value = idea), this.submit())))),
    );
  }

  actions(message) {
    return {
      edit: (edited, text) => this.again(this.open.messages.indexOf(edited), { ...edited, text }),
      regenerate: message === this.open.messages.at(-1) ? () => this.again(this.open.messages.indexOf(message)) : null,
      result: message === this.open.messages.at(-1) ? (call, text) => this.say({ role: "tool", call: call.id, text }) : null,
    };
  }

  // --- doing

  choose(conversation) {
    this.stop();
    this.open = conversation;
    this.draw();
  }

  forget(conversation) {
    if (conversation === this.open) this.stop();
    this.conversations = this.conversations.filter((each) => each !== conversation);
    if (conversation === this.open) this.open = this.conversations[0] ?? this.begin();
    save(this.conversations);
    this.draw();
  }

  async attach(files, event = null) {
    event?.preventDefault();
    const found = await attempt(() => read(files));
    this.images.push(...(found ?? []));
    this.drawPreviews();
  }

  drawPreviews() {
    redraw(
      this.previews,
      ...this.images.map((url, at) =>
        h("figure", {}, h("img", { src: url, alt: `Image ${at + 1} to send` }), button("", () => (this.images.splice(at, 1), this.drawPreviews()), { kind: "quiet", symbol: "close", label: `Remove image ${at + 1}` })),
      ),
    );
  }

  submit() {
    const text = this.input.value.trim();
    if (this.running || (!text && !this.images.length)) return;
    const images = this.images;
    this.input.value = "";
    this.images = [];
    this.drawPreviews();
    this.say({ role: "user", text, images });
  }

  /** Go back to the message at `at`, put `edited` in its place if given, and ask again. */
  again(at, edited = null) {
    this.stop();
    this.open.messages.length = at;
    this.send.focus(); // it stops the answer; what was clicked goes with the message
    if (edited) this.say(edited);
    else this.answer();
  }

  say(message) {
    this.open.messages.push(message);
    // The model waits for a result of each of its calls.
    const asked = this.open.messages.findLast((each) => each.answer);
    const results = this.open.messages.slice(this.open.messages.indexOf(asked) + 1).filter((each) => each.role === "tool");
    if (message.role === "tool" && results.length < asked.answer.calls.length) this.draw();
    else this.answer();
  }

  async answer() {
    const conversation = this.open;
    const target = targets().find((each) => each.model === this.model.value);
    if (!target) return;
    const message = { role: "assistant", answer: blank() };
    const body = await attempt(() => bodyOf(target.model, wire(conversation.messages), this.settings), "The settings");
    if (!body) return;
    message.answer.isJson = "response_format" in body;
    conversation.messages.push(message);
    this.draw();
    const made = this.log.lastElementChild;
    const stop = (this.running = new AbortController());
    this.mark(true);
    let drawn = 0;
    const changed = (answer) => {
      const now = performance.now();
      if (now - drawn < FRAME || !made.isConnected) return;
      drawn = now;
      this.follow(() => drawAnswer(made, answer));
    };
    await ask(body, target.endpoint, { answer: message.answer, changed, signal: stop.signal });
    message.answer.raw = "";
    if (this.running === stop) {
      this.running = null;
      this.mark(false);
    }
    this.status.textContent = message.answer.state === "done" ? `The answer is complete: ${message.answer.text.slice(0, 400)}` : "";
    save(this.conversations);
    if (conversation === this.open) this.follow(() => this.draw());
  }

  /** Draw, and stay at the end if the end is shown. */
  follow(draw) {
    const { log } = this;
    const at = log.scrollTop;
    const isAtEnd = log.scrollHeight - at - log.clientHeight < 60;
    draw();
    log.scrollTop = isAtEnd ? log.scrollHeight : at;
  }

  stop() {
    this.running?.abort();
    this.running = null;
    this.mark(false);
  }

  mark(running) {
    relabel(this.send, running ? "stop" : "send", running ? "Stop" : "Send");
  }
}
