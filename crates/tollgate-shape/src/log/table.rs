//! Places in the source, each with its limit and its suppressed count: a lock-free table of fixed size.
//!
//! # Memory ordering
//! A slot is taken by one compare-and-swap of its key from 0, and is never given to another key: a
//! thread that sees the key sees a slot whose limit was made with the table. The thread that took the
//! slot sets the metadata, once. It is read only for a summary, which does without it if it isn't set
//! yet.
//!
//! A count is set to 0 (release) after the summary was marked as not scheduled. The thread that counts
//! the next event (acquire) and finds 0 sees that mark, and schedules the next summary. If it could
//! miss the mark, the count would never be logged.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate::{Clock, LimitError, Limiter};
use tracing::Metadata;

/// The number of slots that are tried for a key.
const MAX_PROBES: usize = 8;

pub(super) struct CallsiteTable<C: Clock> {
    slots: Box<[CallsiteEntry<C>]>,
    /// For all places without a slot.
    overflow: CallsiteEntry<C>,
    suppressed: AtomicU64,
}

/// One place, or all places that share a limit.
pub(super) struct CallsiteEntry<C: Clock> {
    key: AtomicU64,
    limiter: Limiter<C>,
    /// Since the last summary.
    suppressed: AtomicU64,
    metadata: OnceLock<&'static Metadata<'static>>,
}

impl<C: Clock> CallsiteEntry<C> {
    fn new(limiter: Limiter<C>) -> Self {
        Self {
            key: AtomicU64::new(0),
            limiter,
            suppressed: AtomicU64::new(0),
            metadata: OnceLock::new(),
        }
    }

    #[inline]
    pub(super) fn allow(&self) -> bool {
        self.limiter.allow()
    }

    /// Counts a suppressed event. Returns whether it is the first since the last summary.
    #[inline]
    pub(super) fn suppress(&self) -> bool {
        self.suppressed.fetch_add(1, Ordering::Acquire) == 0
    }

    /// The metadata of the place; none for the shared entry.
    pub(super) fn metadata(&self) -> Option<&'static Metadata<'static>> {
        self.metadata.get().copied()
    }
}

impl<C: Clock> CallsiteTable<C> {
    pub(super) fn new(
        places: usize,
        make: impl Fn() -> Result<Limiter<C>, LimitError>,
    ) -> Result<Self, LimitError> {
        let places = places.next_power_of_two();
        let slots: Result<Vec<_>, _> = (0..places)
            .map(|_| make().map(CallsiteEntry::new))
            .collect();
        Ok(Self {
            slots: slots?.into_boxed_slice(),
            overflow: CallsiteEntry::new(make()?),
            suppressed: AtomicU64::new(0),
        })
    }

    /// The entry of a key.
    #[inline]
    pub(super) fn place(
        &self,
        key: u64,
        metadata: &'static Metadata<'static>,
    ) -> &CallsiteEntry<C> {
        let mask = self.slots.len() - 1;
        // Metadata is aligned to eight bytes, so the low bits of its address are equal: a
        // multiplication mixes them.
        let mixed = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let start = usize::try_from(mixed >> 32).unwrap_or(0);
        for probe in 0..MAX_PROBES {
            let slot = &self.slots[(start + probe) & mask];
            let known = slot.key.load(Ordering::Acquire);
            if known == key {
                return slot;
            }
            if known == 0 {
                match slot
                    .key
                    .compare_exchange(0, key, Ordering::AcqRel, Ordering::Acquire)
                {
                    Ok(_) => {
                        slot.metadata.get_or_init(|| metadata);
                        return slot;
                    }
                    Err(other) if other == key => return slot,
                    Err(_) => {}
                }
            }
        }
        &self.overflow
    }

    /// The number of suppressed events so far.
    pub(super) fn suppressed(&self) -> u64 {
        let open = self
            .all()
            .map(|place| place.suppressed.load(Ordering::Relaxed));
        self.suppressed.load(Ordering::Relaxed) + open.sum::<u64>()
    }

    /// Passes on the events that were suppressed since the last call.
    pub(super) fn drain_suppressed(&self, mut tell: impl FnMut(&CallsiteEntry<C>, u64)) {
        for place in self.all() {
            let count = place.suppressed.swap(0, Ordering::Release);
            if count > 0 {
                self.suppressed.fetch_add(count, Ordering::Relaxed);
                tell(place, count);
            }
        }
    }

    fn all(&self) -> impl Iterator<Item = &CallsiteEntry<C>> {
        self.slots.iter().chain([&self.overflow])
    }
}
