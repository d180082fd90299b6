// Shares of the traffic that always add up to 100. Pure.

/** The shares after one is moved: the others keep their proportions, in whole percents. */
export function moved(shares, at, value) {
  const wanted = Math.max(0, Math.min(100, Math.round(value)));
  const others = shares.map((share, index) => (index === at ? 0 : share));
  const sum = others.reduce((total, share) => total + share, 0);
  const rest = 100 - wanted;
  if (shares.length === 1) return [100];
  // If the others had nothing, the first of them gets the rest.
  const first = shares.findIndex((_, index) => index !== at);
  const exact = others.map((share, index) => (index === at ? wanted : sum ? (share * rest) / sum : index === first ? rest : 0));
  const whole = exact.map(Math.floor);
  const order = exact.map((share, index) => [share - whole[index], index]).filter(([, index]) => index !== at).sort(([a], [b]) => b - a);
  for (let left = 100 - whole.reduce((total, share) => total + share, 0), next = 0; left > 0; left -= 1, next += 1) whole[order[next % order.length][1]] += 1;
  return whole;
}

/** What a change of shares does, as a sentence; "" if it does nothing. */
export function described(names, before, after) {
  const changed = names.flatMap((name, at) => (before[at] === after[at] ? [] : [`${name} from ${before[at]} % to ${after[at]} %`]));
  return changed.length ? `Moves ${changed.join(", ")}.` : "";
}
