// The events of an answer's body, as it comes. `EventSource` cannot send a key, nor a body.

/** Server-sent events: { event, data }, and { comment: true } for what only shows that the server is there. */
export async function* events(body) {
  for await (const block of pieces(body, "\n\n")) yield parsed(block);
}

/** Lines of JSON, in the same form. */
export async function* lines(body) {
  for await (const data of pieces(body, "\n")) if (data.trim()) yield { event: "message", data, comment: false };
}

/** The parts of a body that end with `end`. */
async function* pieces(body, end) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      rest += value.replaceAll("\r\n", "\n");
      const whole = rest.split(end);
      rest = whole.pop();
      yield* whole;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function parsed(block) {
  let event = "message";
  const data = [];
  for (const line of block.split("\n")) {
    if (line.startsWith("data:")) data.push(line.slice(line[5] === " " ? 6 : 5));
    else if (line.startsWith("event:")) event = line.slice(6).trim();
  }
  return { event, data: data.join("\n"), comment: !data.length };
}
