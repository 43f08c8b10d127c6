//! Services that take their time at every step, and a request that is dropped at each of these points.

use std::convert::Infallible;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::StreamBody;
use tower::{Service, ServiceExt};

/// Ready at the second poll.
#[derive(Debug, Default)]
pub(crate) struct Twice {
    is_asked: bool,
}

impl Future for Twice {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        if std::mem::replace(&mut self.is_asked, true) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }
}

/// Three frames, each of which takes a while.
#[derive(Debug)]
pub(crate) struct Slow {
    left: u32,
    wait: Twice,
}

pub(crate) fn slow_body() -> StreamBody<Slow> {
    let wait = Twice::default();
    StreamBody::new(Slow { left: 3, wait })
}

impl futures_core::Stream for Slow {
    type Item = Result<Frame<Bytes>, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if pin!(&mut self.wait).poll(context).is_pending() {
            return Poll::Pending;
        }
        self.wait = Twice::default();
        if self.left == 0 {
            return Poll::Ready(None);
        }
        self.left -= 1;
        Poll::Ready(Some(Ok(Frame::data(Bytes::from("chunk")))))
    }
}

/// Becomes ready, answers and sends its body, each at the second look. The first call of each round is answered 503, if it has
/// rounds.
#[derive(Debug, Default)]
pub(crate) struct Gradual {
    ready: Twice,
    /// How many have begun to be made ready.
    pub(crate) begun: Arc<AtomicU64>,
    fails_first: bool,
}

impl Gradual {
    pub(crate) fn failing_first() -> Self {
        Self {
            fails_first: true,
            ..Self::default()
        }
    }
}

/// A clone isn't ready, whatever the other was.
impl Clone for Gradual {
    fn clone(&self) -> Self {
        Self {
            ready: Twice::default(),
            begun: Arc::clone(&self.begun),
            fails_first: self.fails_first,
        }
    }
}

type Answering =
    Pin<Box<dyn Future<Output = Result<Response<StreamBody<Slow>>, io::Error>> + Send + Sync>>;

impl<I> Service<Request<I>> for Gradual {
    type Response = Response<StreamBody<Slow>>;
    type Error = io::Error;
    type Future = Answering;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.ready.is_asked {
            self.begun.fetch_add(1, Ordering::Relaxed);
        }
        pin!(&mut self.ready).poll(context).map(Ok)
    }

    fn call(&mut self, _: Request<I>) -> Answering {
        let fails = self.fails_first && self.begun.load(Ordering::Relaxed) == 1;
        Box::pin(async move {
            for _ in 0..3 {
                Twice::default().await;
            }
            let status = if fails { 503 } else { 200 };
            let answer = Response::builder().status(status);
            Ok(answer.body(slow_body()).expect("a status"))
        })
    }
}

/// Polls a future so many times, with a `step` after each, and drops it; returns whether it completed.
fn drop_after<S, I, B>(service: S, request: Request<I>, step: &impl Fn(), polls: usize) -> bool
where
    S: Service<Request<I>, Response = Response<B>>,
    S::Error: std::fmt::Debug,
    B: http_body::Body,
{
    let mut context = Context::from_waker(Waker::noop());
    let mut left = polls;
    let mut call = pin!(service.oneshot(request));
    let response = loop {
        if left == 0 {
            return false;
        }
        left -= 1;
        if let Poll::Ready(response) = call.as_mut().poll(&mut context) {
            break response.expect("an answer");
        }
        step();
    };
    assert_eq!(response.status(), 200, "after {polls}");
    let mut body = pin!(response.into_body());
    loop {
        if left == 0 {
            return false;
        }
        left -= 1;
        if let Poll::Ready(None) = body.as_mut().poll_frame(&mut context) {
            return true;
        }
        step();
    }
}

/// Drops a request at every point at which something is awaited, and looks each time whether nothing is held; how many there
/// are.
pub(crate) fn at_every_point<S, I, B>(
    service: impl Fn() -> S,
    request: impl Fn() -> Request<I>,
    step: impl Fn(),
    mut is_free: impl FnMut() -> bool,
) -> usize
where
    S: Service<Request<I>, Response = Response<B>>,
    S::Error: std::fmt::Debug,
    B: http_body::Body,
{
    let mut polls = 0;
    loop {
        let is_done = drop_after(service(), request(), &step, polls);
        assert!(is_free(), "dropped after {polls}");
        if is_done {
            return polls;
        }
        polls += 1;
    }
}
