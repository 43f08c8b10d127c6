//! Requests, a service that does nothing with them, and the loops that are timed.

#![expect(
    unsafe_code,
    reason = "a request in an `Option` is moved in two pieces, and read back as one: that stalls for longer than the calls take"
)]

use std::cell::{Cell, RefCell, UnsafeCell};
use std::convert::Infallible;
use std::hint::black_box;
use std::mem::{MaybeUninit, forget};
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use axum::body::Body;
use axum::extract::ConnectInfo;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Request, Response};
use tollgate_tower::{Tenant, User};
use tower_service::Service;

use crate::alloc;
use crate::peers::Padded;
use crate::runner::{Measure, Sample, as_f64};
use crate::timing::{self, Stopwatch};
use crate::two_threads::{ThreadPair, TwoThreadPeer};

/// Calls of one measurement: few enough that dropped requests are still in the caches when they are needed, as
/// those of real connections are.
const CALLS: u64 = 256;

/// Requests that are used in rotation.
const ROUND: usize = 8;

/// Requests that a thread uses in rotation: each comes again after seven others. So none has to be fetched from
/// memory, and none is read right after it was written; either would dominate the measurement.
struct Ring {
    requests: UnsafeCell<[MaybeUninit<Request<()>>; ROUND]>,
    /// The index of the next request.
    next: Cell<usize>,
    is_full: Cell<bool>,
}

thread_local! {
    static RING: Ring = const { Ring::new() };
    static KNOWN: Ring = const { Ring::new() };
    /// Requests that are ready to be sent, for services that drop them.
    static READY: RefCell<Vec<Request<()>>> = const { RefCell::new(Vec::new()) };
}

impl Ring {
    const fn new() -> Self {
        Self {
            requests: UnsafeCell::new([const { MaybeUninit::uninit() }; ROUND]),
            next: Cell::new(0),
            is_full: Cell::new(false),
        }
    }

    fn fill(&self, clients: Clients) {
        if self.is_full.replace(true) {
            return;
        }
        for number in 0..ROUND {
            // SAFETY: the place is one of the ring's, and there are no references to its content.
            unsafe { self.place(number).write(clients.request()) };
        }
    }

    #[inline(always)]
    fn place(&self, number: usize) -> *mut Request<()> {
        let first = self.requests.get().cast::<Request<()>>();
        first.wrapping_add(number % ROUND)
    }

    /// The next request.
    #[inline(always)]
    fn turn(&self) -> *mut Request<()> {
        let number = self.next.get();
        self.next.set(number + 1);
        self.place(number)
    }
}

/// The clients.
#[derive(Clone, Copy)]
pub(super) enum Clients {
    One,
    Many(u64),
    /// A client with a known identity and tenant.
    Known,
}

impl Clients {
    /// The next request, set to the client with this number.
    ///
    /// # Safety
    /// The ring is full, and the request is forgotten, because the ring owns it as well.
    #[inline(always)]
    unsafe fn next(self, number: u64) -> Request<()> {
        let ring = if matches!(self, Self::Known) {
            &KNOWN
        } else {
            &RING
        };
        let place = ring.with(Ring::turn);
        // SAFETY: the ring is full, as the caller promises, so there is a request. Of its two copies, this one
        // is used and forgotten before the other is accessed again.
        let mut request = unsafe { place.read() };
        if let Self::Many(clients) = self {
            let known = request.extensions_mut().get_mut();
            *known.expect("an address") = ConnectInfo(address(number % clients));
        }
        request
    }

    /// Prepares requests on this thread.
    fn fill(self) {
        let ring = if matches!(self, Self::Known) {
            &KNOWN
        } else {
            &RING
        };
        ring.with(|ring| ring.fill(self));
    }

    /// A request of the first client.
    fn request(self) -> Request<()> {
        let mut request = Request::get("/service-7/items")
            .header("host", "api.example.com")
            .header("user-agent", "bench/1")
            .header("accept", "*/*")
            .body(())
            .expect("a request that is one");
        let extensions = request.extensions_mut();
        extensions.insert(ConnectInfo(address(7)));
        if let Self::Known = self {
            extensions.insert(User::from("ada"));
            extensions.insert(Tenant::from("acme"));
        }
        request
    }
}

/// The address of the client with this number.
#[inline]
fn address(number: u64) -> SocketAddr {
    let [.., a, b] = number.to_be_bytes();
    SocketAddr::from((Ipv4Addr::new(10, 0, a, b), 40_000))
}

/// Responds with an empty body, and forgets the request. If `TYPED`, with a content type, as most responses
/// have: otherwise the first field that a layer writes would pay for the allocation of the header map.
#[derive(Clone, Copy)]
pub(super) struct EmptyService<const TYPED: bool>;

/// Responds with a content type and drops the request, like a request that a layer denies.
#[derive(Clone, Copy)]
pub(super) struct DropService;

