//! An answer that is on its way, or was there already.

use std::pin::Pin;
use std::task::{Context, Poll};

use tollgate_engine::backend::Answer;

use crate::error::StoreError;

/// An answer on its way from the store, or one that was there already.
pub(super) struct Asking<'a>(Inner<'a>);

/// A question on its way.
pub(super) type Asked<'a> = Pin<Box<dyn Future<Output = Result<Answer, StoreError>> + Send + 'a>>;

enum Inner<'a> {
    Said(Option<Result<Answer, StoreError>>),
    Asked(Asked<'a>),
}

impl<'a> Asking<'a> {
    pub(super) fn said(answer: Result<Answer, StoreError>) -> Self {
        Self(Inner::Said(Some(answer)))
    }

    pub(super) fn asked(asked: Asked<'a>) -> Self {
        Self(Inner::Asked(asked))
    }
}

impl Future for Asking<'_> {
    type Output = Result<Answer, StoreError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            Inner::Said(answer) => Poll::Ready(answer.take().unwrap_or(Err(StoreError::Stopped))),
            Inner::Asked(asking) => asking.as_mut().poll(context),
        }
    }
}
