//! Counts allocations and live bytes in tests.
#![expect(unsafe_code, reason = "an allocator can't be written without it")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's allocator, with counters for each thread. A test program installs it:
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

/// The private memory of this process: allocated and touched pages and stacks, without its program file.
/// Counted page by page, because the system's running totals (`statm`) can be wrong by hundreds of kilobytes on
/// a machine with many cores.
///
/// # Panics
/// If the system doesn't report it: it needs Linux.
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

/// Whether a test that compares [`held_bytes`] may go on: it needs a process of its own, so that other tests'
/// memory doesn't count. If the process is shared (as with `cargo test`), the test runs again in a process of
/// its own, and this call returns false.
///
/// # Panics
/// If the test fails there.
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
    // Tests that run one after the other are on the main thread.
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

/// How often this thread has allocated.
pub fn allocation_count() -> u64 {
    CALLS.get()
}

/// The bytes that this thread has allocated, less those that it freed. It may have freed another thread's
/// memory, so only differences have a meaning, and they may wrap.
pub fn live_bytes() -> usize {
    LIVE.get()
}

// SAFETY: every call goes to `System` with the caller's own arguments, and its result is returned unchanged.
// Counting touches the thread's own cells, which need no memory and no destructor.
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
