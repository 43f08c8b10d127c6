//! One limit for a fleet, without a policy.

use std::time::Duration;

use tollgate::{Algorithm, Decision, LimitError, Rate, Timestamp};
use tollgate_engine::backend::{Answer, Backend, Limit, LimitKind, SoleLimit};
use tollgate_engine::policy::{Counting, OnStoreFailure};

use crate::error::{StoreError, StoreLimitError};
use crate::noted::Noted;
use crate::question::{Kind, Numbers, Op, Raw, micros, wait};
use crate::redis::{Home, Redis};
use crate::verdict::LimitVerdict;

/// One limit, by key, that a whole fleet shares.
///
/// ```no_run
/// use tollgate::Rate;
/// use tollgate_engine::policy::OnStoreFailure;
/// use tollgate_redis::{LimitVerdict, Redis};
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let redis = Redis::connect("redis://127.0.0.1:6379")?;
/// let logins = redis
///     .limiter("logins", Rate::per_minute(5))
///     .on_store_failure(OnStoreFailure::Closed)
///     .build()?;
/// match logins.check("ada").await {
///     // It holds what the request takes, so keep it while the request runs.
///     LimitVerdict::Passed(passed) => println!("come in: {}", passed.decision),
///     LimitVerdict::Refused(refused) => match refused.fallback {
///         Some(OnStoreFailure::Closed) => println!("503: no store to ask"),
///         _ => println!("429: come back in {:?}", refused.decision.retry_after),
///     },
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct RedisLimiter {
    redis: Redis,
    limit: SoleLimit,
}

/// Builds a [`RedisLimiter`]; made by [`Redis::limiter`].
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
    failure: Option<OnStoreFailure>,
}

impl RedisLimiterBuilder {
    pub(crate) fn new(redis: Redis, name: &str, rate: Rate) -> Self {
        let algorithm = Algorithm::Gcra;
        Self::of(redis, name, LimitKind::Rate { rate, algorithm })
    }

    pub(crate) fn of(redis: Redis, name: &str, kind: LimitKind) -> Self {
        Self {
            redis,
            name: name.to_owned(),
            kind,
            counting: Counting::Exact,
            failure: None,
        }
    }

    /// How a rate is counted: by GCRA unless said otherwise.
    pub fn algorithm(mut self, algorithm: Algorithm) -> Self {
        if let LimitKind::Rate { algorithm: own, .. } = &mut self.kind {
            *own = algorithm;
        }
        self
    }

    /// Takes tokens ahead and spends them here, at the speed of memory, instead of asking each time.
    pub fn leased(mut self) -> Self {
        self.counting = Counting::Leased;
        self
    }

    /// What a request gets while the store can't be asked: closed for a quota, else local.
    pub fn on_store_failure(mut self, failure: OnStoreFailure) -> Self {
        self.failure = Some(failure);
        self
    }

    /// Builds it.
    ///
    /// # Errors
    /// If the limit can't be kept in the store: see [`StoreLimitError`].
    pub fn build(self) -> Result<RedisLimiter, StoreLimitError> {
        let default = match self.kind {
            LimitKind::Quota(_) => OnStoreFailure::Closed,
            _ => OnStoreFailure::Local,
        };
        let limit = SoleLimit::new(&self.name, self.kind)
            .map_err(|error: LimitError| StoreLimitError::Rate(error))?
            .counting(self.counting)
            .on_store_failure(self.failure.unwrap_or(default));
        match &self.redis.home {
            Home::Store(fallback) => drop(fallback.store().inner.compiled(limit.limit())?),
            Home::Memory(fallback) => drop(fallback.store().inner.form(limit.limit())?),
        }
        Ok(RedisLimiter {
            redis: self.redis,
            limit,
        })
    }
}

impl RedisLimiter {
    /// Decides one unit of a key.
    pub fn check(&self, key: &str) -> impl Future<Output = LimitVerdict> + Send {
        self.check_n(key, 1)
    }

