//! Which state each limit is kept in, from one policy to the next.
//!
//! A limit that has the same name and algorithm in the next policy keeps its state, whatever its rate: the
//! backend carries what was spent over, so that no window sees more than the largest burst and the fastest
//! rate of the versions in it, however often they change.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;

use foldhash::fast::FixedState;
use tollgate::{Algorithm, LimitError, Rate};

use crate::limits::{Counter, Limit, LimitKind};

mod saved;

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
            LimitKind::Concurrency(_) | LimitKind::Adaptive(_) => Self::Concurrency,
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
#[derive(Clone, Copy, Debug)]
struct State {
    id: u64,
    /// None for a quota or slots.
    rate: Option<Rate>,
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

    /// The numbers of all states.
    pub(crate) fn ids(&self) -> impl Iterator<Item = u64> {
        self.held.values().flatten().map(|state| state.id)
    }

    /// The names of those rates whose numbers aren't among these, in order.
    pub(crate) fn without(&self, live: &HashSet<u64>) -> Vec<String> {
        let gone = self.held.iter().filter(|((name, sort), states)| {
            // Nobody gave those a name that only say how far a rule has warmed up.
            matches!(sort, Sort::Rate(_))
                && !name.starts_with(super::warm::NAME)
                && states.iter().any(|state| !live.contains(&state.id))
        });
        let names: BTreeSet<_> = gone.map(|((name, _), _)| name.to_string()).collect();
        names.into_iter().collect()
    }

    /// Gives each limit of a rule its state.
    pub(crate) fn place(
        &mut self,
        name: &str,
        sharing: Sharing,
        kinds: &[LimitKind],
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
            let states = self.states(name, sort, alike);
            for (number, (kind, state)) in alike.iter().zip(states).enumerate() {
                // What comes before it and is of another period has no part in its name.
                let same = |other: &&LimitKind| period(other) == period(kind);
                let ordinal = alike[..number].iter().filter(same).count();
                let counter = Counter {
                    name: name.to_owned(),
                    ordinal,
                    id: state.id,
                };
                let limit = Limit::new(kind.clone(), counter)?;
                limits.push(match sharing {
                    Sharing::Alone => limit.alone(),
                    Sharing::Shared => limit,
                });
            }
            rest = others;
        }
        Ok(limits)
    }

    /// The states of limits of one sort.
    fn states(&mut self, name: &str, sort: Sort, kinds: &[LimitKind]) -> Vec<State> {
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
            let id = match place {
                Some(place) => before[place].id,
                None => take(&mut self.next),
            };
            states.push(State { id, rate: *rate });
        }
        let own = states[..rates.len()].to_vec();
        self.held.insert(key, states);
        own
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
        let placed = counters.place("rule/a", Sharing::Alone, &rates(limits));
        placed.unwrap().iter().map(|limit| limit.id).collect()
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
            let placed = counters.place("rule/a", Sharing::Alone, &rates(limits));
            let ordinal = |limit: &Limit| limit.counter().ordinal;
            placed.unwrap().iter().map(ordinal).collect::<Vec<_>>()
        };
        assert_eq!(ordinals(&["5/h"]), [0]);
        assert_eq!(ordinals(&["100/s", "5/h"]), [0, 0]);
        assert_eq!(ordinals(&["9/d", "5/h", "100/s", "7/h"]), [0, 0, 0, 1]);
    }
}
