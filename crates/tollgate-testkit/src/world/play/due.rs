//! What ends by itself, and when.

/// What ends by itself.
#[derive(Clone, Copy, Debug)]
pub(super) enum Relief {
    Thaw(usize),
    Start(usize),
    Together,
    Up,
    Well,
}

/// What ends when, in order.
#[derive(Debug, Default)]
pub(super) struct Due(Vec<(u64, Relief)>);

impl Due {
    pub(super) fn add(&mut self, at: u64, relief: Relief) {
        let place = self.0.partition_point(|(other, _)| *other <= at);
        self.0.insert(place, (at, relief));
    }

    /// The next that is due until a time.
    pub(super) fn next(&mut self, until: u64) -> Option<(u64, Relief)> {
        match self.0.first() {
            Some((at, _)) if *at <= until => Some(self.0.remove(0)),
            _ => None,
        }
    }
}
