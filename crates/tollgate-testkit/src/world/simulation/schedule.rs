//! Faults that end by themselves, and when.

/// A fault that ends by itself.
#[derive(Clone, Copy, Debug)]
pub(super) enum FaultEnd {
    Thaw(usize),
    Start(usize),
    Together,
    Up,
    Well,
}

/// The ends of faults, in order of time.
#[derive(Debug, Default)]
pub(super) struct Schedule(Vec<(u64, FaultEnd)>);

impl Schedule {
    pub(super) fn add(&mut self, at: u64, relief: FaultEnd) {
        let place = self.0.partition_point(|(other, _)| *other <= at);
        self.0.insert(place, (at, relief));
    }

    /// The next end that is due until a time.
    pub(super) fn next(&mut self, until: u64) -> Option<(u64, FaultEnd)> {
        match self.0.first() {
            Some((at, _)) if *at <= until => Some(self.0.remove(0)),
            _ => None,
        }
    }
}
