//! The backend of a `Redis`: the store, or the fake store of a test. Code in front of it treats both alike.

use std::future::ready;
use std::time::Duration;

use futures_util::future::Either;
use tollgate::{Decision, Timestamp};
use tollgate_engine::backend::{
    Answer, Backend, Check, CheckResult, Clocks, Limit, Refund, RefundResult,
};

use crate::denials::RememberedDenials;
use crate::error::{StoreError, StoreLimitError};
use crate::fake_store::FakeStore;
use crate::fallback::{FailureScope, RemoteBackend, RemoteFailure};
use crate::query::StoreOp;
use crate::store::StoreCounters;
use crate::store_client::StoreClient;

/// The store that has the limits of a client.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "a client has one, behind an `Arc`"
)]
pub(crate) enum ClientBackend {
    Remote(StoreClient),
    Fake(FakeStore),
}

use ClientBackend::{Fake, Remote};

impl ClientBackend {
    /// The counters of queries and round trips.
    pub(crate) fn stats(&self) -> &StoreCounters {
        match self {
            Remote(direct) => direct.store.stats(),
            Fake(fake) => &fake.stats,
        }
    }

    /// Tokens of leased limits that this node holds.
    pub(crate) fn leased_tokens(&self) -> u64 {
        match self {
            Remote(direct) => direct.leases.held_tokens(),
            Fake(fake) => fake.leased(),
        }
    }

    /// The remembered denials.
    pub(crate) fn remembered_denials(&self) -> &RememberedDenials {
        match self {
            Remote(direct) => &direct.refusals,
            Fake(fake) => &fake.refusals,
        }
    }

    pub(crate) async fn ready(&self, within: Duration) -> Result<(), StoreError> {
        match self {
            Remote(direct) => direct.ready(within).await,
            Fake(fake) => fake.ready(),
        }
    }

    pub(crate) async fn close(&self) -> RefundResult {
        match self {
            Remote(direct) => direct.close().await,
            Fake(fake) => fake.close(),
        }
    }

    /// The decision of a limit that needs no state, such as one that is unlimited.
    pub(crate) fn known_decision(
        &self,
        limit: &Limit,
        cost: u64,
    ) -> Result<Option<Decision>, StoreLimitError> {
        match self {
            Remote(direct) => Ok(direct.stored(limit)?.form.known_decision(cost)),
            Fake(fake) => Ok(fake.limit_form(limit)?.known_decision(cost)),
        }
    }

    /// Runs one operation on a key of a limit, as of the given time if there is one. The number is the tokens
    /// that were taken, or the microseconds to wait. It is `None` if the store wasn't queried.
    pub(crate) async fn run_operation(
        &self,
        check: &Check<'_>,
        op: StoreOp,
        at: Option<Timestamp>,
    ) -> Result<(Decision, Option<u64>), StoreError> {
        match self {
            Remote(direct) => {
                let at = at.map(|at| at.as_nanos() / 1000);
                let mut patience = direct.store.patience();
                direct.run_operation(check, op, at, &mut patience).await
            }
            Fake(fake) => fake.run_operation(check, op, at),
        }
    }
}

impl Backend for ClientBackend {
    type Error = StoreError;

    fn ask<'a>(
        &'a self,
        checks: &'a [Check<'a>],
        each: Option<&'a mut Vec<CheckResult>>,
    ) -> impl Future<Output = Result<Answer, StoreError>> + Send + 'a {
        match self {
            Remote(direct) => Either::Left(direct.ask(checks, each)),
            Fake(fake) => Either::Right(ready(fake.ask(checks, each))),
        }
    }

    async fn peek<'a>(&'a self, checks: &'a [Check<'a>]) -> Result<Vec<CheckResult>, StoreError> {
        match self {
            Remote(direct) => direct.peek(checks).await,
            Fake(fake) => fake.peek_check(checks),
        }
    }

    async fn refund<'a>(
        &'a self,
        checks: &'a [Check<'a>],
        refund: Refund,
    ) -> Result<RefundResult, StoreError> {
        match self {
            Remote(direct) => direct.refund(checks, refund).await,
            Fake(fake) => fake.refund(checks, refund),
        }
    }

    fn now(&self) -> Timestamp {
        match self {
            Remote(direct) => direct.now(),
            Fake(fake) => fake.now(),
        }
    }

    fn clocks(&self) -> Clocks {
        match self {
            Remote(direct) => direct.clocks(),
            Fake(fake) => fake.clocks(),
        }
    }

    fn supports(&self, limit: &Limit) -> Result<(), String> {
        let known = self.known_decision(limit, 0);
        known.map(drop).map_err(|error| error.to_string())
    }

    fn deny_epoch(&self) -> Option<u64> {
        match self {
            Remote(direct) => direct.deny_epoch(),
            Fake(fake) => fake.deny_epoch(),
        }
    }
}

impl RemoteBackend for ClientBackend {
    fn failure(&self, error: &StoreError) -> RemoteFailure {
        let extent = match (error, self) {
            (StoreError::ForeignKey { .. }, _) => FailureScope::Key,
            (_, Remote(direct)) if direct.store.answers_in_part() => FailureScope::Part,
            _ => FailureScope::Whole,
        };
        let kind = error.kind();
        RemoteFailure { kind, extent }
    }

    fn take_unreported_spending(&self, check: &Check<'_>) -> u64 {
        match self {
            Remote(direct) => direct.take_unreported_spending(check),
            Fake(_) => 0,
        }
    }

    fn known_denial(&self, checks: &[Check<'_>]) -> Option<(usize, Decision)> {
        match self {
            Remote(direct) => direct.find_known_denial(checks),
            Fake(fake) => fake.denial_of(checks),
        }
    }
}
