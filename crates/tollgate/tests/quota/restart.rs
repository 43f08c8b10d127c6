//! Restarts: what is restored, what locks others out, and failures of the disk.

use std::fs;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use tollgate::clock::Manual;
use tollgate::quota::{self, Durability, FileError, OnFileFailure, QuotaDenied};
use tollgate::{Quota, QuotaLimiter, Timestamp};

use crate::scratch::Scratch;

const DAY: Duration = Duration::from_secs(86_400);
const START: u64 = 1_717_200_000;

/// Flushes only on request.
fn builder(quota: Quota) -> quota::Builder<Manual> {
    bounded(quota, 1_000_000)
}

/// The same for so many keys.
fn bounded(quota: Quota, capacity: usize) -> quota::Builder<Manual> {
    QuotaLimiter::builder(quota, capacity)
        .clock(Manual::starting_at(Timestamp::from_secs(START)))
        .flush_every(Duration::from_secs(86_400))
}

#[test]
fn what_is_reopened_is_what_was_there() {
    for quota in [
        Quota::per_month(1_000_000),
        Quota::rolling(1_000_000, 60 * DAY).expect("a period"),
    ] {
        let scratch = Scratch::new("same");
        let limiter = builder(quota.clone()).open(scratch.file()).unwrap();
        for turn in 0..40u64 {
            for key in 0..50u64 {
                let _ = limiter.check_n(&format!("tenant-{key}"), key * turn);
            }
            limiter.clock().advance(DAY / 2);
        }
        limiter.reset("tenant-3");
        limiter.refund("tenant-4", 100);
        let now = START + 20 * 86_400;
        let looks: Vec<_> = (0..50)
            .map(|key| limiter.peek(&format!("tenant-{key}")))
            .collect();
        limiter.close().unwrap();
        for _ in 0..2 {
            let again = builder(quota.clone());
            let again = again.clock(Manual::starting_at(Timestamp::from_secs(now)));
            let again = again.open(scratch.file()).unwrap();
            for (key, look) in looks.iter().enumerate() {
                assert_eq!(
                    again.peek(&format!("tenant-{key}")),
                    *look,
                    "{key} of {quota}"
                );
            }
            assert_eq!(again.peek("tenant-3").remaining, 1_000_000);
            assert_eq!(again.stats().recovered_bytes, 0);
            // Dropping closes as well.
        }
    }
}

#[test]
fn a_period_that_ended_meanwhile_is_over() {
    let scratch = Scratch::new("over");
    let limiter = builder(Quota::per_day(10)).open(scratch.file()).unwrap();
    let _ = limiter.check_n("a", 10);
    drop(limiter);
    let later = |seconds| {
        let clock = Manual::starting_at(Timestamp::from_secs(seconds));
        let builder = builder(Quota::per_day(10)).clock(clock);
        builder.open(scratch.file()).unwrap()
    };
    let next_day = later(START + 86_400);
    assert_eq!(next_day.stats().keys, 0);
    assert!(next_day.check_n("a", 5).is_allowed());
    next_day.reset("a");
    drop(next_day);
    // A clock that is set back over the restart doesn't bring the day before back.
    let set_back = later(START);
    assert!(set_back.check_n("b", 10).is_allowed());
    assert_eq!(set_back.check("b").wait_or_max(), 2 * DAY);
}

#[test]
fn another_period_or_count_after_a_restart_counts_what_was_used() {
    let scratch = Scratch::new("changed");
    let limiter = builder(Quota::per_day(10)).open(scratch.file()).unwrap();
    let _ = limiter.check_n("a", 7);
    drop(limiter);
    let limiter = builder(Quota::per_day(100)).open(scratch.file()).unwrap();
    assert_eq!(limiter.peek("a").remaining, 93);
    drop(limiter);
    let limiter = builder(Quota::per_month(100)).open(scratch.file()).unwrap();
    assert_eq!(limiter.check("a").remaining, 92);
    assert_eq!(limiter.peek("a").reset_after, 30 * DAY);
}

#[test]
fn thresholds_are_not_told_again_after_a_restart() {
    let scratch = Scratch::new("told");
    let told = Arc::new(Mutex::new(Vec::new()));
    let open = || {
        let log = Arc::clone(&told);
        builder(Quota::per_day(10))
            .on_threshold(&[80], move |event| log.lock().unwrap().push(event.used))
            .open(scratch.file())
            .unwrap()
    };
    let limiter = open();
    let receipt = limiter.charge("a", 8).unwrap();
    limiter.refund_receipt("a", receipt);
    drop(limiter);
    let limiter = open();
    let _ = limiter.check_n("a", 9);
    assert_eq!(*told.lock().unwrap(), [8]);
}

