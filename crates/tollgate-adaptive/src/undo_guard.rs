//! A guard that undoes something unless it is kept.

/// Undoes something when it is dropped, unless it was kept: a call that isn't made, a token that isn't
/// used.
#[derive(Debug)]
pub(crate) struct UndoGuard<T>(Option<T>, fn(T));

impl<T> UndoGuard<T> {
    pub(crate) fn new(done: Option<T>, undo: fn(T)) -> Self {
        Self(done, undo)
    }

    pub(crate) fn disarm(mut self) -> Option<T> {
        self.0.take()
    }
}

impl<T> Drop for UndoGuard<T> {
    fn drop(&mut self) {
        if let Some(done) = self.0.take() {
            (self.1)(done);
        }
    }
}
