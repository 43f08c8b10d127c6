//! Small programs that show one thing each. Run one with `cargo run --example NAME`:
//!
//! * `quickstart`: allow or drop, and what a decision says.
//! * `pace_a_client`: wait politely for a slot, with a deadline.
//! * `reserve_then_decide`: look at the delay first, then wait or cancel.
//! * `change_it_live`: another rate, another burst, and the emergency switch.
//! * `limit_each_user`: a limit for each key, tiers, a block, and a flood of new keys.
//! * `one_hot_limit`: stripes and a cached clock for one limit that all threads hit.
//! * `test_with_a_manual_clock`: how to test code that is rate limited, without sleeping.
//! * `two_lanes`: 100 a second in two priority lanes, 60 and 40, unused share lent.
//! * `fair_share`: a loud client starves a quiet one, and weighted fair queueing cures it.
//! * `hierarchy`: a site of 10,000 a second, its routes and users, each sure of its rate, and what is
//!   idle lent by weight.
//! * `multi_tenant`: user, address, tenant, route, service and slots, all or none, and who refuses whom.
//! * `llm_budget`: hold an estimate, settle the real cost, and use three times as much of the limit.
//! * `policy`: a policy text decides requests: rules, tiers, what is exempt, a reload, and a mistake with its place.
//! * `fleet`: three nodes share one limit through Redis, exactly and leased, and go on when it is gone.
//! * `adaptive_client`: a client finds out how many calls at once a slow HTTP server can take.
//! * `cpu_worker`: a worker whose rate follows the pressure on the processors.
//! * `cost_guard`: a daily quota in Redis, closed on failure, and a breaker on the API that costs money.
