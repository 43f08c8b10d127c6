//! What a request holds from its admission to the end of its response, and how its cost is settled.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use derive_more::Debug;
use tollgate::concurrency::{Permit, PermitOutcome, PermitSource};
use tollgate::stack::CostReservation;
use tollgate_engine::verdict::Permits;

use super::fields::HeaderFields;
use crate::grpc;

/// What limits hold for an allowed request. Dropping it releases permits, and charges what isn't settled.
pub trait HoldRequest: Send + 'static {
    /// Settles the actual cost. Only the first call counts.
    fn settle(&mut self, spent: u64) {
        let _ = spent;
    }

    /// Charges the held cost. Dropping does the same, unless a rule of the policy states otherwise.
    fn charge(&mut self) {}

    /// Whether nothing is held. Then it makes no difference when this is dropped.
    fn is_empty(&self) -> bool {
        false
    }

    /// Reports the head of the response, from which adaptive limits learn.
    fn replied(&mut self, reply: &dyn ResponseHead) {
        let _ = reply;
    }

    /// Reports that the service failed without a response.
    fn failed(&mut self) {}
}

/// Holds nothing.
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

/// Dropping a permit releases it.
impl<H: PermitSource + Send + 'static> HoldRequest for Permit<H> {}

/// The estimate of one limit.
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

/// What accompanies an allowed request until the head of its response. Dropping it earlier, because the client has
/// disconnected, releases permits and charges what isn't settled.
///
/// It is two words if nothing is held, as every request pays for moving it.
#[derive(Debug)]
pub struct RequestPermit<H: HoldRequest> {
    held: H,
    fields: HeaderFields,
    watch: Option<Box<ResponseWatch>>,
}

/// What is held while the body of a response is sent. Dropping it is the end of the body.
#[derive(Debug)]
pub struct BodyPermit<H: HoldRequest> {
    #[debug(skip)]
    held: H,
    watch: Option<Box<ResponseWatch>>,
}

impl<H: HoldRequest + Default> RequestPermit<H> {
    /// The permit of a request to which no limit applies.
    #[inline]
    pub fn without_limits() -> Self {
        Self::with_fields(HeaderFields::new())
    }

    /// The permit of a request that holds nothing. Its response has these fields.
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

    /// Whether nothing is held and no field is written.
    #[inline(always)]
    pub fn is_noop(&self) -> bool {
        self.watch.is_none() && self.fields.is_empty() && self.held.is_empty()
    }

    /// Where the service reports its usage. Put it into the extensions of the request.
    #[inline]
    pub fn usage(&self) -> Option<&UsageReporter> {
        self.watch.as_ref()?.usage.as_ref()
    }

    /// Uses the reporter of an outer layer instead. The service sees only one reporter in the extensions, so both
    /// layers have to share it.
    pub fn use_outer_usage(&mut self, usage: UsageReporter) {
        if let Some(own) = self.watch.as_mut().and_then(|watch| watch.usage.as_mut()) {
            *own = usage;
        }
    }

    /// Reports the head of the response. Returns its header fields, and what is held until the body has ended.
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

    /// Reports that the service failed without a response.
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

    /// Reports that bytes of the body were sent.
    #[inline]
    pub fn sent(&mut self, bytes: usize) {
        self.change(|watch, _| watch.sent(bytes as u64));
    }

    /// Reports the `grpc-status` in the trailers of the body.
    pub fn trailer(&mut self, grpc_status: Option<&[u8]>) {
        self.change(|watch, _| watch.trailer(grpc_status));
    }
}

impl<H: HoldRequest> Drop for BodyPermit<H> {
    fn drop(&mut self) {
        self.change(|watch, held| watch.ended(held));
    }
}

/// No usage is reported yet.
const UNREPORTED: u64 = u64::MAX;

/// The parts of a response that limits read. Adapters implement it for the type of their framework.
pub trait ResponseHead {
    /// The HTTP status.
    fn status(&self) -> u16;

    /// The first value of a header field. The name is in lower case.
    fn line(&self, field: &str) -> Option<&[u8]>;

    /// The usage that the service reports in the extension [`ActualCost`].
    fn used(&self) -> Option<u64>;
}

/// The actual cost of a request: an extension of the response, for services that know it before they respond.
///
/// ```
/// use tollgate_http::guard::ActualCost;
///
/// let mut response = http::Response::new("a long story");
/// response.extensions_mut().insert(ActualCost(1_500));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ActualCost(pub u64);

