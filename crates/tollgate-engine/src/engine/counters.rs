//! Which state each limit is kept in, from one policy to the next.
//!
//! A limit that has the same name and algorithm in the next policy keeps its state. For GCRA that is a
//! list of words, from fast to slow, each of which has counted everything since it began; the last is the
//! limit's own, and those before it, *formers*, are versions that it is stricter than.
//!
//! * A version slower than all of them begins a word of its own, and the others stay in force beside it.
//! * Any other goes on with the first word that isn't faster, whose keys have spent no less by its
//!   measure, as time counts for more at a faster rate; slower words are done with.
//! * A former has at least the burst B of the new version, and is in force for (b + B) / (its rate − the
//!   new rate), where b is the largest burst it ever had: until its bucket is sure to be full, whatever
//!   came before. To forget a full bucket changes nothing.
//!
//! So no window sees more than the largest burst and the fastest rate of the versions in it, however often
//! they change. If more than [`MOST_FORMERS`] versions in a row get stricter within that time, it is the
//! fastest that stay, and the bound is by theirs.
//!
//! A key of a word that had a larger burst may owe more than an empty bucket of this version holds: it waits
//! until that is paid back, as any limiter says.

use std::collections::HashMap;
use std::time::Duration;

use foldhash::fast::FixedState;
use tollgate::core::{Algorithm as _, Gcra};
use tollgate::{Algorithm, LimitError, Rate, Timestamp};

use crate::backend::{Compiled, Counter, Kept, Limit, LimitKind, Shared, Told};
use crate::policy::{Counting, OnStoreFailure};

/// How many limits that stricter ones took the place of may be in force beside one.
const MOST_FORMERS: usize = 4;

/// Whether other rules may count in the same state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sharing {
    Alone,
    Shared,
}

/// What sort of state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Sort {
    Rate(Algorithm),
    Quota,
    Concurrency,
}

impl Sort {
    fn of(kind: &LimitKind) -> Self {
        match kind {
            LimitKind::Rate { algorithm, .. } => Self::Rate(*algorithm),
            LimitKind::Quota(_) => Self::Quota,
            LimitKind::Concurrency(_) => Self::Concurrency,
        }
    }
}

type Held = HashMap<(Box<str>, Sort), Vec<State>, FixedState>;

/// The states of a policy's limits, and of the one before it.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    held: Held,
    before: Held,
    next: u64,
}

/// The state of one limit.
#[derive(Clone, Debug)]
struct State {
    id: u64,
    /// None for a quota or slots.
    rate: Option<Rate>,
    /// The largest burst of its word so far: what keys may owe.
    most: u64,
    formers: Vec<Former>,
}

/// A limit that a stricter one took the place of.
#[derive(Clone, Copy, Debug)]
struct Former {
    id: u64,
    rate: Rate,
    most: u64,
    until: Timestamp,
}

impl Counters {
    /// Those of a policy that is to follow this one.
    pub(crate) fn following(before: Option<&Self>) -> Self {
        Self {
            held: Held::default(),
            before: before.map(|before| before.held.clone()).unwrap_or_default(),
            next: before.map_or(1, |before| before.next),
        }
    }

    /// Forgets the policy before, once all limits have their place.
    pub(crate) fn settle(&mut self) {
        self.before = Held::default();
    }

    /// Gives each limit of a rule its state.
    pub(crate) fn place(
        &mut self,
        name: &str,
        sharing: Sharing,
        kinds: &[LimitKind],
        now: Timestamp,
    ) -> Result<Vec<Limit>, LimitError> {
        let mut limits = Vec::with_capacity(kinds.len());
        let mut rest = kinds;
        while let Some(first) = rest.first() {
            let sort = Sort::of(first);
            let count = rest
                .iter()
                .take_while(|kind| Sort::of(kind) == sort)
                .count();
            let (alike, others) = rest.split_at(count);
            let states = self.states(name, sharing, sort, alike, now)?;
            for (number, (kind, state)) in alike.iter().zip(states).enumerate() {
                // What comes before it and is of another period has no part in its name.
                let same = |other: &&LimitKind| period(other) == period(kind);
                let ordinal = alike[..number].iter().filter(same).count();
                let make = |kind: &LimitKind, id, until| {
                    let lasting = sharing == Sharing::Alone
                        && matches!(kind, LimitKind::Rate { algorithm, .. }
                            if *algorithm != Algorithm::SlidingCounter);
                    Ok(Limit {
                        compiled: Compiled::new(kind)?,
                        id,
                        told: Box::new(Told {
                            kind: kind.clone(),
                            counter: Counter {
                                name: name.to_owned(),
                                ordinal,
                                id,
                            },
                            slot: None,
                            kept: Kept::default(),
                            share: Shared::default(),
                        }),
                        counting: Counting::Exact,
                        on_store_failure: match kind {
                            LimitKind::Quota(_) => OnStoreFailure::Closed,
                            _ => OnStoreFailure::Local,
                        },
                        until,
                        lasting,
                    })
                };
                limits.push(make(kind, state.id, None)?);
                for former in state.formers {
                    let algorithm = Algorithm::Gcra;
                    let kind = LimitKind::Rate {
                        rate: former.rate,
                        algorithm,
                    };
                    limits.push(make(&kind, former.id, Some(former.until))?);
                }
            }
            rest = others;
        }
        Ok(limits)
    }

