//! Random permits, waits, cancellations and live changes, against a model that keeps a list.

use std::collections::VecDeque;
use std::future::IntoFuture;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use tollgate::{
    ConcurrencyLimiter, KeyedConcurrencyLimiter,
    concurrency::{self, KeyedPermitSource, Permit, PermitDenied, PermitSource},
};

const MAX_WAITERS: usize = 4;
const REGRESSIONS: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/proptest-regressions/concurrency_model.txt"
);

#[derive(Clone, Debug)]
enum Action {
    Try(u32),
    Wait(u32),
    /// Polls one of the waits.
    Poll(usize),
    /// Drops one of the waits.
    Cancel(usize),
    /// Ends one of the permits.
    Release(usize),
    Resize(u32),
}

fn steps() -> impl Strategy<Value = Vec<Action>> {
    let step = prop_oneof![
        3 => (0u32..6).prop_map(Action::Try),
        4 => (0u32..6).prop_map(Action::Wait),
        4 => any::<usize>().prop_map(Action::Poll),
        2 => any::<usize>().prop_map(Action::Cancel),
        5 => any::<usize>().prop_map(Action::Release),
        1 => (0u32..8).prop_map(Action::Resize),
    ];
    prop::collection::vec(step, 0..120)
}

/// The obvious form: a sum, a limit and a list.
struct Model {
    limit: u32,
    in_use: u32,
    queue: VecDeque<(usize, u32)>,
    /// The outcome of each wait: its permit, or that it never passes.
    told: Vec<Option<bool>>,
}

#[derive(Debug, PartialEq)]
enum Answer {
    Passed,
    Full,
    Never,
    QueueFull,
    Queued,
}

impl Model {
    fn attempt(&mut self, weight: u32) -> Answer {
        if weight > self.limit {
            Answer::Never
        } else if self.queue.is_empty() && self.in_use + weight <= self.limit {
            self.in_use += weight;
            Answer::Passed
        } else {
            Answer::Full
        }
    }

    fn wait(&mut self, weight: u32) -> Answer {
        match self.attempt(weight) {
            Answer::Full if self.queue.len() >= MAX_WAITERS => Answer::QueueFull,
            Answer::Full => {
                self.queue.push_back((self.told.len(), weight));
                self.told.push(None);
                Answer::Queued
            }
            other => other,
        }
    }

    fn cancel(&mut self, wait: usize, weight: u32) {
        if self.told[wait] == Some(true) {
            self.in_use -= weight;
        }
        self.queue.retain(|(other, _)| *other != wait);
        self.admit();
    }

    fn resize(&mut self, limit: u32) {
        self.limit = limit;
        let told = &mut self.told;
        self.queue.retain(|(wait, weight)| {
            if *weight > limit {
                told[*wait] = Some(false);
            }
            *weight <= limit
        });
        self.admit();
    }

    fn admit(&mut self) {
        while let Some((wait, weight)) = self.queue.front().copied()
            && self.in_use + weight <= self.limit
        {
            self.queue.pop_front();
            self.in_use += weight;
            self.told[wait] = Some(true);
        }
    }
}

type Wait<H> = (usize, u32, Pin<Box<concurrency::PermitFuture<H>>>);

fn poll<H: PermitSource>(
    future: &mut Pin<Box<concurrency::PermitFuture<H>>>,
) -> Option<Result<Permit<H>, PermitDenied>> {
    match future
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()))
    {
        Poll::Ready(result) => Some(result),
        Poll::Pending => None,
    }
}

fn answer<H: PermitSource>(
    result: Result<Permit<H>, PermitDenied>,
    permits: &mut Vec<Permit<H>>,
) -> Answer {
    match result {
        Ok(permit) => {
            permits.push(permit);
            Answer::Passed
        }
        Err(PermitDenied::Full(_)) => Answer::Full,
        Err(PermitDenied::ExceedsLimit(_)) => Answer::Never,
        Err(PermitDenied::QueueFull(_)) => Answer::QueueFull,
        Err(other) => panic!("{other:?}"),
    }
}

/// What is judged: a limiter, or one key.
trait Subject {
    type Home: PermitSource;
    fn attempt(&self, weight: u32) -> Result<Permit<Self::Home>, PermitDenied>;
    fn wait(&self, weight: u32) -> Pin<Box<concurrency::PermitFuture<Self::Home>>>;
    fn resize(&self, limit: u32);
    /// Limit, in use, queued.
    fn look(&self) -> (u32, u32, usize);
}

struct Single(Arc<ConcurrencyLimiter>);