    /// Decides a cost of a key. A cost of 0 peeks.
    ///
    /// Of slots one is taken, whatever the cost; [what passed](LimitVerdict::Passed) holds it, and it is renewed
    /// until that is dropped.
    ///
    /// ```
    /// # use tollgate::{Rate, clock::Manual};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let redis = tollgate_redis::Redis::in_memory(Manual::new());
    /// let uploads = redis.limiter("uploads", Rate::per_hour(100)).build()?;
    /// let answer = uploads.check_n("ada", 40).await;
    /// assert_eq!(answer.passed().expect("there is room").decision.remaining, 60);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn check_n(&self, key: &str, cost: u64) -> LimitVerdict {
        if let Some(answer) = self.spend_leased(key, cost) {
            return answer.into();
        }
        // On the heap, so that what is leased doesn't carry it about.
        Box::pin(self.ask(key, cost)).await.into()
    }

    pub(crate) async fn ask(&self, key: &str, cost: u64) -> Answer {
        let facts = SoleLimit::facts(key);
        let checks = [self.limit.check(&facts, cost)];
        match Backend::check(&self.redis, &checks).await {
            Ok(answer) => answer,
            Err(never) => match never {},
        }
    }

    #[cfg(test)]
    pub(crate) const fn limit(&self) -> &SoleLimit {
        &self.limit
    }

    /// What is leased is said at once, unless the fallback has to be told that the store works again.
    #[inline]
    fn spend_leased(&self, key: &str, cost: u64) -> Option<Answer> {
        if self.limit.limit().counting() != Counting::Leased || self.redis.fallback_active() {
            return None;
        }
        let facts = SoleLimit::facts(key);
        self.redis
            .direct()?
            .spend_leased(&self.limit.check(&facts, cost))
    }

    /// Decides a cost without a failure policy.
    ///
    /// # Errors
    /// If the store couldn't be asked.
    pub async fn try_check(&self, key: &str, cost: u64) -> Result<LimitVerdict, StoreError> {
        let facts = SoleLimit::facts(key);
        let checks = [self.limit.check(&facts, cost)];
        let answer = match &self.redis.home {
            Home::Store(fallback) => fallback.store().check(&checks).await,
            Home::Memory(fallback) => fallback.store().check(&checks).await,
        };
        answer.map(LimitVerdict::from)
    }

    /// Decides a cost as of a time since 1970 instead of the store's: for tests and replays of limits that are
    /// counted exactly.
    ///
    /// # Errors
    /// If the store couldn't be asked, or the limit is leased.
    pub async fn check_at(
        &self,
        at: Timestamp,
        key: &str,
        cost: u64,
    ) -> Result<Decision, StoreError> {
        let (decision, _) = self.act(key, cost, Op::Decide, Some(at)).await?;
        Ok(decision)
    }

    /// What is left of a key, without charging anything: of a leased limit, what this node holds.
    ///
    /// # Errors
    /// If the store couldn't be asked.
    pub async fn peek(&self, key: &str) -> Result<Decision, StoreError> {
        // Of slots, even a cost of 0 takes one.
        if let LimitKind::Concurrency(_) = self.limit.limit().kind() {
            return Ok(self.act(key, 0, Op::Decide, None).await?.0);
        }
        Ok(self.try_check(key, 0).await?.decision)
    }

    /// Takes as much as there is, up to so much; says how much that was.
    ///
    /// # Errors
    /// If the store couldn't be asked.
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
        let (_, raw) = self.act(key, most, Op::AtMost, None).await?;
        Ok(raw.map_or(most, |raw| match raw.outcome {
            1 => u64::try_from(raw.wait).unwrap_or(0),
            _ => 0,
        }))
    }

    /// Gives back units that no receipt stands for: a gift, of at most what was spent. Returns what is left.
    ///
    /// # Errors
    /// If the store couldn't be asked.
    ///
    /// ```
    /// # use tollgate::{Rate, clock::Manual};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let redis = tollgate_redis::Redis::in_memory(Manual::new());
    /// let exports = redis.limiter("exports", Rate::per_day(3)).build()?;
    /// let _ = exports.check_n("ada", 3).await;
    /// assert_eq!(exports.refund("ada", 1).await?.remaining, 1);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn refund(&self, key: &str, units: u64) -> Result<Decision, StoreError> {
        let given = self.act(key, units, Op::Gift, None).await;
        // Without an answer it may have been given too.
        self.improved();
        given.map(|(decision, _)| decision)
    }

    /// Forgets what a key has spent. Slots stay with those who hold them. Of a leased limit, what nodes hold is
    /// theirs to spend still.
    ///
    /// # Errors
    /// If the store couldn't be asked.
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
        let reset = self.act(key, 0, Op::Reset, None).await;
        self.improved();
        let is_leased = self.limit.limit().counting() == Counting::Leased;
        if let Some(direct) = self.redis.direct().filter(|_| is_leased) {
            direct.leases.was_reset();
        }
        reset.map(drop)
    }

    /// Books the next free time of a key, for a downstream that takes no burst: how long to wait before
    /// acting, none if that is longer than `longest`. With a burst of 1, those who wait as told act exactly
    /// one interval apart.
    ///
    /// # Errors
    /// If the store couldn't be asked, or the limit isn't GCRA or a bucket.
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
    /// assert_eq!(calls.pace("k", 1, second).await?, Some(Duration::ZERO));
    /// assert_eq!(calls.pace("k", 1, second).await?, Some(tenth));
    /// assert_eq!(calls.pace("k", 1, tenth).await?, None); // It would be the third.
    /// # Ok(())
    /// # }
    /// ```
    pub async fn pace(
        &self,
        key: &str,
        cost: u64,
        longest: Duration,
    ) -> Result<Option<Duration>, StoreError> {
        let (_, raw) = self
            .act(key, cost, Op::Reserve(micros(longest)), None)
            .await?;
        Ok(match raw {
            None => Some(Duration::ZERO),
            Some(raw) if raw.outcome == 1 => Some(wait(raw.wait)),
            Some(_) => None,
        })
    }

    /// What was refused may pass now.
    fn improved(&self) {
        if let Some(direct) = self.redis.direct() {
            direct.improved();
        }
    }

    /// Asks one question, whatever it is, counted exactly.
    async fn act(
        &self,
        key: &str,
        cost: u64,
        op: Op,
        at: Option<Timestamp>,
    ) -> Result<(Decision, Option<Raw>), StoreError> {
        let facts = SoleLimit::facts(key);
        let check = self.limit.check(&facts, cost);
        let store = match &self.redis.home {
            Home::Store(fallback) => fallback.store(),
            Home::Memory(fallback) => {
                let Noted { inner, failures } = fallback.store();
                let done = inner.act((&self.limit, key), &check, op, at);
                if !matches!(done, Err(StoreError::Limit(_))) {
                    failures.hear(done.as_ref().map(|_| false));
                }
                return done;
            }
        };
        let direct = &store.inner;
        let at = at.map(|at| at.as_nanos() / 1000).or_else(|| direct.at());
        let compiled = direct.compiled(check.limit)?;
        if let Some(known) = compiled.form.known(cost) {
            return Ok((known, None));
        }
        let now = at.unwrap_or_else(|| direct.store_time());
        let question = direct.question(&check, op, now)?;
        possible(op, &question.numbers, check.limit)?;
        let most = question.numbers.limit;
        let mut patience = direct.store.patience();
        let answers = direct
            .ask(&[check], &[0], (vec![question], at), &mut patience)
            .await;
        store.failures.hear(answers.as_ref().map(|_| false));
        let raw = answers?.each[0];
        Ok((raw.decision(most), Some(raw)))
    }
}

