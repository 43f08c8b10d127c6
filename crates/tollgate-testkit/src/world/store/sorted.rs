//! A sorted set: members by score, and by their bytes where scores are equal.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::number;

/// A map from members to scores, and a sorted list for ranks.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Sorted {
    scores: BTreeMap<Arc<[u8]>, f64>,
    order: Vec<(f64, Arc<[u8]>)>,
}

/// A range of scores, with inclusive or exclusive ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    least: (f64, bool),
    most: (f64, bool),
}

impl Bounds {
    pub(super) fn read(least: &[u8], most: &[u8]) -> Option<Self> {
        Some(Self {
            least: number::bound(least)?,
            most: number::bound(most)?,
        })
    }

    fn is_before(self, score: f64) -> bool {
        let (least, is_outside) = self.least;
        score < least || is_outside && score == least
    }

    fn reaches(self, score: f64) -> bool {
        let (most, is_outside) = self.most;
        score < most || !is_outside && score == most
    }
}

impl Sorted {
    pub(super) fn len(&self) -> usize {
        self.order.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    pub(super) fn score(&self, member: &[u8]) -> Option<f64> {
        self.scores.get(member).copied()
    }

    /// How many members come before it.
    pub(super) fn rank(&self, member: &[u8]) -> Option<usize> {
        let score = self.score(member)?;
        Some(self.place(score, member))
    }

    /// The members at these ranks, with their scores.
    pub(super) fn at(&self, places: Range<usize>) -> &[(f64, Arc<[u8]>)] {
        &self.order[places]
    }

    /// The ranks of these scores.
    pub(super) fn within(&self, bounds: Bounds) -> Range<usize> {
        let start = self.order.partition_point(|one| bounds.is_before(one.0));
        let end = self.order.partition_point(|one| bounds.reaches(one.0));
        start..end.max(start)
    }

    /// The ranks from one to another, both included; negative ones count from the end.
    pub(super) fn between(&self, first: i64, last: i64) -> Range<usize> {
        let length = i64::try_from(self.len()).unwrap_or(i64::MAX);
        let from_start = |place: i64| if place < 0 { length + place } else { place };
        let start = from_start(first).max(0);
        let end = from_start(last).saturating_add(1).min(length);
        if start >= end {
            return 0..0;
        }
        let index = |place: i64| usize::try_from(place).unwrap_or(0);
        index(start)..index(end)
    }

    pub(super) fn insert(&mut self, member: &[u8], score: f64) {
        self.remove(member);
        let place = self.place(score, member);
        let member: Arc<[u8]> = member.into();
        self.order.insert(place, (score, Arc::clone(&member)));
        self.scores.insert(member, score);
    }

    /// Removes a member. Returns whether it was there.
    pub(super) fn remove(&mut self, member: &[u8]) -> bool {
        let rank = self.rank(member);
        if let Some(place) = rank {
            self.remove_at(place..place + 1);
        }
        rank.is_some()
    }

    /// Removes members. Returns how many there were.
    pub(super) fn remove_at(&mut self, places: Range<usize>) -> usize {
        let removed = self.order.drain(places);
        let count = removed.len();
        for (_, member) in removed {
            self.scores.remove(&member);
        }
        count
    }

    fn place(&self, score: f64, member: &[u8]) -> usize {
        let is_before = |(other, name): &(f64, Arc<[u8]>)| match other.partial_cmp(&score) {
            Some(Ordering::Less) => true,
            Some(Ordering::Equal) => **name < *member,
            _ => false,
        };
        self.order.partition_point(is_before)
    }
}
