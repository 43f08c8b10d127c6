//! Counters in a snapshot, so that the policy after a restart can continue with them.
//!
//! | words | content |
//! |---|---|
//! | 1 | the number of the next counter: above those of all keys, including keys of dropped counters |
//! | 1 | how many names and kinds there are, those of retired counters last; for each: |
//! | … | the name, as bytes |
//! | 3 | 0 for a quota, 1 for concurrency, or 2 plus the algorithm's number; the alignment of windows: 0, or 1 for the first hit; a boundary |
//! | 1 | how many counters, and for each |
//! | 2 · 5 | its number, 1 if it has a rate and twice the number of reloads since it was retired, and the rate |

use std::mem::discriminant;

use tollgate::core::WindowAlignment;
use tollgate::snapshot::{SnapshotError, SnapshotReader, SnapshotWriter};
use tollgate::{Algorithm, Rate, Timestamp};

use super::{CounterKind, CounterState, CounterStates, Counters};

const QUOTA: u64 = 0;
const SLOTS: u64 = 1;
/// Algorithms are numbered from here on.
const RATE: u64 = 2;

const ALGORITHMS: [Algorithm; 6] = [
    Algorithm::Gcra,
    Algorithm::TokenBucket,
    Algorithm::LeakyBucket,
    Algorithm::FixedWindow(WindowAlignment::FirstHit),
    Algorithm::SlidingLog,
    Algorithm::SlidingCounter,
];

impl Counters {
    /// Writes the counters of the policy in force, and retired ones.
    pub(crate) fn save(&self, file: &mut SnapshotWriter) -> Result<(), SnapshotError> {
        let all = self.active.iter().chain(&self.retired);
        let count = self.active.len() + self.retired.len();
        file.words(&[self.next_id, count as u64])?;
        for ((name, sort), states) in all {
            file.bytes(name.as_bytes())?;
            file.words(&sort.words())?;
            file.word(states.len() as u64)?;
            for CounterState { id, rate, retired } in states {
                let retired = (*retired).min(u64::from(u32::MAX)) << 1;
                file.words(&[*id, u64::from(rate.is_some()) | retired])?;
                file.rate(rate.unwrap_or(Rate::unlimited()))?;
            }
        }
        Ok(())
    }

    /// Reads what [`save`](Self::save) wrote.
    pub(crate) fn load(file: &mut SnapshotReader) -> Result<Self, SnapshotError> {
        let [next, groups] = file.words()?;
        let (mut held, mut gone) = (CounterStates::default(), CounterStates::default());
        for _ in 0..groups {
            let name = String::from_utf8(file.bytes()?).map_err(|_| file.corrupt_error())?;
            let sort = CounterKind::of_words(file.words()?).ok_or_else(|| file.corrupt_error())?;
            let (mut states, mut retired) = (Vec::new(), Vec::new());
            for _ in 0..file.word()? {
                let [id, is_rate_and_age] = file.words()?;
                let rate = file.rate()?;
                if id >= next {
                    return Err(file.corrupt_error());
                }
                let state = CounterState {
                    id,
                    rate: (is_rate_and_age & 1 != 0).then_some(rate),
                    retired: is_rate_and_age >> 1,
                };
                let group = match state.retired {
                    0 => &mut states,
                    _ => &mut retired,
                };
                group.push(state);
            }
            let key = (name.into(), sort);
            if !retired.is_empty() {
                gone.insert(Clone::clone(&key), retired);
            }
            if !states.is_empty() {
                held.insert(key, states);
            }
        }
        Ok(Self {
            active: held,
            retired: gone,
            reusable: CounterStates::default(),
            next_id: next,
        })
    }
}

impl CounterKind {
    fn words(self) -> [u64; 3] {
        let Self::Rate(algorithm) = self else {
            let number = if self == Self::Quota { QUOTA } else { SLOTS };
            return [number, 0, 0];
        };
        let kind = discriminant(&algorithm);
        let place = ALGORITHMS.iter().position(|own| discriminant(own) == kind);
        let number = RATE + place.unwrap_or(ALGORITHMS.len()) as u64;
        match algorithm {
            Algorithm::FixedWindow(WindowAlignment::Boundary(at)) => [number, 0, at.as_nanos()],
            _ => [number, 1, 0],
        }
    }

    fn of_words([number, align, boundary]: [u64; 3]) -> Option<Self> {
        let place = match number {
            QUOTA => return Some(Self::Quota),
            SLOTS => return Some(Self::Concurrency),
            number => usize::try_from(number - RATE).ok()?,
        };
        Some(Self::Rate(match ALGORITHMS.get(place)? {
            Algorithm::FixedWindow(_) if align == 0 => {
                Algorithm::FixedWindow(WindowAlignment::Boundary(Timestamp::from_nanos(boundary)))
            }
            algorithm => *algorithm,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sort_is_read_as_it_was_written() {
        let later = WindowAlignment::Boundary(Timestamp::from_secs(7));
        let others = [Algorithm::FixedWindow(later), Algorithm::default()];
        let rates = ALGORITHMS.into_iter().chain(others).map(CounterKind::Rate);
        for sort in rates.chain([CounterKind::Quota, CounterKind::Concurrency]) {
            assert_eq!(CounterKind::of_words(sort.words()), Some(sort));
        }
        assert_eq!(CounterKind::of_words([8, 0, 0]), None);
    }
}
