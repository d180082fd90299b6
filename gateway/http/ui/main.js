// The shell: navigation, login, connection, and the view that the address names.
import { key } from "./shared/api.js";
import { button, field, h, icon } from "./shared/dom.js";
import * as feed from "./shared/feed.js";
import { notice, showError } from "./shared/notices.js";
import { session } from "./shared/session.js";
import { toggleTheme } from "./shared/theme.js";
import { VIEWS } from "./views.js";

const view = document.getElementById("view");
const nav = document.querySelector(".nav");
const who = document.querySelector(".who");
let leave = () => {};
let lost = null;
let back = null;

/** The name of a view and what follows it: `#/requests/abc` is ["requests", "abc"]. */
function address() {
  const [, name, ...rest] = location.hash.split("/");
  return [name in VIEWS ? name : "chat", decodeURIComponent(rest.join("/"))];
}

function show() {
  if (!session.now) return;
  const [name, rest] = address();
  const made = VIEWS[name];
  leave();
  document.title = `${made.title} · Interlingua`;
  for (const link of nav.children) {
    if (link.dataset.view === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  nav.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  view.className = `view-${name}`;
  view.replaceChildren(h("h1", { class: "hidden" }, made.title));
  feed.watch(...(made.topics ?? []));
  leave = made.mount(view, rest) ?? (() => {});
}

function drawNavigation() {
  const links = Object.entries(VIEWS).map(([name, { title }]) =>
    h("a", { href: `#/${name}`, "data-view": name }, icon(name), h("span", {}, title)),
  );
  nav.replaceChildren(...links);
}

function drawWho() {
  const { key: name, roles, can_change: admin } = session.now;
  const role = admin ? "Administrator" : roles.includes("ask") ? "Read-only" : roles.join(", ");
  const focused = [...who.children].indexOf(document.activeElement);
  who.replaceChildren(
    h("span", { class: "role", title: name ? `Key: ${name}` : "No key" }, h("span", { class: "role-name" }, name ?? "No key"), h("small", {}, role)),
    key.get() ? button("Log out", logOut, { kind: "quiet" }) : button("Log in", () => askForKey(), { kind: "quiet" }),
    button("", toggleTheme, { kind: "quiet", symbol: "sun", label: "Switch between light and dark" }),
  );
  who.children[focused]?.focus();
}

function logOut() {
  key.set("");
  begin();
}

/** A form for the key. `why` is shown above it. */
function askForKey(why = "") {
  leave();
  leave = () => {};
  const input = h("input", { type: "password", name: "key", autocomplete: "current-password", required: true });
  const form = h(
    "form",
    {
      class: "card login",
      onsubmit: (event) => {
        event.preventDefault();
        key.set(input.value.trim());
        begin();
      },
    },
    h("h2", {}, "Log in"),
    why ? h("p", { class: "bad", role: "alert" }, why) : h("p", {}, "The key decides what you may see and change. It is kept for this tab only."),
    h("input", { type: "text", name: "username", autocomplete: "username", value: "interlingua", hidden: true }),
    field("API key", input),
    h("div", { class: "row" }, h("button", { class: "button primary" }, "Log in"), session.now && button("Cancel", () => (show(), who.querySelector("button").focus()), { kind: "quiet" })),
  );
  view.className = "view-login";
  view.replaceChildren(form);
  input.focus();
}

/** Read the session, and show the page or the login. */
async function begin() {
  feed.stop();
  try {
    await session.read();
  } catch (error) {
    session.now = null;
    if (error.status === 401 || error.status === 403) {
      const given = key.get();
      key.set("");
      who.replaceChildren();
      askForKey(given ? error.message : "");
      return;
    }
    noteLoss();
    setTimeout(begin, 2000);
    return;
  }
  noteReturn();
  drawWho();
  show();
  if (document.activeElement === document.body) view.focus();
}

function noteLoss() {
  document.body.classList.add("offline");
  back?.remove(); // a server that ends may answer once more
  lost ??= notice("The server does not answer. What is shown may be old; the page tries again.", { kind: "warn" });
}

function noteReturn() {
  document.body.classList.remove("offline");
  if (!lost) return;
  lost.remove();
  lost = null;
  back = notice("The server is back.", { kind: "good" });
}

feed.on("lost", noteLoss);
feed.on("connected", noteReturn);
feed.on("changed", () => session.now && session.read().then(drawWho, showError));
feed.on("refused", (error) => {
  key.set("");
  askForKey(error.message);
});
addEventListener("hashchange", show);
drawNavigation();
begin();
