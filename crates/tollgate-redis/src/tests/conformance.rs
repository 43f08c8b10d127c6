//! The scripts against core: the same steps give bit-identical answers.
//!
//! Core counts nanoseconds and the store microseconds, so core runs on a rate and on times whose nanoseconds
//! stand for the store's microseconds.

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    reason = "numbers of tests are small"
)]

use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join_all;
use tollgate::core::{
    Arithmetic as _, Bucket, BucketLevel, FixedWindow, HitLog, LeakyBucket, SlidingCounter,
    SlidingCounts, SlidingLog, TokenBucket, WindowCount,
};
use tollgate::{Algorithm, Decision, Rate, Timestamp, core::WindowAlignment};
use tollgate_engine::backend::LimitKind;
use tollgate_testkit::redis::Server;
use tollgate_testkit::traffic::Random;

use crate::query::{LimitForm, LimitParams, RawReply, StoreOp, StoreQuery};
use crate::store::Store;

/// An action on one key.
#[derive(Clone, Copy, Debug)]
enum KeyAction {
    Decide(u64),
    AtMost(u64),
    Gift(u64),
    Reset,
}

fn question(key: &str, numbers: LimitParams, step: KeyAction) -> StoreQuery {
    let (op, cost) = match step {
        KeyAction::Decide(cost) => (StoreOp::Decide, cost),
        KeyAction::AtMost(cost) => (StoreOp::AtMost, cost),
        KeyAction::Gift(cost) => (StoreOp::Refund, cost),
        KeyAction::Reset => (StoreOp::Reset, 0),
    };
    StoreQuery {
        key: key.into(),
        op,
        params: numbers,
        cost,
        holder: None,
    }
}

/// A limit's state in core, beside the one in the store.
trait Model {
    fn step(&mut self, now: u64, step: KeyAction) -> (Decision, u64);
}

struct Kept<A: tollgate::core::Arithmetic> {
    limit: A,
    state: A::State,
    /// A state as read on a clock that is behind, and whether the difference is so large that it is written.
    read: Read<A>,
}

type Read<A> = fn(
    &A,
    &<A as tollgate::core::Arithmetic>::State,
    Timestamp,
) -> (<A as tollgate::core::Arithmetic>::State, bool);

impl<A: tollgate::core::Arithmetic> Model for Kept<A> {
    fn step(&mut self, now: u64, step: KeyAction) -> (Decision, u64) {
        let now = Timestamp::from_nanos(now);
        let (mut state, is_far) = (self.read)(&self.limit, &self.state, now);
        if is_far {
            // So that it drains from there.
            self.state = state.clone();
        }
        match step {
            KeyAction::Decide(cost) => {
                let decision = self.limit.decide(&mut state, now, cost);
                if decision.is_allowed() && cost > 0 {
                    self.state = state;
                }
                (decision, 0)
            }
            KeyAction::AtMost(cost) => {
                let taken = self.limit.remaining(&state, now).min(cost);
                let decision = self.limit.decide(&mut state, now, taken.max(1));
                if decision.is_allowed() && taken > 0 {
                    self.state = state;
                }
                (decision, taken)
            }
            KeyAction::Gift(tokens) => {
                self.limit.refund(&mut state, now, tokens);
                let decision = self.limit.decision_at(&state, now, Some(now));
                if tokens > 0 {
                    self.state = state;
                }
                (decision, 0)
            }
            KeyAction::Reset => {
                self.state = A::State::default();
                (self.limit.decision_at(&self.state, now, Some(now)), 0)
            }
        }
    }
}

/// Bounds the debt: no wait is longer than a full bucket's.
fn clamped(
    level: &BucketLevel,
    capacity: u128,
    drain: u128,
    now: Timestamp,
) -> (BucketLevel, bool) {
    let BucketLevel { debt, as_of } = *level;
    let ahead = u128::from(as_of.nanos_since(now)) * drain;
    if ahead > 0 && ahead + debt > capacity {
        let debt = debt.max(capacity);
        (BucketLevel { debt, as_of: now }, ahead > capacity)
    } else {
        (*level, false)
    }
}

/// The price of a token and the drain of a tick, in core's units.
fn units(rate: Rate, price: u128) -> (u128, u128) {
    let period = rate.period().map_or(1, |period| period.as_nanos());
    let drain = price * u128::from(rate.count()) / period;
    (price * u128::from(rate.burst_size()), drain)
}

