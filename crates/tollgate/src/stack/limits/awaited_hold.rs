//! Waiting for an estimate: a queued acquire that holds the charge it gets.

use std::sync::Arc;

use crate::acquire::Acquire;
use crate::clock::Clock;
use crate::stack::limit::LevelCharge;
use crate::stack::{CostReservation, ReservationTerms};
use crate::stored_keys::{OwnedKey, WaitHold};
use crate::{Limit, RateDenied};

impl<K, C> Acquire<OwnedKey<K, C>>
where
    K: Eq + Clone + Send + Sync + 'static,
    C: Clock + 'static,
{
    /// Waits in the same queue, and holds the charge until the actual cost is known: a
    /// [`CompositeLimiter::hold`](crate::CompositeLimiter::hold) of an [estimate](Limit::estimated)
    /// that queues. Dropping the future leaves the queue and refunds a charge that it got already.
    ///
    /// A key that doesn't fit into a full table is denied without waiting.
    ///
    /// # Errors
    /// [`RateDenied`] immediately if the cost can never pass or can't pass before the timeout, or if
    /// the queue is full. Later if the timeout passes, because nobody knows when others settle what
    /// they hold.
    ///
    /// ```
    /// # #[cfg(feature = "tokio")]
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::sync::Arc;
    /// use std::time::Duration;
    /// use tollgate::{Algorithm, StoredKeyLimiter, Rate, clock::Tokio};
    ///
    /// let tokens = StoredKeyLimiter::<String, _>::builder(Rate::per_minute(6_000).burst(5_000), 1_000)
    ///     .algorithm(Algorithm::TokenBucket)
    ///     .clock(Tokio::new())
    ///     .build()?;
    /// let acme = Arc::new(tokens).key_owned("acme");
    /// let minute = Duration::from_secs(60);
    /// let first = acme.acquire_n(4_000).hold(minute).await?;
    /// first.settle(3_000);
    /// // There are 2,000, so this one waits for 20 seconds.
    /// let second = acme.acquire_n(4_000).timeout(minute).hold(minute).await?;
    /// assert_eq!(acme.peek().remaining, 0);
    /// second.settle(1_500);
    /// assert_eq!(acme.peek().remaining, 2_500);
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "tokio"))]
    /// # fn main() {}
    /// ```
    #[cfg(not(any(loom, shuttle)))]
    pub async fn hold(
        self,
        terms: impl Into<ReservationTerms>,
    ) -> Result<CostReservation<'static>, RateDenied> {
        let (acquire, awaited) = self.split_for_wait(terms.into());
        acquire.await?;
        Ok(awaited.hold())
    }

    /// As [`hold`](Self::hold), but blocks the thread.
    ///
    /// # Errors
    /// As `hold`.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::time::Duration;
    /// use tollgate::{StoredKeyLimiter, Rate};
    ///
    /// let tokens = Arc::new(StoredKeyLimiter::<String>::new(Rate::per_hour(10), 1_000));
    /// let acme = tokens.key_owned("acme");
    /// let hold = acme.acquire_n(4).hold_blocking(Duration::from_secs(60))?;
    /// hold.settle(1);
    /// assert_eq!(acme.peek().remaining, 9);
    /// # Ok::<(), tollgate::RateDenied>(())
    /// ```
    pub fn hold_blocking(
        self,
        terms: impl Into<ReservationTerms>,
    ) -> Result<CostReservation<'static>, RateDenied> {
        let (acquire, awaited) = self.split_for_wait(terms.into());
        acquire.wait_blocking()?;
        Ok(awaited.hold())
    }

    fn split_for_wait(self, terms: ReservationTerms) -> (Self, AwaitedHold) {
        let held = Arc::new(WaitHold::new(terms.longest()));
        let awaited = AwaitedHold {
            level: Limit::estimated("", self.limit_handle().clone(), self.cost()),
            terms,
            held: Arc::clone(&held),
        };
        let acquire = self.map_limit(|mut key| {
            key.0.hold = Some(held);
            key
        });
        (acquire, awaited)
    }
}

/// The charge that a waiter holds once it is granted.
struct AwaitedHold {
    level: Limit<'static>,
    terms: ReservationTerms,
    held: Arc<WaitHold>,
}

impl AwaitedHold {
    /// The waker stored the charge before it completed the wait, so it is here by now.
    fn hold(self) -> CostReservation<'static> {
        let taken = self.held.take();
        let taken = taken.map(|(ticket, until)| (LevelCharge::Charge(ticket), until));
        CostReservation::taken(self.level, self.terms, taken)
    }
}
