//! The difference between the store's clock and this machine's. The store's clock decides, so an error in it
//! should be visible.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ::redis::Value;
use tokio::sync::watch;
use tokio::time::sleep;
use tollgate::Clock;

use super::link::StoreConnection;
use super::peer::PeerId;
use super::shared_state::DriverState;
use crate::lock::lock;

/// The time between two measurements of a node's clock.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// For each node, how many microseconds its clock is ahead of this machine's.
#[derive(Debug, Default)]
pub(crate) struct ClockSkew(Mutex<BTreeMap<PeerId, i64>>);

impl ClockSkew {
    /// The largest difference of any node; `None` if no clock is known.
    pub(crate) fn max_offset(&self) -> Option<i64> {
        let nodes = lock(&self.0);
        nodes.values().copied().max_by_key(|micros| micros.abs())
    }
}

/// Measures a node's clock periodically, until its connection ends. In a simulated world nothing is measured.
pub(super) fn watch_clock<T: Send + Sync + 'static>(
    peer: PeerId,
    link: StoreConnection,
    mut ended: watch::Receiver<T>,
    shared: &Arc<DriverState>,
) {
    let own = Arc::clone(shared);
    let look = async move {
        let mut link = link;
        loop {
            if let Some(micros) = measure_offset(&mut link, &own).await {
                lock(&own.stats.skew.0).insert(peer, micros);
            }
            sleep(CHECK_INTERVAL).await;
        }
    };
    #[cfg(feature = "simulation")]
    if shared.host.world().is_some() {
        return;
    }
    let own = Arc::clone(shared);
    shared.host.spawn(async move {
        tokio::select! {
            () = look => {}
            // The channel closes when the connection is dropped.
            _ = ended.changed() => {}
        }
        lock(&own.stats.skew.0).remove(&peer);
    });
}

/// How many microseconds the node's clock is ahead; `None` if it doesn't answer.
async fn measure_offset(link: &mut StoreConnection, shared: &DriverState) -> Option<i64> {
    let wall = shared.host.wall();
    let before = wall.now().as_nanos();
    let reply = link.send(&::redis::cmd("TIME")).await.ok()?;
    let after = wall.now().as_nanos();
    // The node read its clock about half-way.
    let here = i64::try_from((before / 2 + after / 2) / 1_000).ok()?;
    parse_time(&reply).map(|there| there - here)
}

/// The reply to `TIME`: seconds, and microseconds of the second.
fn parse_time(reply: &Value) -> Option<i64> {
    let (seconds, micros): (i64, i64) = ::redis::from_redis_value_ref(reply).ok()?;
    seconds.checked_mul(1_000_000)?.checked_add(micros)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_is_two_numbers_and_the_farthest_node_is_told() {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let told = Value::Array(vec![text("1700000000"), text("250000")]);
        assert_eq!(parse_time(&told), Some(1_700_000_000_250_000));
        assert_eq!(parse_time(&Value::Array(vec![text("17")])), None);
        assert_eq!(parse_time(&text("17")), None);
        let skew = ClockSkew::default();
        assert_eq!(skew.max_offset(), None);
        lock(&skew.0).extend([(1, 20), (2, -3_000), (3, 400)]);
        assert_eq!(skew.max_offset(), Some(-3_000));
    }
}
