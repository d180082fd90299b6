"""The scripts by which workers lease parts of limits: each runs on the state server as one step.

A limit is a hash there, with an amount for each tick of its window, as a row of `CounterTable` has. Ticks are those of
the server's clock, which is the same for all gateways; a month's is the worker's, as scripts have no calendar.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from gateway.access.counters import Span
from gateway.access.rules import Rule
from gateway.storage.shared.state_server import Script

_LIFETIME = 10
"""Seconds after which a worker that says nothing holds nothing."""
_WIDTHS = {"minute": 1, "hour": 60, "day": 86400, "month": 0}

_WINDOW = """
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1e6
local function tick_of(width, given)
  if tonumber(width) > 0 then return math.floor(now / tonumber(width)) end
  return tonumber(given)
end
"""

# For each key: width, tick, counts, seconds to keep it; the limit, what is needed, what others wait for, what is liked.
TAKE = Script(
    _WINDOW
    + """
local ticks, totals = {}, {}
for i = 1, #KEYS do
  local a = (i - 1) * 8
  local tick, counts, width = tick_of(ARGV[a + 1], ARGV[a + 2]), tonumber(ARGV[a + 3]), tonumber(ARGV[a + 1])
  local most, need = tonumber(ARGV[a + 5]), tonumber(ARGV[a + 6])
  local all, amounts, total = redis.call('HGETALL', KEYS[i]), {}, 0
  for place = 1, #all, 2 do
    local at, amount = tonumber(all[place]), tonumber(all[place + 1])
    if at <= tick - counts then
      redis.call('HDEL', KEYS[i], all[place])
    else
      amounts[at] = amount
      total = total + amount
    end
  end
  if total + need > most or total >= most then
    local free, wait = math.max(total + need - most, 1e-9), width
    for at = tick - counts + 1, tick do
      free = free - (amounts[at] or 0)
      if free <= 0 then
        wait = (at + counts) * width - now
        break
      end
    end
    return {i, string.format('%.6f', most - total), string.format('%.6f', wait)}
  end
  ticks[i], totals[i] = tick, total
end
local found = {0, string.format('%.6f', 1 - now % 1)}
for i = 1, #KEYS do
  local a = (i - 1) * 8
  local need, left = tonumber(ARGV[a + 6]), tonumber(ARGV[a + 5]) - totals[i]
  local size = need + math.floor(math.min(left - need, tonumber(ARGV[a + 7])))
  size = size + math.floor(math.min(tonumber(ARGV[a + 8]), (left - size) / 50))
  if size > 0 then
    redis.call('HINCRBYFLOAT', KEYS[i], ticks[i], size)
    redis.call('EXPIRE', KEYS[i], ARGV[a + 4])
  end
  table.insert(found, string.format('%d', ticks[i]))
  table.insert(found, string.format('%.6f', size))
  table.insert(found, string.format('%.6f', left - size))
end
return found
"""
)

# For each key: width, tick, counts, seconds to keep it; the tick to be corrected, and by how much.
CORRECT = Script(
    _WINDOW
    + """
for i = 1, #KEYS do
  local a = (i - 1) * 6
  local tick, at, change = tick_of(ARGV[a + 1], ARGV[a + 2]), tonumber(ARGV[a + 5]), tonumber(ARGV[a + 6])
  local over = at <= tick - tonumber(ARGV[a + 3])
  -- What is more than was counted has just been used; what is less would be given back for nothing.
  if change > 0 or not over then
    redis.call('HINCRBYFLOAT', KEYS[i], string.format('%d', over and tick or at), change)
    redis.call('EXPIRE', KEYS[i], ARGV[a + 4])
  end
end
"""
)

# The worker, the limit, and how many it wants to hold; how many it holds then.
HOLD = Script(
    _WINDOW
    + f"""
local all, others, own = redis.call('HGETALL', KEYS[1]), 0, 0
for place = 1, #all, 2 do
  local held, until_time = string.match(all[place + 1], '(%S+) (%S+)')
  if all[place] == ARGV[1] then
    own = tonumber(held)
  elseif tonumber(until_time) < now then
    redis.call('HDEL', KEYS[1], all[place])
  else
    others = others + tonumber(held)
  end
end
local held = math.max(own, math.min(tonumber(ARGV[3]), tonumber(ARGV[2]) - others))
redis.call('HSET', KEYS[1], ARGV[1], string.format('%d %d', held, now + {_LIFETIME}))
redis.call('EXPIRE', KEYS[1], {2 * _LIFETIME})
return held
"""
)

# The worker, and how many it goes on holding.
RELEASE = Script(
    _WINDOW
    + f"""
if tonumber(ARGV[2]) <= 0 then
  redis.call('HDEL', KEYS[1], ARGV[1])
else
  redis.call('HSET', KEYS[1], ARGV[1], string.format('%d %d', ARGV[2], now + {_LIFETIME}))
  redis.call('EXPIRE', KEYS[1], {2 * _LIFETIME})
end
"""
)


class Grant(NamedTuple):
    """What was leased: for how many seconds, and of each limit the tick, the size, and what is left beyond it."""

    seconds: float
    parts: list[tuple[int, float, float]]


class Refusal(NamedTuple):
    """Which limit is reached, how much of it is left, and in how many seconds enough is."""

    place: int
    left: float
    wait: float


def granted(found: list[Any]) -> Grant | Refusal:
    """What `TAKE` returns."""
    if found[0]:
        return Refusal(found[0] - 1, float(found[1]), float(found[2]))
    rest = found[2:]
    parts = zip(map(int, rest[::3]), map(float, rest[1::3]), map(float, rest[2::3]), strict=True)
    return Grant(float(found[1]), list(parts))


def of_window(rule: Rule, span: Span) -> list[float]:
    """A limit's window, as scripts want it: width, tick, counts, and how long it is to be kept."""
    width = _WIDTHS[rule.window]
    kept = 2 * width * span.counts if width else 62 * 86400
    return [width, span.tick, span.counts, kept]
