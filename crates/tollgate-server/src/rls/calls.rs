//! The calls of one connection. Complete calls are decided immediately, without a task; the others are polled together
//! until their messages are complete.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, StreamExt};
use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use http::Request;
use tokio::time::{Instant, Sleep, sleep_until, timeout_at};
use tollgate::{DenyReason, Timestamp};

use super::call::{self, GrpcStatus, MessageBody, Method, PREFIX, PendingResponse, ReadError};
use super::combined_decision::{answer_undecided, decide_or_fail};
use super::incomplete_calls::{IncompleteCall, IncompleteCalls};
use super::request_message::RequestMessage as Asked;
use super::rls_outcome::{RlsOutcome, denied};
use super::rls_request::{RlsRequest, Undecided};
use super::{health, reflection, response_message};
use crate::address::Protocol;
use crate::decision_service::CounterStore;
use crate::drain::{self, Stage};
use crate::protocol_errors::{ErrorKind, ErrorSource};
use crate::service::Service;

/// The most concurrent streaming calls of a connection: health watches and reflection.
const MAX_STREAMING_CALLS: usize = 8;
const WAITED_TOO_LONG: &str = "a call waited in the queue of a limit until shortly before its deadline, and was denied: \
                               give callers of rules with `over: wait` a longer time-out";
/// A reference-counted token of each call: its strong count is the number of such calls, plus one.
type CallCount = Arc<()>;

/// A call that isn't finished.
type OpenCall = Pin<Box<dyn Future<Output = Option<CallStep>> + Send>>;

/// The next step of a call that waited.
enum CallStep {
    /// Its message is complete.
    Decide(CompleteCall),
    /// Its client has no window for the response yet.
    Send(PendingResponse),
}

/// A call whose message is complete.
pub(super) struct CompleteCall {
    head: CallHead,
    message: Vec<u8>,
}

/// The metadata of a call, known before its message.
struct CallHead {
    method: Method,
    /// When it arrived.
    since: Timestamp,
    /// The client's deadline.
    deadline: Option<Instant>,
    /// When a call that still waits in the queue of a limit is denied: early enough for the response to arrive before
    /// the deadline. A proxy lets a call without a response pass.
    denies_at: Option<Instant>,
    respond: SendResponse<Bytes>,
}

/// All calls of a connection.
pub(crate) struct GrpcSession<B: CounterStore> {
    pub(super) service: Arc<Service<B>>,
    /// The incomplete calls of all connections.
    all_waiting: Arc<IncompleteCalls>,
    pub(super) errors: ErrorSource,
    open: FuturesUnordered<OpenCall>,
    streaming: CallCount,
    waiting: CallCount,
}

