//! A forked child keeps a cached clock that moves and timers that fire, though the threads that kept them are gone.
#![cfg(unix)]
#![expect(unsafe_code, reason = "there is no safe fork")]

use std::future::{Future, IntoFuture};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use tollgate::clock::{Cached, Monotonic};
use tollgate::{Clock, Limiter, Rate};

/// Whether cached time follows real time, given a second of patience.
fn follows_real_time(cached: &Cached) -> bool {
    let real = Monotonic::new();
    let give_up = real.now() + Duration::from_secs(1);
    let start = cached.now();
    let mut steps = 0;
    let mut last = start;
    while real.now() < give_up {
        let now = cached.now();
        if now > last {
            steps += 1;
            last = now;
        }
        if steps > 3 && now - start > Duration::from_millis(3) {
            return true;
        }
        thread::yield_now();
    }
    false
}

/// Whether this holds in a forked child, within ten seconds.
fn in_a_child(holds: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child only reads clocks, starts threads of ours and leaves by `_exit`, so it runs no
    // destructor or test harness code that another thread of the parent may have been in.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork failed");
    if child == 0 {
        // SAFETY: the default action of the signal ends the child, should it hang.
        unsafe { libc::alarm(10) };
        let code = i32::from(!holds());
        // SAFETY: ends the child at once, as it should end.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: waits for the child just forked, by its id, writing to a live integer.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(waited, child);
    status == 0
}

#[test]
fn a_cached_clock_moves_on_in_a_forked_child() {
    let cached = Cached::new();
    assert!(follows_real_time(&cached), "in the parent");
    assert!(in_a_child(|| follows_real_time(&cached)), "in the child");
}

/// Awaits a wait on this thread, which a timer has to unpark.
fn waits(limiter: &Limiter) -> bool {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut wait = pin!(limiter.acquire().into_future());
    loop {
        match wait.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(passed) => return passed.is_ok(),
            Poll::Pending => thread::park(),
        }
    }
}

#[test]
fn a_wait_is_woken_in_a_forked_child_and_in_its_child() {
    let limiter = Limiter::new(Rate::per_second(1_000).burst(1));
    assert!((0..3).all(|_| waits(&limiter)), "in the parent");
    let in_both = || waits(&limiter) && waits(&limiter) && in_a_child(|| waits(&limiter));
    assert!(in_a_child(in_both), "in the child");
}
