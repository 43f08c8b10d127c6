//! Shared by the failure tests: waiting with a deadline, and a client with a limiter of each failure policy whose every
//! answer is checked.
#![allow(dead_code, reason = "each test file uses its part")]

pub(crate) mod proxy;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tollgate::{Outcome, Rate};
use tollgate_engine::policy::OnStoreFailure;
use tollgate_redis::{
    BreakerThresholds, FailureKind, LimitDecision, Redis, RedisLimiter, RedisStats, StoreEvent,
};

/// How long a decision may wait for the store.
pub(crate) const TIMEOUT: Duration = Duration::from_millis(60);
/// How much later than that a decision may come on a machine that is busy: less than it takes to give up
/// a connection or to make one. How long the machine lets threads wait comes on top.
pub(crate) const MARGIN: Duration = Duration::from_millis(800);
/// How long anything at all may take.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);
/// For tests about answers, not about how soon they come.
pub(crate) const PATIENT: Duration = Duration::from_secs(5);
/// Between two looks.
pub(crate) const POLL: Duration = Duration::from_millis(5);

pub(crate) const POLICIES: [OnStoreFailure; 4] = [
    OnStoreFailure::Open,
    OnStoreFailure::Closed,
    OnStoreFailure::Local,
    OnStoreFailure::CircuitBreak,
];

/// What each limit admits in an hour, and this node's part of it without a store: twice one of four.
pub(crate) const LIMIT: u64 = 8;
pub(crate) const PART: u64 = 4;
const NODES: u64 = 4;
/// The key of all limits.
pub(crate) const KEY: &str = "k";

pub(crate) const BREAKER: BreakerThresholds = BreakerThresholds {
    silent_for: Duration::from_secs(600),
    failing_percent: 50,
    window: Duration::from_secs(600),
    min_calls: 12,
    opens_for: Duration::from_millis(400),
    longest_open: Duration::from_millis(400),
};

/// A client that is patient.
pub(crate) fn connect(url: &str) -> Redis {
    let builder = Redis::builder(url).expect("a URL");
    builder
        .timeout(PATIENT)
        .node_count(1)
        .build()
        .expect("a runtime")
}

/// Whether the long variants are to run.
pub(crate) fn is_soak() -> bool {
    std::env::var_os("TOLLGATE_SOAK").is_some()
}

/// Asks again and again until the answer is yes.
pub(crate) async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let polling = async {
        while !condition().await {
            tokio::time::sleep(POLL).await;
        }
    };
    let polled = tokio::time::timeout(DEADLINE, polling).await;
    assert!(polled.is_ok(), "waited {DEADLINE:?} in vain for {what}");
}

/// A client with limiters of every policy.
pub(crate) struct Subject {
    pub(crate) redis: Redis,
    events: Arc<Mutex<Vec<&'static str>>>,
    rounds: u32,
}

impl Subject {
    /// Connects, and waits until the store decides.
    pub(crate) async fn new(url: &str) -> Self {
        let mut subject = Self::unready(url);
        subject.recovers().await;
        subject
    }

