//! Which state each limit is kept in, from one policy to the next.
//!
//! A limit that has the same name and algorithm in the next policy keeps its state. If a GCRA got
//! faster, what keys have spent carries over as time, which counts for more then. If it got slower it
//! starts anew, and the old one stays in force beside it, at the larger of the two bursts B, for
//! B / (old rate − new rate). So no window sees more than B + the faster rate · its length, however
//! often a policy changes from one version to the other and back:
//!
//! * While the old one is in force it counts everything, and that is its own bound. Going back to it
//!   then goes on with its state.
//! * After that time, what the new one has granted, at most B + its rate · time, lies below what the
//!   old rate alone would have, so the B that was granted before it is the only one.

use std::collections::HashMap;
use std::time::Duration;

use foldhash::fast::FixedState;
use tollgate::core::{Algorithm as _, Gcra};
use tollgate::{Algorithm, LimitError, Rate, Timestamp};

use crate::backend::{Compiled, Counter, Limit, LimitKind, Told};
use crate::policy::OnStoreFailure;

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
    formers: Vec<Former>,
}

/// A limit that a stricter one took the place of.
#[derive(Clone, Copy, Debug)]
struct Former {
    id: u64,
    rate: Rate,
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
            for (ordinal, (kind, state)) in alike
                .iter()
                .zip(self.states(name, sharing, sort, alike, now)?)
                .enumerate()
            {
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
                        }),
                        on_store_failure: match kind {
                            LimitKind::Quota(_) => OnStoreFailure::Closed,
                            _ => OnStoreFailure::Local,
                        },
                        until,
                        lasting,
                    })
                };
                limits.push(make(kind, state.id, None)?);
                for Former { id, rate, until } in state.formers {
                    let algorithm = Algorithm::Gcra;
                    limits.push(make(&LimitKind::Rate { rate, algorithm }, id, Some(until))?);
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
    state.formers.retain(|former| former.until > now);
    let (Some(old), Some(new)) = (state.rate, rate) else {
        return Ok(State { rate, ..state });
    };
    if sharing == Sharing::Shared || old == new {
        return Ok(State { rate, ..state });
    }
    // Back to a version that is still in force: it has counted all along.
    let back = |former: &Former| former.rate.burst(new.burst_size()) == new;
    let back = state.formers.iter().position(back);
    let back = back.map(|place| state.formers.remove(place).id);
    for former in &mut state.formers {
        if let Some(life) = life_beside(former.rate, new)? {
            former.until = former.until.max(now + life);
        }
    }
    if let Some(life) = life_beside(old, new)? {
        let wide = old.burst(old.burst_size().max(new.burst_size()));
        // Those that are there are looser still, and have counted longer: at the most, they do.
        if state.formers.len() < MOST_FORMERS {
            state.formers.push(Former {
                id: state.id,
                rate: if Gcra::new(wide).is_ok() { wide } else { old },
                until: now + life,
            });
        }
        state.id = back.unwrap_or_else(|| take(next));
    } else {
        state.id = back.unwrap_or(state.id);
    }
    Ok(State { rate, ..state })
}

/// How long a rate stays in force beside a slower one that takes its place: until the old line runs a
/// whole burst, the larger one, ahead of the new. None if the new one isn't slower.
fn life_beside(old: Rate, new: Rate) -> Result<Option<Duration>, LimitError> {
    let Ok(was) = Gcra::new(old) else {
        return Ok(None);
    };
    let (was, is) = (
        u128::from(was.interval_units()),
        u128::from(Gcra::new(new)?.interval_units()),
    );
    if was == 0 || is <= was || is == u128::from(u64::MAX) {
        return Ok(None);
    }
    let units = (is * was).div_ceil(is - was);
    let burst = old.burst_size().max(new.burst_size());
    let units = units.saturating_mul(u128::from(burst));
    let nanos = u64::try_from(units.div_ceil(64)).unwrap_or(u64::MAX);
    Ok(Some(Duration::from_nanos(nanos)))
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
    fn a_stricter_limit_has_the_former_beside_it_until_the_lines_cross() {
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
        let crossing = now + Duration::from_secs(4); // 20 / (10 - 5)
        assert_eq!(
            seen,
            [(2, None, new.clone()), (1, Some(crossing), former.clone())]
        );
        let mut third = Counters::following(Some(&second));
        let later = crossing + Duration::from_nanos(1);
        let limits = third.place("rule/a", Sharing::Alone, &rates(&["50/s"]), later);
        let ids: Vec<_> = limits.unwrap().iter().map(|limit| limit.id).collect();
        assert_eq!(ids, [2]);
    }
}
