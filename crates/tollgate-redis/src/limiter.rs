//! One limit for a fleet, without a policy.

use std::time::Duration;

use tollgate::{Algorithm, Decision, Rate, Timestamp};
use tollgate_engine::backend::{Answer, Backend, CarryOver, LimitKind, StandaloneLimit};
use tollgate_engine::policy::{Counting, OnStoreFailure};

use crate::client::Redis;
use crate::decision::LimitDecision;
use crate::error::{StoreError, StoreLimitError};
use crate::query::{StoreOp, to_micros_ceil};

/// One limit with a counter for each key, shared by a whole fleet.
///
/// ```no_run
/// use tollgate::Rate;
/// use tollgate_engine::policy::OnStoreFailure;
/// use tollgate_redis::{LimitDecision, Redis};
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let redis = Redis::connect("redis://127.0.0.1:6379")?;
/// let logins = redis
///     .limiter("logins", Rate::per_minute(5))
///     .on_store_failure(OnStoreFailure::Closed)
///     .build()?;
/// match logins.check("ada").await {
///     // It holds what the request takes, so keep it while the request runs.
///     LimitDecision::Allowed(allowed) => println!("come in: {}", allowed.decision),
///     LimitDecision::Denied(denied) => match denied.fallback {
///         Some(OnStoreFailure::Closed) => println!("503: no store to ask"),
///         _ => println!("429: come back in {:?}", denied.decision.wait_or_max()),
///     },
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct RedisLimiter {
    redis: Redis,
    limit: StandaloneLimit,
}

/// Builds a [`RedisLimiter`]. [`Redis::limiter`] makes it.
///
/// ```
/// use tollgate::{Algorithm, Rate, clock::Manual};
/// use tollgate_engine::policy::OnStoreFailure;
/// use tollgate_redis::Redis;
///
/// let redis = Redis::in_memory(Manual::new());
/// let searches = redis
///     .limiter("searches", Rate::per_minute(30))
///     .algorithm(Algorithm::SlidingLog)
///     .on_store_failure(OnStoreFailure::Open)
///     .build()?;
/// # drop(searches);
/// # Ok::<(), tollgate_redis::StoreLimitError>(())
/// ```
#[derive(Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct RedisLimiterBuilder {
    redis: Redis,
    name: String,
    kind: LimitKind,
    counting: Counting,
    carry_over: CarryOver,
    failure: Option<OnStoreFailure>,
}

impl Redis {
    /// A limiter outside of any policy, stored under this name. Make it once and keep it: its leases and
    /// remembered denials are its own.
    pub fn limiter(&self, name: &str, rate: Rate) -> RedisLimiterBuilder {
        let algorithm = Algorithm::Gcra;
        self.limiter_with_kind(name, LimitKind::Rate { rate, algorithm })
    }

    /// A limiter of another kind: a quota or a concurrency limit.
    pub fn limiter_with_kind(&self, name: &str, kind: LimitKind) -> RedisLimiterBuilder {
        RedisLimiterBuilder {
            redis: self.clone(),
            name: name.to_owned(),
            kind,
            counting: Counting::Exact,
            carry_over: CarryOver::Tokens,
            failure: None,
        }
    }
}

impl RedisLimiterBuilder {
    /// The algorithm that counts a rate; GCRA by default.
    pub fn algorithm(mut self, algorithm: Algorithm) -> Self {
        if let LimitKind::Rate { algorithm: own, .. } = &mut self.kind {
            *own = algorithm;
        }
        self
    }

    /// Leases tokens in advance and spends them in memory, instead of a query for each request.
    pub fn leased(mut self) -> Self {
        self.counting = Counting::Leased;
        self
    }

