//! `Redis`: the store that limits of a fleet are kept in, with an answer for when it can't be asked.

mod backend;
mod builder;
mod error;
mod in_memory;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join3;
use tollgate::clock::Manual;
use tollgate_engine::backend::Gift;

use crate::address::AddressError;
use crate::direct::Direct;
use crate::fallback::Fallback;
use crate::host::{Host, HostClock, HostWall};
use crate::nodes::Nodes;
use crate::rehearsal::Rehearsal;

pub use builder::RedisBuilder;
pub use error::ConnectError;

/// How long closing may take.
const CLOSING: Duration = Duration::from_secs(5);

/// Limits of a fleet, kept in Redis or Valkey: a [`Backend`](tollgate_engine::backend::Backend) for the engine, and the source of
/// [limiters](Self::limiter) for those who have no policy. It is cheap to clone.
///
/// It never fails: a request that the store couldn't be asked about gets what its limit has chosen
/// ([`OnStoreFailure`](tollgate_engine::policy::OnStoreFailure)), and says so.
///
/// ```no_run
/// use tollgate::Rate;
/// use tollgate_redis::Redis;
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let redis = Redis::connect("redis://127.0.0.1:6379")?;
/// let logins = redis.limiter("logins", Rate::per_minute(5)).build()?;
/// let answer = logins.check("ada").await;
/// assert!(answer.passed().is_some());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Redis {
    pub(crate) home: Home,
    /// None without a store.
    pub(crate) nodes: Option<Arc<Nodes>>,
}

/// Where the limits are.
#[derive(Clone)]
pub(crate) enum Home {
    Store(Arc<Fallback<Direct, HostClock, HostWall>>),
    /// In a test: the limits of this process.
    Memory(Arc<Fallback<Rehearsal, Manual, Manual>>),
}

impl Redis {
    /// The store at a URL (see [`Address`](crate::Address)), with the defaults for all else.
    ///
    /// It connects in the background, on the Tokio runtime that this is called on, and goes on trying. That
    /// runtime, and whichever one asks, has to have I/O and time enabled (`Builder::enable_all`), or tasks and
    /// calls panic: a runtime doesn't tell whether it has.
    ///
    /// # Errors
    /// If the URL doesn't say where the store is, a certificate can't be read, or there is no runtime.
    pub fn connect(url: &str) -> Result<Self, ConnectError> {
        Self::builder(url)?.build()
    }

    /// Chooses more than where the store is.
    ///
    /// # Errors
    /// If the URL doesn't say where the store is.
    pub fn builder(url: &str) -> Result<RedisBuilder, AddressError> {
        Ok(RedisBuilder::new(url.parse()?))
    }

    /// Whether requests are decided without the store: true if the latest request that needed it was.
    pub fn fallback_active(&self) -> bool {
        match &self.home {
            Home::Store(fallback) => fallback.is_active(),
            Home::Memory(fallback) => fallback.is_active(),
        }
    }

    /// From now on the fleet has so many nodes, this one included, whatever was said or learned before. This node's
    /// part of limits that are judged without the store shrinks at once; it grows when what was noted in the smaller
    /// one has run out.
    pub fn set_nodes(&self, nodes: u64) {
        match (&self.nodes, &self.home) {
            (Some(own), _) => own.set(nodes),
            (None, Home::Store(fallback)) => fallback.local().set_nodes(nodes),
            (None, Home::Memory(fallback)) => fallback.local().set_nodes(nodes),
        }
    }

    /// Gives back all that this node has, so that others can have it at once: tokens of leased limits, slots (also those
    /// whose passes aren't dropped yet) and its sign of life. Call it at the end, after the last request; it takes five
    /// seconds at most. What can't be given back runs out by itself, which is all of it outside of a Tokio runtime.
    /// Returns [`Gift::Lost`] then.
    ///
    /// ```
    /// use tollgate::clock::Manual;
    /// use tollgate_engine::backend::Gift;
    /// use tollgate_redis::Redis;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let redis = Redis::in_memory(Manual::new());
    /// assert_eq!(redis.close().await, Gift::Given);
    /// # }
    /// ```
    pub async fn close(&self) -> Gift {
        let direct = match &self.home {
            Home::Store(fallback) => fallback.store(),
            Home::Memory(fallback) => return fallback.store().close(),
        };
        if Host::system().is_err() {
            return Gift::Lost;
        }
        let leaving = async {
            if let Some(nodes) = &self.nodes {
                nodes.leave().await;
            }
        };
        let closing = join3(direct.leases.close(), direct.holders.close(), leaving);
        match tokio::time::timeout(CLOSING, closing).await {
            Ok((leases, ..)) => leases,
            Err(_) => Gift::Lost,
        }
    }

    /// The store without a failure policy; none if there is no store.
    pub fn direct(&self) -> Option<&Direct> {
        match &self.home {
            Home::Store(fallback) => Some(fallback.store()),
            Home::Memory(_) => None,
        }
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Redis");
        match &self.home {
            Home::Store(fallback) => shown.field("store", fallback),
            Home::Memory(fallback) => shown.field("memory", fallback),
        };
        shown.finish_non_exhaustive()
    }
}