#[test]
fn a_file_in_use_is_refused() {
    let scratch = Scratch::new("locked");
    let limiter = builder(Quota::per_day(10)).open(scratch.file()).unwrap();
    let _ = limiter.check("a");
    let second = builder(Quota::per_day(10)).open(scratch.file());
    let error = second.unwrap_err();
    assert!(matches!(error, FileError::Locked { .. }));
    assert_eq!(
        scratch.text(&error),
        "quota store quotas is in use by another limiter; give each process a file of its own"
    );
    drop(limiter);
    let limiter = builder(Quota::per_day(10)).open(scratch.file()).unwrap();
    assert_eq!(limiter.peek("a").remaining, 9);
}

#[cfg(unix)]
#[test]
fn a_file_and_a_link_to_it_are_one_store() {
    let scratch = Scratch::new("link");
    let (file, link) = (scratch.file(), scratch.0.join("link"));
    std::os::unix::fs::symlink("quotas", &link).unwrap();
    let limiter = builder(Quota::per_day(10)).open(&link).unwrap();
    assert!(limiter.check_n("a", 7).is_allowed());
    let second = builder(Quota::per_day(10)).open(&file);
    assert!(matches!(second, Err(FileError::Locked { .. })));
    limiter.close().unwrap();
    // The link is still one, and what it leads to was written.
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    let limiter = builder(Quota::per_day(10)).open(&file).unwrap();
    assert_eq!(limiter.peek("a").remaining, 3);
}

#[cfg(unix)]
#[test]
fn a_file_of_two_names_is_refused_under_either() {
    let scratch = Scratch::new("names");
    let (file, other) = (scratch.file(), scratch.0.join("other"));
    let open = |file: &std::path::Path| builder(Quota::per_day(10)).open(file);
    let limiter = open(&file).unwrap();
    assert!(limiter.check_n("a", 7).is_allowed());
    limiter.flush().unwrap();
    fs::hard_link(&file, &other).unwrap();
    // While it is open, and after.
    let error = open(&other).unwrap_err();
    assert!(matches!(error, FileError::HardLinked { names: 2, .. }));
    assert_eq!(
        scratch.text(&error),
        "quota store other has 2 names (hard links), and would be granted under each; keep one, and copy \
         the file for anything else"
    );
    std::mem::forget(limiter);
    let error = open(&other).unwrap_err();
    assert!(matches!(error, FileError::HardLinked { .. }));
    fs::remove_file(&file).unwrap();
    assert_eq!(open(&other).unwrap().peek("a").remaining, 3);
}

#[test]
fn too_many_keys_and_impossible_paths_are_errors() {
    let scratch = Scratch::new("many");
    let limiter = builder(Quota::per_day(10)).open(scratch.file()).unwrap();
    for key in 0..20u32 {
        let _ = limiter.check(&key.to_le_bytes());
    }
    drop(limiter);
    let error = bounded(Quota::per_day(10), 19)
        .open(scratch.file())
        .unwrap_err();
    assert_eq!(
        scratch.text(&error),
        "quota store quotas holds 20 keys, more than the 19 that may be counted"
    );
    let error = builder(Quota::per_day(10))
        .open("/no/such/folder/quotas")
        .unwrap_err();
    let text = error.to_string();
    assert!(
        text.starts_with("quota store /no/such/folder/quotas: "),
        "{text}"
    );
    let error = builder(Quota::per_day(10)).open("/").unwrap_err();
    assert_eq!(error.to_string(), "quota store /: not the name of a file");
}

#[test]
fn a_failing_store_is_told_retried_and_refuses_at_the_bound() {
    let scratch = Scratch::new("failing");
    let folder = scratch.0.join("disk");
    fs::create_dir(&folder).unwrap();
    let file = folder.join("quotas");
    let limiter = builder(Quota::per_day(1_000)).max_unsaved(10).open(&file);
    let limiter = limiter.unwrap();
    let _ = limiter.check_n("a", 3);
    limiter.flush().unwrap();
    assert_eq!(
        (limiter.stats().unsaved, limiter.stats().last_error),
        (0, None)
    );
    // The disk goes away.
    fs::remove_dir_all(&folder).unwrap();
    let _ = limiter.check_n("a", 4);
    assert!(limiter.flush().is_err());
    let stats = limiter.stats();
    assert_eq!((stats.unsaved, stats.failed_flushes), (4, 1));
    let error = stats.last_error.unwrap();
    assert!(error.contains("disk/quotas: "), "{error}");
    // Up to the bound requests pass, then none.
    assert!(limiter.check_n("a", 6).is_allowed());
    let refused = limiter.charge("a", 1).unwrap_err();
    assert!(matches!(
        refused,
        QuotaDenied::TooMuchUnsaved {
            max_unsaved: 10,
            ..
        }
    ));
    assert_eq!(
        refused.to_string(),
        "quota: 10 units are granted but not saved yet; retry in 1d"
    );
    assert_eq!(limiter.peek("a").remaining, 987);
    // It comes back, and nothing that was granted is missing.
    fs::create_dir(&folder).unwrap();
    limiter.flush().unwrap();
    assert_eq!(
        (limiter.stats().unsaved, limiter.stats().last_error),
        (0, None)
    );
    assert!(limiter.check("a").is_allowed());
    drop(limiter);
    let limiter = builder(Quota::per_day(1_000)).open(&file).unwrap();
    assert_eq!(limiter.peek("a").remaining, 986);
}