fn model(rate: Rate, algorithm: Algorithm) -> Box<dyn Model> {
    fn kept<A: tollgate::core::Arithmetic + 'static>(limit: A, read: Read<A>) -> Box<dyn Model> {
        let state = A::State::default();
        Box::new(Kept { limit, state, read })
    }
    match algorithm {
        Algorithm::Gcra | Algorithm::LeakyBucket => {
            kept(LeakyBucket::new(rate).unwrap(), |limit, level, now| {
                let (capacity, drain) = units(limit.rate(), limit.units_per_token());
                clamped(level, capacity, drain, now)
            })
        }
        Algorithm::TokenBucket => kept(TokenBucket::new(rate).unwrap(), |limit, bucket, now| {
            let (capacity, drain) = units(limit.rate(), limit.units_per_token());
            let (level, is_far) = clamped(&bucket.level, capacity, drain, now);
            (Bucket { level, ..*bucket }, is_far)
        }),
        Algorithm::FixedWindow(align) => kept(
            FixedWindow::new(rate).unwrap().with_alignment(align),
            |limit, window, now| {
                if window.start > now + limit.rate().period().unwrap() {
                    let start = start_of(limit.rate(), limit.alignment(), now);
                    (WindowCount { start, ..*window }, true)
                } else {
                    (*window, false)
                }
            },
        ),
        Algorithm::SlidingLog => kept(SlidingLog::new(rate).unwrap(), |limit, log, now| {
            let newest = log.entries().last().map_or(Timestamp::ZERO, |(at, _)| at);
            if newest > now + limit.rate().period().unwrap() {
                let used = limit.rate().count() - limit.remaining(log, newest);
                (HitLog::from_entries([(now, used)]), true)
            } else {
                (log.clone(), false)
            }
        }),
        Algorithm::SlidingCounter => {
            kept(SlidingCounter::new(rate).unwrap(), |limit, counts, now| {
                if counts.start > now + limit.rate().period().unwrap() {
                    let start = start_of(limit.rate(), WindowAlignment::default(), now);
                    (SlidingCounts { start, ..*counts }, true)
                } else {
                    (*counts, false)
                }
            })
        }
        other => panic!("{other:?} is not kept in a store"),
    }
}

/// The beginning of the window that contains a time.
fn start_of(rate: Rate, align: WindowAlignment, now: Timestamp) -> Timestamp {
    let length = rate.period().unwrap().as_nanos() as u64;
    match align {
        WindowAlignment::FirstHit => now,
        WindowAlignment::Boundary(boundary) => {
            let phase = boundary.as_nanos() % length;
            let since = (now.as_nanos() - phase) % length;
            Timestamp::from_nanos(now.as_nanos() - since)
        }
    }
}

/// The number of keys in each step.
const KEYS: u64 = 50;

/// A key of a random limit, in the store and in core.
struct ModelledKey {
    name: String,
    numbers: LimitParams,
    burst: u64,
    model: Box<dyn Model>,
}

fn is_window(algorithm: Algorithm) -> bool {
    !matches!(
        algorithm,
        Algorithm::Gcra | Algorithm::LeakyBucket | Algorithm::TokenBucket
    )
}

fn random_key(number: u64, algorithm: Algorithm, random: &mut Random) -> ModelledKey {
    let count = [1, 2, 3, 7, 10, 100, 333, 1_000][random.below(8) as usize];
    let period = [1, 7, 1_000, 999_983, 1_000_000, 60_000_000][random.below(6) as usize];
    let period = period.max(count / 10);
    let burst = match algorithm {
        Algorithm::SlidingCounter => count + random.below(count / 2 + 1),
        _ if is_window(algorithm) => count,
        _ => 1 + random.below(3 * count),
    };
    // In the store, microseconds; in core, as many nanoseconds.
    let rate = Rate::new(count, Duration::from_micros(period)).burst(burst);
    let scaled = Rate::new(count, Duration::from_nanos(period)).burst(burst);
    let form = LimitForm::new(&LimitKind::Rate { rate, algorithm }, Duration::ZERO).unwrap();
    let aligned = match algorithm {
        Algorithm::FixedWindow(WindowAlignment::Boundary(boundary)) => {
            let phase = boundary.as_nanos() / 1000;
            Algorithm::FixedWindow(WindowAlignment::Boundary(Timestamp::from_nanos(phase)))
        }
        other => other,
    };
    ModelledKey {
        name: format!("k{number}"),
        numbers: form.params_at(0).unwrap(),
        burst,
        model: model(scaled, aligned),
    }
}

