//! Any stream, paced.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use pin_project_lite::pin_project;
use tollgate::wait::Acquiring;
use tollgate::{Clock, Limiter};

use super::Pacer;

pin_project! {
    /// A stream whose items come at the rate of a [`Pacer`]; made by [`Pacer::stream`].
    #[must_use = "streams do nothing unless polled"]
    pub struct Paced<S: Stream, C: Clock> {
        #[pin]
        stream: S,
        pacer: Pacer<C>,
        // An item that waits for its turn.
        item: Option<S::Item>,
        #[pin]
        turn: Option<Acquiring<std::sync::Arc<Limiter<C>>>>,
    }
}

impl<C: Clock> Pacer<C> {
    /// Hands on the items of a stream at this pacer's rate. Each takes its place in the queue when it comes, and is
    /// never refused: the next one isn't asked for before this one has left, so a stream takes one place.
    ///
    /// ```
    /// use std::pin::pin;
    /// use std::task::{Context, Poll, Waker};
    /// use std::time::Duration;
    /// use futures_core::Stream;
    /// use tollgate::{Rate, clock::Manual};
    /// use tollgate_shape::Pacer;
    ///
    /// struct Numbers(u32);
    ///
    /// impl Stream for Numbers {
    ///     type Item = u32;
    ///
    ///     fn poll_next(mut self: std::pin::Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<u32>> {
    ///         self.0 += 1;
    ///         Poll::Ready(Some(self.0))
    ///     }
    /// }
    ///
    /// let clock = Manual::new();
    /// let pacer = Pacer::builder(Rate::per_second(10), 1).clock(clock.clone()).build()?;
    /// let mut paced = pin!(pacer.stream(Numbers(0)));
    /// let mut context = Context::from_waker(Waker::noop());
    /// assert_eq!(paced.as_mut().poll_next(&mut context), Poll::Ready(Some(1)));
    /// assert_eq!(paced.as_mut().poll_next(&mut context), Poll::Pending);
    /// clock.advance(Duration::from_millis(100));
    /// assert_eq!(paced.as_mut().poll_next(&mut context), Poll::Ready(Some(2)));
    /// # Ok::<(), tollgate::LimitError>(())
    /// ```
    pub fn stream<S: Stream>(&self, stream: S) -> Paced<S, C> {
        Paced {
            stream,
            pacer: self.clone(),
            item: None,
            turn: None,
        }
    }
}

impl<S: Stream, C: Clock> Stream for Paced<S, C> {
    type Item = S::Item;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<S::Item>> {
        let mut this = self.project();
        if this.item.is_none() {
            let Some(item) = ready!(this.stream.poll_next(context)) else {
                return Poll::Ready(None);
            };
            *this.item = Some(item);
            let shared = &this.pacer.shared;
            let acquire = shared.limiter.acquire_owned_n(shared.cost);
            this.turn.set(Some(acquire.into_future()));
        }
        if let Some(turn) = this.turn.as_mut().as_pin_mut() {
            // Without a deadline, and with room for everybody, it can't be refused.
            let _waited = ready!(turn.poll(context));
            this.turn.set(None);
        }
        Poll::Ready(this.item.take())
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let held = usize::from(self.item.is_some());
        let (least, most) = self.stream.size_hint();
        let most = most.and_then(|most| most.checked_add(held));
        (least.saturating_add(held), most)
    }
}

impl<S: Stream, C: Clock> fmt::Debug for Paced<S, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Paced")
            .field("pacer", &self.pacer)
            .finish_non_exhaustive()
    }
}