#[test]
fn a_failing_store_grants_if_that_was_chosen() {
    let scratch = Scratch::new("granting");
    let folder = scratch.0.join("disk");
    fs::create_dir(&folder).unwrap();
    let limiter = builder(Quota::per_day(1_000))
        .max_unsaved(10)
        .on_file_failure(OnFileFailure::Allow)
        .open(folder.join("quotas"))
        .unwrap();
    fs::remove_dir_all(&folder).unwrap();
    assert!(limiter.check_n("a", 900).is_allowed());
    assert!(limiter.check_n("a", 100).is_allowed());
    assert!(!limiter.check_n("a", 1).is_allowed(), "the quota holds");
    assert_eq!(limiter.stats().unsaved, 1_000);
    assert!(limiter.close().is_err());
}

#[test]
fn a_cost_above_the_bound_passes_alone() {
    let scratch = Scratch::new("alone");
    let limiter = builder(Quota::per_day(1_000))
        .max_unsaved(10)
        .open(scratch.file())
        .unwrap();
    assert!(limiter.check_n("a", 500).is_allowed());
    limiter.flush().unwrap();
    assert!(limiter.check_n("a", 500).is_allowed());
}

#[test]
fn the_thread_flushes_early_and_in_time() {
    let scratch = Scratch::new("thread");
    // Early: half of the bound is granted, and the interval is a day.
    let limiter = builder(Quota::per_day(1_000))
        .max_unsaved(100)
        .open(scratch.file())
        .unwrap();
    let _ = limiter.check_n("a", 51);
    while limiter.stats().unsaved > 0 {
        thread::yield_now();
    }
    drop(limiter);
    // In time: the interval is short, and the bound far away.
    let limiter = builder(Quota::per_day(1_000))
        .flush_every(Duration::from_millis(1))
        .open(scratch.file())
        .unwrap();
    let _ = limiter.check_n("a", 1);
    while limiter.stats().unsaved > 0 {
        thread::yield_now();
    }
    assert!(limiter.stats().flushes > 0);
}

#[test]
fn the_file_stays_small_however_often_it_is_flushed() {
    let scratch = Scratch::new("small");
    let limiter = builder(Quota::per_day(u64::MAX))
        .open(scratch.file())
        .unwrap();
    let keys: Vec<String> = (0..300).map(|key| format!("{key:0>900}")).collect();
    let mut largest = 0;
    for _ in 0..12 {
        for key in &keys {
            let _ = limiter.check(key);
        }
        limiter.flush().unwrap();
        let bytes = fs::metadata(scratch.file()).unwrap().len();
        assert_eq!(bytes, limiter.stats().store_bytes);
        largest = largest.max(bytes);
    }
    // A flush is some 290 kB; it is written anew beyond a megabyte of them.
    assert!(largest > 1_000_000 && largest < 2_000_000, "{largest}");
    drop(limiter);
    let bytes = fs::metadata(scratch.file()).unwrap().len();
    assert!(bytes < 300_000, "{bytes}");
    let limiter = builder(Quota::per_day(100)).open(scratch.file()).unwrap();
    assert!(keys.iter().all(|key| limiter.peek(key).remaining == 88));
}

#[test]
fn a_damaged_file_is_an_error_and_stays_as_it_is() {
    let scratch = Scratch::new("damaged");
    let open = || builder(Quota::per_day(100)).open(scratch.file());
    let limiter = open().unwrap();
    let _ = limiter.check_n("a", 30);
    limiter.flush().unwrap();
    let _ = limiter.check_n("a", 40);
    limiter.flush().unwrap();
    let killed = fs::read(scratch.file()).unwrap();
    drop(limiter);
    let closed = fs::read(scratch.file()).unwrap();
    for (right, place) in [(&closed, 3), (&closed, 40), (&killed, 20), (&killed, 60)] {
        let mut damaged = right.clone();
        damaged[place] ^= 4;
        fs::write(scratch.file(), &damaged).unwrap();
        assert!(open().is_err(), "byte {place}");
        assert_eq!(fs::read(scratch.file()).unwrap(), damaged);
    }
    fs::write(scratch.file(), "").unwrap();
    assert!(matches!(
        open().unwrap_err(),
        FileError::NotAQuotaFile { .. }
    ));
    // As a kill leaves it: whole, or with the last write unfinished.
    fs::write(scratch.file(), &killed).unwrap();
    assert_eq!(open().unwrap().peek("a").remaining, 30);
    fs::write(scratch.file(), &killed[..killed.len() - 1]).unwrap();
    let limiter = open().unwrap();
    assert_eq!(limiter.peek("a").remaining, 70);
    assert!(limiter.stats().recovered_bytes > 0);
}

