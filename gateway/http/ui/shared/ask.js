// One question over OpenAI's protocol, streamed: what chat and comparison have in common.
import { errorText, failure, send } from "./api.js";
import { events } from "./events.js";
import { priceOf } from "./session.js";

/** Characters of a stream that are kept. */
export const MOST_RAW = 100_000;

/** Marks the console's requests: they count in no experiment. */
export const MARK = { "x-interlingua-console": "1" };

/** An answer before its first event. Times are milliseconds since the request. */
export function blank() {
  return {
    text: "",
    reasoning: "",
    calls: [],
    tokens: [], // of the text, if the request asks for `logprobs`
    raw: "", // the stream as it came
    state: "waiting", // then "streaming", and "done", "stopped" or "failed"
    error: "",
    status: 0,
    requestId: null,
    arm: null,
    ignored: null,
    finish: null,
    firstToken: null,
    duration: null,
    usage: null,
    cost: null,
  };
}

/** The body of a request. `settings` are those of the settings panel; what is empty is left out. */
export function bodyOf(model, messages, settings) {
  const { system, schema, tools, stop, logprobs, ...sampling } = settings;
  const body = { model, messages: system ? [{ role: "system", content: system }, ...messages] : messages, stream: true };
  for (const [name, value] of Object.entries(sampling)) if (value !== "" && value !== null && value !== undefined) body[name] = Number(value);
  if (stop) body.stop = stop.split("\n").filter(Boolean);
  if (schema) body.response_format = { type: "json_schema", json_schema: { name: "answer", schema: JSON.parse(schema) } };
  if (tools) body.tools = JSON.parse(tools);
  if (logprobs) body.logprobs = true;
  return { ...body, stream_options: { include_usage: true } };
}

/**
 * Ask, and keep `answer` up to date; `changed` is called after each change. Errors become the answer's state.
 * @returns the answer
 */
export async function ask(body, endpoint, { answer = blank(), changed = () => {}, signal } = {}) {
  const began = performance.now();
  const since = () => performance.now() - began;
  try {
    const got = await send("/v1/chat/completions", { method: "POST", body, signal, more: MARK });
    answer.status = got.status;
    answer.requestId = got.headers.get("x-request-id");
    answer.arm = got.headers.get("served-model-name");
    answer.ignored = got.headers.get("x-interlingua-ignored");
    if (!got.ok) throw await failure(got);
    let ended = false;
    for await (const { data, comment } of events(got.body)) {
      if (comment) continue;
      if (answer.raw.length < MOST_RAW) answer.raw += `data: ${data}\n\n`;
      if (data === "[DONE]") {
        ended = true;
        break;
      }
      take(answer, JSON.parse(data), since);
      changed(answer);
    }
    if (!ended) throw new Error("The stream ended before the answer was complete.");
    answer.state = "done";
  } catch (error) {
    answer.raw ||= answer.status ? `${answer.status} ${error.message}` : "";
    answer.state = error.name === "AbortError" ? "stopped" : "failed";
    if (answer.state === "failed") answer.error = error.message;
    answer.retryAfter = error.retryAfter ?? null;
  }
  answer.duration = since();
  answer.cost = costOf(answer, endpoint);
  changed(answer);
  return answer;
}

function take(answer, chunk, since) {
  const error = errorText(chunk);
  if (error) throw new Error(error);
  if (chunk.usage) answer.usage = chunk.usage;
  const [choice] = chunk.choices ?? [];
  if (!choice) return;
  const { delta = {}, finish_reason: finish } = choice;
  const reasoning = delta.reasoning_content ?? delta.reasoning ?? "";
  const text = delta.content || delta.refusal || "";
  if (text || reasoning || delta.tool_calls) {
    answer.firstToken ??= since();
    answer.state = "streaming";
  }
  answer.tokens.push(...(choice.logprobs?.content ?? []).map((each) => each.token));
  answer.text += text;
  answer.reasoning += reasoning;
  for (const piece of delta.tool_calls ?? []) addCall(answer.calls, piece);
  if (finish) answer.finish = finish;
}

function addCall(calls, { index = 0, id, function: called = {} }) {
  const call = (calls[index] ??= { id: "", name: "", arguments: "" });
  if (id) call.id = id;
  call.name += called.name ?? "";
  call.arguments += called.arguments ?? "";
}

/** Tokens a second between the first token and the end; null if there are too few to say. */
export function tokensPerSecond({ usage, firstToken, duration }) {
  const made = usage?.completion_tokens ?? 0;
  return made > 1 && firstToken !== null && duration > firstToken ? (1000 * (made - 1)) / (duration - firstToken) : null;
}

function costOf(answer, endpoint) {
  const price = priceOf(endpoint, answer.arm);
  if (!price || !answer.usage) return null;
  const cached = answer.usage.prompt_tokens_details?.cached_tokens ?? 0;
  const prompt = (answer.usage.prompt_tokens - cached) * price.prompt + cached * (price.cached ?? price.prompt);
  return (prompt + answer.usage.completion_tokens * price.completion) / 1e6;
}
