//! Waiting for room for an item.

use std::hash::Hash;
use std::pin::Pin;
use std::task::{Context, Poll};

use tollgate::Clock;

use super::{AddDenied, AddError, Coalescer};
use crate::runner::AfterChange;

/// Adds an item as soon as there is room; the future of [`Coalescer::add`]. Dropping it gives up, and
/// drops the item.
#[must_use = "futures do nothing unless awaited"]
#[derive(derive_more::Debug)]
#[debug("Adding {{ .. }}")]
pub struct AddFuture<K, V, C>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    C: Clock,
{
    pub(super) coalescer: Coalescer<K, V, C>,
    pub(super) item: Option<(K, V)>,
    /// Its number in the queue for room.
    pub(super) waiter: Option<u64>,
}

impl<K, V, C> Future for AddFuture<K, V, C>
where
    K: Hash + Eq + Send + Sync + Unpin + 'static,
    V: Send + Sync + Unpin + 'static,
    C: Clock,
{
    type Output = Result<(), AddError<K, V>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let (item, waiter) = (&mut this.item, &mut this.waiter);
        let handle = &this.coalescer.0;
        let added = handle.change(|store, now| {
            let (added, then) = store.add(item, *waiter, now);
            let waits = matches!(added, Err(AddDenied::Full { .. }));
            if waits {
                *waiter = Some(store.join_queue(*waiter, context.waker()));
                return ((added, None), AfterChange::None);
            }
            let left = waiter.take().and_then(|waiter| store.leave_queue(waiter));
            ((added, left), then)
        });
        // The waker that was removed is dropped here, after the lock is released.
        match added.map(|(added, _left)| added) {
            Some(Ok(())) => Poll::Ready(Ok(())),
            Some(Err(AddDenied::Full { .. })) => Poll::Pending,
            Some(Err(why)) => Poll::Ready(Err(AddError::new(why, this.item.take()))),
            None => Poll::Ready(Err(AddError::new(AddDenied::Stopped, this.item.take()))),
        }
    }
}

impl<K, V, C> Drop for AddFuture<K, V, C>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    C: Clock,
{
    fn drop(&mut self) {
        if let Some(waiter) = self.waiter.take() {
            // The next waiter may use its room.
            let left = self.coalescer.0.with(|store| store.leave_queue(waiter));
            drop(left);
        }
    }
}