impl<B: CounterStore> GrpcSession<B> {
    pub(crate) fn new(
        service: Arc<Service<B>>,
        all_waiting: &Arc<IncompleteCalls>,
        errors: ErrorSource,
    ) -> Self {
        Self {
            service,
            all_waiting: Arc::clone(all_waiting),
            errors,
            open: FuturesUnordered::new(),
            streaming: CallCount::default(),
            waiting: CallCount::default(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Whether so many calls are open that no more may be read. Calls that wait for messages are bounded by the
    /// concurrent streams. Calls that were reset are no longer counted as streams, but are still decided, so the bound
    /// is twice as high.
    pub(super) fn are_too_many(&self) -> bool {
        let most = usize::try_from(self.service.decider.bounds.max_streams).unwrap_or(usize::MAX);
        self.open.len() >= most.saturating_mul(2)
    }

    /// Polls all calls. Those that are complete now are pushed to `complete`.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, complete: &mut Vec<CompleteCall>) {
        while let Poll::Ready(Some(done)) = self.open.poll_next_unpin(cx) {
            match done {
                Some(CallStep::Decide(call)) => complete.push(call),
                Some(CallStep::Send(unsent)) => self.queue_response(unsent),
                None => {}
            }
        }
    }

    /// Polls all calls once more, so that they see the service's shutdown stage.
    pub(super) fn wake(&mut self) {
        // A rebuilt set polls each of its futures anew.
        self.open = std::mem::take(&mut self.open).into_iter().collect();
    }

    /// Called when the connection has closed. Decisions in progress are completed, as they may be charged already; but
    /// no call waits in a queue any longer.
    pub(super) async fn finish(mut self) {
        let service = Arc::clone(&self.service);
        if service.decider.engine.has_waiting_rules() || self.open.is_empty() {
            return;
        }
        let end = Instant::now() + service.decider.bounds.request_timeout;
        let rest = async {
            while let Some(done) = self.open.next().await {
                // Nobody reads the responses any more.
                if let Some(CallStep::Decide(call)) = done {
                    self.decide(call).await;
                }
            }
        };
        // Calls that take longer are dropped.
        let _ = timeout_at(end, rest).await;
    }

    /// Answers a call whose message has arrived, or waits for the rest of the message.
    pub(super) async fn accept_call(
        &mut self,
        request: Request<RecvStream>,
        mut respond: SendResponse<Bytes>,
    ) {
        // If a response can't be sent, the client has reset the stream. Other streams of the connection go on.
        if !call::is_grpc(&request) {
            let _ = call::reject_media_type(&mut respond);
            return;
        }
        let bounds = &self.service.decider.bounds;
        let method = match Method::of(&request) {
            Ok(method) => method,
            Err(failed) => return drop(call::send_response(&mut respond, Err(failed))),
        };
        if method == Method::Reflection {
            return self.reflect(request.into_body(), respond);
        }
        let timeout = call::timeout(request.headers());
        let head = CallHead {
            method,
            since: self.service.monitor.measured.now(),
            deadline: timeout.map(|time| Instant::now() + time),
            // Four fifths of the timeout: the rest is for the response to arrive.
            denies_at: timeout.map(|time| Instant::now() + time * 4 / 5),
            respond,
        };
        if let Err(failed) = call::check_metadata(request.headers(), bounds.metadata_bytes()) {
            self.errors.record(ErrorKind::TooLarge, &failed.message);
            return head.reject(&self.service, ReadError::Failed(failed));
        }
        let mut body = MessageBody::new(request.into_body(), bounds.message_bytes());
        match poll_fn(|cx| Poll::Ready(body.poll_read(cx))).await {
            Poll::Ready(Ok(())) => {
                let message = body.into_bytes();
                self.decide(CompleteCall { head, message }).await;
            }
            Poll::Ready(Err(unread)) => {
                if let ReadError::Failed(failed) = &unread
                    && failed.is_about_message()
                {
                    self.errors.record(ErrorKind::TooLarge, &failed.message);
                }
                head.reject(&self.service, unread);
            }
            Poll::Pending => self.wait_for_message(head, body),
        }
    }

    /// Decides a call.
    pub(super) async fn decide(&mut self, mut call: CompleteCall) {
        let service = &self.service;
        let is_immediate = B::IS_LOCAL && !service.decider.engine.has_waiting_rules();
        let outcome = match call.head.method {
            Method::ShouldRateLimit if is_immediate => {
                should_rate_limit(service, &call.message).await
            }
            Method::ShouldRateLimit => {
                let (service, errors) = (Arc::clone(service), self.errors.clone());
                return self
                    .open
                    .push(Box::pin(decide_later(service, errors, call)));
            }
            Method::HealthCheck => health::check(&service.monitor.health, &call.message),
            Method::HealthWatch => return self.watch(call),
            Method::Reflection => Err(GrpcStatus::unknown("this method has a stream of messages")),
        };
        let measured = &service.monitor.measured;
        measured.record_requests(Protocol::Grpc, call.head.since, 1);
        if let Some(unsent) = call.answer(service, outcome) {
            self.queue_response(unsent);
        }
    }

    /// Keeps a response until its client has window for it. Such responses are counted with the incomplete calls:
    /// otherwise a client that reads none could make the service keep them all.
    #[cold]
    fn queue_response(&mut self, unsent: PendingResponse) {
        let Some(waiting) = IncompleteCall::enter(&self.all_waiting, &self.waiting) else {
            let detail = "too many answers wait to be read";
            self.errors.record(ErrorKind::Rejected, &detail);
            return unsent.reset();
        };
        let end = Instant::now() + self.service.decider.bounds.request_timeout;
        let errors = self.errors.clone();
        self.open.push(Box::pin(async move {
            send(unsent, end, &errors).await;
            drop(waiting);
            None
        }));
    }

    /// Waits for the rest of a message.
    #[cold]
    fn wait_for_message(&mut self, head: CallHead, mut body: MessageBody) {
        let Some(mut waiting) = IncompleteCall::enter(&self.all_waiting, &self.waiting) else {
            let failed = GrpcStatus::exhausted("too many calls wait for their messages");
            return head.reject(&self.service, ReadError::Failed(failed));
        };
        let service = Arc::clone(&self.service);
        self.open.push(Box::pin(async move {
            let time = service.decider.bounds.request_timeout;
            let end = Instant::now() + time;
            let end = head.deadline.map_or(end, |deadline| deadline.min(end));
            let read = poll_fn(|cx| match body.poll_rest(cx, &mut waiting) {
                Poll::Pending if service.closing.stage() == Stage::Aborting => Poll::Ready(Err(
                    ReadError::Failed(GrpcStatus::unavailable(drain::SHUTTING_DOWN)),
                )),
                polled => polled,
            });
            let read = timeout_at(end, read).await.unwrap_or_else(|_| {
                let seconds = time.as_secs();
                Err(ReadError::Failed(if head.is_too_late() {
                    deadline_exceeded()
                } else {
                    GrpcStatus::too_slow(format_args!("the message wasn't sent within {seconds} s"))
                }))
            });
            match read {
                Ok(()) => {
                    let message = body.into_bytes();
                    Some(CallStep::Decide(CompleteCall { head, message }))
                }
                Err(unread) => {
                    head.reject(&service, unread);
                    None
                }
            }
        }));
    }

    /// A permit for a streaming call.
    fn acquire_streaming_call(&self) -> Result<CallCount, GrpcStatus> {
        if Arc::strong_count(&self.streaming) > MAX_STREAMING_CALLS {
            let why = format!(
                "a connection has {MAX_STREAMING_CALLS} calls at most that watch or reflect"
            );
            return Err(GrpcStatus::exhausted(why));
        }
        Ok(Arc::clone(&self.streaming))
    }

    fn watch(&mut self, mut call: CompleteCall) {
        let permit = match self.acquire_streaming_call() {
            Ok(permit) => permit,
            Err(failed) => return drop(call.head.answer(Err(failed))),
        };
        let (service, errors) = (Arc::clone(&self.service), self.errors.clone());
        self.open.push(Box::pin(async move {
            health::watch(&service, &errors, &call.message, &mut call.head.respond).await;
            drop(permit);
            None
        }));
    }

    fn reflect(&mut self, asks: RecvStream, mut respond: SendResponse<Bytes>) {
        let permit = match self.acquire_streaming_call() {
            Ok(permit) => permit,
            Err(failed) => return drop(call::send_response(&mut respond, Err(failed))),
        };
        let service = Arc::clone(&self.service);
        self.open.push(Box::pin(async move {
            let mut talk = pin!(reflection::serve(
                &service.decider.bounds,
                asks,
                &mut respond
            ));
            // The client may be idle for long, so a shutdown doesn't wait for it.
            poll_fn(|cx| match talk.as_mut().poll(cx) {
                Poll::Pending if service.closing.stage() > Stage::Draining => Poll::Ready(()),
                polled => polled,
            })
            .await;
            drop(permit);
            None
        }));
    }
}

impl CompleteCall {
    /// Answers the call; a response that can't be sent yet is returned. If the client has left, it is charged, but its
    /// permits are released.
    fn answer<B: CounterStore>(
        &mut self,
        service: &Service<B>,
        outcome: Result<Bytes, GrpcStatus>,
    ) -> Option<PendingResponse> {
        let passes = self.head.method == Method::ShouldRateLimit
            && outcome
                .as_ref()
                .is_ok_and(|framed| response_message::is_allowed(&framed[PREFIX..]));
        self.head.answer(outcome).unwrap_or_else(|ClientGone| {
            if passes {
                release(service, &self.message);
            }
            None
        })
    }
}

/// Releases the permits of an allowed request.
#[cold]
fn release<B: CounterStore>(service: &Service<B>, message: &[u8]) {
    let asked = call::parse_message(message).map(Asked::read);
    if let Ok(Ok(asked)) = asked {
        let entries = asked.entries();
        let question = RlsRequest {
            domain: &asked.domain,
            descriptors: &asked.descriptors(&entries),
            hits_addend: asked.hits_addend,
        };
        question.release(service);
    }
}

/// The client has reset the stream or disconnected.
struct ClientGone;

impl CallHead {
    /// Answers the call; a response that can't be sent yet is returned.
    fn answer(
        &mut self,
        outcome: Result<Bytes, GrpcStatus>,
    ) -> Result<Option<PendingResponse>, ClientGone> {
        call::send_response(&mut self.respond, outcome).map_err(|_| {
            self.respond.send_reset(Reason::CANCEL);
            ClientGone
        })
    }

    /// Answers a call whose message can't be decided.
    #[cold]
    fn reject<B: CounterStore>(mut self, service: &Service<B>, unread: ReadError) {
        match unread {
            ReadError::Reset => service.monitor.measured.record_reset(),
            ReadError::Failed(failed) => {
                service
                    .monitor
                    .measured
                    .record_requests(Protocol::Grpc, self.since, 1);
                let is_question = self.method == Method::ShouldRateLimit;
                let outcome = if is_question && failed.is_about_message() {
                    answer_unreadable(service, failed)
                } else {
                    Err(failed)
                };
                let _ = self.answer(outcome);
            }
        }
    }

    fn is_too_late(&self) -> bool {
        self.deadline.is_some_and(|end| end <= Instant::now())
    }
}

fn deadline_exceeded() -> GrpcStatus {
    GrpcStatus::too_slow("the deadline of the call has passed")
}

/// Sends a response once its client has window for it; after the timeout the stream is reset.
pub(super) async fn send(mut unsent: PendingResponse, end: Instant, errors: &ErrorSource) {
    let sent = timeout_at(end, poll_fn(|cx| unsent.poll_send(cx))).await;
    if sent.is_err() {
        errors.record(ErrorKind::Timeout, &"an answer wasn't read in time");
        unsent.reset();
    }
}

/// Decides a call that may wait. If its client gives it up, it leaves the queue it waits in, but a decision in progress
/// is completed and charged. A call that waits until shortly before its deadline is denied.
async fn decide_later<B: CounterStore>(
    service: Arc<Service<B>>,
    errors: ErrorSource,
    mut call: CompleteCall,
) -> Option<CallStep> {
    let may_leave = service.decider.engine.has_waiting_rules();
    let head = &mut call.head;
    let end = if may_leave {
        head.denies_at
    } else {
        head.deadline
    };
    let mut deadline: Option<Pin<Box<Sleep>>> = end.map(|end| Box::pin(sleep_until(end)));
    let outcome = {
        let mut outcome = pin!(should_rate_limit(&service, &call.message));
        poll_fn(|cx| {
            if let Poll::Ready(outcome) = outcome.as_mut().poll(cx) {
                return Poll::Ready(Some(outcome));
            }
            if head.respond.poll_reset(cx).is_ready() && may_leave {
                service.monitor.measured.record_reset();
                return Poll::Ready(None);
            }
            if service.closing.stage() == Stage::Aborting {
                return Poll::Ready(Some(Err(GrpcStatus::unavailable(drain::SHUTTING_DOWN))));
            }
            if let Some(end) = &mut deadline
                && end.as_mut().poll(cx).is_ready()
            {
                deadline = None;
                if may_leave {
                    errors.record(ErrorKind::Timeout, &WAITED_TOO_LONG);
                    return Poll::Ready(Some(Ok(framed(&denied(1, Some(DenyReason::Rate))))));
                }
                // If the response can't be sent, the client has left.
                let _ = head.answer(Err(deadline_exceeded()));
            }
            Poll::Pending
        })
        .await
    };
    let outcome = outcome?;
    service
        .monitor
        .measured
        .record_requests(Protocol::Grpc, head.since, 1);
    call.answer(&service, outcome).map(CallStep::Send)
}

/// Reads, decides and frames a request.
async fn should_rate_limit<B: CounterStore>(
    service: &Service<B>,
    body: &[u8],
) -> Result<Bytes, GrpcStatus> {
    let read =
        call::parse_message(body).and_then(|body| Asked::read(body).map_err(GrpcStatus::invalid));
    let asked = match read {
        Ok(asked) => asked,
        Err(failed) => return answer_unreadable(service, failed),
    };
    let entries = asked.entries();
    let question = RlsRequest {
        domain: &asked.domain,
        descriptors: &asked.descriptors(&entries),
        hits_addend: asked.hits_addend,
    };
    let decided = decide_or_fail(service, &question)
        .await
        .map_err(|why| match why {
            Undecided::Invalid(_) => GrpcStatus::invalid(why),
            Undecided::Unavailable(_) => GrpcStatus::unavailable(why),
            Undecided::Full(_) => GrpcStatus::exhausted(why),
        })?;
    Ok(framed(&decided))
}

/// The answer to an unreadable request: the configured failure mode applies, as for all that can't be decided.
#[cold]
fn answer_unreadable<B: CounterStore>(
    service: &Service<B>,
    failed: GrpcStatus,
) -> Result<Bytes, GrpcStatus> {
    let why = Undecided::Invalid(failed.message.clone());
    let refused = answer_undecided(service, 1, why).map_err(|_| failed)?;
    Ok(framed(&refused))
}

fn framed(decided: &RlsOutcome) -> Bytes {
    let mut out = Vec::with_capacity(128);
    out.extend([0; PREFIX]);
    response_message::write_response(&mut out, decided);
    call::framed(out)
}
