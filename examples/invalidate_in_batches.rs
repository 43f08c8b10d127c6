//! Cache invalidation: keys are collected for 50 ms, without duplicates, and deleted by one command for up to 100
//! keys. The store is unreachable for a while, and no key is forgotten.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tollgate::clock::Manual;
use tollgate_shape::{Coalesce, FlushOutcome};

fn main() {
    let clock = Manual::new();
    let (deleted, commands) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (keys, sent) = (Arc::clone(&deleted), Arc::clone(&commands));
    let invalidations = Coalesce::window(Duration::from_millis(50))
        .max_items(100)
        .max_pending(10_000)
        .merge(|_key: &String, times: &mut u32, more| *times += more)
        .clock(clock.clone())
        .build(move |batch| {
            // The store is unreachable for the first two tries.
            if sent.fetch_add(1, Ordering::Relaxed) == 0 || batch.attempt() == 1 {
                println!("store is away, {} keys later", batch.len());
                return FlushOutcome::RetryIn(Duration::from_millis(100 << batch.attempt()));
            }
            keys.fetch_add(batch.len(), Ordering::Relaxed);
            println!("DEL of {} keys, first {}", batch.len(), batch.items()[0].0);
            FlushOutcome::Done
        });

    // 1,000 writes to 60 keys in a tenth of a second.
    for write in 0..1_000u32 {
        let key = format!("user:{}", write % 60);
        invalidations.try_add(key, 1).expect("room for 10,000");
        if write % 10 == 9 {
            clock.advance(Duration::from_millis(1));
        }
    }
    clock.advance(Duration::from_millis(50));
    for _ in 0..1_000 {
        clock.advance(Duration::from_millis(1));
    }
    assert_eq!(invalidations.pending(), 0);
    let (deleted, commands) = (
        deleted.load(Ordering::Relaxed),
        commands.load(Ordering::Relaxed),
    );
    println!("1,000 writes, {deleted} deletions by {commands} commands");
    assert!(deleted < 300 && commands < 10);
}
