//! What a request holds from its admission to the end of its answer, and what it did cost then.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use derive_more::Debug;
use tollgate::concurrency::{Permit, PermitOutcome, PermitSource};
use tollgate::stack::CostReservation;
use tollgate_engine::verdict::Permits;

use super::fields::HeaderFields;
use crate::grpc;

/// What limits hold for a request that passed. Dropping it gives back slots, and charges what isn't settled.
pub trait HoldRequest: Send + 'static {
    /// The request cost so much. Said once; what is said later is too late.
    fn settle(&mut self, spent: u64) {
        let _ = spent;
    }

    /// The request cost what is held for it: what dropping this means as well, unless a rule says otherwise.
    fn charge(&mut self) {}

    /// Whether nothing is held: then it makes no difference when it is dropped.
    fn is_empty(&self) -> bool {
        false
    }

    /// The request was answered like this: what limits that adapt learn from.
    fn replied(&mut self, reply: &dyn ResponseHead) {
        let _ = reply;
    }

    /// The service failed, and there is no answer.
    fn failed(&mut self) {}
}

/// Nothing.
impl HoldRequest for () {
    fn is_empty(&self) -> bool {
        true
    }
}

impl<H: HoldRequest> HoldRequest for Option<H> {
    fn settle(&mut self, spent: u64) {
        if let Some(held) = self {
            held.settle(spent);
        }
    }

    fn charge(&mut self) {
        if let Some(held) = self {
            held.charge();
        }
    }

    fn is_empty(&self) -> bool {
        self.as_ref().is_none_or(HoldRequest::is_empty)
    }

    fn replied(&mut self, reply: &dyn ResponseHead) {
        if let Some(held) = self {
            held.replied(reply);
        }
    }

    fn failed(&mut self) {
        if let Some(held) = self {
            held.failed();
        }
    }
}

impl HoldRequest for Permits {
    fn settle(&mut self, spent: u64) {
        Self::settle(self, spent);
    }

    fn charge(&mut self) {
        Self::charge(self);
    }

    fn is_empty(&self) -> bool {
        Self::is_empty(self)
    }

    fn replied(&mut self, reply: &dyn ResponseHead) {
        let status = grpc::http_status(reply.status(), reply.line("grpc-status"));
        self.report_ending(ending_of(status));
    }

    fn failed(&mut self) {
        self.report_ending(PermitOutcome::Dropped);
    }
}

/// A permit is released when it is dropped.
impl<H: PermitSource + Send + 'static> HoldRequest for Permit<H> {}

