// The conversations of this browser, the newest first. Each key has its own; the server keeps none.
import { session } from "../shared/session.js";

const MOST = 40;
const place = () => `interlingua.conversations.${session.now.key ?? ""}`;

export function load() {
  try {
    return JSON.parse(localStorage.getItem(place())) ?? [];
  } catch {
    return [];
  }
}

/** Keep the conversations; without their images, and then without the oldest ones, where the browser has no room. */
export function save(conversations) {
  const kept = conversations.filter((each) => each.messages.length).slice(0, MOST);
  for (const shown of [kept, kept.map(withoutImages), kept.slice(0, 5).map(withoutImages)]) {
    try {
      localStorage.setItem(place(), JSON.stringify(shown));
      return;
    } catch {
      // no room
    }
  }
}

const withoutImages = (each) => ({ ...each, messages: each.messages.map((message) => ({ ...message, images: [] })) });

/** A conversation without messages. */
export const begun = () => ({ id: crypto.randomUUID?.() ?? String(Math.random()), at: Date.now(), messages: [] });

export function titleOf({ messages }) {
  const first = messages.find((message) => message.role === "user");
  return first?.text.trim().split("\n")[0].slice(0, 60) || (first ? "Image" : "New conversation");
}

/** The messages as OpenAI's protocol has them. */
export function wire(messages) {
  return messages.filter((message) => !message.answer || message.answer.state === "done" || message.answer.text).map((message) => {
    if (message.role === "tool") return { role: "tool", tool_call_id: message.call, content: message.text };
    if (message.role === "user") return { role: "user", content: contentOf(message) };
    const { text, calls } = message.answer;
    const called = calls.map(({ id, name, arguments: given }) => ({ id, type: "function", function: { name, arguments: given } }));
    return called.length ? { role: "assistant", content: text || null, tool_calls: called } : { role: "assistant", content: text };
  });
}

function contentOf({ text, images = [] }) {
  if (!images.length) return text;
  const parts = images.map((url) => ({ type: "image_url", image_url: { url } }));
  return text ? [...parts, { type: "text", text }] : parts;
}
