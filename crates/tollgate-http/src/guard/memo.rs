//! What was written before, of limits that many answers show: `RateLimit-Policy` is the same in all of them.

use std::cell::RefCell;
use std::time::Duration;

use bytes::Bytes;

use crate::Shown;

/// So many limits are remembered by each thread. A power of two.
const PLACES: usize = 64;

thread_local! {
    /// Of each thread its own, so that nobody waits for the count of who shares a text.
    static POLICIES: RefCell<[Option<Memo>; PLACES]> = const { RefCell::new([const { None }; PLACES]) };
}

struct Memo {
    name: Box<str>,
    quota: u64,
    window: Option<Duration>,
    text: Bytes,
}

/// What is written of this limit's policy, by this function if it isn't remembered.
#[inline]
pub(super) fn policy(limit: &Shown<'_>, write: impl FnOnce() -> Bytes) -> Bytes {
    let find = |places: &RefCell<[Option<Memo>; PLACES]>| {
        let mut places = places.borrow_mut();
        let place = &mut places[place_of(limit)];
        match place {
            Some(memo) if memo.is_of(limit) => memo.text.clone(),
            _ => place.insert(Memo::new(limit, write())).text.clone(),
        }
    };
    POLICIES.with(find)
}

/// Limits that share a place take turns.
#[inline]
fn place_of(limit: &Shown<'_>) -> usize {
    let name = limit.name.as_bytes();
    let last = name.last().copied().unwrap_or_default();
    // Names of rules are often numbered, and differ at their end.
    let mixed = limit.quota ^ (u64::from(last) << 3) ^ (name.len() as u64);
    (mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as usize % PLACES
}

impl Memo {
    #[cold]
    fn new(limit: &Shown<'_>, text: Bytes) -> Self {
        Self {
            name: limit.name.into(),
            quota: limit.quota,
            window: limit.window,
            text,
        }
    }

    #[inline]
    fn is_of(&self, limit: &Shown<'_>) -> bool {
        self.quota == limit.quota && self.window == limit.window && *self.name == *limit.name
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Dialect;
    use crate::fields::write;
    use tollgate::{Decision, Outcome};

    #[test]
    fn limits_that_share_a_place_are_told_apart() {
        // More than there are places, in an order in which each comes again after the others.
        for round in 0..3 {
            for number in 0..3 * PLACES as u64 {
                let name = format!("rule-{}", number % 100);
                let window = Duration::from_secs(1 + number % 2);
                let decision =
                    Decision::new(Outcome::Allowed, number, 0, Duration::ZERO, Duration::ZERO);
                let shown = Shown::of(&name, &decision).window(window);
                let mut written = super::super::fields::Written::default();
                crate::fields::write_to(&[Dialect::Draft8], &[shown], 0, &mut written);
                let fields = super::super::Fields::from(written);
                let mut plain = Vec::new();
                write(&[Dialect::Draft8], &[shown], 0, |name, value| {
                    plain.push((name, value.to_owned()));
                });
                let found: Vec<_> = fields
                    .iter()
                    .map(|(name, value)| (name, value.to_owned()))
                    .collect();
                assert_eq!(found, plain, "{number} in round {round}");
            }
        }
    }
}
