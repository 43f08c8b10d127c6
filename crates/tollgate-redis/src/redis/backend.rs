//! `Redis` as a backend of the engine: each question goes to the store, or to the one of a test.

use std::convert::Infallible;

use futures_util::future::Either;
use tollgate::Timestamp;
use tollgate_engine::backend::{Answer, Backend, Check, CheckResult, Clocks, Gift, Limit, Refund};

use super::{Home, Redis};

impl Backend for Redis {
    type Error = Infallible;

    fn ask<'a>(
        &'a self,
        checks: &'a [Check<'a>],
        each: Option<&'a mut Vec<CheckResult>>,
    ) -> impl Future<Output = Result<Answer, Infallible>> + Send + 'a {
        match &self.home {
            Home::Store(fallback) => Either::Left(fallback.ask(checks, each)),
            Home::Memory(fallback) => Either::Right(fallback.ask(checks, each)),
        }
    }

    async fn peek<'a>(&'a self, checks: &'a [Check<'a>]) -> Result<Vec<CheckResult>, Infallible> {
        match &self.home {
            Home::Store(fallback) => fallback.peek(checks).await,
            Home::Memory(fallback) => fallback.peek(checks).await,
        }
    }

    async fn refund<'a>(
        &'a self,
        checks: &'a [Check<'a>],
        refund: Refund,
    ) -> Result<Gift, Infallible> {
        match &self.home {
            Home::Store(fallback) => fallback.refund(checks, refund).await,
            Home::Memory(fallback) => fallback.refund(checks, refund).await,
        }
    }

    fn now(&self) -> Timestamp {
        match &self.home {
            Home::Store(fallback) => fallback.now(),
            Home::Memory(fallback) => fallback.now(),
        }
    }

    fn clocks(&self) -> Clocks {
        match &self.home {
            Home::Store(fallback) => fallback.clocks(),
            Home::Memory(fallback) => fallback.clocks(),
        }
    }

    fn supports(&self, limit: &Limit) -> Result<(), String> {
        match &self.home {
            Home::Store(fallback) => fallback.supports(limit),
            Home::Memory(fallback) => fallback.supports(limit),
        }
    }

    fn deny_epoch(&self) -> Option<u64> {
        match &self.home {
            Home::Store(fallback) => fallback.deny_epoch(),
            Home::Memory(fallback) => fallback.deny_epoch(),
        }
    }
}
