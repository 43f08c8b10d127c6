//! A store in front of another, when that one fails, recovers, or isn't needed at all.

use std::future::{Future, pending};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tollgate::clock::Manual;
use tollgate::{Algorithm, Clock, Decision, Rate, Timestamp};
use tollgate_engine::backend::{
    Answer, Backend, Check, CheckResult, LimitKind, Memory, StandaloneLimit,
};
use tollgate_engine::policy::OnStoreFailure;
use tollgate_redis::{BreakerThresholds, Fallback, LocalLimits, RemoteBackend, StoreEvent};

/// A store that fails on command, or answers locally.
#[derive(Debug, Default)]
struct Store {
    fails: AtomicBool,
    is_silent: AtomicBool,
    knows: AtomicBool,
    asked: AtomicU64,
    clock: Manual,
}

impl Backend for Store {
    type Error = &'static str;

    async fn ask<'a>(
        &'a self,
        _: &'a [Check<'a>],
        _: Option<&'a mut Vec<CheckResult>>,
    ) -> Result<Answer, &'static str> {
        if self.knows.load(Ordering::Relaxed) {
            return Ok(Answer::known(Some(0), Decision::UNLIMITED));
        }
        self.asked.fetch_add(1, Ordering::Relaxed);
        if self.is_silent.load(Ordering::Relaxed) {
            return pending().await;
        }
        if self.fails.load(Ordering::Relaxed) {
            return Err("away");
        }
        Ok(Answer::new(Some(0), Decision::UNLIMITED))
    }

    fn now(&self) -> Timestamp {
        self.clock.now()
    }
}

impl RemoteBackend for Store {}

type Subject = Fallback<Store, Manual, Manual>;

const BREAKER: BreakerThresholds = BreakerThresholds {
    silent_for: Duration::from_secs(10),
    failing_percent: 50,
    window: Duration::from_secs(5),
    min_calls: CALLS,
    opens_for: Duration::from_secs(60),
    longest_open: Duration::from_secs(60),
};
const CALLS: u32 = 3;

fn subject(clock: &Manual) -> Subject {
    let store = Store {
        clock: clock.clone(),
        ..Store::default()
    };
    let local = Memory::builder()
        .clock(clock.clone())
        .wall(clock.clone())
        .build();
    Fallback::with_local(store, Arc::new(LocalLimits::new(local))).breaker(BREAKER)
}

fn limit() -> StandaloneLimit {
    let (rate, algorithm) = (Rate::per_hour(1000), Algorithm::Gcra);
    let limit = StandaloneLimit::new("a", LimitKind::Rate { rate, algorithm });
    limit
        .expect("a limit")
        .on_store_failure(OnStoreFailure::CircuitBreak)
}

/// Whether the answer is the store's.
fn asks(subject: &Subject) -> bool {
    let (limit, facts) = (limit(), StandaloneLimit::facts("k"));
    let checks = [limit.check(&facts, 1)];
    let mut asking = pin!(subject.ask(&checks, None));
    match asking
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()))
    {
        Poll::Ready(Ok(answer)) => answer.unavailable.is_none(),
        _ => panic!("it is there at once"),
    }
}

#[test]
fn an_answer_that_was_known_says_nothing_about_the_store() {
    let clock = Manual::new();
    let subject = subject(&clock);
    let store = subject.store();
    let set = |flag: &AtomicBool, to| flag.store(to, Ordering::Relaxed);
    set(&store.fails, true);
    for round in 0..CALLS {
        assert!(!asks(&subject));
        assert!(subject.is_active(), "{round}");
        set(&store.knows, true);
        assert_eq!(asks(&subject), round + 1 < CALLS);
        assert!(subject.is_active(), "known, and still away: {round}");
        set(&store.knows, false);
    }
    // It is broken although answers were known in between.
    assert_eq!(subject.stats().trips, 1);
    clock.advance(BREAKER.opens_for);
    // Who is first is given up before it has an answer, and who is second needs no store: the third one
    // is the probe.
    let (limit, facts) = (limit(), StandaloneLimit::facts("k"));
    let first = [limit.check(&facts, 1)];
    let mut asking = Box::pin(subject.ask(&first, None));
    set(&store.is_silent, true);
    assert!(
        asking
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
            .is_pending()
    );
    assert!(!asks(&subject), "the first is the probe");
    drop(asking);
    set(&store.is_silent, false);
    set(&store.knows, true);
    assert!(asks(&subject));
    set(&store.knows, false);
    set(&store.fails, false);
    let before = store.asked.load(Ordering::Relaxed);
    assert!(asks(&subject));
    assert_eq!(store.asked.load(Ordering::Relaxed), before + 1);
    assert!(!subject.is_active());
}

