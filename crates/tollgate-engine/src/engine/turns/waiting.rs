//! How many wait, and for what: for operators.

use std::collections::HashMap;
use std::sync::PoisonError;

use foldhash::fast::FixedState;

use super::{Spot, Turns};

impl Turns {
    /// How many wait for one key of a limit.
    pub(crate) fn waiting_at(&self, spot: Spot) -> usize {
        let shard = self.shard(spot);
        shard.get(&spot).map_or(0, |line| line.places.len())
    }

    /// The same of all keys of each limit that anybody waits for.
    pub(crate) fn waiting_by_limit(&self) -> HashMap<u64, usize, FixedState> {
        let mut all = HashMap::default();
        for shard in &self.shards {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            for (spot, line) in shard.iter() {
                *all.entry(spot.limit).or_default() += line.places.len();
            }
        }
        all
    }
}
