// The settings of a chat: system prompt, sampling, JSON schema, tools. Kept for the tab.
import { field, h } from "../shared/dom.js";

const PLACE = "interlingua.settings";
const NUMBERS = [
  ["temperature", "Temperature", { min: 0, max: 2, step: 0.05 }],
  ["top_p", "Top p", { min: 0, max: 1, step: 0.05 }],
  ["max_tokens", "Most tokens", { min: 1, step: 1 }],
  ["seed", "Seed", { step: 1 }],
  ["frequency_penalty", "Frequency penalty", { min: -2, max: 2, step: 0.1 }],
  ["presence_penalty", "Presence penalty", { min: -2, max: 2, step: 0.1 }],
];
const SCHEMA_EXAMPLE = '{"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}';
const TOOLS_EXAMPLE = '[{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}]';

/** The settings as they are kept. */
export function load() {
  try {
    return JSON.parse(sessionStorage.getItem(PLACE)) ?? {};
  } catch {
    return {};
  }
}

/** The panel. `changed` is called with the settings after each valid change. */
export function panel(changed) {
  const settings = load();
  const keep = (name, value) => {
    settings[name] = value;
    sessionStorage.setItem(PLACE, JSON.stringify(settings));
    changed(settings);
  };
  const text = (name, rows, placeholder, check = () => "") =>
    h("textarea", {
      rows,
      placeholder,
      value: settings[name] ?? "",
      spellcheck: false,
      oninput: ({ target }) => {
        target.setCustomValidity(check(target.value));
        if (target.reportValidity()) keep(name, target.value.trim());
      },
    });
  const numbers = NUMBERS.map(([name, title, bounds]) =>
    field(
      title,
      h("input", {
        type: "number",
        placeholder: "default",
        value: settings[name] ?? "",
        ...bounds,
        oninput: ({ target }) => target.reportValidity() && keep(name, target.value),
      }),
    ),
  );
  return h(
    "div",
    { class: "settings-fields" },
    field("System prompt", text("system", 4, "You are a helpful assistant.")),
    h("div", { class: "pairs" }, numbers),
    field("Stop sequences", text("stop", 2, "one a line")),
    field("JSON schema of the answer", text("schema", 4, SCHEMA_EXAMPLE, isJson), '{"type": "object"} allows any object.'),
    field("Tools", text("tools", 4, TOOLS_EXAMPLE, isJson), "Calls are shown; you write their results."),
  );
}

function isJson(value) {
  if (!value.trim()) return "";
  try {
    JSON.parse(value);
    return "";
  } catch (error) {
    return `This is no JSON: ${error.message}`;
  }
}
