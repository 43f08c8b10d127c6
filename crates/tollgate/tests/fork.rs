//! A forked child has a cached clock that moves and timers that fire, though the threads that kept them are gone; and
//! it grants nothing from a store that its parent has open.
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

/// Whether cached time follows real time, within a second.
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

#[cfg(feature = "quota")]
#[test]
fn a_forked_child_grants_nothing_from_its_parents_store() {
    use tollgate::{Quota, QuotaLimiter};

    let folder = std::env::temp_dir().join(format!("tollgate-fork-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("quotas");
    let open = || QuotaLimiter::builder(Quota::per_month(10), 1_000_000).open(&file);
    let limiter = open().unwrap();
    assert!(limiter.check_n("tenant", 4).is_allowed());
    limiter.flush().unwrap();
    let before = std::fs::read(&file).unwrap();
    let mut kept = Some(limiter);
    let in_child = in_a_child(|| {
        let limiter = kept.take().expect("the parent's");
        let refused = limiter
            .charge("tenant", 1)
            .map_err(|error| error.to_string());
        let expected = "quota: this process was forked from the one that opened the store, which alone \
                        grants from it; open a store after the fork";
        let flushed = limiter.flush().map_err(|error| error.to_string());
        let told = "was opened before this process was forked, and only the process that opened it writes \
                    it; open one after the fork";
        let denied = !limiter.check("tenant").is_allowed() && !limiter.peek("tenant").is_allowed();
        // Dropping writes nothing, joins nobody, and leaves the lock with the parent.
        drop(limiter);
        refused.is_err_and(|error| error == expected)
            && flushed.is_err_and(|error| error.ends_with(told))
            && denied
            && open().is_err()
    });
    assert!(in_child, "in the child");
    let limiter = kept.expect("here it was not taken");
    assert_eq!(std::fs::read(&file).unwrap(), before);
    assert!(open().is_err(), "the lock is held");
    assert!(limiter.check_n("tenant", 6).is_allowed());
    limiter.close().unwrap();
    assert_eq!(open().unwrap().peek("tenant").remaining, 0);
    std::fs::remove_dir_all(&folder).unwrap();
}
