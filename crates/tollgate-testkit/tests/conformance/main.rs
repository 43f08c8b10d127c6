//! Conformance: recorded sequences of other rate limiters, replayed against our arithmetic.
//!
//! Each peer has a module: it replays the recorded operations on our limiters and compares every answer. Intended
//! differences are excused by rules with a name; a rule excuses only the operation at which the difference arises, then
//! our state is set to the peer's and the replay continues. A rule is decided from the operation and a small model of
//! the peer, which must itself reproduce the recording. A sequence ends where the model is wrong, or where ours differs
//! and no rule excuses it; the others are still replayed, and the test fails at the end with the list. Run with
//! `--nocapture` for the counts.

#![expect(
    clippy::unwrap_used,
    reason = "these are tests: what can't be had fails them"
)]

mod aiolimiter;
mod aiolimiter_queue;
mod go_rate;
mod governor;
mod lodash;
mod netflix;
mod py_limits;
mod redis_cell;
mod redis_cell_changing;
mod redis_cell_server;
mod redis_rate;
mod tally;
mod uber_ratelimit;
