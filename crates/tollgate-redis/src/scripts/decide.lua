-- Answers requests, each of one or more queries, all or none: first all limits of a request are checked, and
-- only if all have room are they charged. A denial writes nothing.
--
-- A record is the operation (op), the kind of limit, and whether it is the request's last; then doubles: the
-- cost, an argument that the op defines itself (`extra`), the generation that it is about (see generation.lua),
-- and five that the kind defines. The reply is the time, how many keys aren't ours, and four numbers for each
-- query: the outcome (0 denied, 1 passed, 2 never, 3 the calendar doesn't contain this time, 4 the key isn't
-- ours), what remains, how long until it would pass (-1: never), and how long until it is as if never used (-1:
-- never).

local FORMAT = '<BBBdddddddd'
local DECIDE, RAISE = 0, 8

local questions = ARGV[1]
local size = #questions
local TELL = 1
local place, number = 1, 0

-- Several queries of one request, from this position on. A raise is written whatever the other queries get.
local function answer_all(start)
  local from, first = start, number
  asked = {}
  local waits, busies, holders, resets, passes, last = {}, {}, {}, {}, true, 0
  while last == 0 do
    local op, kind, cost, extra, generation, a, b, c, d, e
    op, kind, last, cost, extra, generation, a, b, c, d, e, from = unpack(FORMAT, questions, from)
    number = number + 1
    local limit, key, wait, busy = kinds[kind], KEYS[number], 0, nil
    holders[number] = limit == slots and next_holder() or nil
    resets[number] = generation == TELL and next_reset() or nil
    if op == RAISE then
      if limit.raise(key, cost, extra, a, b, c, d, e) == false then wait = false end
    else
      local all = in_all(key, cost)
      wait, busy = limit.look(key, all, a, b, c, d, e, holders[number])
      passes = passes and wait == 0 and not busy
    end
    passes = passes and not foreign[key]
    waits[number], busies[number] = wait, busy
  end
  local charged = {}
  from, number, last = start, first, 0
  while passes and last == 0 do
    local op, kind, cost, extra, generation, a, b, c, d, e
    op, kind, last, cost, extra, generation, a, b, c, d, e, from = unpack(FORMAT, questions, from)
    number = number + 1
    if cost > 0 and op ~= RAISE then
      kinds[kind].charge(KEYS[number], cost, holders[number], a, b, c, d, e)
      charged[KEYS[number]] = true
    end
  end
  from, number, last = start, first, 0
  while last == 0 do
    local op, kind, cost, extra, generation, a, b, c, d, e
    op, kind, last, cost, extra, generation, a, b, c, d, e, from = unpack(FORMAT, questions, from)
    number = number + 1
    local key = KEYS[number]
    tell(key, waits[number], busies[number], kinds[kind].left(key, a, b, c, d, e, charged[key]))
    if passes and resets[number] then reply[told - 1] = generation_of(resets[number]) end
  end
  return from
end

while place <= size do
  local op, kind, last, cost, extra, generation, a, b, c, d, e, after = unpack(FORMAT, questions, place)
  if last == 0 then
    place = answer_all(place)
  else
    number, place = number + 1, after
    local limit, key = kinds[kind], KEYS[number]
    local holder = limit == slots and next_holder() or nil
    if op == DECIDE then
      local wait, busy = limit.look(key, cost, a, b, c, d, e, holder)
      local is_charged = wait == 0 and cost > 0 and not busy
      if is_charged then limit.charge(key, cost, holder, a, b, c, d, e) end
      tell(key, wait, busy, limit.left(key, a, b, c, d, e, is_charged))
      if generation == TELL then
        local reset = next_reset()
        if wait == 0 and not busy and not foreign[key] then reply[told - 1] = generation_of(reset) end
      end
    else
      act(op, limit, key, cost, {extra, generation}, holder, a, b, c, d, e)
    end
  end
end
