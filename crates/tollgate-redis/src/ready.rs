//! Whether the store can be asked, to know before the first request.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tollgate::{Algorithm, Rate};
use tollgate_engine::backend::LimitKind;

use crate::direct::Direct;
use crate::error::StoreError;
use crate::question::{Op, Question, StoreForm};
use crate::redis::{Home, Redis};

/// Between two looks.
const EVERY: Duration = Duration::from_millis(10);

impl Redis {
    /// Waits until the store answers, and for so long at most. A failure that waiting doesn't mend is told
    /// at once: a wrong password, TLS where none is spoken, a user without the rights.
    ///
    /// It isn't needed: connections are made and mended in the background. It tells at the start of a
    /// process what else would be seen with the first requests.
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use tollgate_redis::Redis;
    ///
    /// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
    /// let redis = Redis::connect("rediss://limits:secret@10.0.0.1")?;
    /// if let Err(error) = redis.ready(Duration::from_secs(2)).await {
    ///     // "the store answered with an error: wrong user or password; correct them in its URL, …"
    ///     eprintln!("starting without a store ({}): {error}", error.kind());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Why it can't be asked.
    pub async fn ready(&self, within: Duration) -> Result<(), StoreError> {
        match &self.home {
            Home::Store(fallback) => fallback.store().ready(within).await,
            Home::Memory(fallback) => fallback.store().ready(),
        }
    }
}

impl Direct {
    async fn ready(&self, within: Duration) -> Result<(), StoreError> {
        // What a look at a limit needs, without one: it writes nothing.
        let (rate, algorithm) = (Rate::per_second(1), Algorithm::Gcra);
        let form = StoreForm::new(&LimitKind::Rate { rate, algorithm }, Duration::ZERO)?;
        let StoreForm::Asked(numbers) = form else {
            return Ok(());
        };
        let deadline = Instant::now() + within;
        loop {
            let look = Question {
                key: format!("{}:ready", self.naming.prefix).into(),
                op: Op::Decide,
                numbers,
                cost: 0,
                holder: None,
            };
            let asked = self.store.ask(vec![look], self.at()).await;
            let is_over = Instant::now() + EVERY >= deadline;
            match asked {
                Ok(_) => return Ok(()),
                Err(StoreError::TimedOut { .. }) if is_over => {
                    return Err(StoreError::TimedOut { after: within });
                }
                Err(error) if is_over || error.kind().is_lasting() => return Err(error),
                Err(_) => sleep(EVERY).await,
            }
        }
    }
}