    /// The states of limits of one sort.
    fn states(
        &mut self,
        name: &str,
        sharing: Sharing,
        sort: Sort,
        kinds: &[LimitKind],
        now: Timestamp,
    ) -> Result<Vec<State>, LimitError> {
        let key = (name.into(), sort);
        let rates: Vec<_> = kinds
            .iter()
            .map(|kind| match kind {
                LimitKind::Rate { rate, .. } => Some(*rate),
                _ => None,
            })
            .collect();
        // Another rule that shares the counter may have been here.
        let mut states = self.held.remove(&key).unwrap_or_default();
        let before = self.before.get(&key).map_or(&[][..], Vec::as_slice);
        let matched = matched(before, &rates[states.len().min(rates.len())..]);
        for (place, rate) in matched.into_iter().zip(rates.iter().skip(states.len())) {
            let state = match place.map(|place| before[place].clone()) {
                Some(state) if sort == Sort::Rate(Algorithm::Gcra) => {
                    follow(state, *rate, sharing, &mut self.next, now)?
                }
                Some(state) => State {
                    rate: *rate,
                    ..state
                },
                None => State {
                    id: take(&mut self.next),
                    rate: *rate,
                    most: rate.map_or(0, |rate| rate.burst_size()),
                    formers: Vec::new(),
                },
            };
            states.push(state);
        }
        let own = states[..rates.len()].to_vec();
        self.held.insert(key, states);
        Ok(own)
    }
}

/// The period of a rate.
fn period(kind: &LimitKind) -> Option<Duration> {
    match kind {
        LimitKind::Rate { rate, .. } => rate.period(),
        _ => None,
    }
}

fn take(next: &mut u64) -> u64 {
    *next += 1;
    *next - 1
}

/// Which limit of before each of these goes on with: one with the same period, or else the next in
/// order that is left.
fn matched(before: &[State], rates: &[Option<Rate>]) -> Vec<Option<usize>> {
    let period = |rate: &Option<Rate>| rate.and_then(|rate| rate.period());
    let mut left: Vec<_> = (0..before.len()).collect();
    let mut matched: Vec<Option<usize>> = rates
        .iter()
        .map(|rate| {
            let same = |place: &usize| period(&before[*place].rate) == period(rate);
            let found = left.iter().position(same)?;
            Some(left.remove(found))
        })
        .collect();
    for place in &mut matched {
        if place.is_none() && !left.is_empty() {
            *place = Some(left.remove(0));
        }
    }
    matched
}

/// The state of a limit that may have changed.
fn follow(
    mut state: State,
    rate: Option<Rate>,
    sharing: Sharing,
    next: &mut u64,
    now: Timestamp,
) -> Result<State, LimitError> {
    let (Some(old), Some(new)) = (state.rate, rate) else {
        return Ok(State { rate, ..state });
    };
    if sharing == Sharing::Shared {
        return Ok(State { rate, ..state });
    }
    let is = interval(new)?;
    state.formers.retain(|former| former.until > now);
    if old == new {
        return Ok(state);
    }
    let mut words = state.formers;
    words.push(Former {
        id: state.id,
        rate: old,
        most: state.most,
        until: now,
    });
    let slower = words.iter().position(|word| {
        // All of them have been in force.
        interval(word.rate).is_ok_and(|interval| interval >= is)
    });
    let (id, most) = match slower.map(|at| words.drain(at..).next()) {
        Some(Some(word)) => (word.id, word.most.max(new.burst_size())),
        _ => (take(next), new.burst_size()),
    };
    // The fastest are in force for the longest windows.
    words.truncate(MOST_FORMERS);
    for former in &mut words {
        former.until = now + until_full(former, new)?;
        let wide = former
            .rate
            .burst(former.rate.burst_size().max(new.burst_size()));
        if Gcra::new(wide).is_ok() {
            former.rate = wide;
            former.most = former.most.max(wide.burst_size());
        }
    }
    Ok(State {
        id,
        rate,
        most,
        formers: words,
    })
}

