//! Detects a `fork`, so that a cached clock can't freeze and no timer is lost. It needs one `unsafe` call.
#![expect(unsafe_code, reason = "pthread_atfork has no safe wrapper")]

use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How often this process and its ancestors were forked since the first call: a child gets another number. It is a
/// load; the id of the process would take a system call.
pub(crate) fn fork_count() -> usize {
    static REGISTERED: Once = Once::new();
    register_fork_handler(&REGISTERED, count_fork);
    FORKS.load(Ordering::Relaxed)
}

static FORKS: AtomicUsize = AtomicUsize::new(0);

/// Runs in a forked child: one atomic step.
extern "C" fn count_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Registers `handler` to run in every child that this process forks, once for all calls with this `Once`.
///
/// The handler must be async-signal-safe: in the child of a threaded process it may not take a
/// lock or allocate. The callers pass functions of a few atomic stores.
pub(super) fn register_fork_handler(registered: &'static Once, handler: extern "C" fn()) {
    registered.call_once(|| {
        // SAFETY: `pthread_atfork` copies three optional function pointers into libc's own list.
        // The pointer has the C ABI and no arguments, as declared, and points at a function of
        // this crate, which is never unloaded while the process lives (a Rust library loaded by
        // `dlopen` may not be unloaded once it has started threads). The handler touches nothing
        // but static atomics, so it is sound in a child where no other thread exists. A failure
        // (ENOMEM) leaves the list as it was: a child would then read a frozen time, which denies
        // too much but never grants extra.
        let _ = unsafe { libc::pthread_atfork(None, None, Some(handler_thunk(handler))) };
    });
}

/// libc declares the handler as `unsafe extern "C"`, and a safe function pointer coerces to that.
fn handler_thunk(handler: extern "C" fn()) -> unsafe extern "C" fn() {
    handler
}