impl Service<Request<()>> for DropService {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = AnswerFuture<true>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    #[inline]
    fn call(&mut self, request: Request<()>) -> AnswerFuture<true> {
        drop(request);
        AnswerFuture
    }
}

/// The response, made when it is polled, as handlers do.
pub(super) struct AnswerFuture<const TYPED: bool>;

impl<const TYPED: bool> Future for AnswerFuture<TYPED> {
    type Output = Result<Response<Body>, Infallible>;

    #[inline]
    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        let mut response = Response::new(Body::empty());
        if TYPED {
            let text = HeaderValue::from_static("text/plain");
            response.headers_mut().insert(CONTENT_TYPE, text);
        }
        Poll::Ready(Ok(response))
    }
}

impl<const TYPED: bool> Service<Request<()>> for EmptyService<TYPED> {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = AnswerFuture<TYPED>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    #[inline]
    fn call(&mut self, request: Request<()>) -> AnswerFuture<TYPED> {
        // Otherwise the request would never have been moved.
        black_box(&request);
        forget(request);
        AnswerFuture
    }
}

/// A service that can be timed.
pub(super) trait Serve: Clone + Send + Sync + 'static {
    fn serve(&mut self, request: Request<()>);
}

impl<S, B> Serve for S
where
    S: Service<Request<()>, Response = Response<B>, Error = Infallible>
        + Clone
        + Send
        + Sync
        + 'static,
{
    #[inline(always)]
    fn serve(&mut self, request: Request<()>) {
        let mut context = Context::from_waker(Waker::noop());
        let is_ready = self.poll_ready(&mut context).is_ready();
        assert!(is_ready, "it is always ready");
        let answer = pin!(self.call(request)).poll(&mut context);
        assert!(black_box(&answer).is_ready(), "nobody waits here");
    }
}

/// A loop of calls on this thread, which all pass.
pub(super) struct Calls<S> {
    clients: Clients,
    service: S,
}

impl<S: Serve> Calls<S> {
    pub(super) const fn new(clients: Clients, service: S) -> Self {
        Self { clients, service }
    }

    #[inline]
    fn run(&mut self) {
        self.clients.fill();
        for number in 0..CALLS {
            // SAFETY: the ring is full, and all services that are timed like this pass requests on to
            // `EmptyService`, which forgets them.
            let request = unsafe { self.clients.next(number) };
            self.service.serve(request);
        }
    }
}

impl<S: Serve> Measure for Calls<S> {
    fn sample(&mut self) -> Sample {
        // The measurements before this one have filled the caches with other data.
        self.run();
        timed(|| self.run())
    }
}

/// A loop of calls on this thread with prepared requests, which are dropped: by a layer that denies them, or by
/// a service.
pub(super) struct DroppedCalls<S>(S);

impl<S: Serve> DroppedCalls<S> {
    /// For a service that may allow one request before it denies all others.
    pub(super) fn new(mut service: S) -> Self {
        service.serve(Clients::One.request());
        Self(service)
    }

    #[inline]
    fn run(&mut self) {
        for _ in 0..CALLS {
            let request = READY.with_borrow_mut(Vec::pop).expect("as many as calls");
            self.0.serve(request);
        }
    }

    fn fill() {
        READY.with_borrow_mut(|ready| {
            let missing = CALLS.saturating_sub(ready.len() as u64);
            ready.extend((0..missing).map(|_| Clients::One.request()));
        });
    }
}

impl<S: Serve> Measure for DroppedCalls<S> {
    fn sample(&mut self) -> Sample {
        Self::fill();
        self.run();
        Self::fill();
        timed(|| self.run())
    }
}

fn timed(run: impl FnOnce()) -> Sample {
    let before = timing::context_switches();
    let watch = Stopwatch::start();
    run();
    Sample {
        nanos: watch.nanos() / as_f64(CALLS),
        switched: timing::context_switches() != before,
    }
}

/// How many allocations a call makes.
pub(super) fn allocations<S: Serve>(calls: &mut Calls<S>) -> f64 {
    calls.run();
    let before = alloc::calls();
    calls.run();
    as_f64((alloc::calls() - before) as u64) / as_f64(CALLS)
}

/// The same loop on two concurrent threads, which share the layer and all clients.
pub(super) fn on_two_threads<S: Serve>(
    crew: &ThreadPair,
    clients: Clients,
    service: S,
) -> TwoThreadPeer<'_> {
    // Each thread has a service of its own, as each connection has, and continues where it stopped.
    let threads = [0, 500].map(|first| Padded(Mutex::new((service.clone(), first))));
    let work = move |index: usize, calls: u64| {
        clients.fill();
        let mut thread = threads[index].0.lock().expect("nobody panics here");
        let (service, next) = &mut *thread;
        for _ in 0..calls {
            // SAFETY: the ring is full, and `EmptyService` forgets the request.
            let request = unsafe { clients.next(*next) };
            *next += 1;
            service.serve(request);
        }
        calls
    };
    crew.both(Arc::new(work))
}