/// The time from one token to the next, which is longest for a rate of zero.
fn interval(rate: Rate) -> Result<u64, LimitError> {
    Ok(Gcra::new(rate)?.interval_units())
}

/// How long until the bucket of a former is sure to be full, if a slower rate limits what passes: all
/// that may be owed is now, and the slower one's bucket is full.
fn until_full(former: &Former, slow: Rate) -> Result<Duration, LimitError> {
    let fast_interval = u128::from(interval(former.rate)?);
    let slow_interval = u128::from(interval(slow)?);
    let apart = slow_interval.saturating_sub(fast_interval).max(1);
    let token = (fast_interval * slow_interval).div_ceil(apart);
    let bursts = u128::from(former.most) + u128::from(slow.burst_size());
    let nanos = token.saturating_mul(bursts).div_ceil(64);
    Ok(Duration::from_nanos(
        u64::try_from(nanos).unwrap_or(u64::MAX),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(rates: &[&str]) -> Vec<LimitKind> {
        let kind = |rate: &&str| LimitKind::Rate {
            rate: rate.parse().unwrap(),
            algorithm: Algorithm::Gcra,
        };
        rates.iter().map(kind).collect()
    }

    fn ids(counters: &mut Counters, limits: &[&str]) -> Vec<u64> {
        let now = Timestamp::from_secs(1);
        let placed = counters.place("rule/a", Sharing::Alone, &rates(limits), now);
        let placed = placed.unwrap().into_iter();
        let in_force = placed.filter(|limit| limit.until.is_none());
        in_force.map(|limit| limit.id).collect()
    }

    #[test]
    fn a_limit_keeps_its_state_by_period_and_then_by_order() {
        let mut first = Counters::following(None);
        assert_eq!(ids(&mut first, &["10/s", "1000/h"]), [1, 2]);
        let mut second = Counters::following(Some(&first));
        assert_eq!(ids(&mut second, &["2000/h", "20/s"]), [2, 1]);
        let mut third = Counters::following(Some(&second));
        assert_eq!(ids(&mut third, &["20/s", "3000/minute"]), [1, 2]);
        let mut fourth = Counters::following(Some(&third));
        assert_eq!(ids(&mut fourth, &["20/s"]), [1]);
        let mut fifth = Counters::following(Some(&fourth));
        assert_eq!(ids(&mut fifth, &["20/s", "1000/h"]), [1, 3]);
    }

    #[test]
    fn a_limit_is_called_by_its_period_whatever_stands_before_it() {
        let ordinals = |limits: &[&str]| {
            let mut counters = Counters::following(None);
            let now = Timestamp::from_secs(1);
            let placed = counters.place("rule/a", Sharing::Alone, &rates(limits), now);
            let ordinal = |limit: &Limit| limit.counter().ordinal;
            placed.unwrap().iter().map(ordinal).collect::<Vec<_>>()
        };
        assert_eq!(ordinals(&["5/h"]), [0]);
        assert_eq!(ordinals(&["100/s", "5/h"]), [0, 0]);
        assert_eq!(ordinals(&["9/d", "5/h", "100/s", "7/h"]), [0, 0, 0, 1]);
    }

    #[test]
    fn a_stricter_limit_has_the_former_beside_it_until_that_is_full() {
        let mut first = Counters::following(None);
        ids(&mut first, &["10/s"]);
        let mut second = Counters::following(Some(&first));
        let now = Timestamp::from_secs(100);
        let limits = second.place("rule/a", Sharing::Alone, &rates(&["5/s burst 20"]), now);
        let limits = limits.unwrap();
        let seen: Vec<_> = limits
            .iter()
            .map(|limit| (limit.id, limit.until, limit.kind().clone()))
            .collect();
        let [new, former] = &rates(&["5/s burst 20", "10/s burst 20"])[..] else {
            panic!("two");
        };
        let full = now + Duration::from_secs(6); // (10 + 20) / (10 - 5)
        assert_eq!(
            seen,
            [(2, None, new.clone()), (1, Some(full), former.clone())]
        );
        let mut third = Counters::following(Some(&second));
        let later = full + Duration::from_nanos(1);
        let limits = third.place("rule/a", Sharing::Alone, &rates(&["50/s"]), later);
        let ids: Vec<_> = limits.unwrap().iter().map(|limit| limit.id).collect();
        assert_eq!(ids, [2]);
    }
}
