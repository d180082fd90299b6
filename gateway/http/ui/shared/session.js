// Who is logged in and what is served, as `/v1/console/session` tells it. Views read `session.now` and follow `session.on`.
import { call } from "./api.js";

const listeners = new Set();

export const session = {
  now: null,
  /** Call `listener` whenever the session is read again; returns what ends that. */
  on(listener) {
    listeners.add(listener);
    return () => listeners.delete(listener);
  },
  async read() {
    session.now = await call("/v1/console/session");
    for (const listener of [...listeners]) listener(session.now);
    return session.now;
  },
  /** An endpoint by its name. */
  endpoint: (name) => session.now.endpoints.find((each) => each.name === name),
};

/** What can be asked by name: endpoints for `tasks`, then the arms of those that have several (`endpoint:arm`). */
export function targets(tasks = ["chat", "completions"]) {
  const asked = session.now.endpoints.filter((endpoint) => tasks.includes(endpoint.task));
  const arms = asked.filter((endpoint) => endpoint.arms.length > 1);
  return [
    ...asked.map((endpoint) => ({ model: endpoint.name, title: endpoint.name, endpoint })),
    ...arms.flatMap((endpoint) =>
      endpoint.arms.map((arm) => ({ model: `${endpoint.name}:${arm.name}`, title: `${endpoint.name} → ${arm.name}`, endpoint })),
    ),
    ...asked.flatMap((endpoint) =>
      endpoint.lora_adapters
        .filter((name) => !asked.some((each) => each.name === name))
        .map((name) => ({ model: name, title: `${name} (LoRA)`, endpoint })),
    ),
  ];
}

/** The price of the arm that answered, or null. */
export function priceOf(endpoint, arm) {
  const found = endpoint?.arms.find((each) => each.name === arm);
  return found?.price ?? null;
}
