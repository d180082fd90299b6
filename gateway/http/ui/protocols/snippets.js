// A request as somebody would write it in a shell, in Python and in JavaScript. The key is a variable, never its value.

import { copyButton } from "../shared/markdown.js";
import { session } from "../shared/session.js";

const VARIABLE = "INTERLINGUA_KEY";

/** name -> what writes a request; `request` is { path, body, headers }, `withKey` whether a key is needed. */
export const SNIPPETS = {
  curl: (request, withKey) => {
    const lines = [`curl -N ${quoted(location.origin + request.path)}`, "-H 'content-type: application/json'"];
    if (withKey) lines.push(`-H "authorization: Bearer $${VARIABLE}"`);
    for (const [name, value] of Object.entries(request.headers)) lines.push(`-H ${quoted(`${name}: ${value}`)}`);
    lines.push(`-d ${quoted(JSON.stringify(request.body))}`);
    return lines.join(" \\\n  ");
  },
  Python: (request, withKey) => {
    const headers = Object.entries(request.headers).map(([name, value]) => `${literal(name)}: ${literal(value)}`);
    if (withKey) headers.push(`"authorization": f"Bearer {os.environ['${VARIABLE}']}"`);
    return [
      withKey && "import os\n",
      "import httpx\n",
      `url = ${literal(location.origin + request.path)}`,
      `headers = {${headers.join(", ")}}`,
      `body = ${literal(request.body)}`,
      'with httpx.stream("POST", url, headers=headers, json=body, timeout=None) as answer:',
      "    for line in answer.iter_lines():",
      "        print(line)",
    ]
      .filter(Boolean)
      .join("\n");
  },
  JavaScript: (request, withKey) => {
    const headers = { "content-type": "application/json", ...request.headers };
    const shown = JSON.stringify(headers, null, 2).slice(0, -2);
    const key = withKey ? `,\n  authorization: \`Bearer \${process.env.${VARIABLE}}\`` : "";
    return [
      `const answer = await fetch(${JSON.stringify(location.origin + request.path)}, {`,
      '  method: "POST",',
      `  headers: ${(shown + key).replaceAll("\n", "\n  ")}\n  },`,
      `  body: JSON.stringify(${JSON.stringify(request.body, null, 2).replaceAll("\n", "\n  ")}),`,
      "});",
      "for await (const part of answer.body.pipeThrough(new TextDecoderStream())) process.stdout.write(part);",
    ].join("\n");
  },
};

/** Buttons that copy a request in each language; `request` returns it, `name` says what is copied. */
export function copyButtons(name, request) {
  return Object.keys(SNIPPETS).map((language) => {
    const made = copyButton(() => SNIPPETS[language](request(), session.now.needs_key), `Copy ${name} as ${language}`);
    made.append(language);
    return made;
  });
}

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

/** A value as Python writes it. A JSON string is a string of Python's, too. */
function literal(value) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(literal).join(", ")}]`;
  if (typeof value === "object") return `{${Object.entries(value).map(([name, each]) => `${JSON.stringify(name)}: ${literal(each)}`).join(", ")}}`;
  return JSON.stringify(value);
}
