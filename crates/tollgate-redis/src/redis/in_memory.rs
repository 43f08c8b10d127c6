//! How a `Redis` without a store is made, for tests.

use std::sync::Arc;

use tollgate::clock::Manual;

use super::{Home, Redis, RedisBuilder};
use crate::address::Address;
use crate::local::Local;
use crate::rehearsal::{Rehearsal, memory};

impl Redis {
    /// A client without a store, in the memory of this process and by a clock that is set by hand: for tests of what
    /// uses it. It needs no runtime, and fails only when its [`Rehearsal`] is told to. It decides as a store would, but
    /// for [`pace`](crate::RedisLimiter::pace), which books apart from what `check` has charged.
    ///
    /// ```
    /// use tollgate::{Rate, clock::Manual};
    /// use tollgate_redis::Redis;
    /// # use std::{pin::pin, task::{Context, Poll, Waker}};
    /// # fn now<T>(future: impl Future<Output = T>) -> T {
    /// #     match pin!(future).poll(&mut Context::from_waker(Waker::noop())) { Poll::Ready(done) => done, _ => panic!() }
    /// # }
    ///
    /// let clock = Manual::new();
    /// let redis = Redis::in_memory(clock.clone());
    /// let logins = redis.limiter("logins", Rate::per_minute(1)).build()?;
    /// # now(async {
    /// assert!(logins.check("ada").await.passed().is_some());
    /// assert!(logins.check("ada").await.refused().is_some());
    /// clock.advance(std::time::Duration::from_secs(60));
    /// assert!(logins.check("ada").await.passed().is_some());
    /// # });
    /// # Ok::<(), tollgate_redis::StoreLimitError>(())
    /// ```
    pub fn in_memory(clock: Manual) -> Self {
        RedisBuilder::new(Address::nowhere()).in_memory(clock)
    }

    /// The store of a test, to make it fail; none if there is a real one.
    pub fn rehearsal(&self) -> Option<&Rehearsal> {
        match &self.home {
            Home::Store(_) => None,
            Home::Memory(fallback) => Some(fallback.store()),
        }
    }
}

impl RedisBuilder {
    /// Builds a client without a store, by a clock that is set by hand: [`Redis::in_memory`] with what was
    /// chosen here, so that a test has the failure policy of what it tests. It doesn't matter what the URL
    /// says.
    ///
    /// ```
    /// use tollgate::{Rate, clock::Manual};
    /// use tollgate_redis::{Fault, Redis, RedisBuilder};
    ///
    /// /// As in production.
    /// fn chosen(builder: RedisBuilder) -> RedisBuilder {
    ///     builder.nodes(8)
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let redis = chosen(Redis::builder("redis://any")?).in_memory(Manual::new());
    /// let calls = redis.limiter("calls", Rate::per_hour(40)).build()?;
    /// redis.rehearsal().expect("it is in memory").fail(Fault::Down);
    /// // This node's part: 40 ÷ 8 × 2.
    /// assert_eq!(calls.check("ada").await.decision.limit, 10);
    /// # Ok(())
    /// # }
    /// ```
    pub fn in_memory(mut self, clock: Manual) -> Redis {
        let local = Arc::new(Local::new(memory(&clock)));
        local.set_nodes(self.options.nodes.unwrap_or(1));
        let store = Rehearsal::new(&self.options, &clock, Arc::clone(&local));
        let fallback = self.options.put_fallback_before(store, local);
        Redis {
            home: Home::Memory(Arc::new(fallback)),
            nodes: None,
        }
    }
}
