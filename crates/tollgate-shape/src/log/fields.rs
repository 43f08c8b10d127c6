//! By what events of one place are told apart.

use std::fmt;
use std::hash::{BuildHasher, Hasher};

use foldhash::fast::RandomState;
use tracing::Event;
use tracing::field::{Field, Visit};

/// The names of fields whose values count, seeded so that nobody can choose values that meet.
#[derive(Debug)]
pub(super) struct Fields {
    names: Vec<&'static str>,
    hasher: RandomState,
}

impl Fields {
    pub(super) fn new(names: Vec<&'static str>) -> Self {
        Self {
            names,
            hasher: RandomState::default(),
        }
    }

    /// A number for the place of an event and its fields; never zero.
    #[inline]
    pub(super) fn key(&self, event: &Event<'_>) -> u64 {
        // A callsite lives for ever, so where its metadata lies is its name.
        let place = std::ptr::from_ref(event.metadata()).addr() as u64;
        if self.names.is_empty() {
            return place.max(1);
        }
        let mut values = Values {
            names: &self.names,
            hash: self.hasher.build_hasher(),
        };
        values.hash.write_u64(place);
        event.record(&mut values);
        values.hash.finish().max(1)
    }
}

struct Values<'a, H> {
    names: &'a [&'static str],
    hash: H,
}

impl<H: Hasher> Values<'_, H> {
    /// Begins a field, if it counts.
    fn counts(&mut self, field: &Field) -> bool {
        let counts = self.names.contains(&field.name());
        if counts {
            self.hash.write_usize(field.index());
        }
        counts
    }
}

impl<H: Hasher> Visit for Values<'_, H> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if self.counts(field) {
            // Into the hash, without a string in between. It takes anything, so it can't fail.
            let _ = fmt::write(&mut Hashing(&mut self.hash), format_args!("{value:?}"));
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if self.counts(field) {
            self.hash.write(value.as_bytes());
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        if self.counts(field) {
            self.hash.write_u64(value);
        }
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        if self.counts(field) {
            self.hash.write_i64(value);
        }
    }
}

struct Hashing<'a, H>(&'a mut H);

impl<H: Hasher> fmt::Write for Hashing<'_, H> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}
