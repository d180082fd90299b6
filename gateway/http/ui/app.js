// The page at /ui: endpoints, experiment reports and a playground. No library; all text is set as text nodes, never as markup.
"use strict";

const API = "/api/2.0/serving-endpoints";
const POLL = 2000; // milliseconds
const $ = (id) => document.getElementById(id);

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

async function call(path, method = "GET", body) {
  const headers = body === undefined ? {} : { "content-type": "application/json" };
  if ($("key").value) headers.authorization = `Bearer ${$("key").value}`;
  const answer = await fetch(path, { method, headers, body: body && JSON.stringify(body) });
  const data = await answer.json();
  if (!answer.ok) throw Object.assign(new Error(data.message || `${answer.status}`), { status: answer.status });
  return data;
}

const number = (value) => (value === undefined ? "" : Number(value.toPrecision(3)).toString());
const row = (cell, ...values) => element("tr", {}, ...values.map((value) => element(cell, {}, value)));

// --- endpoints ---------------------------------------------------------------------------------------------------

const cards = new Map(); // endpoint name -> { config, article, report }

async function refresh() {
  const names = (await call(API)).endpoints.map((endpoint) => endpoint.name);
  for (const [name, card] of cards) {
    if (!names.includes(name)) cards.delete(name) && card.article.remove();
  }
  for (const name of names) {
    const [endpoint, found] = await Promise.all([
      call(`${API}/${encodeURIComponent(name)}`),
      report(name),
    ]);
    show(endpoint, found);
  }
  const options = [...$("model").options].map((option) => option.value);
  if (options.join() !== names.join()) $("model").replaceChildren(...names.map((name) => new Option(name, name)));
}

// The report of an endpoint's experiment; null if the endpoint has one arm, thus no experiment.
async function report(name) {
  try {
    return await call(`/serving-endpoints/${encodeURIComponent(name)}/experiment`);
  } catch (error) {
    if (error.status === 404) return null;
    throw error;
  }
}

function show(endpoint, report) {
  const old = cards.get(endpoint.name);
  const config = JSON.stringify([endpoint.state, endpoint.config]);
  if (old && old.config === config) { // keep the sliders: the user may be moving one
    old.report.replaceChildren(...tables(report));
    return;
  }
  const article = element("article", {}, element("h3", {}, endpoint.name), state(endpoint), split(endpoint));
  const card = { config, article, report: element("div", {}, ...tables(report)) };
  article.append(card.report);
  if (old) old.article.replaceWith(article);
  else $("endpoints").append(article);
  cards.set(endpoint.name, card);
}

function state(endpoint) {
  const words = [endpoint.task, endpoint.state.ready, endpoint.state.config_update, `version ${endpoint.config.config_version}`];
  return element("p", {}, words.join(" · "));
}

// One slider per arm. With two arms each slider moves the other; with more, Apply is enabled when the shares add up to 100.
function split(endpoint) {
  const routes = endpoint.config.traffic_config.routes;
  const entities = new Map(endpoint.config.served_entities.map((entity) => [entity.name, entity]));
  const sliders = routes.map((route) =>
    element("input", { type: "range", min: 0, max: 100, value: route.traffic_percentage, name: route.served_entity_name }),
  );
  const shares = routes.map((route) => element("output", {}, `${route.traffic_percentage} %`));
  const apply = element("button", { disabled: true }, "Apply");
  sliders.forEach((slider, at) => {
    slider.oninput = () => {
      if (sliders.length === 2) sliders[1 - at].value = 100 - slider.value;
      sliders.forEach((other, index) => (shares[index].textContent = `${other.value} %`));
      apply.disabled = sliders.reduce((sum, other) => sum + Number(other.value), 0) !== 100;
    };
  });
  apply.onclick = () => change(endpoint.name, sliders, apply);
  const rows = routes.map((route, at) => {
    const entity = entities.get(route.served_entity_name);
    const ready = entity.state.deployment === "DEPLOYMENT_READY" ? "ready" : "not ready";
    return row("td", entity.name, entity.entity_name, ready, sliders[at], shares[at]);
  });
  return element("div", {}, element("table", {}, row("th", "arm", "entity", "state", "traffic", "share"), ...rows), apply);
}

async function change(name, sliders, apply) {
  const routes = sliders.map((slider) => ({ served_entity_name: slider.name, traffic_percentage: Number(slider.value) }));
  apply.disabled = true;
  await showErrors(async () => {
    await call(`${API}/${encodeURIComponent(name)}/config`, "PUT", { traffic_config: { routes } });
    await refresh();
  });
}

// --- reports -----------------------------------------------------------------------------------------------------

function tables(report) {
  if (report === null) return [];
  const metrics = [...new Set(report.arms.flatMap((arm) => Object.keys(arm.means)))];
  if (!metrics.length) return [];
  const arms = report.arms.map((arm) =>
    row("td", arm.name, `${arm.exposures}`, ...metrics.map((m) => number(arm.means[m])), apart(arm)),
  );
  const shown = [element("table", {}, row("th", "arm", "requests", ...metrics, "not compared"), ...arms)];
  if (report.verdict) shown.unshift(verdict(report.verdict));
  if (report.ramp) shown.unshift(ramp(report.ramp));
  if (report.comparisons.length) {
    const against = row("th", `compared with ${report.control}`, "metric", "difference", "", "");
    shown.push(element("table", {}, against, ...report.comparisons.map(comparison)));
  }
  shown.push(...report.paired.map((found) => pairs(found, report.control)));
  if (report.sample_ratio_mismatch) {
    shown.push(element("p", { className: "warning" }, "Sample-ratio mismatch: the arms' request counts contradict the split. Do not trust this report."));
  }
  return shown;
}

