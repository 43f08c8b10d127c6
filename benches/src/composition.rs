//! The group `composition`: the cost of several limits together, relative to one check of one limit.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use tollgate::{
    Algorithm, CompositeLimiter, ConcurrencyLimiter, FairLimiter, Limit, Limiter, Quota,
    QuotaLimiter, Rate, StoredKeyLimiter,
};

use crate::peers::{Load, drained, tollgate_gate};
use crate::report::Report;
use crate::runner::{MIN_CLEAN_ROUNDS, OneThread, Peer, ROUNDS, compare};

mod limits;
mod trees;

use limits::{Limits, Names};

/// The target for five limits, in checks of one.
const FIVE: f64 = 10.0;
/// The target for a denial at the first of five, in denials by one.
const MAX_FIRST_DENIAL_RATIO: f64 = 1.5;

pub(crate) fn run(report: &mut Report) {
    five_allow(report);
    five_check(report);
    six_with_permits(report);
    denied_first(report);
    hold_and_settle(report);
    trees::run(report);
    permit(report);
    fair(report);
    quota(report);
    report.note(format!(
        "medians of {MIN_CLEAN_ROUNDS} to {ROUNDS} rounds that ran ours next to the peer, without a context \
         switch but for those marked *; ns for one call on one thread"
    ));
    report.note(
        "stack-5: user, address and tenant by key, a route and the service; the fingerprints of \
         the three keys are taken anew in each call",
    );
    report.note("tree-1000: 1,000 keys in 10 branches of a root; target: 1 us a decision");
}

/// A loop on this thread over a call whose result is always the same.
fn loop_on_this_thread<'a>(expect: bool, mut call: impl FnMut(u64) -> bool + 'a) -> OneThread<'a> {
    let mut step = 0;
    OneThread::new(move |calls| {
        let mut passed = 0;
        for step in step..step + calls {
            passed += u64::from(black_box(call(step)));
        }
        step += calls;
        assert_eq!(passed, if expect { calls } else { 0 });
    })
}

fn one_key(limits: &Limits, pass: bool) -> OneThread<'_> {
    loop_on_this_thread(pass, move |step| {
        black_box(&limits.users).allow(limits.names.user(step))
    })
}

fn one_limit(limiter: &Limiter, pass: bool) -> OneThread<'_> {
    loop_on_this_thread(pass, move |_| black_box(limiter).allow())
}

fn five_allow(report: &mut Report) {
    let (limits, one) = (Limits::unlimited(), Limits::unlimited());
    let stack = CompositeLimiter::new();
    let mut five = loop_on_this_thread(true, |step| {
        let levels = black_box(&limits).five(step);
        stack.allow(&levels).is_some()
    });
    let limiter = tollgate_gate(Load::ADMIT);
    let mut peers = [
        Peer::new("keyed-allow", one_key(&one, true)).target(FIVE),
        // Three of the five are keyed, so the two sides differ.
        Peer::new("limiter-allow", one_limit(&limiter, true)),
    ];
    compare(report, "stack-5-allow-1t", &mut five, &mut peers);

    let plain = [(); 5].map(|()| tollgate_gate(Load::ADMIT));
    let mut five = loop_on_this_thread(true, |_| {
        let levels = black_box(&plain)
            .each_ref()
            .map(|limiter| Limit::new("plain", limiter));
        stack.allow(&levels).is_some()
    });
    let mut peers = [Peer::new("limiter-allow", one_limit(&limiter, true)).target(FIVE)];
    compare(report, "stack-5-plain-allow-1t", &mut five, &mut peers);
}

fn five_check(report: &mut Report) {
    let (limits, one) = (Limits::unlimited(), Limits::unlimited());
    let stack = CompositeLimiter::new();
    let mut five = loop_on_this_thread(true, |step| {
        let levels = black_box(&limits).five(step);
        black_box(&stack.check(&levels)).denial().is_none()
    });
    let keyed = loop_on_this_thread(true, |step| {
        let user = one.names.user(step);
        black_box(&black_box(&one.users).check(user)).is_allowed()
    });
    let limiter = tollgate_gate(Load::ADMIT);
    let single = loop_on_this_thread(true, |_| {
        black_box(&black_box(&limiter).check()).is_allowed()
    });
    let mut peers = [
        Peer::new("keyed-check", keyed),
        Peer::new("limiter-check", single),
    ];
    compare(report, "stack-5-check-1t", &mut five, &mut peers);
}

