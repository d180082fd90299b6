// Models: what is loaded, where, its memory; sleep and wake; LoRA adapters.
import { call } from "../shared/api.js";
import { button, field, h, redraw } from "../shared/dom.js";
import { bytes, count, percent } from "../shared/format.js";
import { attempt, notice } from "../shared/notices.js";
import { session } from "../shared/session.js";

const KINDS = { ready: "good", loading: "warn", failed: "bad" };

export function mount(root) {
  const grid = h("div", { class: "cards" });
  let left = false;
  root.append(h("div", { class: "page" }, h("div", { class: "page-head" }, h("h2", {}, "Models")), grid));

  async function load() {
    const found = await attempt(() => call("/v1/console/models"));
    if (found && !left) redraw(grid, ...found.map((model) => card(model, load)));
  }

  load();
  const end = session.on(load);
  return () => {
    left = true;
    end();
  };
}

function card(model, load) {
  const engines = Object.values(model.engines);
  const sum = (name) => engines.reduce((total, engine) => total + engine[name], 0);
  const some = engines.length > 0;
  const sleeping = model.asleep > 0;
  const facts = [
    ["Kind", model.kind],
    ["Model", model.model],
    ["Server", model.url],
    ["Endpoints", model.endpoints.join(", ") || "none"],
    ["Context", model.context_length && `${count(model.context_length)} tokens`],
    ["Device", [model.device, model.dtype].filter(Boolean).join(", ")],
    ["Memory", some && bytes(sum("resident_bytes"))],
    ["KV cache in use", some && percent(sum("kv_usage") / engines.length)],
    ["Running, waiting", some && `${count(sum("running"))}, ${count(sum("waiting"))}`],
    ["Why", model.detail],
  ].filter(([, value]) => value);
  return h(
    "section",
    { class: "card", "aria-label": model.name },
    h("div", { class: "detail-head" }, h("h3", {}, model.name), h("span", { class: `badge ${sleeping ? "" : KINDS[model.status]}` }, sleeping ? `asleep, level ${model.asleep}` : model.status)),
    h("dl", { class: "facts plain" }, facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", { class: "wrap" }, value)))),
    model.asleep !== null && model.endpoints.length ? controls(model, load) : null,
  );
}

function controls(model, load) {
  if (!session.now.can_change) return h("p", { class: "soft" }, "Log in with an admin key to put it to sleep, or to load LoRA adapters.");
  const [endpoint] = model.endpoints;
  const run = (said, path, body, done = () => {}) => async () => {
    if (await attempt(async () => (await call(path, { method: "POST", body }), true))) {
      notice(said, { kind: "good" });
      done();
    }
    await load();
  };
  const query = `model=${encodeURIComponent(endpoint)}`;
  const name = h("input", { placeholder: "name" });
  const folder = h("input", { placeholder: "folder in lora_folder" });
  const sleep = model.asleep
    ? [button("Wake up", run(`${model.name} is awake.`, `/wake_up?${query}`))]
    : [button("Sleep", run(`${model.name} sleeps; its caches are freed.`, `/sleep?level=1&${query}`)), button("Deep sleep", run(`${model.name} sleeps; its weights are freed, too.`, `/sleep?level=2&${query}`))];
  const adapters = model.lora_adapters.map((adapter) =>
    h("li", {}, adapter, button("", run(`${adapter} was unloaded.`, "/v1/unload_lora_adapter", { lora_name: adapter, model: endpoint }), { kind: "quiet", symbol: "close", label: `Unload ${adapter}` })),
  );
  async function loaded(event) {
    event.preventDefault();
    const asked = { lora_name: name.value, lora_path: folder.value, model: endpoint };
    // After a failure what was written stays.
    await run(`${asked.lora_name} was loaded.`, "/v1/load_lora_adapter", asked, () => (event.target.dataset.sent = ""))();
  }
  return h(
    "div",
    { class: "stack controls" },
    h("div", { class: "row" }, sleep),
    adapters.length ? h("ul", { class: "chips", "aria-label": "LoRA adapters" }, adapters) : null,
    h(
      "details",
      {},
      h("summary", {}, "Load a LoRA adapter"),
      h("form", { class: "stack", onsubmit: loaded }, field("Name", name), field("Folder", folder), h("div", { class: "row" }, h("button", { class: "button" }, "Load"))),
    ),
  );
}
