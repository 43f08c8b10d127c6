//! Processes forked from one: each has names of its own, whenever its client was created.
#![cfg(unix)]
#![expect(unsafe_code, reason = "there is no safe fork")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tollgate::Rate;
use tollgate_engine::backend::LimitKind;
use tollgate_redis::Redis;
use tollgate_testkit::redis::Server;

const CHILDREN: usize = 4;
const SLOTS: i32 = 2;
/// The exit code of a child that got no answer.
const FAILED: i32 = 99;

fn runtime() -> Runtime {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime of one thread")
}

fn connect(url: &str, runtime: &Runtime) -> Redis {
    let _here = runtime.enter();
    let builder = Redis::builder(url).expect("a server's own URL");
    let builder = builder.timeout(Duration::from_secs(20)).node_count(1);
    builder.build().expect("a runtime")
}

/// What children say, one after the other.
fn said_by_children(child: impl Fn() -> i32) -> Vec<i32> {
    let fork = |_| {
        // SAFETY: the child asks a server on a runtime of its own thread, and leaves by `_exit`, so it runs no
        // destructor or test harness code that another thread of the parent may have been in.
        let id = unsafe { libc::fork() };
        assert!(id >= 0, "fork failed");
        if id == 0 {
            let code = catch_unwind(AssertUnwindSafe(&child)).unwrap_or(FAILED);
            // SAFETY: ends the child at once, as it should end.
            unsafe { libc::_exit(code) };
        }
        let mut status = 0;
        // SAFETY: waits for the child just forked, by its id, writing to a live integer.
        let waited = unsafe { libc::waitpid(id, &raw mut status, 0) };
        assert_eq!(waited, id);
        libc::WEXITSTATUS(status)
    };
    (0..CHILDREN).map(fork).collect()
}

/// How many permits it gets, which it still holds when it exits.
fn slots_taken(redis: &Redis, runtime: &Runtime) -> i32 {
    let slots = redis
        .limiter_with_kind("jobs", LimitKind::Concurrency(2))
        .build();
    let slots = slots.expect("slots");
    runtime.block_on(async {
        let mut taken = 0;
        for _ in 0..SLOTS {
            let answer = slots.try_check("k", 1).await.expect("an answer");
            taken += i32::from(answer.denied().is_none());
            std::mem::forget(answer);
        }
        taken
    })
}

/// Whether it gets a token of a leased limit.
fn leases(redis: &Redis, runtime: &Runtime) -> i32 {
    let leased = redis.limiter("leased", Rate::per_day(1000)).leased();
    let leased = leased.build().expect("a limit");
    let answer = runtime.block_on(leased.try_check("k", 1));
    i32::from(answer.expect("an answer").allowed().is_some())
}

#[test]
fn forked_processes_share_no_names() {
    let server = Server::start();
    let url = server.url();
    // A client of each child's own.
    let taken = said_by_children(|| {
        let runtime = runtime();
        slots_taken(&connect(&url, &runtime), &runtime)
    });
    assert_eq!(taken, [2, 0, 0, 0]);
    let leased = said_by_children(|| {
        let runtime = runtime();
        leases(&connect(&url, &runtime), &runtime)
    });
    assert_eq!(leased, [1; CHILDREN]);

    // And one that was there before.
    server.command(&["FLUSHALL"]);
    let runtime = runtime();
    let redis = connect(&url, &runtime);
    let taken = said_by_children(|| slots_taken(&redis, &runtime));
    assert_eq!(taken, [2, 0, 0, 0]);
    let leased = said_by_children(|| leases(&redis, &runtime));
    assert_eq!(leased, [1; CHILDREN]);
}
