// The one stream of the tab: `/v1/console/events`. It is opened anew with the topics that the shown view needs, and after a loss.
import { failure, send } from "./api.js";
import { events } from "./events.js";

const FIRST_DELAY = 500; // milliseconds, doubled up to
const LONGEST_DELAY = 8000;

const listeners = new Map(); // event -> set of functions
let topics = [];
let opened = null;
let hidden = false; // whether the stream was closed because nobody sees the page

/** Call `listener` with the parsed data of each event of a name; returns what ends that. */
export function on(event, listener) {
  if (!listeners.has(event)) listeners.set(event, new Set());
  listeners.get(event).add(listener);
  return () => listeners.get(event).delete(listener);
}

function tell(event, data) {
  for (const listener of listeners.get(event) ?? []) listener(data);
}

/** Open the stream with these topics, in place of the one that is open. */
export function watch(...wanted) {
  if (opened && wanted.join() === topics.join()) return;
  topics = wanted;
  restart();
}

/** Open the stream again, with another key for instance. */
export function restart() {
  opened?.abort();
  opened = new AbortController();
  run(opened.signal);
}

export function stop() {
  opened?.abort();
  opened = null;
}

/** Close the stream while `work` runs, which needs the browser's six connections to a server. */
export async function pausedFor(work) {
  stop();
  try {
    return await work();
  } finally {
    restart();
  }
}

// A page that nobody sees needs no stream, and many open tabs would take all connections of the browser to this server.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    hidden = opened !== null;
    stop();
  } else if (hidden) restart();
});

async function run(signal) {
  let delay = FIRST_DELAY;
  while (!signal.aborted) {
    try {
      const answer = await send(`/v1/console/events${topics.length ? `?topics=${topics.join()}` : ""}`, { signal });
      if (answer.status === 401 || answer.status === 403) {
        tell("refused", await failure(answer));
        return;
      }
      if (!answer.ok) throw await failure(answer);
      delay = FIRST_DELAY;
      tell("connected", null);
      for await (const { event, data, comment } of events(answer.body)) {
        if (signal.aborted) return;
        if (!comment) tell(event, JSON.parse(data));
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error.name === "SyntaxError") throw error;
    }
    if (signal.aborted) return;
    tell("lost", null);
    await new Promise((resolve) => setTimeout(resolve, delay));
    delay = Math.min(2 * delay, LONGEST_DELAY);
  }
}
