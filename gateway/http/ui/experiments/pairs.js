// Paired arms and shadows: how alike the answers are, and the prompts that differ most.
import { h, table } from "../shared/dom.js";
import { count, number, percent, seconds } from "../shared/format.js";

const WORDS = { same: "good", "as good": "good", differs: "bad", "keep collecting": "accent" };

export function pairsCards(report) {
  return [...report.paired.map((found) => pairsCard(found, report.control)), ...report.shadows.map(shadowCard)];
}

function estimate(found, write) {
  if (!found || found.mean === null) return "–";
  return found.low === null ? write(found.mean) : `${write(found.mean)} (${write(found.low)} to ${write(found.high)})`;
}

function pairsCard(found, control) {
  const { word, reason, caveat, pairs_needed: needed } = found.verdict;
  const facts = [
    ["Identical answers", estimate(found.identical, percent)],
    ["Tokens that agree", estimate(found.token_agreement, percent)],
    ["Same top token after the same tokens", estimate(found.top_token_agreement, percent)],
    ...found.log_likelihoods.map((each) => [`Log-likelihood of ${each.answers_of}'s answers, ${found.arm} less ${control} (nats per token)`, estimate(each.difference, number)]),
  ];
  const unpaired = Object.entries(found.not_paired).filter(([, value]) => value);
  return h(
    "section",
    { class: "card", "aria-label": `Pairs of ${found.arm}` },
    h("h2", {}, `${found.arm} paired with ${control}`),
    h("div", { class: "said" }, h("span", { class: `badge large ${WORDS[word] ?? ""}` }, word), h("p", {}, `${reason} ${caveat ?? ""}`), h("small", {}, `${count(found.pairs)} pairs${needed ? `, about ${count(needed)} more decide` : ""}`)),
    table(`Agreement of ${found.arm} and ${control}`, [{ title: "Measure" }, { title: "Estimate", number: true }], facts),
    unpaired.length ? h("p", { class: "soft" }, `Not paired: ${unpaired.map(([why, value]) => `${why.replaceAll("_", " ")} ${count(value)}`).join(", ")}.`) : null,
    found.examples?.length ? h("div", { class: "examples" }, h("h3", {}, "The pairs that differ most"), found.examples.map((each) => example(each, found.arm, control))) : null,
  );
}

function example(found, arm, control) {
  const difference = `${number(found.log_likelihood_difference)} nats per token, ${percent(found.token_agreement)} of the tokens agree, first difference after ${found.first_divergence} tokens`;
  const texts = found.prompt || found.control_answer || found.arm_answer;
  return h(
    "details",
    { class: "example" },
    h("summary", {}, found.prompt.slice(0, 90) || `Request ${found.request_id}`, h("small", {}, ` ${difference}`)),
    texts
      ? h("dl", { class: "texts" }, [["Prompt", found.prompt], [control, found.control_answer], [arm, found.arm_answer]].map(([name, text]) => h("div", {}, h("dt", {}, name), h("dd", {}, text))))
      : h("p", { class: "soft" }, `Request ${found.request_id}. Texts are not kept: paired.text allows them.`),
  );
}

function shadowCard(found) {
  const facts = [
    ["Copies", count(found.copies)],
    ["Sent", estimate(found.sent, percent)],
    ["Answered", estimate(found.success, percent)],
    ["Time to first token", estimate(found.time_to_first_token, seconds)],
    ["Latency", estimate(found.latency, seconds)],
    ["Completion tokens", estimate(found.completion_tokens, number)],
  ];
  return h("section", { class: "card", "aria-label": `Shadow ${found.arm}` }, h("h2", {}, `Shadow ${found.arm}`), table(`Figures of the shadow ${found.arm}`, [{ title: "Measure" }, { title: "Estimate", number: true }], facts));
}
