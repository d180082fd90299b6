// The protocols, one entry each: how a question is written, and how the text of the answer is read from its events.

const chat = (prompt) => [{ role: "user", content: prompt }];
const encoded = encodeURIComponent;

/**
 * `path`, `body` and `headers` make the request for a model, a prompt and the most tokens. `text` is the piece of an
 * event's data, `ends` whether the event is the answer's proper end (null: the protocol marks none). `lines`: the stream
 * has lines of JSON instead of server-sent events.
 */
export const PROTOCOLS = [
  {
    name: "OpenAI",
    path: () => "/v1/chat/completions",
    body: (model, prompt, most) => ({ model, messages: chat(prompt), max_tokens: most, stream: true }),
    text: (data) => data.choices?.[0]?.delta?.content,
    ends: (_, raw) => raw === "[DONE]",
  },
  {
    name: "OpenAI Responses",
    path: () => "/v1/responses",
    body: (model, prompt, most) => ({ model, input: prompt, max_output_tokens: most, store: false, stream: true }),
    text: (data) => (data.type === "response.output_text.delta" ? data.delta : ""),
    ends: (data) => ["response.completed", "response.incomplete"].includes(data.type),
  },
  {
    name: "Anthropic",
    path: () => "/v1/messages",
    body: (model, prompt, most) => ({ model, max_tokens: most, messages: chat(prompt), stream: true }),
    headers: { "anthropic-version": "2023-06-01" },
    text: (data) => data.delta?.text,
    ends: (data) => data.type === "message_stop",
  },
  {
    name: "TGI",
    path: () => "/generate_stream",
    // TGI's requests name no model: the header does.
    body: (_, prompt, most) => ({ inputs: prompt, parameters: { max_new_tokens: most } }),
    modelHeader: "x-gateway-model-name",
    text: (data) => (data.token?.special ? "" : data.token?.text),
    ends: (data) => typeof data.generated_text === "string",
  },
  {
    name: "Triton",
    path: (model) => `/v2/models/${encoded(model)}/generate_stream`,
    body: (_, prompt, most) => ({ text_input: prompt, parameters: { max_tokens: most } }),
    text: (data) => data.text_output,
    ends: null,
  },
  {
    name: "Databricks",
    path: (model) => `/serving-endpoints/${encoded(model)}/invocations`,
    body: (_, prompt, most) => ({ messages: chat(prompt), max_tokens: most, stream: true }),
    text: (data) => data.choices?.[0]?.delta?.content,
    ends: (_, raw) => raw === "[DONE]",
  },
  {
    name: "Gemini",
    path: (model) => `/v1beta/models/${encoded(model)}:streamGenerateContent?alt=sse`,
    body: (_, prompt, most) => ({ contents: [{ role: "user", parts: [{ text: prompt }] }], generationConfig: { maxOutputTokens: most } }),
    text: (data) => data.candidates?.[0]?.content?.parts?.map((part) => part.text ?? "").join(""),
    ends: (data) => Boolean(data.candidates?.[0]?.finishReason),
  },
  {
    name: "Ollama",
    path: () => "/api/chat",
    body: (model, prompt, most) => ({ model, messages: chat(prompt), options: { num_predict: most } }),
    lines: true,
    text: (data) => data.message?.content,
    ends: (data) => data.done,
  },
];

/** A request of a protocol: { path, body, headers }. */
export function requestOf(protocol, model, prompt, most) {
  const named = protocol.modelHeader ? { [protocol.modelHeader]: model } : {};
  return { path: protocol.path(model), body: protocol.body(model, prompt, most), headers: { ...protocol.headers, ...named } };
}
