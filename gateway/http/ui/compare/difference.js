// Where two answers differ: by words and marks, or by tokens, where both models have the same.

const MOST = 1200; // units of which the longest common part is looked for; longer answers are compared to the first difference

export const words = (text) => text.match(/\s+|[\p{L}\p{N}_]+|[^\s\p{L}\p{N}_]/gu) ?? [];

/**
 * The parts of a text, each with whether another text has it, too. `mine` and `theirs` are the words, or the tokens, of both.
 * @returns {{parts: {text: string, same: boolean}[], equal: number, total: number}} counted in words or tokens
 */
export function difference(mine, theirs) {
  const same = mine.length > MOST || theirs.length > MOST ? leading(mine, theirs) : common(mine, theirs);
  const parts = [];
  mine.forEach((word, at) => {
    if (parts.length && parts.at(-1).same === same[at]) parts.at(-1).text += word;
    else parts.push({ text: word, same: same[at] });
  });
  const counts = (at) => mine[at].trim() !== "";
  const all = mine.map((_, at) => at).filter(counts);
  return { parts, equal: all.filter((at) => same[at]).length, total: all.length };
}

function leading(mine, theirs) {
  let end = 0;
  while (end < mine.length && mine[end] === theirs[end]) end += 1;
  return mine.map((_, at) => at < end);
}

/** Which words of `mine` are in a longest common subsequence. */
function common(mine, theirs) {
  const width = theirs.length + 1;
  const lengths = new Uint16Array((mine.length + 1) * width);
  for (let i = mine.length - 1; i >= 0; i -= 1) {
    for (let j = theirs.length - 1; j >= 0; j -= 1) {
      const at = i * width + j;
      lengths[at] = mine[i] === theirs[j] ? lengths[at + width + 1] + 1 : Math.max(lengths[at + width], lengths[at + 1]);
    }
  }
  const found = mine.map(() => false);
  for (let i = 0, j = 0; i < mine.length && j < theirs.length; ) {
    if (mine[i] === theirs[j]) {
      found[i] = true;
      i += 1;
      j += 1;
    } else if (lengths[(i + 1) * width + j] >= lengths[i * width + j + 1]) i += 1;
    else j += 1;
  }
  return found;
}
