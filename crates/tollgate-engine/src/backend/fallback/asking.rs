//! An answer on its way, from wherever it comes.

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;
use tollgate::Clock;

use super::Fallback;
use super::breaker::{Gate, Turn};
use crate::backend::Backend;
use crate::limits::{Answer, Check, Source};

pin_project! {
    /// The answer of a backend, or the one without it.
    ///
    /// ```
    /// use tollgate_engine::backend::{AskingOrFallback, Backend, Fallback, Memory};
    ///
    /// let store = Fallback::new(Memory::builder().capacity(10).build());
    /// let asking: AskingOrFallback<'_, _, _, _> = store.check(&[]);
    /// assert!(!store.is_active());
    /// # drop(asking);
    /// ```
    #[must_use = "a question that isn't awaited isn't asked"]
    pub struct AskingOrFallback<'a, B: Backend, C: Clock, W: Clock> {
        fallback: &'a Fallback<B, C, W>,
        checks: &'a [Check<'a>],
        gate: Gate,
        turn: Turn<'a>,
        #[pin]
        way: Way<'a, B::Asking<'a>>,
    }
}

pin_project! {
    /// Where an answer comes from. One at a time, so that the whole stays small: it is put on the heap.
    #[project = Ways]
    pub(super) enum Way<'a, A> {
        /// The store is asked.
        Store {
            #[pin]
            asking: A,
        },
        /// Some are counted here.
        Here {
            here: Pin<Box<dyn Future<Output = Answer> + Send + 'a>>,
        },
        /// The answer is there already.
        Said { answer: Option<Answer> },
        /// The store isn't asked.
        Without,
    }
}

impl<'a, B: Backend, C: Clock, W: Clock> AskingOrFallback<'a, B, C, W> {
    pub(super) fn new(
        fallback: &'a Fallback<B, C, W>,
        checks: &'a [Check<'a>],
        gate: Gate,
        way: Way<'a, B::Asking<'a>>,
    ) -> Self {
        Self {
            fallback,
            checks,
            gate,
            turn: Turn::new(&fallback.circuit, gate),
            way,
        }
    }
}

impl<B: Backend, C: Clock + 'static, W: Clock + 'static> Future for AskingOrFallback<'_, B, C, W> {
    type Output = Result<Answer, Infallible>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let own = self.project();
        let answer = match own.way.project() {
            Ways::Store { asking } => match ready!(asking.poll(context)) {
                Ok(answer) => {
                    if answer.source != Source::Known {
                        own.turn.is_over();
                        own.fallback.works(own.checks, answer.source);
                    }
                    Some(answer)
                }
                Err(error) => {
                    own.turn.is_over();
                    own.fallback.fails(own.checks, *own.gate, &error);
                    None
                }
            },
            Ways::Here { here } => Some(ready!(here.as_mut().poll(context))),
            Ways::Said { answer } => answer.take(),
            Ways::Without => None,
        };
        let answer = answer.unwrap_or_else(|| own.fallback.answer_without(own.checks));
        Poll::Ready(Ok(answer))
    }
}

impl<B: Backend, C: Clock, W: Clock> fmt::Debug for AskingOrFallback<'_, B, C, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AskingOrFallback").finish_non_exhaustive()
    }
}
