-- Other operations than a plain decision: one query, about one key.

local AT_MOST, RESERVE, GIVE_BACK, GIFT, RESET, RENEW, RELEASE, RAISE, LOOK = 1, 2, 3, 4, 5, 6, 7, 8, 9

local function act(op, limit, key, cost, extra, holder, a, b, c, d, e)
  local wait, generation = 0, extra[2]
  extra = extra[1]
  if op == AT_MOST then
    limit.look(key, 0, a, b, c, d, e)
    local remaining, reset = limit.left(key, a, b, c, d, e)
    local taken = cost < remaining and cost or remaining
    wait = limit.look(key, taken > 0 and taken or 1, a, b, c, d, e)
    if taken > 0 and wait == 0 then
      limit.charge(key, taken, nil, a, b, c, d, e)
      remaining, reset = limit.left(key, a, b, c, d, e, true)
      say(key, 1, remaining, taken, reset)
    else
      tell(key, wait, false, remaining, reset)
    end
    return
  elseif op == RESERVE then
    wait = limit.look(key, cost, a, b, c, d, e)
    if wait and wait <= extra then
      if cost > 0 then limit.charge(key, cost, nil, a, b, c, d, e) end
      local remaining, reset = limit.left(key, a, b, c, d, e, cost > 0)
      say(key, 1, remaining, wait, reset)
      return
    end
    tell(key, wait, false, limit.left(key, a, b, c, d, e))
    return
  elseif op == LOOK then
    local busy
    wait, busy = limit.look(key, cost, a, b, c, d, e, holder)
    tell(key, wait, busy, limit.left(key, a, b, c, d, e))
    return
  elseif op == RENEW then
    local held = limit.renew(key, cost, holder, a, b)
    say(key, held > 0 and 1 or 0, held, 0, 0)
    return
  elseif op == GIVE_BACK then
    -- A reset has forgotten all charges from before it.
    if is_current(next_reset(), generation, extra) then limit.give_back(key, cost, extra, a, b, c, d, e) end
  elseif op == GIFT then
    limit.gift(key, cost, a, b, c, d, e)
  elseif op == RESET and limit ~= slots then
    -- Permits stay with their holders.
    limit.look(key, 0, a, b, c, d, e)
    local reset = next_reset()
    if not foreign[key] then
      call('DEL', key)
      states[key] = nil
      begin_generation(reset, limit.lasts(a, b, c, d, e))
    end
  elseif op == RELEASE then
    limit.release(key, cost, holder, a, b)
  elseif op == RAISE then
    if limit.raise(key, cost, extra, a, b, c, d, e) == false then wait = false end
  end
  limit.look(key, 0, a, b, c, d, e)
  tell(key, wait, false, limit.left(key, a, b, c, d, e))
end