/// An estimate of one limit.
#[derive(Debug)]
pub struct EstimateHold(Option<CostReservation<'static>>);

impl EstimateHold {
    pub(super) const fn new(hold: CostReservation<'static>) -> Self {
        Self(Some(hold))
    }
}

impl HoldRequest for EstimateHold {
    fn settle(&mut self, spent: u64) {
        if let Some(hold) = self.0.take() {
            hold.settle(spent);
        }
    }

    fn charge(&mut self) {
        if let Some(hold) = self.0.take() {
            drop(hold.keep());
        }
    }

    fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}

/// What goes along with a request that passed, until the head of its answer is there. Dropping it before that (the client
/// has gone) gives back slots, and what isn't settled is charged: then there is nothing to be watched.
///
/// Most hold little, and all pay for what is moved: without anything held it is two words.
#[derive(Debug)]
pub struct RequestPermit<H: HoldRequest> {
    held: H,
    fields: HeaderFields,
    watch: Option<Box<ResponseWatch>>,
}

/// What is held while the body of an answer is being sent. Dropping it is its end.
#[derive(Debug)]
pub struct BodyPermit<H: HoldRequest> {
    #[debug(skip)]
    held: H,
    watch: Option<Box<ResponseWatch>>,
}

impl<H: HoldRequest + Default> RequestPermit<H> {
    /// Of a request that no limit is for.
    #[inline]
    pub fn without_limits() -> Self {
        Self::with_fields(HeaderFields::new())
    }

    /// Of a request that holds nothing, whose answer says this.
    #[inline]
    pub fn with_fields(fields: HeaderFields) -> Self {
        Self::new(H::default(), fields, None)
    }
}

impl<H: HoldRequest> RequestPermit<H> {
    #[inline]
    pub(super) const fn new(
        held: H,
        fields: HeaderFields,
        watch: Option<Box<ResponseWatch>>,
    ) -> Self {
        Self {
            held,
            fields,
            watch,
        }
    }

    /// Whether it makes no difference: nothing is held, and nothing is to be said.
    #[inline(always)]
    pub fn is_noop(&self) -> bool {
        self.watch.is_none() && self.fields.is_empty() && self.held.is_empty()
    }

    /// Where the service tells what it used, to be put into the extensions of the request.
    #[inline]
    pub fn usage(&self) -> Option<&UsageReporter> {
        self.watch.as_ref()?.usage.as_ref()
    }

    /// The service tells what it used there, because a layer before has said so already: of both of them, one would be told
    /// nothing.
    pub fn use_outer_usage(&mut self, usage: UsageReporter) {
        if let Some(own) = self.watch.as_mut().and_then(|watch| watch.usage.as_mut()) {
            *own = usage;
        }
    }

    /// The head of the answer is there: what it says of the limit, and what is held until its body has ended.
    #[inline]
    pub fn replied(self, reply: &dyn ResponseHead) -> (HeaderFields, Option<BodyPermit<H>>) {
        let Self {
            mut held,
            fields,
            watch,
        } = self;
        held.replied(reply);
        if watch.is_none() && held.is_empty() {
            return (fields, None);
        }
        let mut rest = BodyPermit { held, watch };
        rest.change(|watch, held| watch.replied(reply, held));
        (fields, Some(rest))
    }

    /// The service failed without an answer.
    pub fn failed(mut self) {
        self.held.failed();
        if let Some(watch) = &mut self.watch {
            watch.failed(&mut self.held);
            watch.ended(&mut self.held);
        }
    }
}

impl<H: HoldRequest> BodyPermit<H> {
    fn change(&mut self, change: impl FnOnce(&mut ResponseWatch, &mut H)) {
        if let Some(watch) = &mut self.watch {
            change(watch, &mut self.held);
        }
    }

    /// So many bytes of the body were sent.
    #[inline]
    pub fn sent(&mut self, bytes: usize) {
        self.change(|watch, _| watch.sent(bytes as u64));
    }

    /// The body ends with trailers that say this `grpc-status`.
    pub fn trailer(&mut self, grpc_status: Option<&[u8]>) {
        self.change(|watch, _| watch.trailer(grpc_status));
    }
}

impl<H: HoldRequest> Drop for BodyPermit<H> {
    fn drop(&mut self) {
        self.change(|watch, held| watch.ended(held));
    }
}

/// Nobody said yet what was used.
const UNREPORTED: u64 = u64::MAX;

/// An answer of the service, as far as limits care. Carriers implement it for what their framework has.
pub trait ResponseHead {
    /// The status of HTTP.
    fn status(&self) -> u16;

    /// The first line of a header field. Its name is in lower case.
    fn line(&self, field: &str) -> Option<&[u8]>;

    /// What the service says that it used: the extension [`ActualCost`].
    fn used(&self) -> Option<u64>;
}

/// What an answer did cost: an extension of the response, for services that know it before they answer.
///
/// ```
/// use tollgate_http::guard::ActualCost;
///
/// let mut response = http::Response::new("a long story");
/// response.extensions_mut().insert(ActualCost(1_500));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ActualCost(pub u64);

/// Where a service tells what it used, as long as its answer is being sent: an extension of the request, which
/// [settling](super::RequestLimiter::settle) puts there. Clones are one. What was told counts when the body has ended, or is dropped
/// because the client went away; if nothing was told, the estimate does.
///
/// ```
/// use tollgate_http::guard::UsageReporter;
///
/// let usage = UsageReporter::default();
/// usage.add(100);
/// usage.add(20);
/// assert_eq!(usage.reported(), Some(120));
/// usage.set(115);
/// assert_eq!(usage.reported(), Some(115));
/// ```
#[derive(Clone, Debug)]
pub struct UsageReporter(Arc<AtomicU64>);

impl Default for UsageReporter {
    fn default() -> Self {
        Self(Arc::new(AtomicU64::new(UNREPORTED)))
    }
}

impl UsageReporter {
    /// So much more was used.
    pub fn add(&self, more: u64) {
        let sum = |told: u64| {
            let before = if told == UNREPORTED { 0 } else { told };
            Some(before.saturating_add(more).min(UNREPORTED - 1))
        };
        // It always says a new value. Only the number itself counts, so nothing has to be ordered by it.
        let _ = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum);
    }

    /// So much was used in all.
    pub fn set(&self, all: u64) {
        self.0.store(all.min(UNREPORTED - 1), Ordering::Relaxed);
    }

    /// What was told; none if nothing was.
    pub fn reported(&self) -> Option<u64> {
        Some(self.0.load(Ordering::Relaxed)).filter(|told| *told != UNREPORTED)
    }
}

/// Which answers count. Until it is known, each request holds its cost; then that is given back unless the answer counts.
/// So no number of requests at once gets past the limit before the first was counted.
///
/// A request that ends without an answer counts: its client has hung up, perhaps so that it wouldn't.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum CountedResponses {
    /// All.
    #[default]
    All,
    /// Those with a status from 400 on, calls of gRPC that end with a status other than 0, and services that fail
    /// without an answer.
    Failures,
    /// All others.
    Successes,
    /// Those of which this is true.
    #[debug("By")]
    By(CountPredicate),
}

/// Says whether an answer counts.
pub type CountPredicate = Arc<dyn Fn(&dyn ResponseHead) -> bool + Send + Sync>;

