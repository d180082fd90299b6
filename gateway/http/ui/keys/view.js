// Keys: who may ask what, their limits, and what they have used as curves.
import { call } from "../shared/api.js";
import { chart } from "../shared/chart.js";
import { button, confirm, field, h, redraw, table } from "../shared/dom.js";
import { cost, count } from "../shared/format.js";
import { attempt, notice } from "../shared/notices.js";
import { session } from "../shared/session.js";

const CURVES = [
  ["Requests a day", "requests", count],
  ["Tokens a day", "tokens", count],
  ["Cost a day", "cost", cost],
];

export function mount(root) {
  let left = false;
  const list = h("section", { class: "card", "aria-label": "Keys" });
  const charts = CURVES.map(([title, , format]) => chart(title, format));
  const usage = h("div", { class: "charts" }, charts.map((each) => each.element));
  const page = h("div", { class: "page" }, h("div", { class: "page-head" }, h("h2", {}, "Keys and usage")), list, usage);
  root.append(page);

  async function loadKeys() {
    const { can_change: admin, has_keys_file: file } = session.now;
    if (!file) return list.replaceChildren(h("h2", {}, "Keys"), h("p", { class: "soft" }, "The server has no keys_file, so keys are those of its environment, and cannot be changed here."));
    if (!admin) return list.replaceChildren(h("h2", {}, "Keys"), h("p", { class: "soft" }, "Log in with an admin key to see, make and revoke keys."));
    const found = await attempt(() => call("/v1/keys"));
    if (!found || left) return undefined;
    const columns = ["Name", "Key", "Roles", "Endpoints", "Limits", "Expires", ""].map((title) => ({ title }));
    const rows = found.keys.map((key) => [key.name, h("code", {}, `${key.hint}…`), key.roles.join(", "), key.endpoints.join(", "), limitsOf(key.limits), key.expires ? key.expires.slice(0, 10) : "never", revokeButton(key.name)]);
    return redraw(list, h("h2", {}, "Keys"), table("Keys", columns, rows), newKey());
  }

  function revokeButton(name) {
    const made = button("Revoke", () => confirm(made, `Revoke ${name} for good`, revoke), { kind: "quiet", label: `Revoke ${name}` });
    async function revoke() {
      if (await attempt(async () => (await call(`/v1/keys/${encodeURIComponent(name)}`, { method: "DELETE" }), true))) notice(`The key ${name} was revoked.`, { kind: "good" });
      loadKeys();
    }
    return made;
  }

  function newKey() {
    const name = h("input", { required: true, pattern: "[A-Za-z0-9_.:@\\-]+", title: "letters, digits and _ . : @ -" });
    const role = h("select", {}, ["ask", "metrics", "admin"].map((each) => new Option(each)));
    const endpoints = h("input", { value: "*" });
    const requests = h("input", { type: "number", min: 1, placeholder: "no limit" });
    async function make(event) {
      event.preventDefault();
      const limits = requests.value ? [{ requests: Number(requests.value), window: "minute" }] : [];
      const body = { name: name.value, roles: [role.value], endpoints: endpoints.value.split(",").map((each) => each.trim()), limits };
      const made = await attempt(() => call("/v1/keys", { method: "POST", body }), "The key was not made");
      if (!made) return;
      event.target.dataset.sent = "";
      await loadKeys();
      list.append(h("p", { class: "why", role: "status" }, `The key of ${made.name}, which is shown this once: `, h("code", {}, made.key)));
    }
    return h("details", {}, h("summary", {}, "New key"), h("form", { class: "stack", onsubmit: make }, h("div", { class: "filters" }, field("Name", name), field("Role", role), field("Endpoints", endpoints), field("Requests a minute", requests)), h("div", { class: "row" }, h("button", { class: "button primary" }, "Make the key"))));
  }

  async function loadUsage() {
    if (!session.now.keeps_usage) {
      usage.replaceChildren(h("section", { class: "card" }, h("h2", {}, "Usage"), h("p", { class: "soft" }, "The server keeps no usage: its configuration has no section [usage].")));
      return;
    }
    if (!session.now.key) {
      usage.replaceChildren(h("section", { class: "card" }, h("h2", {}, "Usage"), h("p", { class: "soft" }, "Log in with a key to see what it has used; with an admin key, what all have used.")));
      return;
    }
    const found = await attempt(() => call("/v1/usage?group_by=day,key&limit=5000"));
    if (!found || left) return;
    const rows = found.data.map((row) => ({ ...row, tokens: row.prompt_tokens + row.completion_tokens, cost: Number(row.cost) }));
    const days = [...new Set(rows.map((row) => row.day))].sort();
    const names = [...new Set(rows.map((row) => row.key ?? "no key"))].sort();
    const times = days.map((day) => Date.parse(`${day}T00:00Z`) / 1000);
    charts.forEach((each, at) =>
      each.set(times, names.map((name) => ({ label: name, values: days.map((day) => rows.find((row) => row.day === day && (row.key ?? "no key") === name)?.[CURVES[at][1]] ?? 0) }))),
    );
  }

  loadKeys();
  loadUsage();
  return () => {
    left = true;
    charts.forEach((each) => each.destroy());
  };
}

function limitsOf(limits) {
  const one = ({ requests, tokens, cost: money, concurrent, window }) =>
    [requests && `${count(requests)} requests a ${window}`, tokens && `${count(tokens)} tokens a ${window}`, money && `${money} a ${window}`, concurrent && `${count(concurrent)} at a time`].filter(Boolean).join(", ");
  return limits.map(one).join("; ") || "none";
}
