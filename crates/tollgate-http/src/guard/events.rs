//! Events of `tracing` about single requests, for operators. They belong to the current span.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate::{Decision, Limiter, Rate};
use tollgate_engine::warning::Warning;
use tracing::level_filters::LevelFilter;

use super::blocking::AnyClock;
use super::denial::Denial;
use super::{Mode, ServerMistake};
use crate::DenyReason;

/// The target of all events.
pub(super) const TARGET: &str = "tollgate";

/// Traces a decision, at trace level.
#[inline]
pub(super) fn trace_decision(rule: &str, key: impl FnOnce() -> u64, decision: &Decision) {
    if is_tracing() {
        emit_decision(rule, key(), decision);
    }
}

/// Whether every decision is traced. The level is checked first, because that takes a single load.
#[inline(always)]
pub(super) fn is_tracing() -> bool {
    LevelFilter::current() >= LevelFilter::TRACE && are_asked_for()
}

#[cold]
#[inline(never)]
fn are_asked_for() -> bool {
    tracing::enabled!(target: "tollgate", tracing::Level::TRACE)
}

#[cold]
fn emit_decision(rule: &str, key: u64, decision: &Decision) {
    let outcome = if decision.is_allowed() {
        "passed"
    } else {
        "over"
    };
    tracing::trace!(
        target: TARGET,
        rule,
        key = format_args!("{key:016x}"),
        outcome,
        remaining = decision.remaining,
        "decided"
    );
}

/// Logs that a limit of a policy applies to no request, with help that only the middleware can give.
#[cold]
pub(super) fn policy_warning(warning: &Warning) {
    let help = match warning {
        Warning::KeyNeverFound { .. } | Warning::TenantNeverFound { .. } => {
            "user, tenant and tier are extensions that a layer sets: put that layer outside of this one, which in axum means \
             to add it after this one"
        }
        _ => "",
    };
    tracing::warn!(target: TARGET, rule = warning.rule(), help, "{warning}");
}

/// The log of denials and mistakes. It is rate limited, as a client that can cause one event can cause many.
#[derive(Debug)]
pub(super) struct DenialLog {
    limiter: Limiter<AnyClock>,
    /// How many events weren't logged since the last one that was.
    suppressed: AtomicU64,
}

impl DenialLog {
    pub(super) fn new(rate: Rate, clock: &AnyClock) -> Self {
        Self {
            limiter: Limiter::with_clock(rate, Arc::clone(clock)),
            suppressed: AtomicU64::new(0),
        }
    }

    /// Logs an event with the number of suppressed ones before it, or counts it as suppressed.
    fn log_limited(&self, log: impl FnOnce(u64)) {
        // The number is only for people, so relaxed ordering is enough.
        if self.limiter.allow() {
            log(self.suppressed.swap(0, Ordering::Relaxed));
        } else {
            self.suppressed.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[cold]
    pub(super) fn mistake(&self, why: &ServerMistake) {
        self.log_limited(|suppressed| tracing::error!(target: TARGET, suppressed, "{why}"));
    }

    pub(super) fn denied(&self, denial: &Denial, mode: Mode) {
        if is_logged(denial) {
            self.log_limited(|suppressed| log_denial(denial, mode, suppressed));
        }
    }
}

/// Whether a denial like this is logged at all.
fn is_logged(denial: &Denial) -> bool {
    if denial.error.is_some() {
        return tracing::enabled!(target: "tollgate", tracing::Level::ERROR);
    }
    match denial.reason {
        DenyReason::MissingKey => tracing::enabled!(target: "tollgate", tracing::Level::DEBUG),
        _ => tracing::enabled!(target: "tollgate", tracing::Level::INFO),
    }
}

/// Logs a denial, with the number of suppressed ones before it.
fn log_denial(denial: &Denial, mode: Mode, suppressed: u64) {
    let outcome = match mode {
        Mode::Enforce => "refused",
        Mode::Shadow => "shadow",
    };
    let Denial {
        reason,
        limit,
        decision,
        key,
        ..
    } = denial;
    if let Some(error) = &denial.error {
        tracing::error!(target: TARGET, error = &**error, outcome, suppressed, "the limits can't be asked");
        return;
    }
    if *reason == DenyReason::MissingKey {
        // A mistake of the client, so it isn't for the operator's log.
        let wanted = denial.missing.as_ref().map(|missing| &*missing.wanted);
        tracing::debug!(
            target: TARGET,
            rule = &**limit,
            outcome,
            reason = reason.name(),
            wanted,
            suppressed,
            "a request lacks the key of its limit"
        );
        return;
    }
    let retry_after_ms = denial.wait().map(|wait| wait.as_millis());
    let what = match (reason, denial.wait()) {
        (DenyReason::Blocked, Some(_)) => "blocked",
        (DenyReason::Blocked, None) => "denied",
        (DenyReason::Store, _) => "the limits couldn't be asked",
        _ => "over the limit",
    };
    tracing::info!(
        target: TARGET,
        rule = &**limit,
        key = key.map(|key| tracing::field::display(format!("{key:016x}"))),
        outcome,
        reason = reason.name(),
        retry_after_ms,
        limit = decision.limit,
        suppressed,
        "{what}"
    );
}