/// A random action for each key. Calls with decisions alone may have a script of their own.
fn random_actions(keys: &[ModelledKey], random: &mut Random) -> Vec<KeyAction> {
    let only_decides = random.below(2) == 0;
    let action = |ModelledKey { burst, .. }: &ModelledKey| match random.below(40) {
        0..3 if only_decides => KeyAction::Decide(1),
        0 => KeyAction::Reset,
        1 => KeyAction::Gift(random.below(*burst + 2)),
        2 => KeyAction::AtMost(1 + random.below(2 * burst)),
        3 => KeyAction::Decide(burst + 1),
        4 => KeyAction::Decide(0),
        5..20 => KeyAction::Decide(1),
        _ => KeyAction::Decide(1 + random.below(*burst)),
    };
    keys.iter().map(action).collect()
}

/// Whether the store answered as core does.
fn compare(
    key: &mut ModelledKey,
    action: KeyAction,
    now: u64,
    raw: RawReply,
    algorithm: Algorithm,
) {
    let ModelledKey {
        name,
        numbers,
        model,
        ..
    } = key;
    let what = format!("{algorithm:?} {name} {numbers:?} {action:?} at {now}");
    let (expected, taken) = model.step(now, action);
    let seen = match action {
        KeyAction::AtMost(_) if raw.outcome == 1 => {
            assert_eq!(raw.wait, taken as i64, "{what}");
            RawReply { wait: 0, ..raw }
        }
        _ => raw,
    };
    // One unit of core's time is a microsecond.
    let expected = Decision::new(
        expected.outcome,
        expected.limit,
        expected.remaining,
        scaled_up(expected.wait_or_max()),
        scaled_up(expected.reset_after),
    );
    let mut seen = seen.decision(numbers);
    if is_window(algorithm) && seen.remaining == seen.limit {
        // An empty window is as if never used, but core still reports when it began.
        seen.reset_after = expected.reset_after;
    }
    assert_eq!(seen, expected, "{what}");
}

/// Runs 50,000 steps of random limits by one algorithm.
async fn run(algorithm: Algorithm, seed: u64) {
    let server = Server::start();
    let store = Store::patient(&server);
    let mut random = Random::new(seed);
    let mut keys: Vec<_> = (0..KEYS)
        .map(|number| random_key(number, algorithm, &mut random))
        .collect();
    let mut now = 1_700_000_000_000_000;
    for _ in 0..50_000 / KEYS {
        // From a microsecond to several windows ahead; sometimes back, or no step at all.
        let reach = [2, 50, 5_000, 1_000_000, 200_000_000][random.below(5) as usize];
        let step = random.below(reach);
        now = match random.below(12) {
            0 => now - step.min(60_000_000),
            1 => now,
            _ => now + step,
        };
        let actions = random_actions(&keys, &mut random);
        let asked = keys.iter().zip(&actions).map(|(key, action)| {
            let question = question(&key.name, key.numbers, *action);
            store.ask(vec![question], Some(now))
        });
        let answers = join_all(asked).await;
        for ((key, action), answer) in keys.iter_mut().zip(&actions).zip(answers) {
            let answers = answer.unwrap();
            assert_eq!(answers.now, now);
            compare(key, *action, now, answers.replies[0], algorithm);
        }
    }
}

