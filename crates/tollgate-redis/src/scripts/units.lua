-- Limits of one key may differ in how many units a token is of.

-- Units of one price in those of another: no more than it is, and less than three fewer.
local function at_most(units, from, to)
  if units > MOST then units = MOST end
  local tokens = floor(units / from)
  -- Two quotients are rounded, and the sum may lie beyond a whole number.
  local part = floor((units - tokens * from) / from * to) - 1
  return tokens * to + (part > 0 and part or 0)
end

-- What is owed and the numbers of a limit, in units that both are whole in: nothing is granted or lost by changing
-- between limits, however often.
--
-- Where such units would pass 2^53, they are the limit's own, and what is owed is rounded up by at most three:
-- no more than the limit drains in three microseconds. If even those would, what is owed is beyond the limit's
-- capacity, and nothing is said instead of it.
local function in_common(debt, was, price, drain, capacity)
  local shared, rest = price, was % price
  while rest > 0 do shared, rest = rest, shared % rest end
  local up, down = price / shared, was / shared
  -- A product that passes 2^53 is no less than that, however it is rounded.
  if debt * up < MOST and capacity * down < MOST then
    return debt * up, price * down, drain * down, capacity * down, up
  end
  local own = at_most(debt, was, price)
  if debt % was > 0 then own = own + 3 end
  return own < MOST and own or nil, price, drain, capacity, nil
end
