// Makes elements. Text becomes text nodes, never markup; markup comes from markdown.js alone.

/**
 * An element. `properties` are DOM properties; `class`, `for`, `role`, `aria-*`, `data-*` and event listeners (`onclick`)
 * may be among them. A null or false child is left out.
 */
export function h(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null) continue;
    // As a property, a listener that returns false would prevent what the browser does: Tab would not leave.
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name in ALIASES) made[ALIASES[name]] = value;
    else if (name.includes("-") || name === "role" || name === "list") made.setAttribute(name, value);
    else made[name] = value;
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

const ALIASES = { class: "className", for: "htmlFor" };

/** An icon of the set below; decoration, thus hidden from screen readers. */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS(SVG, "path");
  path.setAttribute("d", ICONS[name]);
  svg.append(path);
  return svg;
}

const SVG = "http://www.w3.org/2000/svg";
const ICONS = {
  chat: "M4 5h16v11H9l-5 4z",
  compare: "M4 5h7v14H4zM13 5h7v14h-7z",
  protocols: "M4 7h16M4 12h16M4 17h10",
  live: "M3 13h4l3-8 4 14 3-6h4",
  requests: "M5 6h14M5 12h14M5 18h9",
  experiments: "M9 4v6l-5 9h16l-5-9V4M8 4h8M7 14h10",
  models: "M12 3l8 4.5v9L12 21l-8-4.5v-9zM4 7.5l8 4.5 8-4.5M12 12v9",
  keys: "M14.5 9.5a4.5 4.5 0 1 1-3.2-4.3M10 10l10 10M16 16l2-2M19 19l1.5-1.5",
  close: "M6 6l12 12M18 6L6 18",
  copy: "M9 9h11v11H9zM5 15H4V4h11v1",
  stop: "M7 7h10v10H7z",
  send: "M12 19V5M6 11l6-6 6 6",
  redo: "M20 12a8 8 0 1 1-2.3-5.7L20 8M20 3v5h-5",
  edit: "M4 20l1-4L16 5l3 3L8 19z",
  image: "M4 5h16v14H4zM4 16l5-5 4 4 3-3 4 4M9 9.5h.01",
  settings: "M4 7h9M17 7h3M4 17h3M11 17h9M15 5v4M9 15v4",
  sun: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 2v2M12 20v2M4.2 4.2l1.4 1.4M18.4 18.4l1.4 1.4M2 12h2M20 12h2M4.2 19.8l1.4-1.4M18.4 5.6l1.4-1.4",
  plus: "M12 5v14M5 12h14",
  down: "M6 9l6 6 6-6",
  play: "M8 5l11 7-11 7z",
};

/** A button. `label` is its accessible name where it shows an icon alone. */
export function button(text, onclick, { kind = "", symbol = null, label = null, ...more } = {}) {
  return h(
    "button",
    { type: "button", class: `button ${kind}`, onclick, "aria-label": label, title: label, ...more },
    symbol && icon(symbol),
    text && h("span", {}, text),
  );
}

/** Give a button of an icon another meaning; it stays the same element, so that it keeps the focus. */
export function relabel(made, symbol, label) {
  made.replaceChildren(icon(symbol));
  made.title = label;
  made.setAttribute("aria-label", label);
}

/**
 * Replace the children of an element. What somebody does there goes on: open details stay open, what was written into a
 * form stays, and the focus stays on what has the same name, or else on the element.
 */
export function redraw(parent, ...children) {
  const open = new Map([...parent.querySelectorAll("details")].map((each) => [summaryOf(each), each.open]));
  const written = new Map([...parent.querySelectorAll(WRITTEN)].map((each) => [nameOf(each), each.value]));
  const focused = parent.contains(document.activeElement) ? nameOf(document.activeElement) : null;
  parent.replaceChildren(...children);
  for (const each of parent.querySelectorAll("details")) each.open = open.get(summaryOf(each)) ?? each.open;
  for (const each of parent.querySelectorAll(WRITTEN)) each.value = written.get(nameOf(each)) ?? each.value;
  if (focused === null) return;
  const same = [...parent.querySelectorAll("a, button, input, select, textarea, summary, [tabindex]")].find((each) => nameOf(each) === focused);
  if (!parent.hasAttribute("tabindex")) parent.tabIndex = -1;
  (same ?? parent).focus({ preventScroll: true });
}

/** What was written and not sent yet. */
const WRITTEN = "form:not([data-sent]) :is(input, textarea)";
const partOf = (element) => element.closest("section[aria-label]")?.getAttribute("aria-label");
const summaryOf = (details) => `${partOf(details)} ${details.querySelector("summary").textContent}`;
const nameOf = (element) => `${partOf(element)} ${element.tagName} ${element.getAttribute("aria-label") ?? (element.labels?.[0] ?? element).textContent}`;

/** Ask once more, in place of a button: `text` does the work, "Cancel" and Escape bring the button back. */
export function confirm(asked, text, work) {
  const back = () => {
    row.replaceWith(asked);
    asked.focus();
  };
  const row = h(
    "div",
    { class: "row confirm", onkeydown: (event) => event.key === "Escape" && back() },
    button(text, work, { kind: "danger" }),
    button("Cancel", back, { kind: "quiet" }),
  );
  asked.replaceWith(row);
  row.firstChild.focus();
}

/** A labelled control; the hint stands below. */
export function field(text, control, hint = null) {
  return h("label", { class: "field" }, h("span", { class: "label" }, text), control, hint && h("small", {}, hint));
}

/** A table with a caption for screen readers. `columns`: { name, title, number }; cells are nodes or texts. */
export function table(caption, columns, rows) {
  const head = columns.map((column) => h("th", { scope: "col", class: column.number ? "number" : "" }, column.title));
  const body = rows.map((row) =>
    h("tr", {}, row.map((cell, at) => h(at ? "td" : "th", { scope: at ? undefined : "row", class: columns[at].number ? "number" : "" }, cell ?? ""))),
  );
  return h(
    "div",
    { class: "scroll", tabIndex: 0, role: "region", "aria-label": caption },
    h("table", {}, h("caption", { class: "hidden" }, caption), h("thead", {}, h("tr", {}, head)), h("tbody", {}, body)),
  );
}