impl Subject for Single {
    type Home = Arc<ConcurrencyLimiter>;

    fn attempt(&self, weight: u32) -> Result<Permit<Self::Home>, PermitDenied> {
        self.0.try_acquire_owned_n(weight)
    }

    fn wait(&self, weight: u32) -> Pin<Box<concurrency::PermitFuture<Self::Home>>> {
        Box::pin(self.0.acquire_owned_n(weight).into_future())
    }

    fn resize(&self, limit: u32) {
        self.0.set_limit(limit);
    }

    fn look(&self) -> (u32, u32, usize) {
        let look = self.0.peek();
        (look.limit, look.in_use, look.waiting)
    }
}

struct OneKey(Arc<KeyedConcurrencyLimiter<String>>);

impl Subject for OneKey {
    type Home = KeyedPermitSource<Arc<KeyedConcurrencyLimiter<String>>>;

    fn attempt(&self, weight: u32) -> Result<Permit<Self::Home>, PermitDenied> {
        self.0.key_owned("acme").try_acquire_n(weight)
    }

    fn wait(&self, weight: u32) -> Pin<Box<concurrency::PermitFuture<Self::Home>>> {
        Box::pin(self.0.key_owned("acme").acquire_n(weight).into_future())
    }

    fn resize(&self, limit: u32) {
        self.0.set_limit(limit);
    }

    fn look(&self) -> (u32, u32, usize) {
        let look = self.0.peek("acme");
        assert!(look.waiting <= self.0.waiters());
        (look.limit, look.in_use, look.waiting)
    }
}

fn judge<S: Subject>(subject: &S, limit: u32, steps: Vec<Action>) -> Result<(), TestCaseError> {
    let mut model = Model {
        limit,
        in_use: 0,
        queue: VecDeque::new(),
        told: Vec::new(),
    };
    let mut permits: Vec<Permit<S::Home>> = Vec::new();
    let mut waits: Vec<Wait<S::Home>> = Vec::new();
    for step in steps {
        match step {
            Action::Try(weight) => {
                let got = answer(subject.attempt(weight), &mut permits);
                prop_assert_eq!(got, model.attempt(weight));
            }
            Action::Wait(weight) => {
                let (number, mut future) = (model.told.len(), subject.wait(weight));
                let got = match poll(&mut future) {
                    Some(result) => answer(result, &mut permits),
                    None => {
                        waits.push((number, weight, future));
                        Answer::Queued
                    }
                };
                prop_assert_eq!(got, model.wait(weight));
            }
            Action::Poll(pick) if !waits.is_empty() => {
                let index = pick % waits.len();
                let expected = model.told[waits[index].0].map(|granted| {
                    if granted {
                        Answer::Passed
                    } else {
                        Answer::Never
                    }
                });
                let got = poll(&mut waits[index].2).map(|result| answer(result, &mut permits));
                prop_assert_eq!(&got, &expected);
                if got.is_some() {
                    drop(waits.remove(index));
                }
            }
            Action::Cancel(pick) if !waits.is_empty() => {
                let (number, weight, future) = waits.remove(pick % waits.len());
                drop(future);
                model.cancel(number, weight);
            }
            Action::Release(pick) if !permits.is_empty() => {
                let permit = permits.remove(pick % permits.len());
                model.in_use -= permit.weight();
                drop(permit);
                model.admit();
            }
            Action::Resize(limit) => {
                subject.resize(limit);
                model.resize(limit);
            }
            Action::Poll(_) | Action::Cancel(_) | Action::Release(_) => {}
        }
        let expected = (model.limit, model.in_use, model.queue.len());
        prop_assert_eq!(subject.look(), expected);
    }
    // However it stands, nothing is left once all handles are gone.
    drop(permits);
    drop(waits);
    prop_assert_eq!(subject.look(), (model.limit, 0, 0));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 500,
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(REGRESSIONS))),
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_limiter_is_its_model(limit in 0u32..8, steps in steps()) {
        let limiter = ConcurrencyLimiter::builder(limit).max_waiters(MAX_WAITERS).build();
        judge(&Single(Arc::new(limiter)), limit, steps)?;
    }

    #[test]
    fn a_key_is_its_model_and_leaves_no_entry(limit in 0u32..8, steps in steps()) {
        let limiter = KeyedConcurrencyLimiter::builder(limit, 1)
            .max_waiters_per_key(MAX_WAITERS)
            .build().unwrap();
        let subject = OneKey(Arc::new(limiter));
        judge(&subject, limit, steps)?;
        prop_assert_eq!((subject.0.len(), subject.0.waiters()), (0, 0));
    }
}
