// The views by their names in the address. Each has a title, the topics of the tab's stream that it needs, and `mount`,
// which fills an element and returns what to do when the view is left.
import * as chat from "./chat/view.js";
import * as compare from "./compare/view.js";
import * as experiments from "./experiments/view.js";
import * as keys from "./keys/view.js";
import * as live from "./live/view.js";
import * as models from "./models/view.js";
import * as protocols from "./protocols/view.js";
import * as requests from "./requests/view.js";

export const VIEWS = {
  chat: { title: "Chat", mount: chat.mount },
  compare: { title: "Compare", mount: compare.mount },
  protocols: { title: "Protocols", mount: protocols.mount },
  live: { title: "Live", mount: live.mount, topics: ["live"] },
  requests: { title: "Requests", mount: requests.mount, topics: ["requests"] },
  experiments: { title: "Experiments", mount: experiments.mount, topics: ["experiments"] },
  models: { title: "Models", mount: models.mount },
  keys: { title: "Keys", mount: keys.mount },
};
