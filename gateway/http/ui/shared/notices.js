// Messages that stay until they are dismissed. One of the same text is shown once.
import { button, h } from "./dom.js";

/** Show an error, with the id of its request if it has one. */
export function showError(error, what = "") {
  if (error.name === "AbortError") return;
  const said = what ? `${what}: ${error.message}` : error.message;
  notice(said, { kind: "bad", detail: error.requestId ? `request ${error.requestId}` : "" });
}

export function notice(text, { kind = "info", detail = "", action = null } = {}) {
  const area = document.getElementById("notices");
  for (const shown of area.children) if (shown.dataset.text === text) return shown;
  const made = h(
    "div",
    { class: `notice ${kind}`, "data-text": text },
    h("p", {}, text, detail && h("small", {}, detail)),
    action && button(action.text, () => (made.remove(), action.run()), { kind: "quiet" }),
    button("", () => dismiss(made), { kind: "quiet", symbol: "close", label: "Dismiss" }),
  );
  area.append(made);
  return made;
}

/** Take a message away; the focus goes to the next one, or to the view. */
function dismiss(made) {
  const next = made.nextElementSibling ?? made.previousElementSibling;
  made.remove();
  (next?.querySelector("button:last-child") ?? document.getElementById("view")).focus();
}

/** Run a piece of work; what fails is shown. */
export async function attempt(work, what = "") {
  try {
    return await work();
  } catch (error) {
    showError(error, what);
    return undefined;
  }
}