#[test]
fn a_success_in_the_midst_of_a_failure_leaves_nothing_behind() {
    let clock = Manual::new();
    // Another request is answered just when the first one has failed.
    let own: Arc<Mutex<Option<Arc<Subject>>>> = Arc::default();
    let told: Arc<Mutex<Vec<String>>> = Arc::default();
    let (again, heard) = (Arc::clone(&own), Arc::clone(&told));
    let subject = subject(&clock).on_event(move |event| {
        heard
            .lock()
            .expect("not poisoned")
            .push(format!("{event:?}"));
        if *event == StoreEvent::FallbackStarted
            && let Some(subject) = again.lock().expect("not poisoned").take()
        {
            subject.store().fails.store(false, Ordering::Relaxed);
            assert!(asks(&subject));
        }
    });
    let subject = Arc::new(subject);
    *own.lock().expect("not poisoned") = Some(Arc::clone(&subject));
    subject.store().fails.store(true, Ordering::Relaxed);
    assert!(!asks(&subject));
    assert!(asks(&subject));
    assert!(!subject.is_active());
    // One failure, much later, is the first of its own.
    clock.advance(2 * BREAKER.silent_for);
    subject.store().fails.store(true, Ordering::Relaxed);
    assert!(!asks(&subject));
    assert_eq!(subject.stats().trips, 0, "{told:?}");
}

#[test]
fn a_refusal_that_is_remembered_tells_a_higher_cost_its_own_wait() {
    use tollgate_engine::backend::{DenyCache, DenyVersion};
    let clock = Manual::new();
    let memory = Memory::builder()
        .clock(clock.clone())
        .wall(clock.clone())
        .build();
    let algorithms = [
        (Algorithm::Gcra, true),
        (Algorithm::TokenBucket, true),
        (Algorithm::LeakyBucket, true),
        (
            Algorithm::FixedWindow(tollgate::core::WindowAlignment::default()),
            true,
        ),
        (Algorithm::SlidingLog, false),
    ];
    for (algorithm, is_told) in algorithms {
        let rate = Rate::per_minute(97);
        let rate = if matches!(algorithm, Algorithm::FixedWindow(_) | Algorithm::SlidingLog) {
            rate
        } else {
            rate.burst(18)
        };
        let limit =
            StandaloneLimit::new("a", LimitKind::Rate { rate, algorithm }).expect("a limit");
        let facts = StandaloneLimit::facts("k");
        let ask = |cost| memory.answer(&[limit.check(&facts, cost)]).decision;
        let _ = ask(rate.burst_size());
        clock.advance(Duration::from_millis(10));
        let (cache, version) = (DenyCache::new(10), DenyVersion(0, 0));
        let refused = ask(1);
        assert!(!refused.is_allowed(), "{algorithm:?}");
        cache.record_denial(&limit.check(&facts, 1), &refused, clock.now(), version);
        for cost in 2..=rate.burst_size() {
            let known = cache.find_denial(&[limit.check(&facts, cost)], clock.now(), version);
            assert_eq!(known.is_some(), is_told, "{algorithm:?}");
            if let Some((_, told)) = known {
                let true_wait = ask(cost).wait_or_max();
                let slack = Duration::from_micros(3);
                assert!(
                    true_wait <= told.wait_or_max() && told.wait_or_max() <= true_wait + slack,
                    "{algorithm:?} {cost}: {told:?}, {true_wait:?}"
                );
            }
        }
    }
}

/// A log of 100 in any three seconds, or a quota of as many.
fn logged() -> [StandaloneLimit; 2] {
    let rate = Rate::new(100, Duration::from_secs(3));
    let algorithm = Algorithm::SlidingLog;
    let quota = tollgate::quota::Quota::rolling(100, Duration::from_secs(3)).expect("a period");
    [LimitKind::Rate { rate, algorithm }, LimitKind::Quota(quota)].map(|kind| {
        let limit = StandaloneLimit::new("log", kind).expect("a limit");
        limit.on_store_failure(OnStoreFailure::Local)
    })
}

