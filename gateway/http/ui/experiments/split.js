// The split of an endpoint's traffic: a slider for each arm that gets some, and what "Apply" will do.
import { call } from "../shared/api.js";
import { button, h } from "../shared/dom.js";
import { attempt, notice } from "../shared/notices.js";
import { session } from "../shared/session.js";
import { described, moved } from "./shares.js";

const KINDS = { shadow: "shadow: gets copies, answers nobody", paired: "paired: answers again what the first arm answered" };

/** Put a split in force: percentages by the name of the arm. */
export async function apply(endpoint, shares) {
  const routes = Object.entries(shares).map(([name, share]) => ({ served_entity_name: name, traffic_percentage: share }));
  await call(`/api/2.0/serving-endpoints/${encodeURIComponent(endpoint)}/config`, { method: "PUT", body: { traffic_config: { routes } } });
  notice("The split was changed. All figures are kept.", { kind: "good" });
}

/** The card; `done` is called after a change. `ramp` is that of the report, or null. */
export function splitCard(endpoint, ramp, done) {
  const { can_change: admin, is_changeable: changeable, has_admins: admins } = session.now;
  const { arms } = endpoint;
  const sliding = arms.filter((arm) => arm.kind === "arm" || (arm.kind === "paired" && arm.traffic_percentage > 0));
  const names = sliding.map((arm) => arm.name);
  const before = sliding.map((arm) => arm.traffic_percentage);
  let shares = [...before];
  const outputs = sliding.map((_, at) => h("output", {}, `${before[at]} %`));
  const sliders = sliding.map((arm, at) =>
    h("input", { type: "range", min: 0, max: 100, value: before[at], disabled: !admin || !changeable || sliding.length < 2, "aria-label": `Share of ${arm.name}`, oninput: ({ target }) => change(at, Number(target.value)) }),
  );
  const effect = h("p", { class: "effect", role: "status" });
  const button_ = button("Apply", () => send(), { kind: "primary", disabled: true });
  const back = button("Discard", () => (set([...before])), { kind: "quiet", disabled: true });

  function change(at, value) {
    set(moved(shares, at, value));
  }
  function set(next) {
    shares = next;
    sliders.forEach((slider, at) => (slider.value = shares[at]));
    outputs.forEach((output, at) => (output.textContent = `${shares[at]} %`));
    const said = described(names, before, shares);
    const ends = said && ramp?.status === "running" ? ` The ramp of ${ramp.arm} ends.` : "";
    effect.textContent = said ? `${said} The figures are kept: each split is counted by itself, and all are compared together.${ends}` : "";
    button_.disabled = back.disabled = !said;
  }
  async function send() {
    button_.disabled = true;
    const all = Object.fromEntries(arms.map((arm) => [arm.name, arm.traffic_percentage]));
    names.forEach((name, at) => (all[name] = shares[at]));
    await attempt(() => apply(endpoint.name, all), "The split was not changed");
    await session.read();
    done();
  }

  const rows = arms.map((arm) => {
    const at = sliding.indexOf(arm);
    const state = arm.state === "ready" && !arm.detail ? null : h("span", { class: `badge ${arm.state === "ready" ? "warn" : "bad"}`, title: arm.detail }, arm.detail || arm.state);
    return h(
      "div",
      { class: "arm" },
      h("div", { class: "arm-name" }, h("strong", {}, arm.name), h("small", {}, arm.model), state),
      at < 0 ? h("p", { class: "soft" }, KINDS[arm.kind]) : sliders[at],
      at < 0 ? null : outputs[at],
    );
  });
  const why = !changeable ? "The split is fixed: the configuration has no state_file." : !admins ? "The split is fixed: the server has no admin keys." : admin ? "" : "Log in with an admin key to change the split.";
  return h(
    "section",
    { class: "card", "aria-label": "Traffic" },
    h("h2", {}, "Traffic"),
    h("div", { class: "arms" }, rows),
    effect,
    why ? h("p", { class: "soft" }, why) : sliding.length > 1 && h("div", { class: "row" }, button_, back),
  );
}
