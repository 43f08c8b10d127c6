//! The target of a load test: a limit in memory or in a store.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use derive_more::{Debug, From};
use tokio::time::Instant;
use tollgate::{Algorithm, Rate};
use tollgate_engine::backend::{LimitKind, Memory, StandaloneLimit};
use tollgate_redis::{
    Address, FailureKind, LimitDecision, Redis, RedisLimiter, RedisStats, StoreError,
    StoreLimitError,
};

use super::{AlgorithmName, FleetCounting, LoadOptions, value_name};
use crate::outcome::CliError;

/// How long the run waits for the store before it starts.
const READY_TIMEOUT: Duration = Duration::from_secs(2);
/// The timeout of one attempt. A slower store may be late, or unreachable.
const READY_ATTEMPT_TIMEOUT: Duration = Duration::from_millis(50);

/// The backend as it was written: `memory`, or a URL. An error in the URL is reported when it is used, without its
/// password. The `Debug` form doesn't show the password either.
#[derive(Clone, Debug, From, PartialEq, Eq)]
#[debug("LimitHome({self})")]
pub struct BackendAddress(String);

impl BackendAddress {
    /// The URL of a store, `None` for memory.
    fn url(&self) -> Option<&str> {
        (self.0 != "memory").then_some(&*self.0)
    }
}

/// Displays the backend without user and password.
impl fmt::Display for BackendAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.url().map(str::parse::<Address>) {
            None => f.write_str("memory"),
            Some(Ok(address)) => address.fmt(f),
            Some(Err(error)) => error.fmt(f),
        }
    }
}

/// A limit and its backend. Cloning it is cheap.
#[derive(Clone)]
pub(super) enum LoadTarget {
    Memory(Arc<(Memory, StandaloneLimit)>),
    Redis(Redis, Arc<RedisLimiter>),
}

impl LoadTarget {
    pub(super) fn new(options: &LoadOptions) -> Result<Self, CliError> {
        let (rate, algorithm) = (options.rate, options.algorithm.algorithm());
        // A token bucket spends its burst once, when it is fresh.
        let is_stock = algorithm == Algorithm::TokenBucket && rate.burst_size() > 0;
        if rate.is_zero() && !is_stock {
            return Err(CliError::usage(format_args!(
                "the rate \"{rate}\" lets nothing pass; choose another --rate"
            )));
        }
        // "unlimited" has no period, and no burst of its own.
        if rate.period().is_some() && options.cost > rate.burst_size() {
            return Err(never_passes_error(options.cost, rate, algorithm));
        }
        let Some(url) = options.backend.url() else {
            let kind = LimitKind::Rate { rate, algorithm };
            let limit = StandaloneLimit::new(&options.name, kind);
            let limit = limit.map_err(|error| CliError::usage(StoreLimitError::Rate(error)))?;
            let keys = usize::try_from(options.keys).unwrap_or(usize::MAX);
            let memory = Memory::builder().capacity(keys).build();
            return Ok(Self::Memory(Arc::new((memory, limit))));
        };
        let is_level = matches!(
            options.algorithm,
            AlgorithmName::Gcra | AlgorithmName::TokenBucket | AlgorithmName::Leaky
        );
        if options.mode == FleetCounting::Leased && !is_level {
            return Err(CliError::usage(format_args!(
                "{} has no tokens to lease; use gcra, token-bucket or leaky, or --mode exact",
                value_name(options.algorithm)
            )));
        }
        let redis = Redis::builder(url)
            .map_err(|error| CliError::usage(format_args!("--backend: {error}; or write memory")))?
            .timeout(options.timeout)
            .node_count(options.nodes)
            .build()
            .map_err(CliError::failed)?;
        let mut limiter = redis.limiter(&options.name, rate).algorithm(algorithm);
        if options.mode == FleetCounting::Leased {
            limiter = limiter.leased();
        }
        if let Some(choice) = options.on_failure {
            limiter = limiter.on_store_failure(choice.store_failure_policy());
        }
        let limiter = limiter.build().map_err(CliError::usage)?;
        Ok(Self::Redis(redis, Arc::new(limiter)))
    }

