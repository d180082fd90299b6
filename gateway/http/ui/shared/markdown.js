// A model's answer as markup. It is not trusted: markdown-it reads no HTML in it, DOMPurify cleans what markdown-it
// makes, and nothing is loaded: images become links.
import MarkdownIt from "../vendor/markdown-it.mjs";
import DOMPurify from "../vendor/purify.mjs";
import { button } from "./dom.js";

const reader = new MarkdownIt({ html: false, linkify: false, breaks: true });
reader.disable("image");

const ALLOWED = {
  ALLOWED_TAGS: [
    ..."p br hr em strong s blockquote ul ol li code pre a h1 h2 h3 h4 h5 h6 table thead tbody tr th td".split(" "),
  ],
  ALLOWED_ATTR: ["href", "start"],
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
  RETURN_DOM_FRAGMENT: true,
  RETURN_TRUSTED_TYPE: false,
};

/** The nodes of a text in Markdown. */
export function markdown(text) {
  const made = DOMPurify.sanitize(reader.render(text), ALLOWED);
  for (const link of made.querySelectorAll("a")) {
    link.target = "_blank";
    link.rel = "noopener noreferrer nofollow";
  }
  for (const block of made.querySelectorAll("pre")) {
    block.tabIndex = 0; // it scrolls
    block.prepend(copyButton(() => block.querySelector("code")?.textContent ?? ""));
  }
  return made;
}

/** A button that copies what `text` returns. */
export function copyButton(text, label = "Copy") {
  const made = button("", async () => {
    await navigator.clipboard.writeText(text());
    made.classList.add("done");
    setTimeout(() => made.classList.remove("done"), 1200);
  }, { kind: "quiet copy", symbol: "copy", label });
  return made;
}