/// Requests with several queries, some about the same key, get the same from the script for levels alone as
/// from the script for everything, beside a query of another kind.
#[tokio::test]
async fn levels_alone_are_answered_as_among_others() {
    let server = Server::start();
    let store = Store::patient(&server);
    let mut random = Random::new(9);
    let kept = |rate: Rate| {
        let algorithm = Algorithm::Gcra;
        let form = LimitForm::new(&LimitKind::Rate { rate, algorithm }, Duration::ZERO).unwrap();
        form.params_at(0).unwrap()
    };
    let limits = [
        kept(Rate::per_second(3).burst(5)),
        kept(Rate::per_minute(100)),
        kept(Rate::new(7, Duration::from_millis(13)).burst(2)),
    ];
    let mut now = 1_700_000_000_000_000;
    let mut outcomes = [0; 3];
    for _ in 0..2_000 {
        now = match random.below(12) {
            0 => now - random.below(500_000),
            _ => now + random.below(100_000),
        };
        let requests: Vec<Vec<(u64, u64)>> = (0..1 + random.below(4))
            .map(|_| {
                let questions = 0..1 + random.below(3);
                let question = |_| (random.below(6), random.below(4));
                questions.map(question).collect()
            })
            .collect();
        let asked = |side: &str| {
            let of = |(key, cost): &(u64, u64)| {
                let numbers = limits[*key as usize % limits.len()];
                question(&format!("{side}{key}"), numbers, KeyAction::Decide(*cost))
            };
            let requests: Vec<Vec<_>> = requests
                .iter()
                .map(|request| request.iter().map(of).collect())
                .collect();
            requests
        };
        let before = store.stats().calls.load(Ordering::Relaxed);
        let ask = |questions| store.ask(questions, Some(now));
        let alone = join_all(asked("a").into_iter().map(ask)).await;
        let mut mixed = asked("m");
        mixed.push(vec![question("other", limits[0], KeyAction::Gift(0))]);
        let mut among = join_all(mixed.into_iter().map(ask)).await;
        among.pop();
        let calls = store.stats().calls.load(Ordering::Relaxed) - before;
        assert_eq!(calls, 2, "each side has gone in one call");
        assert_eq!(alone, among, "{requests:?} at {now}");
        for answers in alone {
            for raw in answers.unwrap().replies {
                outcomes[usize::try_from(raw.outcome).unwrap()] += 1;
            }
        }
    }
    assert!(outcomes.iter().all(|seen| *seen > 100), "{outcomes:?}");
}

fn scaled_up(duration: Duration) -> Duration {
    match duration {
        Duration::MAX => Duration::MAX,
        nanos => Duration::from_micros(nanos.as_nanos() as u64),
    }
}

macro_rules! conforms {
    ($($name:ident: $algorithm:expr, $seed:expr;)*) => {$(
        #[tokio::test]
        async fn $name() {
            run($algorithm, $seed).await;
        }
    )*};
}

conforms! {
    gcra_equals_core: Algorithm::Gcra, 1;
    a_leaky_bucket_equals_core: Algorithm::LeakyBucket, 2;
    a_token_bucket_equals_core: Algorithm::TokenBucket, 3;
    a_fixed_window_equals_core: Algorithm::FixedWindow(WindowAlignment::default()), 4;
    a_window_around_a_boundary_equals_core:
        Algorithm::FixedWindow(WindowAlignment::Boundary(Timestamp::from_micros(123_456))), 8;
    a_window_from_the_first_hit_equals_core: Algorithm::FixedWindow(WindowAlignment::FirstHit), 5;
    a_sliding_counter_equals_core: Algorithm::SlidingCounter, 6;
    a_sliding_log_equals_core: Algorithm::SlidingLog, 7;
}

#[tokio::test]
async fn numbers_just_below_two_to_the_53_are_exact() {
    let server = Server::start();
    let store = Store::patient(&server);
    let mut random = Random::new(99);
    // The largest bursts, of periods without common factors with a power of ten, and all others.
    for (count, period) in [
        (1, 1_000_000),
        (3, 1_000_003),
        (7, 999_983),
        (999, 1_000_000_007),
    ] {
        let burst = ((1_u64 << 53) - 1) / period;
        let kind = LimitKind::Rate {
            rate: Rate::new(count, Duration::from_micros(period)).burst(burst),
            algorithm: Algorithm::Gcra,
        };
        let form = LimitForm::new(&kind, Duration::ZERO).unwrap();
        let numbers = form.params_at(0).unwrap();
        let scaled = Rate::new(count, Duration::from_nanos(period)).burst(burst);
        let mut model = model(scaled, Algorithm::Gcra);
        let key = format!("edge {count} {period}");
        let mut now = 1_700_000_000_000_000;
        for step in 0..1_000 {
            let reach = 1 << random.below(40);
            now += random.below(reach);
            let cost = match random.below(4) {
                0 => burst - random.below(3),
                1 => 1 + random.below(5),
                _ => random.below(burst),
            };
            let asked = question(&key, numbers, KeyAction::Decide(cost));
            let answers = store.ask(vec![asked], Some(now)).await.unwrap();
            let seen = answers.replies[0].decision(&numbers);
            let (expected, _) = model.step(now, KeyAction::Decide(cost));
            let expected = Decision::new(
                expected.outcome,
                expected.limit,
                expected.remaining,
                scaled_up(expected.wait_or_max()),
                scaled_up(expected.reset_after),
            );
            assert_eq!(seen, expected, "{key}: {cost} at {now} (step {step})");
        }
    }
}
