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
//! * `rebuild_on_change`: many events of a file watch, one build at a time.
//! * `search_box`: debounce, then throttle, as somebody types.
//! * `invalidate_in_batches`: keys of a cache in batches, merged, tried again when the store is away.
//! * `polite_crawler`: work that is submitted and leaves at an exact rate, with a bounded queue.
//! * `pace_emails`: a stream at one a second, and somebody else in between with a deadline.
//! * `indexer`: a type that owns its debouncer, and drains it when it is closed.
//! * `adaptive_client`: a client finds out how many calls at once a slow HTTP server can take.
//! * `cpu_worker`: a worker whose rate follows the pressure on the processors.
//! * `cost_guard`: a daily quota in Redis, closed on failure, and a breaker on the API that costs money.
//! * `recipes`: limits that people ask for: payments, a worker, users, a bucket before a meter, a fan-out.
//!
//! Services and clients, which ask each other over loopback:
//!
//! * `axum_by_address`: each client by its address, and what it is told.
//! * `axum_websockets`: so many websockets at once for each client, for as long as they live.
//! * `axum_tiers`: a user from a token, tiers, and limits for anonymous ones before that.
//! * `tonic_per_method`: a limit for each method of gRPC.
//! * `login_protection`: only failures count, and many at once get no further.
//! * `llm_budget_http`: an estimate is held while an answer is sent, and settled after it.
//! * `policy_and_redis`: two instances share the limits of one policy file, and go on when the store is gone.
//! * `reqwest_client`: a client that slows down before it is refused.
//! * `reqwest_protected`: a client with an adaptive concurrency limit, a breaker, and retries within a budget.
//! * `test_a_router`: a router behind a layer, tested on a clock that the test moves.

/// Programs of the book that need several crates: each page is a doc test. Pages of one crate are its own doc tests.
#[cfg(doctest)]
mod book {
    #[doc = include_str!("../docs/explanation/adaptive.md")]
    struct Adaptive;

    #[doc = include_str!("../docs/explanation/anti-patterns.md")]
    struct AntiPatterns;

    #[doc = include_str!("../docs/explanation/leases.md")]
    struct Leases;

    #[doc = include_str!("../docs/explanation/verbs.md")]
    struct Verbs;

    #[doc = include_str!("../docs/guides/calling-apis.md")]
    struct CallingApis;

    #[doc = include_str!("../docs/guides/composite.md")]
    struct Composite;

    #[doc = include_str!("../docs/guides/concurrency.md")]
    struct Concurrency;

    #[doc = include_str!("../docs/guides/fair-shares-and-trees.md")]
    struct FairSharesAndTrees;

    #[doc = include_str!("../docs/guides/holds-and-reservations.md")]
    struct HoldsAndReservations;

    #[doc = include_str!("../docs/guides/llm-tokens.md")]
    struct LlmTokens;

    #[doc = include_str!("../docs/guides/login.md")]
    struct Login;

    #[doc = include_str!("../docs/guides/meter-into-bucket.md")]
    struct MeterIntoBucket;

    #[doc = include_str!("../docs/guides/migrate/express-rate-limit.md")]
    struct ExpressRateLimit;

    #[doc = include_str!("../docs/guides/migrate/httprate.md")]
    struct Httprate;

    #[doc = include_str!("../docs/guides/migrate/tower-governor.md")]
    struct TowerGovernor;

    #[doc = include_str!("../docs/guides/migrate/ulule-limiter.md")]
    struct UluleLimiter;

    #[doc = include_str!("../docs/guides/quotas.md")]
    struct Quotas;

    #[doc = include_str!("../docs/guides/tiers-and-quotas.md")]
    struct TiersAndQuotas;

    #[doc = include_str!("../docs/reference/adaptive.md")]
    struct ReferenceAdaptive;

    #[doc = include_str!("../docs/reference/middleware.md")]
    struct Middleware;

    #[doc = include_str!("../docs/start/axum.md")]
    struct Axum;

    #[doc = include_str!("../docs/start/redis.md")]
    struct Redis;

    #[doc = include_str!("../docs/start/rust.md")]
    struct Rust;
}