/// Whether a limit of this kind can be asked that.
pub(crate) fn possible(op: Op, numbers: &Numbers, limit: &Limit) -> Result<(), StoreLimitError> {
    let what = match op {
        Op::Decide => "deciding at a time of one's own",
        Op::AtMost => "taking as much as there is",
        Op::Reserve(_) => "a reservation",
        Op::Gift => "a refund",
        Op::Reset | Op::GiveBack(_) | Op::Renew | Op::Release | Op::Raise(_) | Op::Look => {
            return Ok(());
        }
    };
    if limit.counting() == Counting::Leased {
        return Err(StoreLimitError::Leased { what });
    }
    let limit = format!("{:?}", limit.kind());
    let kind = numbers.kind;
    let is_possible = match op {
        Op::Reserve(_) => kind == Kind::Level,
        Op::AtMost | Op::Gift => kind != Kind::Slots,
        _ => true,
    };
    if !is_possible {
        return Err(StoreLimitError::NotALevel { what, limit });
    }
    let [_, drain, capacity, ..] = numbers.five;
    if let Op::Reserve(longest) = op {
        let owed = u128::from(longest) * u128::from(drain) + 2 * u128::from(capacity);
        if owed >= 1 << 53 {
            return Err(StoreLimitError::TooLarge {
                limit,
                what: "what may be owed after the longest wait",
                instead: "wait for a shorter time at most",
            });
        }
    }
    Ok(())
}