    /// Waits until the store answers, so that the run doesn't include the connection setup. If the store doesn't
    /// answer, that is an error, unless a failure mode was chosen. A wrong password and other permanent errors are
    /// errors in any case.
    pub(super) async fn wait_until_ready(&self, options: &LoadOptions) -> Result<(), CliError> {
        let Self::Redis(redis, _) = self else {
            return Ok(());
        };
        let until = Instant::now() + READY_TIMEOUT;
        loop {
            let Err(error) = redis.ready(READY_ATTEMPT_TIMEOUT).await else {
                return Ok(());
            };
            let (kind, is_over) = (error.kind(), Instant::now() >= until);
            // With a failure mode, an unreachable store is the intended test. A store that is only late may have
            // another fault.
            let is_known = is_over || kind != FailureKind::TimedOut;
            if kind.is_lasting() || (is_over && options.on_failure.is_none()) {
                return Err(unreachable_error(&options.backend, &error));
            } else if is_known && options.on_failure.is_some() {
                return Ok(());
            }
        }
    }

    #[inline]
    pub(super) async fn check(&self, key: &str, cost: u64) -> LimitDecision {
        match self {
            Self::Memory(own) => {
                let ((memory, limit), facts) = (&**own, StandaloneLimit::facts(key));
                memory.answer(&[limit.check(&facts, cost)]).into()
            }
            Self::Redis(_, limiter) => limiter.check_n(key, cost).await,
        }
    }

    /// The counters of the store's client. `None` in memory.
    pub(super) fn store_stats(&self) -> Option<RedisStats> {
        match self {
            Self::Memory(_) => None,
            Self::Redis(redis, _) => Some(redis.stats()),
        }
    }

    /// Returns leased tokens, so that other nodes can use them immediately.
    pub(super) async fn close(&self) {
        if let Self::Redis(redis, _) = self {
            redis.close().await;
        }
    }
}

/// The client's counters since `before`. Connections count from the start, because the first is opened before the
/// run.
pub(super) fn stats_since(mut now: RedisStats, before: &RedisStats) -> RedisStats {
    now.fallback.errors -= before.fallback.errors;
    for failure in &mut now.failures {
        let same = before.failures.iter().find(|one| one.kind == failure.kind);
        failure.count -= same.map_or(0, |one| one.count);
    }
    now.failures.retain(|failure| failure.count > 0);
    now.round_trips -= before.round_trips;
    now.repeated_denials -= before.repeated_denials;
    now
}

/// The name of a key.
pub(super) fn key_name(number: u32) -> String {
    format!("key-{number}")
}

/// The error for a cost above the burst, with a rate to use instead.
fn never_passes_error(cost: u64, rate: Rate, algorithm: Algorithm) -> CliError {
    let larger = rate.period().map(|period| Rate::new(cost, period));
    let mut candidates = [Some(rate.burst(cost)), larger].into_iter().flatten();
    let burst = rate.burst_size();
    // The smallest cost is 1.
    let instead = match candidates.find(|rate| algorithm.check_rate(*rate).is_ok()) {
        Some(instead) if burst == 0 => format!("write \"{instead}\""),
        Some(instead) => format!("lower --cost, or write \"{instead}\""),
        None => "lower --cost, or choose another --rate".to_owned(),
    };
    CliError::usage(format_args!(
        "a decision that costs {cost} never passes \"{rate}\", whose burst is {burst}; {instead}"
    ))
}

fn unreachable_error(place: &BackendAddress, error: &StoreError) -> CliError {
    let instead = "say with --on-failure what decisions are to get without it";
    let help = match error.kind() {
        kind if kind.is_lasting() => String::new(),
        FailureKind::Refused => format!("; start it, or {instead}"),
        FailureKind::NotFound => format!("; correct --backend, or {instead}"),
        _ => format!("; {instead}"),
    };
    CliError::failed(format_args!("{place}: {error}{help}"))
}