fn six_with_permits(report: &mut Report) {
    let (limits, one) = (Limits::unlimited(), Limits::unlimited());
    let (stack, slots) = (
        CompositeLimiter::new(),
        Arc::new(ConcurrencyLimiter::new(50)),
    );
    let mut six = loop_on_this_thread(true, |step| {
        let limits = black_box(&limits);
        let [user, address, tenant, route, service] = limits.five(step);
        let slots = Limit::new("slots", &slots);
        let levels = [user, address, tenant, route, service, slots];
        stack.allow(&levels).is_some()
    });
    let mut peers = [Peer::new("keyed-allow", one_key(&one, true))];
    compare(report, "stack-6-slots-1t", &mut six, &mut peers);
}

/// The user is out of tokens, and the limits after it aren't checked.
fn denied_first(report: &mut Report) {
    let (limits, one) = (Limits::users_drained(), Limits::users_drained());
    let stack = CompositeLimiter::new();
    let mut refused = loop_on_this_thread(false, |step| {
        let levels = black_box(&limits).five(step);
        stack.allow(&levels).is_some()
    });
    let mut peers =
        [Peer::new("keyed-refused", one_key(&one, false)).target(MAX_FIRST_DENIAL_RATIO)];
    compare(report, "stack-5-refused-first-1t", &mut refused, &mut peers);

    let (narrow, service) = (
        drained(tollgate_gate(Load::DENY)),
        tollgate_gate(Load::ADMIT),
    );
    let mut refused = loop_on_this_thread(false, |_| {
        let narrow = black_box(&narrow);
        let levels = [("narrow", narrow); 4].map(|(name, limit)| Limit::new(name, limit));
        let [first, second, third, fourth] = levels;
        let levels = [first, second, third, fourth, Limit::new("all", &service)];
        stack.allow(&levels).is_some()
    });
    let limiter = drained(tollgate_gate(Load::DENY));
    let mut peers =
        [Peer::new("limiter-refused", one_limit(&limiter, false)).target(MAX_FIRST_DENIAL_RATIO)];
    compare(
        report,
        "stack-5-plain-refused-first-1t",
        &mut refused,
        &mut peers,
    );
}

fn hold_and_settle(report: &mut Report) {
    let tokens = || {
        let rate = Rate::per_second(1_000_000_000);
        StoredKeyLimiter::<String>::builder(rate, limits::USERS)
            .algorithm(Algorithm::TokenBucket)
            .build()
            .expect("a rate that a token bucket can represent")
    };
    let (held, checked) = (tokens(), tokens());
    let (names, stack) = (Names::new(), CompositeLimiter::new());
    let mut hold = loop_on_this_thread(true, |step| {
        let user = black_box(&held).key(names.user(step));
        let levels = [Limit::estimated("tokens", &user, 20)];
        match stack.hold(&levels, Duration::from_secs(60)) {
            Ok(hold) => {
                hold.settle(10);
                true
            }
            Err(_) => false,
        }
    });
    let check = loop_on_this_thread(true, |step| {
        let user = names.user(step);
        black_box(&black_box(&checked).check_n(user, 10)).is_allowed()
    });
    let mut peers = [Peer::new("exact-keyed-check", check)];
    compare(report, "hold-settle-1t", &mut hold, &mut peers);
}

fn permit(report: &mut Report) {
    let ours = ConcurrencyLimiter::new(50);
    let mut permit = loop_on_this_thread(true, |_| black_box(&ours).try_acquire().is_ok());
    let tokio = tokio::sync::Semaphore::new(50);
    let theirs = loop_on_this_thread(true, |_| black_box(&tokio).try_acquire().is_ok());
    let mut peers = [Peer::new("tokio-semaphore", theirs)];
    compare(report, "permit-1t", &mut permit, &mut peers);
}

/// The queue is empty.
fn fair(report: &mut Report) {
    let fair = FairLimiter::new(Load::ADMIT.rate());
    let names = Names::new();
    let mut client = loop_on_this_thread(true, |step| black_box(&fair).allow(names.user(step)));
    let limiter = tollgate_gate(Load::ADMIT);
    let mut peers = [Peer::new("limiter-allow", one_limit(&limiter, true))];
    compare(report, "fair-uncontended-1t", &mut client, &mut peers);
}

fn quota(report: &mut Report) {
    let (limits, names) = (Limits::unlimited(), Names::new());
    let quota = QuotaLimiter::new(Quota::per_month(1_000_000_000_000), 1_000_000);
    let mut check = loop_on_this_thread(true, |step| {
        black_box(&black_box(&quota).check(names.user(step))).is_allowed()
    });
    let mut peers = [Peer::new("keyed-allow", one_key(&limits, true))];
    compare(report, "quota-check-1t", &mut check, &mut peers);
}
