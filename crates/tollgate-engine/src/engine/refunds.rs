//! Refunds and resets: an engine releases what requests were charged.

use super::Engine;
use crate::backend::{Backend, Refund, RefundResult};
use crate::facts::Facts;
use crate::limits::Limit;
use crate::policy::{Settlement, UnsettledAction};

impl<B: Backend> Engine<B> {
    /// Resets as [`reset_request`](Self::reset_request), by a backend that may take time to answer.
    ///
    /// # Errors
    /// If the backend is unavailable.
    pub async fn reset_request_async(&self, facts: &Facts<'_>) -> Result<RefundResult, B::Error> {
        self.pipeline.refund(facts, Refund::Reset, |_| true).await
    }

    /// Refunds the cost of a request that was allowed and then wasn't served, for every rule that applies to it, and
    /// at most what was spent. Don't refund a denied request: it was charged nothing, and since a limit doesn't
    /// record who spent its tokens, the refund would return what others have spent. Permits, and estimates that are
    /// still held, are released by their holder instead.
    ///
    /// # Errors
    /// If the backend is unavailable.
    ///
    /// ```
    /// # use std::{pin::pin, task::{Context, Poll, Waker}};
    /// # use tollgate::clock::Manual;
    /// # use tollgate_engine::backend::Memory;
    /// # use tollgate_engine::document::Format;
    /// # use tollgate_engine::{Engine, Facts, Policy};
    /// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
    /// # let policy = Policy::from_text("limits: [{name: per-user, key: user, rate: 5/h}]", Format::Yaml)?.policy;
    /// let engine = Engine::new(policy, memory)?;
    /// let facts = Facts::new().with("user", "42").with_cost(3);
    /// assert_eq!(engine.decide(&facts).decision().remaining, 2);
    /// # let refund = async || {
    /// engine.refund_async(&facts).await?;
    /// # Ok::<(), std::convert::Infallible>(()) };
    /// # assert_eq!(pin!(refund()).poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(Ok(())));
    /// assert_eq!(engine.decide(&facts).decision().remaining, 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn refund_async(&self, facts: &Facts<'_>) -> Result<RefundResult, B::Error> {
        self.pipeline.refund(facts, Refund::Cost, |_| true).await
    }

    /// Refunds as [`refund_async`](Self::refund_async) a request that held a permit or an estimate until now. An
    /// estimate that its rule refunds on drop is not refunded twice.
    ///
    /// # Errors
    /// If the backend is unavailable.
    ///
    /// ```
    /// # use std::{pin::pin, task::{Context, Poll, Waker}};
    /// # use tollgate::clock::Manual;
    /// # use tollgate_engine::backend::Memory;
    /// # use tollgate_engine::document::Format;
    /// # use tollgate_engine::{Engine, Facts, Policy};
    /// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
    /// let text = "limits: [{name: tokens, rate: 100/h, cost: {default: 30, settle_within: 60s, unsettled: refund}}]";
    /// let engine = Engine::new(Policy::from_text(text, Format::Yaml)?.policy, memory)?;
    /// let facts = Facts::new();
    /// engine.decide(&facts).allowed().expect("the first").into_permits().settle(50);
    /// let permits = engine.decide(&facts).allowed().expect("the second").into_permits();
    /// drop(permits);
    /// # let refund = async || {
    /// engine.refund_dropped_async(&facts).await?;
    /// # Ok::<(), std::convert::Infallible>(()) };
    /// # assert_eq!(pin!(refund()).poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(Ok(())));
    /// assert_eq!(engine.peek(&facts).decision().remaining, 50);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn refund_dropped_async(&self, facts: &Facts<'_>) -> Result<RefundResult, B::Error> {
        let is_refunded = |settle: Settlement| settle.unsettled == UnsettledAction::Refund;
        let stays = |limit: &Limit| !limit.settle().is_some_and(is_refunded);
        self.pipeline.refund(facts, Refund::Cost, stays).await
    }

    /// Refunds as [`refund_async`](Self::refund_async) a request whose permits were
    /// [cancelled](crate::verdict::Permits::cancel). The cancellation has already returned its estimates.
    ///
    /// # Errors
    /// If the backend is unavailable.
    ///
    /// ```
    /// # use std::{pin::pin, task::{Context, Poll, Waker}};
    /// # use tollgate::clock::Manual;
    /// # use tollgate_engine::backend::Memory;
    /// # use tollgate_engine::document::Format;
    /// # use tollgate_engine::{Engine, Facts, Policy};
    /// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
    /// let text = "limits: [{name: tokens, rate: 100/h, cost: {default: 30, settle_within: 60s}}]";
    /// let engine = Engine::new(Policy::from_text(text, Format::Yaml)?.policy, memory)?;
    /// let facts = Facts::new();
    /// engine.decide(&facts).allowed().expect("the first").into_permits().settle(50);
    /// let permits = engine.decide(&facts).allowed().expect("the second").into_permits();
    /// permits.cancel();
    /// # let refund = async || {
    /// engine.refund_cancelled_async(&facts).await?;
    /// # Ok::<(), std::convert::Infallible>(()) };
    /// # assert_eq!(pin!(refund()).poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(Ok(())));
    /// assert_eq!(engine.peek(&facts).decision().remaining, 50);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn refund_cancelled_async(
        &self,
        facts: &Facts<'_>,
    ) -> Result<RefundResult, B::Error> {
        let stays = |limit: &Limit| !limit.is_estimated();
        self.pipeline.refund(facts, Refund::Cost, stays).await
    }
}
