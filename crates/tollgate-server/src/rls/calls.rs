//! The calls of one connection: those that are complete are decided at once, without a task; others wait among
//! themselves.

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

/// Calls of one connection that go on for as long as their clients like: watching health, and reflection.
const MAX_STREAMING_CALLS: usize = 8;
const WAITED_TOO_LONG: &str = "a call waited in the queue of a limit until shortly before its deadline, and was denied: \
                               give callers of rules with `over: wait` a longer time-out";
/// What such a call holds, by which they are counted.
type CallCount = Arc<()>;

/// A call that isn't over.
type OpenCall = Pin<Box<dyn Future<Output = Option<CallStep>> + Send>>;

/// What becomes of a call that waited.
enum CallStep {
    /// Its message has come.
    Decide(CompleteCall),
    /// Its answer can't be sent yet.
    Send(PendingResponse),
}

/// A call whose message is complete.
pub(super) struct CompleteCall {
    head: CallHead,
    message: Vec<u8>,
}

/// What is known of a call before its message.
struct CallHead {
    method: Method,
    /// When it came.
    since: Timestamp,
    /// When its client won't wait any longer.
    deadline: Option<Instant>,
    /// When a call that still waits in the queue of a limit is denied: early enough for the answer to arrive before the
    /// deadline. A proxy takes a call without an answer for one to let pass.
    denies_at: Option<Instant>,
    respond: SendResponse<Bytes>,
}

/// All calls of a connection.
pub(crate) struct GrpcSession<B: CounterStore> {
    pub(super) service: Arc<Service<B>>,
    /// Calls of all connections whose messages aren't complete.
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

    /// Whether so many are decided that no more should be read. Those whose messages are missing are as many as may be
    /// open; those that were reset aren't among them any more, but are decided all the same.
    pub(super) fn are_too_many(&self) -> bool {
        let most = usize::try_from(self.service.decider.bounds.max_streams).unwrap_or(usize::MAX);
        self.open.len() >= most.saturating_mul(2)
    }

    /// Goes on with all. Those whose messages are there now are to be decided.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, complete: &mut Vec<CompleteCall>) {
        while let Poll::Ready(Some(done)) = self.open.poll_next_unpin(cx) {
            match done {
                Some(CallStep::Decide(call)) => complete.push(call),
                Some(CallStep::Send(unsent)) => self.queue_response(unsent),
                None => {}
            }
        }
    }

    /// All are polled once more: they look at the service's stage then.
    pub(super) fn wake(&mut self) {
        self.open = std::mem::take(&mut self.open).into_iter().collect();
    }

    /// The connection is over. What is being decided is decided to its end, as it may have been charged already; but
    /// nobody waits in a queue any longer.
    pub(super) async fn finish(mut self) {
        let service = Arc::clone(&self.service);
        if service.decider.engine.has_waiting_rules() || self.open.is_empty() {
            return;
        }
        let end = Instant::now() + service.decider.bounds.request_timeout;
        let rest = async {
            while let Some(done) = self.open.next().await {
                // Nobody reads an answer any more.
                if let Some(CallStep::Decide(call)) = done {
                    self.decide(call).await;
                }
            }
        };
        // What takes longer is left.
        let _ = timeout_at(end, rest).await;
    }

    /// Answers a call whose message is there, or lets it wait for the rest among the others.
    pub(super) async fn accept_call(
        &mut self,
        request: Request<RecvStream>,
        mut respond: SendResponse<Bytes>,
    ) {
        // Where an answer can't be sent, the client has reset the stream. Others of its connection go on.
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

    /// Keeps an answer until its client has room for it. Such answers are counted among the calls that wait, or whoever
    /// reads none would have the service keep them all.
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

    /// A place among the calls that last.
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
        let seat = match self.acquire_streaming_call() {
            Ok(seat) => seat,
            Err(failed) => return drop(call.head.answer(Err(failed))),
        };
        let (service, errors) = (Arc::clone(&self.service), self.errors.clone());
        self.open.push(Box::pin(async move {
            health::watch(&service, &errors, &call.message, &mut call.head.respond).await;
            drop(seat);
            None
        }));
    }

    fn reflect(&mut self, asks: RecvStream, mut respond: SendResponse<Bytes>) {
        let seat = match self.acquire_streaming_call() {
            Ok(seat) => seat,
            Err(failed) => return drop(call::send_response(&mut respond, Err(failed))),
        };
        let service = Arc::clone(&self.service);
        self.open.push(Box::pin(async move {
            let mut talk = pin!(reflection::serve(
                &service.decider.bounds,
                asks,
                &mut respond
            ));
            // Its client may think for long, so it isn't waited for.
            poll_fn(|cx| match talk.as_mut().poll(cx) {
                Poll::Pending if service.closing.stage() > Stage::Draining => Poll::Ready(()),
                polled => polled,
            })
            .await;
            drop(seat);
            None
        }));
    }
}

impl CompleteCall {
    /// Answers it; what can't be sent yet comes back. A client that has left is charged, but holds nothing.
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

/// Frees the slots of a request that passed.
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

/// Nobody is there to be answered.
struct ClientGone;

impl CallHead {
    /// Answers it; what can't be sent yet comes back.
    fn answer(
        &mut self,
        outcome: Result<Bytes, GrpcStatus>,
    ) -> Result<Option<PendingResponse>, ClientGone> {
        call::send_response(&mut self.respond, outcome).map_err(|_| {
            self.respond.send_reset(Reason::CANCEL);
            ClientGone
        })
    }

    /// There is nothing to decide.
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

/// Sends an answer once its client has room for it, which it has in time or not at all.
pub(super) async fn send(mut unsent: PendingResponse, end: Instant, errors: &ErrorSource) {
    let sent = timeout_at(end, poll_fn(|cx| unsent.poll_send(cx))).await;
    if sent.is_err() {
        errors.record(ErrorKind::Timeout, &"an answer wasn't read in time");
        unsent.reset();
    }
}

/// Decides a call that may take its time. Its client may give it up: then it leaves the queue if it waits in one, but a
/// decision that is under way goes on and is charged. A call that waits until shortly before its deadline is denied.
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
                // If it can't be told, it has left already.
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

/// What a body asks, decided and framed.
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

/// What is told of a question that can't be read: what the operator has chosen for all that can't be decided.
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