    /// Keeps one theoretical arrival time for each key, whatever [rate](RedisLimiter::with_rate) a request
    /// uses. A request passes if the arrival time after its tokens is within the burst's duration. This is
    /// redis-cell's state, in whole nanoseconds. It needs a rate that is counted by GCRA and not leased.
    ///
    /// ```
    /// use tollgate::{Rate, clock::Manual};
    /// use tollgate_redis::Redis;
    ///
    /// let redis = Redis::in_memory(Manual::new());
    /// let calls = redis.limiter("calls", Rate::per_minute(5)).carry_over_time().build()?;
    /// # drop(calls);
    /// # Ok::<(), tollgate_redis::StoreLimitError>(())
    /// ```
    pub fn carry_over_time(mut self) -> Self {
        self.carry_over = CarryOver::Time;
        self
    }

    /// What a request gets while the store is unreachable; by default closed for a quota and local for all
    /// else.
    pub fn on_store_failure(mut self, failure: OnStoreFailure) -> Self {
        self.failure = Some(failure);
        self
    }

    /// Builds the limiter.
    ///
    /// # Errors
    /// If the store can't keep the limit: see [`StoreLimitError`].
    pub fn build(self) -> Result<RedisLimiter, StoreLimitError> {
        let default = match self.kind {
            LimitKind::Quota(_) => OnStoreFailure::Closed,
            _ => OnStoreFailure::Local,
        };
        let limit = StandaloneLimit::new(&self.name, self.kind)?
            .counting(self.counting)
            .carry_over(self.carry_over)
            .on_store_failure(self.failure.unwrap_or(default));
        RedisLimiter::from_limit(self.redis, limit)
    }
}

impl RedisLimiter {
    /// Checks that the store can keep the limit.
    fn from_limit(redis: Redis, limit: StandaloneLimit) -> Result<Self, StoreLimitError> {
        redis.fallback.store().known_decision(limit.limit(), 0)?;
        Ok(Self { redis, limit })
    }

    /// The same keys by another rate, for callers that bring their limits along. What a key has spent is
    /// carried over [as its arrival time](RedisLimiterBuilder::carry_over_time), or else in tokens if the
    /// period is the same.
    ///
    /// # Errors
    /// If the store can't keep the limit: see [`StoreLimitError`].
    ///
    /// ```
    /// # use tollgate::{Rate, clock::Manual};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let redis = tollgate_redis::Redis::in_memory(Manual::new());
    /// let calls = redis.limiter("calls", Rate::per_hour(5)).carry_over_time().build()?;
    /// let _ = calls.check_n("ada", 5).await;
    /// let stricter = calls.with_rate(Rate::per_hour(4))?;
    /// assert!(stricter.check("ada").await.allowed().is_none());
    /// # Ok(())
    /// # }
    /// ```
    pub fn with_rate(&self, rate: Rate) -> Result<Self, StoreLimitError> {
        let algorithm = match self.limit.limit().kind() {
            LimitKind::Rate { algorithm, .. } => *algorithm,
            _ => Algorithm::Gcra,
        };
        let limit = self.limit.with_kind(LimitKind::Rate { rate, algorithm })?;
        Self::from_limit(self.redis.clone(), limit)
    }

    /// Charges one unit to a key, and decides.
    pub fn check(&self, key: &str) -> impl Future<Output = LimitDecision> + Send {
        self.check_n(key, 1)
    }

