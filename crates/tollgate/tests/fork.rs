//! A forked child keeps a cached clock that moves, though the thread that kept it is gone.
#![cfg(unix)]
#![expect(unsafe_code, reason = "there is no safe fork")]

use std::time::Duration;

use tollgate::Clock;
use tollgate::clock::{Cached, Monotonic};

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
        std::thread::yield_now();
    }
    false
}

#[test]
fn a_cached_clock_moves_on_in_a_forked_child() {
    let cached = Cached::new();
    assert!(follows_real_time(&cached), "in the parent");
    // SAFETY: the child only reads clocks, starts the upkeep thread and leaves by `_exit`, so it
    // runs no destructor or test harness code that another thread of the parent may have been in.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork failed");
    if child == 0 {
        let code = i32::from(!follows_real_time(&cached));
        // SAFETY: ends the child at once, as it should end.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: waits for the child just forked, by its id, writing to a live integer.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(waited, child);
    assert_eq!(status, 0, "cached time stood still in the child");
}
