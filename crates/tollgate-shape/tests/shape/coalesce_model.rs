//! A coalescer against a slow model: every item once, in order, whatever fails, waits and stops.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use proptest::collection::vec;
use proptest::prelude::*;
use tollgate::clock::{Clock, Manual};
use tollgate_shape::{Coalesce, FlushOutcome};

use crate::ms;

const QUIET: u64 = 5;
const MOST: u64 = 12;
const RETRY: u64 = 7;
const WEIGHT: u64 = 20;

#[derive(Clone, Copy, Debug)]
enum Act {
    Add {
        key: u8,
        weight: u64,
    },
    Flush,
    Wait(u64),
    /// So many flushes from now on fail.
    Fail(u32),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        6 => (0u8..5, 1u64..22).prop_map(|(key, weight)| Act::Add { key, weight }),
        1 => Just(Act::Flush),
        3 => (1u64..9).prop_map(Act::Wait),
        1 => (1u32..3).prop_map(Act::Fail),
    ]
}

type Item = (u8, Vec<u64>);

#[derive(Clone, Copy, Debug)]
struct Shape {
    items: usize,
    pending: usize,
    merges: bool,
}

/// The obvious way: plain lists, looked at every millisecond.
struct Model {
    shape: Shape,
    open: Vec<Item>,
    first: u64,
    last: u64,
    closed: VecDeque<Vec<Item>>,
    again: Option<(u64, Vec<Item>)>,
    fails: u32,
    flushed: Vec<(u64, Vec<Item>)>,
}

impl Model {
    fn pending(&self) -> usize {
        let closed: usize = self.closed.iter().map(Vec::len).sum();
        self.open.len() + closed + self.again.as_ref().map_or(0, |(_, batch)| batch.len())
    }

    fn add(&mut self, now: u64, key: u8, weight: u64) -> bool {
        if weight > WEIGHT {
            return false;
        }
        let open: u64 = self.open.iter().flat_map(|(_, weights)| weights).sum();
        let fits = open + weight <= WEIGHT;
        let there = self.open.iter().position(|(other, _)| *other == key);
        if let Some(place) = there.filter(|_| fits && self.shape.merges) {
            self.open[place].1.push(weight);
        } else {
            if self.pending() >= self.shape.pending {
                return false;
            }
            if !fits {
                self.close();
            }
            if self.open.is_empty() {
                self.first = now;
            }
            self.open.push((key, vec![weight]));
        }
        self.last = now;
        let total: u64 = self.open.iter().flat_map(|(_, weights)| weights).sum();
        if self.open.len() >= self.shape.items
            || total >= WEIGHT
            || self.pending() >= self.shape.pending
        {
            self.close();
        }
        self.run(now);
        true
    }

    fn close(&mut self) {
        if !self.open.is_empty() {
            self.closed.push_back(std::mem::take(&mut self.open));
        }
    }

    fn run(&mut self, now: u64) {
        loop {
            let batch = match self.again.take() {
                Some((at, batch)) if at <= now => batch,
                Some(later) => {
                    self.again = Some(later);
                    return;
                }
                None => {
                    let is_due = now >= (self.last + QUIET).min(self.first + MOST);
                    if self.closed.is_empty() && is_due {
                        self.close();
                    }
                    match self.closed.pop_front() {
                        Some(batch) => batch,
                        None => return,
                    }
                }
            };
            if self.fails > 0 {
                self.fails -= 1;
                self.again = Some((now + RETRY, batch));
            } else {
                self.flushed.push((now, batch));
            }
        }
    }

    fn flush(&mut self, now: u64) {
        self.close();
        if let Some((at, _)) = &mut self.again {
            *at = now;
        }
        self.run(now);
    }
}

proptest! {
    #[test]
    fn it_does_what_the_model_does(
        acts in vec(act(), 1..100),
        (items, pending) in (1usize..6, 1usize..12),
        merges in any::<bool>(),
    ) {
        let shape = Shape { items, pending, merges };
        let clock = Manual::new();
        let millis = |clock: &Manual| (clock.now().as_nanos()) / 1_000_000;
        let fails = Arc::new(Mutex::new(0));
        let flushed = Arc::new(Mutex::new(Vec::new()));
        let builder = Coalesce::quiet(ms(QUIET))
            .max_wait(ms(MOST))
            .max_items(items)
            .max_pending(pending)
            .max_weight(WEIGHT, |_: &u8, weights: &Vec<u64>| weights.iter().sum());
        let builder = if merges {
            builder.merge(|_, there, mut more| there.append(&mut more))
        } else {
            builder
        };
        let (noted, failing, at) = (Arc::clone(&flushed), Arc::clone(&fails), clock.clone());
        let ours = builder.clock(clock.clone()).build(move |batch| {
            let mut fails = failing.lock().unwrap();
            if *fails > 0 {
                *fails -= 1;
                return FlushOutcome::RetryIn(ms(RETRY));
            }
            noted.lock().unwrap().push((millis(&at), batch.items().to_vec()));
            FlushOutcome::Done
        });
        let mut model = Model {
            shape,
            open: Vec::new(),
            first: 0,
            last: 0,
            closed: VecDeque::new(),
            again: None,
            fails: 0,
            flushed: Vec::new(),
        };
        let mut added = 0u64;
        for act in acts {
            let now = millis(&clock);
            match act {
                Act::Add { key, weight } => {
                    let is_added = ours.try_add(key, vec![weight]).is_ok();
                    prop_assert_eq!(is_added, model.add(now, key, weight));
                    added += if is_added { weight } else { 0 };
                }
                Act::Flush => {
                    ours.flush();
                    model.flush(now);
                }
                Act::Wait(wait) => {
                    for _ in 0..wait {
                        clock.advance(ms(1));
                        model.run(millis(&clock));
                    }
                }
                Act::Fail(more) => {
                    *fails.lock().unwrap() += more;
                    model.fails += more;
                }
            }
            prop_assert_eq!(ours.pending(), model.pending());
            prop_assert_eq!(&*flushed.lock().unwrap(), &model.flushed);
        }
        // What is left when it is stopped is the rest, and nothing is there twice.
        ours.stop();
        let leftover: u64 = ours
            .take_unflushed()
            .iter()
            .flat_map(|batch| batch.items().iter().flat_map(|(_, weights)| weights))
            .sum();
        let gone: u64 = flushed
            .lock()
            .unwrap()
            .iter()
            .flat_map(|(_, batch)| batch.iter().flat_map(|(_, weights)| weights))
            .sum();
        prop_assert_eq!(leftover + gone, added);
    }
}
