//! Waiting for an estimate: a wait in line that holds what it gets.

use std::sync::Arc;

use crate::acquire::Acquire;
use crate::clock::Clock;
use crate::exact_keyed::{Held, OwnedKey};
use crate::stack::limit::Taken;
use crate::stack::{Hold, Terms};
use crate::{Level, Refused};

impl<K, C> Acquire<OwnedKey<K, C>>
where
    K: Eq + Clone + Send + Sync + 'static,
    C: Clock + 'static,
{
    /// Waits in the same line, and holds what it gets until it is known what was spent: as a
    /// [`Stack::hold`](crate::Stack::hold) of an [estimate](Level::estimated) that waits for its turn. Dropping the future frees its
    /// place, and gives back what it may hold already.
    ///
    /// A key that has no room in a full table doesn't wait.
    ///
    /// # Errors
    /// [`Refused`] at once if it can never pass, not in time, or too many are waiting; later if its time is over, as nobody knows when
    /// others settle what they hold.
    ///
    /// ```
    /// # #[cfg(feature = "tokio")]
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::sync::Arc;
    /// use std::time::Duration;
    /// use tollgate::{Algorithm, ExactKeyedLimiter, Rate, clock::Tokio};
    ///
    /// let tokens = ExactKeyedLimiter::<String, _>::builder(Rate::per_minute(6_000).burst(5_000), 1_000)
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
    pub async fn hold(self, terms: impl Into<Terms>) -> Result<Hold<'static>, Refused> {
        let (acquire, awaited) = self.awaited(terms.into());
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
    /// use tollgate::{ExactKeyedLimiter, Rate};
    ///
    /// let tokens = Arc::new(ExactKeyedLimiter::<String>::new(Rate::per_hour(10), 1_000));
    /// let acme = tokens.key_owned("acme");
    /// let hold = acme.acquire_n(4).hold_blocking(Duration::from_secs(60))?;
    /// hold.settle(1);
    /// assert_eq!(acme.peek().remaining, 9);
    /// # Ok::<(), tollgate::Refused>(())
    /// ```
    pub fn hold_blocking(self, terms: impl Into<Terms>) -> Result<Hold<'static>, Refused> {
        let (acquire, awaited) = self.awaited(terms.into());
        acquire.wait_blocking()?;
        Ok(awaited.hold())
    }

    fn awaited(self, terms: Terms) -> (Self, AwaitedHold) {
        let held = Arc::new(Held::new(terms.longest()));
        let awaited = AwaitedHold {
            level: Level::estimated("", self.home().clone(), self.cost()),
            terms,
            held: Arc::clone(&held),
        };
        let acquire = self.map_limit(|mut key| {
            key.0.held = Some(held);
            key
        });
        (acquire, awaited)
    }
}

/// What a wait holds if it passes.
struct AwaitedHold {
    level: Level<'static>,
    terms: Terms,
    held: Arc<Held>,
}

impl AwaitedHold {
    /// It passed: what it got was put there before anybody could see that it had.
    fn hold(self) -> Hold<'static> {
        let taken = self.held.take();
        let taken = taken.map(|(ticket, until)| (Taken::Charge(ticket), until));
        Hold::taken(self.level, self.terms, taken)
    }
}