/// Reports the usage of a request while its response is being sent: an extension of the request, which
/// [settling](super::RequestLimiter::settle) puts there. Clones share one number.
///
/// The number counts when the body has ended, or is dropped because the client has disconnected. Without a report,
/// the estimate counts.
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
    /// Adds to the reported usage.
    pub fn add(&self, more: u64) {
        let sum = |reported: u64| {
            let before = if reported == UNREPORTED { 0 } else { reported };
            Some(before.saturating_add(more).min(UNREPORTED - 1))
        };
        // The update never fails. Only the number itself is shared, so relaxed ordering is enough.
        let _ = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum);
    }

    /// Sets the reported usage.
    pub fn set(&self, all: u64) {
        self.0.store(all.min(UNREPORTED - 1), Ordering::Relaxed);
    }

    /// The reported usage; none if nothing was reported.
    pub fn reported(&self) -> Option<u64> {
        Some(self.0.load(Ordering::Relaxed)).filter(|reported| *reported != UNREPORTED)
    }
}

/// Which responses count. Until that is known, each request holds its cost, and gets it back if its response doesn't
/// count. So no number of concurrent requests gets past the limit before the first is counted.
///
/// A request without a response counts: otherwise clients could disconnect to avoid being counted.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum CountedResponses {
    /// All responses.
    #[default]
    All,
    /// Responses with a status from 400 on, gRPC calls that end with a status other than 0, and services that fail
    /// without a response.
    Failures,
    /// All responses that aren't failures.
    Successes,
    /// The responses for which the predicate is true.
    #[debug("By")]
    By(CountPredicate),
}

/// Whether a response counts.
pub type CountPredicate = Arc<dyn Fn(&dyn ResponseHead) -> bool + Send + Sync>;

/// How the actual cost of a request is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Settle {
    /// The service reports it, by [`ActualCost`] or [`UsageReporter`].
    ReportedByHandler,
    /// 1 for each `per` bytes of the response body that were sent, rounded up.
    BytesSent {
        /// How many bytes cost 1.
        per: NonZeroU64,
    },
}

/// How a request is settled after its response.
#[derive(Clone, Debug, Default)]
pub(super) struct Settlement {
    pub(super) counts: CountedResponses,
    pub(super) settle: Option<Settle>,
}

/// What is recorded about one response for settling.
#[derive(Debug)]
pub(super) struct ResponseWatch {
    after: Arc<Settlement>,
    usage: Option<UsageReporter>,
    sent: u64,
    counted: CountState,
}

/// Whether a response counts, as far as is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CountState {
    Unknown,
    /// A gRPC call without a status yet: the trailers have it.
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

    /// Reads the head of the response.
    fn replied(&mut self, reply: &dyn ResponseHead, held: &mut impl HoldRequest) {
        self.counted = self.after.counts.of(reply);
        match self.counted {
            CountState::No => held.settle(0),
            // `charge` instead of `settle(cost)`: a rule of a policy may set another cost than the request limiter.
            CountState::Yes if self.after.settle.is_none() => held.charge(),
            _ => {}
        }
        if let (Some(usage), Some(used)) = (&self.usage, reply.used()) {
            usage.set(used);
        }
    }

    /// The service failed without a response.
    fn failed(&mut self, held: &mut impl HoldRequest) {
        match self.after.counts {
            CountedResponses::Successes | CountedResponses::By(_) => held.settle(0),
            CountedResponses::All | CountedResponses::Failures => self.counted = CountState::Yes,
        }
    }

    const fn sent(&mut self, bytes: u64) {
        self.sent = self.sent.saturating_add(bytes);
    }

    /// Reads the gRPC status in the trailers.
    fn trailer(&mut self, grpc_status: Option<&[u8]>) {
        if self.counted == CountState::AtItsEnd {
            let is_failure = grpc_status != Some(b"0");
            self.counted = self.after.counts.of_outcome(is_failure);
        }
    }

    /// Settles: the body has ended, or was dropped.
    fn ended(&self, held: &mut impl HoldRequest) {
        if self.counted == CountState::No {
            return held.settle(0);
        }
        match self.after.settle {
            // Without a response, the estimate stays charged.
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

/// What a response with this [status](grpc::http_status) means to adaptive limits. Only timeouts and denials for
/// overload lower them. A wrong request or a bug in the program is no sign of capacity, and 429 is how an inner limit
/// denies one client.
///
/// ```
/// use tollgate::concurrency::PermitOutcome;
/// use tollgate_http::guard::ending_of;
///
/// assert_eq!(ending_of(200), PermitOutcome::Success);
/// assert_eq!([404, 500].map(ending_of), [PermitOutcome::Ignored; 2]);
/// assert_eq!(ending_of(503), PermitOutcome::Dropped);
/// ```
pub const fn ending_of(status: u16) -> PermitOutcome {
    match status {
        502..=504 => PermitOutcome::Dropped,
        400.. => PermitOutcome::Ignored,
        _ => PermitOutcome::Success,
    }
}

/// Whether the response is a failure; none if only the trailers state that.
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
