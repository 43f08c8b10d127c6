//! Small programs, each of which shows one thing. Run one with `cargo run --example NAME`:
//!
//! * `quickstart`: allow or drop, and the fields of a decision.
//! * `pace_a_client`: wait for a permitted moment, with a deadline.
//! * `reserve_then_decide`: read the delay of a reservation, then wait or cancel.
//! * `change_it_live`: another rate, another burst, and the emergency switch.
//! * `limit_each_user`: a limit for each key, tiers, a block, and a flood of new keys.
//! * `one_hot_limit`: stripes and a cached clock for one limit that all threads share.
//! * `test_with_a_manual_clock`: tests of rate-limited code without sleeping.
//! * `two_lanes`: 100 a second in two priority lanes, 60 and 40, with unused shares lent.
//! * `fair_share`: a loud client starves a quiet one, and weighted fair queueing prevents it.
//! * `hierarchy`: a site of 10,000 a second with guaranteed rates for routes and users; idle rates are lent by
//!   weight.
//! * `multi_tenant`: one request against limits by user, address, tenant, route and service, and a concurrency limit:
//!   all or none.
//! * `llm_budget`: reserve an estimate, settle the actual cost, and use three times as much of the limit.
//! * `policy`: a policy text decides requests: rules, tiers, exemptions, a reload, and an error with its place.
//! * `fleet`: three nodes share one limit through Redis, exactly and leased, and go on without it.
//! * `rebuild_on_change`: many events of a file watch, one build at a time.
//! * `search_box`: debounce, then throttle, while a user types.
//! * `invalidate_in_batches`: cache keys in merged batches, retried when the store is unreachable.
//! * `polite_crawler`: submitted work leaves at an exact rate, from a bounded queue.
//! * `pace_emails`: a stream at one a second, and an urgent mail in between with a deadline.
//! * `indexer`: a type that owns its debouncer, and drains it when it is closed.
//! * `adaptive_client`: a client learns how many concurrent calls a slow HTTP server can take.
//! * `cpu_worker`: a worker whose rate follows the CPU pressure.
//! * `cost_guard`: a daily quota in Redis, closed on failure, and a circuit breaker on a paid API.
//! * `recipes`: common limits: payments, a worker, users, a bucket before a meter, a fan-out.
//!
//! Services and clients, which call each other over loopback:
//!
//! * `axum_by_address`: a limit for each client address, and its responses.
//! * `axum_websockets`: concurrent websockets for each client.
//! * `axum_tiers`: a user from a token, tiers, and limits for anonymous clients before that.
//! * `tonic_per_method`: a limit for each gRPC method.
//! * `login_protection`: only failures count, and concurrent attempts get no further.
//! * `llm_budget_http`: an estimate is reserved while a response is sent, and settled after it.
//! * `policy_and_redis`: two instances share the limits of one policy file, and go on when the store is unreachable.
//! * `reqwest_client`: a client that slows down before it is denied.
//! * `reqwest_protected`: a client with an adaptive concurrency limit, a circuit breaker, and retries within a
//!   budget.
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
