// Requests to this server, with the key of the tab. Errors of all protocols become one: `ApiError`.

const KEY = "interlingua.key";

/** The key that somebody has logged in with: kept for the tab, and forgotten with it. */
export const key = {
  get: () => sessionStorage.getItem(KEY) || "",
  set: (value) => (value ? sessionStorage.setItem(KEY, value) : sessionStorage.removeItem(KEY)),
};

export class ApiError extends Error {
  constructor(status, message, { requestId = null, retryAfter = null } = {}) {
    super(message);
    this.status = status;
    this.requestId = requestId;
    this.retryAfter = retryAfter;
  }
}

export function headers(more = {}) {
  const given = key.get();
  return given ? { authorization: `Bearer ${given}`, ...more } : { ...more };
}

/** The answer to a request, whatever its status; throws `ApiError` with status 0 if the server cannot be reached. */
export async function send(path, { method = "GET", body, signal, more = {} } = {}) {
  const content = body === undefined ? {} : { "content-type": "application/json" };
  try {
    return await fetch(path, {
      method,
      headers: headers({ ...content, ...more }),
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
      cache: "no-store",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The server cannot be reached.");
  }
}

/** The JSON of an answer; null where it has none. */
export async function call(path, options) {
  const answer = await send(path, options);
  if (!answer.ok) throw await failure(answer);
  const text = await answer.text();
  return text && answer.headers.get("content-type")?.includes("json") ? JSON.parse(text) : null;
}

/** The error that an answer tells, in whatever protocol. */
export async function failure(answer) {
  const text = await answer.text();
  let message = text.slice(0, 500);
  try {
    message = errorText(JSON.parse(text)) || message;
  } catch {
    // no JSON: a proxy's page
  }
  return new ApiError(answer.status, message || `The server answered ${answer.status}.`, {
    requestId: answer.headers.get("x-request-id"),
    retryAfter: answer.headers.get("retry-after"),
  });
}

/** The message of an error body: OpenAI's and Anthropic's `error.message`, Databricks' `message`, TGI's and Triton's `error`. */
export function errorText(body) {
  const error = body?.error;
  if (typeof error === "string") return error;
  // Not Anthropic's `message_start`, whose `message` is an object.
  return [error?.message, body?.message, body?.detail].find((each) => typeof each === "string") ?? "";
}