// The verdicts on all arms: the word, and why.
function verdict(found) {
  const lines = found.arms.map((arm) =>
    element("p", {}, element("b", { className: arm.word }, `${arm.arm}: ${arm.word}`), ` — ${arm.reason}`),
  );
  return element("div", { className: "verdict" }, ...lines);
}

function ramp(found) {
  const next = found.next_percentage === null ? "" : `, next ${found.next_percentage} %`;
  const waits = found.waits_for ? `, waits for ${found.waits_for}` : "";
  return element("p", {}, `Ramp of ${found.arm}: ${found.status.replace("_", " ")}, ${found.traffic_percentage} %${next}${waits}`);
}

// Requests that are not compared, and whether a guardrail has stopped the arm.
function apart(arm) {
  const { stopped, ...counts } = arm.apart;
  const listed = Object.entries(counts).filter(([, count]) => count).map(([name, count]) => `${name.replaceAll("_", " ")} ${count}`);
  return (stopped ? ["stopped", ...listed] : listed).join(", ");
}

// The paired comparison of one arm with the control: agreement of the answers, and their log-likelihood by each model.
function pairs(found, control) {
  const counts = (byName) => Object.entries(byName).map(([name, count]) => `${name}: ${count}`).join(", ");
  const { word, reason, caveat } = found.verdict;
  const shown = [
    row("td", "verdict", `${word}: ${reason}${caveat ? ` ${caveat}` : ""}`, "", ""),
    row("td", "identical answers", estimate(found.identical), "", ""),
    row("td", "token agreement", estimate(found.token_agreement), "", ""),
    row("td", "same top token after the same tokens", estimate(found.top_token_agreement), "", ""),
    row("td", "equal tokens before the first difference", counts(found.first_divergence), "", ""),
  ];
  if (Object.keys(found.not_paired).length) shown.push(row("td", "not paired", counts(found.not_paired), "", ""));
  shown.push(row("th", "log-likelihood per token", `by ${control}`, `by ${found.arm}`, "difference"));
  for (const entry of found.log_likelihoods) {
    shown.push(row("td", `answers of ${entry.answers_of}`, ...[entry.by_control, entry.by_arm, entry.difference].map(estimate)));
  }
  const head = row("th", `${found.arm} paired with ${control}`, `${found.pairs} pairs`, "", "");
  return element("table", { className: "pairs" }, head, ...shown);
}

function estimate(found) {
  if (found.mean === null) return "";
  return found.low === null ? number(found.mean) : `${number(found.mean)}  (${number(found.low)} to ${number(found.high)})`;
}

function comparison(found) {
  const known = found.low !== null && found.high !== null;
  const words = known ? `${number(found.difference)}  (${number(found.low)} to ${number(found.high)})` : "";
  const decision = element("span", { className: found.decision }, found.decision);
  return row("td", found.arm, found.metric, words, known ? interval(found.low, found.high) : "", decision);
}

function interval(low, high) {
  const most = Math.max(Math.abs(low), Math.abs(high)) || 1;
  const bar = element("i");
  bar.style.left = `${50 + (50 * low) / most}%`;
  bar.style.width = `${(50 * (high - low)) / most}%`;
  return element("div", { className: "interval" }, bar, element("b"));
}

// --- playground --------------------------------------------------------------------------------------------------

const TOKENS = 64;
const messages = (prompt) => [{ role: "user", content: prompt }];
const PROTOCOLS = {
  OpenAI: (model, prompt) => ["/v1/chat/completions", { model, messages: messages(prompt), max_tokens: TOKENS, stream: true }],
  Databricks: (model, prompt) => [
    `/serving-endpoints/${encodeURIComponent(model)}/invocations`,
    { messages: messages(prompt), max_tokens: TOKENS, stream: true },
  ],
  "TGI (first endpoint)": (_, prompt) => ["/generate_stream", { inputs: prompt, parameters: { max_new_tokens: TOKENS } }],
  Triton: (model, prompt) => [
    `/v2/models/${encodeURIComponent(model)}/generate_stream`,
    { text_input: prompt, parameters: { max_tokens: TOKENS } },
  ],
  Anthropic: (model, prompt) => ["/v1/messages", { model, max_tokens: TOKENS, messages: messages(prompt), stream: true }],
};

async function play(title, path, body) {
  const sent = element("pre", { className: "request" }, `POST ${path}\n\n${JSON.stringify(body, null, 2)}`);
  const got = element("pre");
  $("streams").append(element("article", {}, element("h3", {}, title), sent, got));
  const headers = { "content-type": "application/json" };
  if ($("key").value) headers.authorization = `Bearer ${$("key").value}`;
  const answer = await fetch(path, { method: "POST", headers, body: JSON.stringify(body) });
  got.textContent = `${answer.status}  served by ${answer.headers.get("served-model-name") || "no entity"}\n\n`;
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let part = await reader.read(); !part.done; part = await reader.read()) got.append(part.value);
}

$("playground").onsubmit = (event) => {
  event.preventDefault();
  $("streams").replaceChildren();
  const streams = Object.entries(PROTOCOLS).map(([title, write]) => play(title, ...write($("model").value, $("prompt").value)));
  showErrors(() => Promise.all(streams));
};

// --- polling ----------------------------------------------------------------------------------------------------

async function showErrors(work) {
  try {
    await work();
    $("error").textContent = "";
  } catch (error) {
    $("error").textContent = error.message;
  }
}

async function poll() {
  await showErrors(refresh);
  setTimeout(poll, POLL);
}

poll();