fn local(clock: &Manual) -> LocalLimits<Manual, Manual> {
    let memory = Memory::builder().clock(clock.clone()).wall(clock.clone());
    LocalLimits::new(memory.build())
}

/// The answer of a store with this many of 100 tokens remaining.
fn left(remaining: u64) -> Decision {
    let (zero, allowed) = (Duration::ZERO, tollgate::Outcome::Allowed);
    Decision::new(allowed, 100, remaining, zero, zero)
}

#[test]
fn what_a_store_says_is_used_of_a_log_is_what_is_used_less_as_well_as_more() {
    for limit in logged() {
        let (clock, facts) = (
            Manual::starting_at(Timestamp::from_secs(60)),
            StandaloneLimit::facts("k"),
        );
        let local = local(&clock);
        let ask = |cost| local.decide(&[limit.check(&facts, cost)]).allowed;
        local.record_decision(&limit.check(&facts, 1), &left(0));
        assert!(!ask(1));
        // A refusal has nothing to tell.
        assert!(local.unreported_usage(&limit.check(&facts, 1)).is_none());
        // By the store's dates all of it is over, which isn't known here.
        clock.advance(Duration::from_secs(2));
        local.record_decision(&limit.check(&facts, 1), &left(99));
        assert!(ask(99) && !ask(1));
        // What was admitted here is told, and not what the store had told before.
        let owed = local
            .unreported_usage(&limit.check(&facts, 1))
            .expect("99 of ours");
        assert_eq!(owed.used, 99);
        // Until it was, it stays whatever the store says.
        local.record_decision(&limit.check(&facts, 1), &left(99));
        assert!(!ask(1));
        local.mark_reported(&limit.check(&facts, 1), &owed);
        assert!(local.unreported_usage(&limit.check(&facts, 1)).is_none());
        local.record_decision(&limit.check(&facts, 1), &left(50));
        assert!(ask(50) && !ask(1));
    }
}

#[test]
fn what_has_run_out_here_is_not_told_to_the_store_as_if_it_were_new() {
    for limit in logged() {
        let clock = Manual::starting_at(Timestamp::from_secs(60));
        let (local, facts) = (local(&clock), StandaloneLimit::facts("k"));
        assert!(local.decide(&[limit.check(&facts, 100)]).allowed);
        let owed = |local: &LocalLimits<_, _>| local.unreported_usage(&limit.check(&facts, 1));
        assert_eq!(owed(&local).map(|owed| owed.used), Some(100));
        clock.advance(Duration::from_secs(9));
        assert_eq!(owed(&local).map_or(0, |owed| owed.used), 0);
    }
}

#[test]
fn notes_that_come_at_once_do_not_add_up() {
    for limit in logged() {
        let facts = StandaloneLimit::facts("k");
        for _ in 0..200 {
            let local = local(&Manual::starting_at(Timestamp::from_secs(60)));
            tollgate_testkit::threads::run_together(4, |_| {
                local.record_decision(&limit.check(&facts, 1), &left(80));
                0
            });
            assert!(local.decide(&[limit.check(&facts, 80)]).allowed);
        }
    }
}

#[test]
fn keys_beyond_the_cap_are_not_noted_and_that_is_counted() {
    let algorithms = [
        Algorithm::Gcra,
        Algorithm::TokenBucket,
        Algorithm::FixedWindow(tollgate::core::WindowAlignment::FirstHit),
    ];
    for algorithm in algorithms {
        let clock = Manual::new();
        let memory = Memory::builder()
            .capacity(64)
            .clock(clock.clone())
            .wall(clock);
        let local = LocalLimits::new(memory.build());
        let kind = LimitKind::Rate {
            rate: Rate::per_hour(10),
            algorithm,
        };
        let limit = StandaloneLimit::new("api", kind).expect("a limit");
        let mut said = Decision::UNLIMITED;
        said.limit = 10;
        for key in 0..10_000_u32 {
            let key = key.to_string();
            let key = StandaloneLimit::facts(&key);
            local.record_decision(&limit.check(&key, 10), &said);
        }
        let beyond = local.lost_reports();
        assert!((9_000..10_000).contains(&beyond), "{algorithm:?}: {beyond}");
        // What new keys share is as nobody had used it.
        let other = StandaloneLimit::facts("other");
        let decided = local.decide(&[limit.check(&other, 1)]);
        assert!(decided.allowed, "{algorithm:?}");
    }
}
