// The views by their names in the address. Each has a title, the topics of the tab's stream that it needs, and `mount`,
// which fills an element and returns what to do when the view is left.
import * as chat from "./chat/view.js";

export const VIEWS = {
  chat: { title: "Chat", mount: chat.mount },
};
