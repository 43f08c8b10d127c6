-- Limits of one key may differ in how many units a token has.

-- Converts units of one price to those of another, rounded down by less than three.
local function at_most(units, from, to)
  if units > MOST then units = MOST end
  local tokens = floor(units / from)
  -- Two quotients are rounded, and their sum may cross a whole number.
  local part = floor((units - tokens * from) / from * to) - 1
  return tokens * to + (part > 0 and part or 0)
end

-- The debt and the numbers of a limit, in units in which both are whole: changing between limits grants or
-- loses nothing, however often.
--
-- Where such units would exceed 2^53, they are the limit's own, and the debt is rounded up by at most three: no
-- more than the limit drains in three microseconds. If even those would, the debt is beyond the limit's
-- capacity, and the result is nil.
local function in_common(debt, was, price, drain, capacity)
  local shared, rest = price, was % price
  while rest > 0 do shared, rest = rest, shared % rest end
  local up, down = price / shared, was / shared
  -- A product beyond 2^53 is no less than that, however it is rounded.
  if debt * up < MOST and capacity * down < MOST then
    return debt * up, price * down, drain * down, capacity * down, up
  end
  local own = at_most(debt, was, price)
  if debt % was > 0 then own = own + 3 end
  return own < MOST and own or nil, price, drain, capacity, nil
end
