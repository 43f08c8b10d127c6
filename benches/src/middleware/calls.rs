//! Requests, a service that does nothing but keep them for the next call, and the loops that are timed.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::hint::black_box;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use axum::body::Body;
use axum::extract::ConnectInfo;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Request, Response};
use tollgate_tower::{Tenant, User};
use tower_service::Service;

use crate::alloc;
use crate::runner::{Measure, Sample, as_f64};
use crate::timing::{self, Stopwatch};
use crate::two_threads::{Crew, Together};

/// Calls of one measurement: so few that requests that don't come back are still near when their turn comes, as those of
/// real connections are.
const CALLS: u64 = 256;

/// Requests that take turns.
const ROUND: usize = 8;

thread_local! {
    /// Requests that came back, each of which goes again when seven others have been: so none has to be fetched from memory, and
    /// none is read right after it was written, either of which would be most of what is timed.
    static BACK: RefCell<VecDeque<Request<()>>> = const { RefCell::new(VecDeque::new()) };
    /// Requests that are ready to be sent if none comes back.
    static READY: RefCell<Vec<Request<()>>> = const { RefCell::new(Vec::new()) };
}

/// Who asks.
#[derive(Clone, Copy)]
pub(super) enum Clients {
    One,
    Many(u64),
}

impl Clients {
    /// The next request, which is that of the client with this number.
    #[inline]
    fn next(self, number: u64) -> Request<()> {
        let back = BACK.with_borrow_mut(|back| (back.len() >= ROUND).then(|| back.pop_front()));
        let other = || READY.with_borrow_mut(Vec::pop).expect("as many as calls");
        let mut request = back.flatten().unwrap_or_else(other);
        if let Self::Many(clients) = self {
            let known = request.extensions_mut().get_mut();
            *known.expect("an address") = ConnectInfo(address(number % clients));
        }
        request
    }

    /// A request of the first client.
    fn request() -> Request<()> {
        let mut request = Request::get("/service-7/items")
            .header("host", "api.example.com")
            .header("user-agent", "bench/1")
            .header("accept", "*/*")
            .body(())
            .expect("a request that is one");
        let extensions = request.extensions_mut();
        extensions.insert(ConnectInfo(address(7)));
        extensions.insert(User::from("ada"));
        extensions.insert(Tenant::from("acme"));
        request
    }
}

/// The address of the client with this number.
#[inline]
fn address(number: u64) -> SocketAddr {
    let [.., a, b] = number.to_be_bytes();
    SocketAddr::from((Ipv4Addr::new(10, 0, a, b), 40_000))
}

/// Answers with an empty body, and keeps the request for the next call.
#[derive(Clone, Copy)]
pub(super) enum Nothing {
    /// Without header fields.
    Bare,
    /// With a content type, as most answers have: else the first field that a layer writes would pay for the table of them.
    Typed,
}

/// The answer, which is made when it is asked for, as handlers do.
pub(super) struct Answering(Nothing);

impl Future for Answering {
    type Output = Result<Response<Body>, Infallible>;

    #[inline]
    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        let mut response = Response::new(Body::empty());
        if let Nothing::Typed = self.0 {
            let text = HeaderValue::from_static("text/plain");
            response.headers_mut().insert(CONTENT_TYPE, text);
        }
        Poll::Ready(Ok(response))
    }
}

impl Service<Request<()>> for Nothing {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Answering;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    #[inline]
    fn call(&mut self, request: Request<()>) -> Answering {
        BACK.with_borrow_mut(|back| back.push_back(request));
        Answering(*self)
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
    #[inline]
    fn serve(&mut self, request: Request<()>) {
        let mut context = Context::from_waker(Waker::noop());
        let answer = pin!(self.call(request)).poll(&mut context);
        assert!(black_box(&answer).is_ready(), "nobody waits here");
    }
}

/// A loop of calls on this thread, whose requests are made ready before.
pub(super) struct Calls<S> {
    clients: Clients,
    service: S,
}

impl<S: Serve> Calls<S> {
    pub(super) fn new(clients: Clients, service: S) -> Self {
        let mut calls = Self { clients, service };
        // The first call may be one that passes, of a limit of which nothing is left then.
        calls.sample();
        calls
    }

    fn fill(&self) {
        READY.with_borrow_mut(|ready| {
            let missing = CALLS.saturating_sub(ready.len() as u64);
            ready.extend((0..missing).map(|_| Clients::request()));
        });
    }

    #[inline]
    fn run(&mut self) {
        for number in 0..CALLS {
            self.service.serve(self.clients.next(number));
        }
    }
}

impl<S: Serve> Measure for Calls<S> {
    fn sample(&mut self) -> Sample {
        self.fill();
        let before = timing::switches();
        let watch = Stopwatch::start();
        self.run();
        Sample {
            nanos: watch.nanos() / as_f64(CALLS),
            switched: timing::switches() != before,
        }
    }
}

/// How often a call asks for memory.
pub(super) fn allocations<S: Serve>(calls: &mut Calls<S>) -> f64 {
    calls.fill();
    let before = alloc::calls();
    calls.run();
    as_f64((alloc::calls() - before) as u64) / as_f64(CALLS)
}

/// The same loop on two threads at once, which share the layer.
pub(super) fn on_two_threads<S: Serve>(crew: &Crew, clients: Clients, service: S) -> Together<'_> {
    let work = move |index: usize, calls: u64| {
        let mut service = service.clone();
        READY.with_borrow_mut(|ready| {
            if ready.len() < ROUND {
                ready.extend((0..ROUND).map(|_| Clients::request()));
            }
        });
        // Each thread goes round in an order of its own.
        let first = index as u64 * 500;
        for number in first..first + calls {
            service.serve(clients.next(number));
        }
        calls
    };
    crew.both(Arc::new(work))
}