    /// Connects to a store that can't decide.
    pub(crate) fn unready(url: &str) -> Self {
        let events = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&events);
        let builder = Redis::builder(url).expect("a URL").timeout(TIMEOUT);
        let builder = builder.node_count(NODES).breaker(BREAKER);
        let redis = builder.on_event(move |event| {
            let name = match event {
                StoreEvent::FallbackStarted => "began",
                StoreEvent::FallbackEnded { .. } => "ended",
                StoreEvent::CircuitOpened { .. } => "opened",
                StoreEvent::CircuitClosed => "closed",
                _ => return,
            };
            let mut heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
            heard.push(name);
        });
        Self {
            redis: redis.build().expect("a runtime"),
            events,
            rounds: 0,
        }
    }

    /// The whole story of a fault: all is well, it isn't, and then it is again.
    pub(crate) async fn story(&mut self, harm: impl FnOnce(), heal: impl FnOnce()) {
        harm();
        self.suffers().await;
        heal();
        self.recovers().await;
        let events = self.told_in_order();
        for name in ["began", "opened", "closed", "ended"] {
            assert!(events.contains(&name), "no {name} in {events:?}");
        }
        assert!(events.ends_with(&["closed", "ended"]), "{events:?}");
    }

    /// A limiter that nobody has used.
    pub(crate) fn fresh(&mut self, policy: OnStoreFailure) -> RedisLimiter {
        self.rounds += 1;
        let name = format!("{policy:?} {}", self.rounds);
        let limiter = self.redis.limiter(&name, Rate::per_hour(LIMIT));
        limiter.on_store_failure(policy).build().expect("a limit")
    }

    /// Decides in bounded time, by the store or by the chosen policy.
    pub(crate) async fn decide(&self, limiter: &RedisLimiter, cost: u64) -> LimitDecision {
        let (began, late) = (Instant::now(), lateness());
        let answer = limiter.check_n(KEY, cost).await;
        let took = began.elapsed();
        if took > TIMEOUT + MARGIN {
            // Was it us, or had the machine no time for anybody?
            let late = lateness() - late;
            let bound = TIMEOUT + MARGIN + 3 * late;
            assert!(
                took <= bound,
                "{took:?}, in which threads waited for {late:?}"
            );
        }
        answer
    }

    /// One more of a limiter with this policy, which must be the one that decides if the store doesn't.
    async fn judged(
        &self,
        limiter: &RedisLimiter,
        policy: OnStoreFailure,
        cost: u64,
    ) -> LimitDecision {
        let answer = self.decide(limiter, cost).await;
        match answer.fallback {
            None => {}
            Some(OnStoreFailure::Open) => assert!(answer.denied().is_none()),
            // Nothing of it can be taken for the limit's own.
            Some(OnStoreFailure::Closed) => {
                assert!(answer.denied().is_some());
                assert_eq!((answer.decision.limit, answer.decision.remaining), (0, 0));
            }
            Some(_) => assert_eq!(answer.decision.limit, PART),
        }
        assert!(
            answer.fallback.is_none_or(|chosen| chosen == policy),
            "{policy:?}: {answer:?}"
        );
        answer
    }

    /// Decides once by each policy, with the store or without it.
    pub(crate) async fn carries_on(&mut self) {
        for policy in POLICIES {
            let _ = self.asked(policy).await;
        }
    }

    /// Asks a limiter that nobody has used.
    async fn asked(&mut self, policy: OnStoreFailure) -> LimitDecision {
        let limiter = self.fresh(policy);
        self.judged(&limiter, policy, 1).await
    }

    /// The store is away for a while that ends by itself: every policy gives its answer, until the store
    /// decides all again.
    pub(crate) async fn weathers(&mut self) {
        let mut seen = [0; POLICIES.len()];
        let began = Instant::now();
        loop {
            let mut without = 0;
            for (policy, seen) in POLICIES.into_iter().zip(&mut seen) {
                let answer = self.asked(policy).await;
                without += u32::from(answer.fallback.is_some());
                *seen += u32::from(answer.fallback.is_some());
            }
            if without == 0 && seen.iter().all(|seen| *seen > 0) {
                return;
            }
            assert!(began.elapsed() < DEADLINE, "away for too long: {seen:?}");
            tokio::time::sleep(POLL).await;
        }
    }

    /// The store is unreachable: every policy gives its answer.
    pub(crate) async fn suffers(&mut self) {
        let began = Instant::now();
        while self.asked(OnStoreFailure::Open).await.fallback.is_none() {
            assert!(began.elapsed() < DEADLINE, "the store still answers");
            tokio::time::sleep(POLL).await;
        }
        assert!(self.redis.is_fallback_active());
        for policy in [OnStoreFailure::Open, OnStoreFailure::Closed] {
            let limiter = self.fresh(policy);
            for _ in 0..4 {
                let answer = self.judged(&limiter, policy, LIMIT).await;
                assert_eq!(answer.fallback, Some(policy));
            }
        }
        for policy in [OnStoreFailure::Local, OnStoreFailure::CircuitBreak] {
            let limiter = self.fresh(policy);
            let mut allowed = 0;
            for number in 0..PART + 2 {
                let answer = self.judged(&limiter, policy, 1).await;
                assert_eq!(answer.fallback, Some(policy));
                assert_eq!(answer.denied().is_none(), number < PART, "{policy:?}");
                let outcome = answer.decision.outcome;
                assert_eq!(outcome == Outcome::Denied, answer.denied().is_some());
                allowed += u64::from(answer.denied().is_none());
            }
            assert_eq!(allowed, PART, "{policy:?}");
        }
        let told = self.redis.stats().fallback;
        assert!(
            told.open > 0 && told.closed > 0 && told.local > 0,
            "{told:?}"
        );
        self.breaks().await;
    }

    /// Once the circuit is open, the store gets at most one request in each interval.
    async fn breaks(&mut self) {
        let limiter = self.fresh(OnStoreFailure::CircuitBreak);
        let began = Instant::now();
        while self.last_of(&["opened", "closed"]) != Some("opened") {
            assert!(began.elapsed() < DEADLINE, "the circuit doesn't break");
            let _ = self.judged(&limiter, OnStoreFailure::CircuitBreak, 1).await;
        }
        // It may have been broken for a while: the first probe may be due.
        let (before, since) = (self.redis.stats(), Instant::now());
        for _ in 0..100 {
            let answer = self.judged(&limiter, OnStoreFailure::CircuitBreak, 1).await;
            assert_eq!(answer.fallback, Some(OnStoreFailure::CircuitBreak));
        }
        let asked = self.redis.stats().fallback.errors - before.fallback.errors;
        assert!(asked <= probes_in(since.elapsed()), "{asked} were asked");
    }

    /// The store is there again, and decides after a while, without any help: first by a probe of those
    /// that circuit-break.
    pub(crate) async fn recovers(&mut self) {
        let (before, began) = (self.redis.stats(), Instant::now());
        let was_open = self.last_of(&["opened", "closed"]) == Some("opened");
        for policy in POLICIES.into_iter().rev() {
            while self.asked(policy).await.fallback.is_some() {
                assert!(began.elapsed() < DEADLINE, "{policy:?} doesn't recover");
                tokio::time::sleep(POLL).await;
            }
            if was_open && policy == OnStoreFailure::CircuitBreak {
                let asked = self.redis.stats().fallback.errors - before.fallback.errors;
                assert!(asked <= probes_in(began.elapsed()), "{asked} were asked");
            }
        }
        assert!(!self.redis.is_fallback_active());
        for policy in POLICIES {
            let limiter = self.fresh(policy);
            let mut allowed = 0;
            for _ in 0..LIMIT + 1 {
                let answer = self.judged(&limiter, policy, 1).await;
                assert_eq!(answer.fallback, None, "{policy:?} after it recovered");
                allowed += u64::from(answer.denied().is_none());
            }
            assert_eq!(allowed, LIMIT, "{policy:?}");
        }
    }

    /// Each question that failed is counted once, by its kind, and this is one of them: beside it a busy
    /// machine may be late, and a connection that is given up takes others with it.
    pub(crate) fn failed_by(&self, expected: FailureKind) {
        let RedisStats {
            failures, fallback, ..
        } = self.redis.stats();
        let counted: u64 = failures.iter().map(|failure| failure.count).sum();
        assert_eq!(counted, fallback.errors, "{failures:?}");
        let passing = [FailureKind::TimedOut, FailureKind::Disconnected];
        let is_told = |kind: FailureKind| kind == expected || passing.contains(&kind);
        assert!(
            failures.iter().all(|failure| is_told(failure.kind)),
            "{failures:?}"
        );
        let told = failures.iter().find(|failure| failure.kind == expected);
        let told = told.unwrap_or_else(|| panic!("{expected} in {failures:?}"));
        assert!(told.count > 0 && !told.first_error.is_empty(), "{told:?}");
        assert!(told.first_ago >= told.latest_ago, "{told:?}");
        // All is over.
        assert!(failures.iter().all(|failure| failure.failing_for.is_none()));
    }

    /// The failure was reported, in order, and has ended.
    pub(crate) fn told_in_order(&self) -> Vec<&'static str> {
        let events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut is_active, mut is_open) = (false, false);
        for event in events.iter() {
            let is_in_order = match *event {
                "began" => !std::mem::replace(&mut is_active, true),
                "opened" => is_active && !std::mem::replace(&mut is_open, true),
                "closed" => is_active && std::mem::replace(&mut is_open, false),
                _ => !is_open && std::mem::replace(&mut is_active, false),
            };
            assert!(is_in_order, "{event} in {events:?}");
        }
        assert!(!is_active && !is_open, "{events:?}");
        events.clone()
    }

    fn last_of(&self, names: &[&str]) -> Option<&'static str> {
        let events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        events
            .iter()
            .rev()
            .find(|name| names.contains(name))
            .copied()
    }
}

/// How many probes are sent in such a time at most.
fn probes_in(time: Duration) -> u64 {
    u64::try_from(time.as_nanos() / BREAKER.opens_for.as_nanos()).unwrap_or(u64::MAX) + 1
}

/// For how long a thread that only wants to look at the clock was kept waiting so far, all in all.
pub(crate) fn lateness() -> Duration {
    static LATE: OnceLock<Arc<AtomicU64>> = OnceLock::new();
    let late = LATE.get_or_init(|| {
        let late = Arc::new(AtomicU64::new(0));
        let noted = Arc::clone(&late);
        std::thread::spawn(move || {
            let (_keep, never) = std::sync::mpsc::channel::<()>();
            loop {
                let began = Instant::now();
                let _ = never.recv_timeout(POLL);
                let late = began.elapsed().saturating_sub(POLL);
                let nanos = u64::try_from(late.as_nanos()).unwrap_or(u64::MAX);
                noted.fetch_add(nanos, Ordering::Relaxed);
            }
        });
        late
    });
    Duration::from_nanos(late.load(Ordering::Relaxed))
}