/// What every key together has used, as a kill now would leave it.
fn saved(scratch: &Scratch, keys: &[String]) -> u64 {
    let copy = scratch.0.join("copy");
    fs::copy(scratch.file(), &copy).expect("a copy");
    let copy = builder(Quota::per_day(u64::MAX)).open(&copy);
    let copy = copy.expect("a copy that opens");
    keys.iter()
        .map(|key| u64::MAX - copy.peek(key).remaining)
        .sum()
}

#[test]
fn what_is_not_in_the_file_is_counted_as_unsaved() {
    let scratch = Scratch::new("together");
    let limiter = builder(Quota::per_day(u64::MAX))
        .max_unsaved(u64::MAX)
        .open(scratch.file())
        .unwrap();
    let keys: Vec<String> = (0..2_000).map(|key| format!("tenant-{key}")).collect();
    let mut granted = 0;
    for round in 0..20 {
        // The last flush of a round ends while others still charge, or just have.
        thread::scope(|scope| {
            let charge = |number: usize| {
                let (limiter, keys) = (&limiter, &keys);
                scope.spawn(move || {
                    for turn in 0..4_000 {
                        assert!(limiter.check(&keys[turn * number % 2_000]).is_allowed());
                    }
                })
            };
            let threads = [charge(1), charge(7)];
            while !threads.iter().all(thread::ScopedJoinHandle::is_finished) {
                limiter.flush().unwrap();
            }
        });
        granted += 8_000;
        let (unsaved, saved) = (limiter.stats().unsaved, saved(&scratch, &keys));
        assert!(saved <= granted, "round {round}: grants from nowhere");
        let lost = granted - saved;
        assert!(
            lost <= unsaved,
            "round {round}: {lost} lost, but {unsaved} told"
        );
    }
    limiter.flush().unwrap();
    assert_eq!(limiter.stats().unsaved, 0);
    assert_eq!(saved(&scratch, &keys), granted);
}

#[test]
fn what_is_saved_ahead_covers_all_that_is_granted() {
    let scratch = Scratch::new("ahead");
    let open = |file: &std::path::Path| {
        builder(Quota::per_day(1_000))
            .durability(Durability::WriteAhead { block: 100 })
            .open(file)
            .unwrap()
    };
    let limiter = open(&scratch.file());
    let copy = scratch.0.join("copy");
    let mut granted = 0;
    for cost in [1, 30, 150, 7, 0, 400, 99, 300, 13] {
        assert!(limiter.check_n("a", cost).is_allowed());
        granted += cost;
        fs::copy(scratch.file(), &copy).unwrap();
        let used = 1_000 - open(&copy).peek("a").remaining;
        assert!(
            used >= granted && used <= granted + 100,
            "{used} of {granted}"
        );
        assert_eq!(limiter.peek("a").remaining, 1_000 - granted);
    }
    assert_eq!(granted, 1_000);
    assert!(!limiter.check("a").is_allowed());
    let _ = limiter.check_n("b", 5);
    let receipt = limiter.charge("b", 10).unwrap();
    limiter.refund_receipt("b", receipt);
    // Closed in order, nothing is lost.
    drop(limiter);
    let limiter = open(&scratch.file());
    assert_eq!(limiter.peek("a").remaining, 0);
    assert_eq!(limiter.peek("b").remaining, 995);
    assert_eq!(limiter.stats().unsaved, 0);
}

#[test]
fn what_cannot_be_saved_ahead_is_refused() {
    let scratch = Scratch::new("ahead-failing");
    let folder = scratch.0.join("disk");
    fs::create_dir(&folder).unwrap();
    let limiter = builder(Quota::per_day(1_000))
        .durability(Durability::WriteAhead { block: 10 })
        .open(folder.join("quotas"))
        .unwrap();
    assert!(limiter.check_n("a", 1).is_allowed());
    fs::remove_dir_all(&folder).unwrap();
    assert!(
        limiter.check_n("a", 9).is_allowed(),
        "the rest of the block"
    );
    let refused = limiter.charge("a", 1).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "quota: the store fails, and no more can be saved ahead; retry in 1d"
    );
    assert_eq!(limiter.peek("a").remaining, 990);
    fs::create_dir(&folder).unwrap();
    assert_eq!(limiter.check("a").remaining, 989);
}
