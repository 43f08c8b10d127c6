//! The state sizes in the book's table, as the compiler lays them out.

use std::mem::size_of;

use tollgate_core::{
    Arithmetic, Bucket, BucketLevel, HitLog, Rate, SlidingCounts, SlidingLog, TatState, Timestamp,
    WindowCount,
};

#[test]
fn a_state_takes_the_bytes_that_the_book_says() {
    let page = include_str!("../../../docs/explanation/algorithms.md");
    for (algorithm, bytes) in [
        ("GCRA", size_of::<TatState>()),
        ("Token bucket", size_of::<Bucket>()),
        ("Leaky bucket (meter)", size_of::<BucketLevel>()),
        ("Fixed window", size_of::<WindowCount>()),
        ("Sliding counter", size_of::<SlidingCounts>()),
    ] {
        let row = format!("| {algorithm} | {bytes} |");
        assert!(
            page.contains(&row),
            "docs/explanation/algorithms.md should have {row}"
        );
    }
    // A log is its header and 16 bytes for each instant with a hit.
    let row = format!("| Sliding log | {} + 16 a hit |", size_of::<HitLog>());
    assert!(
        page.contains(&row),
        "docs/explanation/algorithms.md should have {row}"
    );
}

#[test]
fn a_log_keeps_one_entry_for_each_instant() {
    let limit = SlidingLog::new(Rate::per_second(100)).unwrap();
    let mut log = HitLog::default();
    for millis in 0..50 {
        let _ = limit.decide(&mut log, Timestamp::from_millis(millis), 2);
    }
    assert_eq!(log.len(), 50);
}
