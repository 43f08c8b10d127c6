//! What a test asks of the allocator, and how much of it is live.
#![expect(unsafe_code, reason = "an allocator can't be written without it")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's allocator, which counts for each thread by itself. A test program makes it its own:
///
/// ```
/// use tollgate_testkit::allocation_counter::{CountingAllocator, allocation_count, live_bytes};
///
/// #[global_allocator]
/// static ALLOCATOR: CountingAllocator = CountingAllocator;
///
/// let (before, used) = (allocation_count(), live_bytes());
/// let bytes = vec![0u8; 1_000];
/// assert_eq!(allocation_count() - before, 1);
/// assert_eq!(live_bytes().wrapping_sub(used), 1_000);
/// drop(bytes);
/// assert_eq!(live_bytes(), used);
/// ```
#[derive(Debug)]
pub struct CountingAllocator;

thread_local! {
    static CALLS: Cell<u64> = const { Cell::new(0) };
    static LIVE: Cell<usize> = const { Cell::new(0) };
}

/// The bytes that this process holds in memory of its own: what it allocated and touched, its stacks,
/// nothing of its program file. Counted page by page, because the system's running totals (`statm`)
/// may be wrong by hundreds of kilobytes on a machine of many cores.
///
/// # Panics
/// Where the system doesn't tell: it needs Linux.
///
/// ```
/// let before = tollgate_testkit::allocation_counter::held_bytes();
/// let touched = vec![1u8; 10 << 20];
/// assert!(tollgate_testkit::allocation_counter::held_bytes() >= before + touched.len());
/// ```
pub fn held_bytes() -> usize {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup")
        .expect("Linux tells the size of a process in /proc/self/smaps_rollup");
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("Anonymous:"));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<usize>().ok());
    kilobytes.expect("a line `Anonymous: N kB`") * 1_024
}

/// Whether a test that compares what is [held] may go on: it has a process of its own, so that no other test's memory is taken for
/// its. If it shares one (as with `cargo test`), it is run again in one of its own, and this one has nothing more to do.
///
/// # Panics
/// If it fails there.
///
/// ```no_run
/// # use tollgate_testkit::allocation_counter::{is_isolated, held_bytes};
/// // The beginning of a test:
/// if !is_isolated() {
///     return;
/// }
/// let before = held_bytes();
/// # let _ = before;
/// ```
pub fn is_isolated() -> bool {
    const ISOLATED_VARIABLE: &str = "TOLLGATE_TEST_ALONE";
    let thread = std::thread::current();
    // Tests that run one after the other are on the first thread.
    let name = thread.name().filter(|name| *name != "main");
    let is_alone = ["NEXTEST", ISOLATED_VARIABLE].map(|one| std::env::var_os(one).is_some());
    let (false, Some(name)) = (is_alone.contains(&true), name) else {
        return true;
    };
    let program = std::env::current_exe().expect("a program that runs has a path");
    let run = std::process::Command::new(program)
        .args([name, "--exact", "--nocapture"])
        .env(ISOLATED_VARIABLE, "1")
        .output()
        .expect("a program that runs can be run again");
    assert!(
        run.status.success(),
        "{name} failed in a process of its own:\n{}{}",
        String::from_utf8_lossy(&run.stdout),
        String::from_utf8_lossy(&run.stderr)
    );
    false
}

/// How often this thread has asked for memory.
pub fn allocation_count() -> u64 {
    CALLS.get()
}

/// The bytes that this thread has asked for, less those that it gave back. It may have given back what
/// another asked for, so only differences mean something, and they may wrap.
pub fn live_bytes() -> usize {
    LIVE.get()
}

// SAFETY: every call goes to `System` with the caller's own arguments, and what it returns is passed
// on as it is. Counting touches the thread's own cells, which need no memory and no destructor.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.set(CALLS.get() + 1);
        LIVE.set(LIVE.get().wrapping_add(layout.size()));
        // SAFETY: the caller promises a layout of non-zero size, as `System` requires.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        LIVE.set(LIVE.get().wrapping_sub(layout.size()));
        // SAFETY: `memory` came from `System` with this layout, by way of `alloc`.
        unsafe { System.dealloc(memory, layout) }
    }
}