    /// Charges a cost to a key, and decides. A cost of 0 peeks.
    ///
    /// A concurrency limit takes one permit, whatever the cost. The [allowed request](LimitDecision::Allowed)
    /// holds the permit and renews it until it is dropped.
    ///
    /// ```
    /// # use tollgate::{Rate, clock::Manual};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let redis = tollgate_redis::Redis::in_memory(Manual::new());
    /// let uploads = redis.limiter("uploads", Rate::per_hour(100)).build()?;
    /// let answer = uploads.check_n("ada", 40).await;
    /// assert_eq!(answer.allowed().expect("there is room").decision.remaining, 60);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn check_n(&self, key: &str, cost: u64) -> LimitDecision {
        if let Some(answer) = self.try_spend_leased(key, cost) {
            return answer.into();
        }
        // On the heap, so that the future of a decision by a lease stays small.
        Box::pin(self.ask(key, cost)).await.into()
    }

    pub(crate) async fn ask(&self, key: &str, cost: u64) -> Answer {
        let facts = StandaloneLimit::facts(key);
        let checks = [self.limit.check(&facts, cost)];
        let Ok(answer) = self.redis.ask(&checks, None).await;
        answer
    }

    #[cfg(test)]
    pub(crate) const fn limit(&self) -> &StandaloneLimit {
        &self.limit
    }

    /// The answer by a lease, immediately. Not while the fallback is active: it needs a query to learn that the
    /// store works again.
    #[inline]
    fn try_spend_leased(&self, key: &str, cost: u64) -> Option<Answer> {
        if self.limit.limit().counting() != Counting::Leased || self.redis.is_fallback_active() {
            return None;
        }
        let facts = StandaloneLimit::facts(key);
        self.redis
            .store_client()?
            .try_spend_leased(&self.limit.check(&facts, cost))
    }

    /// Decides a cost without a failure policy.
    ///
    /// # Errors
    /// If the store can't be queried.
    pub async fn try_check(&self, key: &str, cost: u64) -> Result<LimitDecision, StoreError> {
        let facts = StandaloneLimit::facts(key);
        let checks = [self.limit.check(&facts, cost)];
        let fallback = &self.redis.fallback;
        let answer = fallback.record_answer(fallback.store().ask(&checks, None).await);
        let answer = answer.map_err(|(_, error)| error);
        answer.map(LimitDecision::from)
    }

    /// Decides a cost as of a time since 1970 instead of the store's, for tests and replays. The limit must be
    /// counted exactly.
    ///
    /// # Errors
    /// If the store can't be queried, or the limit is leased.
    pub async fn check_at(
        &self,
        at: Timestamp,
        key: &str,
        cost: u64,
    ) -> Result<Decision, StoreError> {
        let (decision, _) = self
            .run_operation(key, cost, StoreOp::Decide, Some(at))
            .await?;
        Ok(decision)
    }

    /// What remains of a key, without a charge. Of a leased limit: what this node holds.
    ///
    /// # Errors
    /// If the store can't be queried.
    pub async fn peek(&self, key: &str) -> Result<Decision, StoreError> {
        // A concurrency limit takes a permit even for a cost of 0, so a peek has its own operation.
        if let LimitKind::Concurrency(_) = self.limit.limit().kind() {
            return Ok(self.run_operation(key, 0, StoreOp::Decide, None).await?.0);
        }
        Ok(self.try_check(key, 0).await?.decision)
    }

    /// Takes as many units as there are, up to `most`, and returns how many.
    ///
    /// # Errors
    /// If the store can't be queried.
    ///
    /// ```
    /// # use tollgate::{Rate, clock::Manual};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let redis = tollgate_redis::Redis::in_memory(Manual::new());
    /// let mails = redis.limiter("mails", Rate::per_hour(100)).build()?;
    /// assert_eq!(mails.allow_at_most("ada", 70).await?, 70);
    /// assert_eq!(mails.allow_at_most("ada", 70).await?, 30);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn allow_at_most(&self, key: &str, most: u64) -> Result<u64, StoreError> {
        let (decision, taken) = self.run_operation(key, most, StoreOp::AtMost, None).await?;
        let taken = taken.unwrap_or(most);
        Ok(if decision.is_allowed() { taken } else { 0 })
    }

    /// Refunds units, at most as many as were spent, whatever they were charged for. [`peek`](Self::peek) shows
    /// what remains.
    ///
    /// # Errors
    /// If the store can't be queried.
    ///
    /// ```
    /// # use tollgate::{Rate, clock::Manual};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let redis = tollgate_redis::Redis::in_memory(Manual::new());
    /// let exports = redis.limiter("exports", Rate::per_day(3)).build()?;
    /// let _ = exports.check_n("ada", 3).await;
    /// exports.refund("ada", 1).await?;
    /// assert_eq!(exports.peek("ada").await?.remaining, 1);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn refund(&self, key: &str, units: u64) -> Result<(), StoreError> {
        let given = self.run_operation(key, units, StoreOp::Refund, None).await;
        // Even without an answer, the store may have done it.
        self.bump_deny_epoch();
        given.map(drop)
    }

    /// Resets what a key has spent. Permits stay with their holders. Of a leased limit, nodes may still spend
    /// the tokens that they hold, and only the rest of the burst is free for others: together never more than
    /// the burst.
    ///
    /// # Errors
    /// If the store can't be queried.
    ///
    /// ```
    /// # use tollgate::{Rate, clock::Manual};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let redis = tollgate_redis::Redis::in_memory(Manual::new());
    /// let logins = redis.limiter("logins", Rate::per_day(3)).build()?;
    /// let _ = logins.check_n("ada", 3).await;
    /// logins.reset("ada").await?;
    /// assert_eq!(logins.peek("ada").await?.remaining, 3);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn reset(&self, key: &str) -> Result<(), StoreError> {
        let reset = self.run_operation(key, 0, StoreOp::Reset, None).await;
        self.bump_deny_epoch();
        reset.map(drop)
    }

    /// Reserves the next free time of a key, for a downstream that takes no burst. Returns how long to wait
    /// before acting, or `None` if that is longer than `longest`. With a burst of 1, callers that wait for the
    /// returned delay act exactly one interval apart.
    ///
    /// # Errors
    /// If the store can't be queried, or the algorithm isn't GCRA or a bucket.
    ///
    /// ```
    /// # use tollgate::{Rate, clock::Manual};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let redis = tollgate_redis::Redis::in_memory(Manual::new());
    /// use std::time::Duration;
    ///
    /// let calls = redis.limiter("downstream", Rate::per_second(10).burst(1)).build()?;
    /// let (second, tenth) = (Duration::from_secs(1), Duration::from_millis(100));
    /// assert_eq!(calls.reserve("k", 1, second).await?, Some(Duration::ZERO));
    /// assert_eq!(calls.reserve("k", 1, second).await?, Some(tenth));
    /// assert_eq!(calls.reserve("k", 1, tenth).await?, None); // It would be the third.
    /// # Ok(())
    /// # }
    /// ```
    pub async fn reserve(
        &self,
        key: &str,
        cost: u64,
        longest: Duration,
    ) -> Result<Option<Duration>, StoreError> {
        let op = StoreOp::Reserve(to_micros_ceil(longest));
        let (decision, wait) = self.run_operation(key, cost, op, None).await?;
        let wait = Duration::from_micros(wait.unwrap_or(0));
        Ok(decision.is_allowed().then_some(wait))
    }

    /// Remembered denials may be outdated after a refund.
    fn bump_deny_epoch(&self) {
        if let Some(direct) = self.redis.store_client() {
            direct.bump_deny_epoch();
        }
    }

    /// Runs one operation on the store, for a limit that is counted exactly.
    async fn run_operation(
        &self,
        key: &str,
        cost: u64,
        op: StoreOp,
        at: Option<Timestamp>,
    ) -> Result<(Decision, Option<u64>), StoreError> {
        let facts = StandaloneLimit::facts(key);
        let check = self.limit.check(&facts, cost);
        let (fallback, store) = (&self.redis.fallback, self.redis.fallback.store());
        if let Some(known) = store.known_decision(check.limit, cost)? {
            return Ok((known, None));
        }
        let done = store.run_operation(&check, op, at).await;
        if !matches!(done, Err(StoreError::Limit(_))) {
            fallback.failures.record_result(&done);
        }
        done
    }
}