/// How it is known what a request did cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Settle {
    /// The service says it, by [`ActualCost`] or [`UsageReporter`].
    ReportedByHandler,
    /// One for each so many bytes of the answer's body that were sent, rounded up.
    BytesSent {
        /// How many bytes cost one.
        per: NonZeroU64,
    },
}

/// What a guard does after an answer.
#[derive(Clone, Debug, Default)]
pub(super) struct Settlement {
    pub(super) counts: CountedResponses,
    pub(super) settle: Option<Settle>,
}

/// What is watched of one answer.
#[derive(Debug)]
pub(super) struct ResponseWatch {
    after: Arc<Settlement>,
    usage: Option<UsageReporter>,
    sent: u64,
    counted: CountState,
}

/// Whether an answer counts, as far as is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CountState {
    Unknown,
    /// A call of gRPC, which says at its end how it went.
    AtItsEnd,
    Yes,
    No,
}

impl ResponseWatch {
    pub(super) fn new(after: &Arc<Settlement>) -> Self {
        Self {
            after: Arc::clone(after),
            usage: (after.settle == Some(Settle::ReportedByHandler)).then(UsageReporter::default),
            sent: 0,
            counted: CountState::Unknown,
        }
    }

    /// The head of the answer is there.
    fn replied(&mut self, reply: &dyn ResponseHead, held: &mut impl HoldRequest) {
        self.counted = self.after.counts.of(reply);
        match self.counted {
            CountState::No => held.settle(0),
            // What that is, limits know: a rule of a policy may say another cost than the guard.
            CountState::Yes if self.after.settle.is_none() => held.charge(),
            _ => {}
        }
        if let (Some(usage), Some(used)) = (&self.usage, reply.used()) {
            usage.set(used);
        }
    }

    /// The service failed without an answer.
    fn failed(&mut self, held: &mut impl HoldRequest) {
        match self.after.counts {
            CountedResponses::Successes | CountedResponses::By(_) => held.settle(0),
            CountedResponses::All | CountedResponses::Failures => self.counted = CountState::Yes,
        }
    }

    const fn sent(&mut self, bytes: u64) {
        self.sent = self.sent.saturating_add(bytes);
    }

    /// The body ends with this status of gRPC.
    fn trailer(&mut self, grpc_status: Option<&[u8]>) {
        if self.counted == CountState::AtItsEnd {
            let is_failure = grpc_status != Some(b"0");
            self.counted = self.after.counts.of_outcome(is_failure);
        }
    }

    /// Nothing more is sent: the body has ended, or was dropped.
    fn ended(&self, held: &mut impl HoldRequest) {
        if self.counted == CountState::No {
            return held.settle(0);
        }
        match self.after.settle {
            // Of what was never answered the estimate stays charged.
            _ if self.counted == CountState::Unknown => {}
            Some(Settle::ReportedByHandler) => {
                if let Some(used) = self.usage.as_ref().and_then(UsageReporter::reported) {
                    held.settle(used);
                }
            }
            Some(Settle::BytesSent { per }) => held.settle(self.sent.div_ceil(per.get())),
            None => held.charge(),
        }
    }
}

impl CountedResponses {
    fn of(&self, reply: &dyn ResponseHead) -> CountState {
        match self {
            Self::All => CountState::Yes,
            Self::By(is_counted) if is_counted(reply) => CountState::Yes,
            Self::By(_) => CountState::No,
            Self::Failures | Self::Successes => match is_failure(reply) {
                Some(is_failure) => self.of_outcome(is_failure),
                None => CountState::AtItsEnd,
            },
        }
    }

    const fn of_outcome(&self, is_failure: bool) -> CountState {
        match (self, is_failure) {
            (Self::Failures, false) | (Self::Successes, true) => CountState::No,
            _ => CountState::Yes,
        }
    }
}

/// What an answer of this [status](grpc::http_status) means to limits that adapt: only what timed out or was refused for overload makes
/// them smaller. What is wrong with a request, or with the program, says nothing about capacity, and 429 is what limits inside
/// say to one client.
///
/// ```
/// use tollgate::concurrency::PermitOutcome;
/// use tollgate_http::guard::ending_of;
///
/// assert_eq!([200, 404, 500, 503].map(ending_of), [PermitOutcome::Success, PermitOutcome::Ignored, PermitOutcome::Ignored, PermitOutcome::Dropped]);
/// ```
pub const fn ending_of(status: u16) -> PermitOutcome {
    match status {
        502..=504 => PermitOutcome::Dropped,
        400.. => PermitOutcome::Ignored,
        _ => PermitOutcome::Success,
    }
}

/// Whether the service refused or failed; none if that is known only at the end.
fn is_failure(reply: &dyn ResponseHead) -> Option<bool> {
    if reply.status() >= 400 {
        return Some(true);
    }
    let is_grpc = reply.line("content-type").is_some_and(grpc::is_call);
    match reply.line("grpc-status") {
        Some(status) => Some(status != b"0"),
        None if is_grpc => None,
        None => Some(false),
    }
}
