//! Snapshots of an exact-key table: the restored state equals the saved one, for every algorithm, and an invalid file
//! restores nothing.

use std::fs;
use std::path::Path;
use std::time::Duration;

use tollgate::clock::Manual;
use tollgate::{
    Algorithm, KeyedLimiter, Rate, StoredKeyLimiter, Tier, Timestamp, WhenFull,
    core::WindowAlignment, keyed::SnapshotError, stored_keys,
};
use tollgate_testkit::snapshot_corruption;
use tollgate_testkit::temp_folder::TempFolder;

/// Where the words of the file lie, in words from its start.
const VERSION: usize = 1;
const WALL: usize = 5;

const EVERY_ALGORITHM: [Algorithm; 7] = [
    Algorithm::Gcra,
    Algorithm::TokenBucket,
    Algorithm::LeakyBucket,
    Algorithm::FixedWindow(WindowAlignment::Boundary(Timestamp::ZERO)),
    Algorithm::FixedWindow(WindowAlignment::FirstHit),
    Algorithm::SlidingLog,
    Algorithm::SlidingCounter,
];

type Table = StoredKeyLimiter<String, Manual>;

fn builder(algorithm: Algorithm, starting_at: Duration) -> stored_keys::Builder<String, Manual> {
    StoredKeyLimiter::builder(Rate::per_hour(10), 5_000)
        .algorithm(algorithm)
        .at_cap(WhenFull::DenyNew)
        .clock(Manual::starting_at(Timestamp::ZERO + starting_at))
}

/// A limiter five and a half hours after its clock's origin in which key n has spent n modulo 11, half
/// of it an age before the other half, and one more key is blocked.
fn some(algorithm: Algorithm, keys: u64) -> Table {
    let limiter = builder(algorithm, Duration::from_secs(5 * 3_600 + 600))
        .build()
        .expect("a rate that fits");
    let spend = |half: fn(u64) -> u64| {
        for key in 0..keys {
            let _ = limiter.check_n(&*key.to_string(), half(key % 11));
        }
    };
    spend(|cost| cost / 2);
    limiter.clock().advance(Duration::from_secs(1_200));
    spend(|cost| cost - cost / 2);
    let day = Duration::from_secs(86_400);
    limiter.key("blocked").block_for(day).expect("a slot");
    limiter
}

fn save(limiter: &Table, path: &Path) -> u64 {
    let encode = |key: &String, bytes: &mut Vec<u8>| bytes.extend(key.as_bytes());
    limiter.snapshot(path, encode).expect("a written file")
}

fn load(
    builder: stored_keys::Builder<String, Manual>,
    path: &Path,
) -> Result<Table, SnapshotError> {
    builder.restore(path, |bytes| String::from_utf8(bytes.to_vec()).ok())
}

/// Changes one word of a file and makes the checksum fit again.
fn tamper(path: &Path, word: usize, change: impl Fn(u64) -> u64) {
    snapshot_corruption::corrupt_snapshot(path, |words| words[word] = change(words[word]));
}

/// As if the snapshot came from the future: then no time has passed since, exactly.
fn without_time(path: &Path) {
    tamper(path, WALL, |_| u64::MAX);
}

#[test]
fn what_is_restored_is_what_was_there() {
    for algorithm in EVERY_ALGORITHM {
        let scratch = TempFolder::new("exact-same");
        let limiter = some(algorithm, 2_000);
        assert_eq!(
            save(&limiter, &scratch.path("keys.snapshot")),
            limiter.len() as u64
        );
        without_time(&scratch.path("keys.snapshot"));
        // On a clock that shows another time: for windows a whole number of them later, or hardly
        // any, so that the past lies before its origin.
        let exact = algorithm != Algorithm::SlidingCounter;
        for hours in [0, 7] {
            let at = Duration::from_secs(hours * 3_600 + 1_800);
            let restored = load(builder(algorithm, at), &scratch.path("keys.snapshot")).unwrap();
            assert_eq!(restored.len(), limiter.len(), "{algorithm:?}");
            for key in (0..2_000u64).map(|key| key.to_string()) {
                let (was, is) = (limiter.key(&*key).peek(), restored.key(&*key).peek());
                assert_eq!(is.remaining, was.remaining, "{algorithm:?} {key}");
                if exact {
                    assert_eq!(is, was, "{algorithm:?} {key}");
                }
            }
            let blocked = restored.check("blocked");
            assert_eq!(
                blocked.wait_or_max(),
                limiter.check("blocked").wait_or_max()
            );
        }
    }
}

#[test]
fn a_restored_key_never_gets_more_than_it_would_have_had() {
    for algorithm in EVERY_ALGORITHM {
        let scratch = TempFolder::new("exact-less");
        let limiter = some(algorithm, 200);
        save(&limiter, &scratch.path("keys.snapshot"));
        without_time(&scratch.path("keys.snapshot"));
        // Windows begin elsewhere on this clock.
        let at = Duration::from_secs(123_456);
        let restored = load(builder(algorithm, at), &scratch.path("keys.snapshot")).unwrap();
        for _ in 0..30 {
            for key in (0..200u64).map(|key| key.to_string()) {
                let (was, is) = (limiter.key(&*key).peek(), restored.key(&*key).peek());
                let early = is.remaining > was.remaining;
                // Once the window that was open is over, a fixed one starts afresh at other times.
                let fixed = matches!(
                    algorithm,
                    Algorithm::FixedWindow(WindowAlignment::Boundary(_))
                );
                assert!(!early || fixed, "{algorithm:?} {key}: {was:?} {is:?}");
            }
            let step = Duration::from_secs(60);
            limiter.clock().advance(step);
            restored.clock().advance(step);
        }
    }
}

#[test]
fn the_time_since_the_snapshot_counts() {
    for algorithm in EVERY_ALGORITHM {
        let scratch = TempFolder::new("exact-time");
        let limiter = some(algorithm, 11);
        let short = Duration::from_secs(1_800);
        limiter.key("half an hour").block_for(short).unwrap();
        save(&limiter, &scratch.path("keys.snapshot"));
        // Two hours ago: all tokens came back, and the shorter block is over.
        tamper(&scratch.path("keys.snapshot"), WALL, |wall| {
            wall - 7_200_000_000_000
        });
        let restored = load(
            builder(algorithm, Duration::ZERO),
            &scratch.path("keys.snapshot"),
        )
        .unwrap();
        assert_eq!(restored.len(), 1, "{algorithm:?}");
        assert!((0..11).all(|key: u64| restored.key(&*key.to_string()).peek().remaining == 10));
        assert!(restored.allow("half an hour"));
        let wait = restored.check("blocked").wait_or_max();
        assert!(wait <= Duration::from_secs(86_400 - 7_200), "{wait:?}");
        assert!(wait > Duration::from_secs(86_400 - 8_000), "{wait:?}");
        // Years ago: nobody is active any more.
        tamper(&scratch.path("keys.snapshot"), WALL, |_| 0);
        let nobody = load(
            builder(algorithm, Duration::ZERO),
            &scratch.path("keys.snapshot"),
        )
        .unwrap();
        assert!(nobody.is_empty());
    }
}

#[test]
fn tiers_bookings_and_another_rate_carry_over() {
    for algorithm in EVERY_ALGORITHM {
        let scratch = TempFolder::new("exact-tiers");
        let limiter = some(algorithm, 0);
        let gold = Tier::new(limiter.algorithm(), Rate::per_hour(100)).unwrap();
        let _ = limiter.key("gold").at(&gold).unwrap().check_n(40);
        let _ = limiter.check_n("plain", 4);
        assert!(limiter.check_n("booked", 10).is_allowed());
        let act_at = limiter.key("booked").reserve(1).map(|slot| {
            let delay = slot.delay();
            slot.keep();
            delay
        });
        save(&limiter, &scratch.path("keys.snapshot"));
        without_time(&scratch.path("keys.snapshot"));
        let next = || builder(algorithm, Duration::from_secs(1_800));
        let restored = load(next(), &scratch.path("keys.snapshot")).unwrap();
        let gold = Tier::new(restored.algorithm(), Rate::per_hour(100)).unwrap();
        let left = restored.key("gold").at(&gold).unwrap().check_n(0).remaining;
        assert_eq!(left, 60, "{algorithm:?}");
        assert_eq!(restored.key("plain").peek().remaining, 6, "{algorithm:?}");
        if act_at.is_ok() {
            assert_eq!(restored.check("booked"), limiter.check("booked"));
        }
        // Another rate: as at a live change.
        let faster = StoredKeyLimiter::builder(Rate::per_hour(20), 5_000)
            .algorithm(algorithm)
            .clock(Manual::starting_at(Timestamp::from_secs(1_800)));
        let faster = load(faster, &scratch.path("keys.snapshot")).unwrap();
        limiter.set_rate(Rate::per_hour(20)).unwrap();
        let (is, was) = (faster.key("plain").peek(), limiter.key("plain").peek());
        assert_eq!(is.remaining, was.remaining, "{algorithm:?}");
    }
}

#[test]
fn the_default_clock_restores_too_and_keys_may_be_anything() {
    let scratch = TempFolder::new("exact-default");
    let limiter = StoredKeyLimiter::<(u32, String)>::new(Rate::per_hour(10), 100);
    let key = (7, String::from("/a route longer than a word"));
    let _ = limiter.check_n(&key, 10);
    let encode = |(tenant, route): &(u32, String), bytes: &mut Vec<u8>| {
        bytes.extend(tenant.to_le_bytes());
        bytes.extend(route.as_bytes());
    };
    assert_eq!(
        limiter
            .snapshot(scratch.path("keys.snapshot"), encode)
            .unwrap(),
        1
    );
    let decode = |bytes: &[u8]| {
        let (tenant, route) = bytes.split_first_chunk()?;
        let route = String::from_utf8(route.to_vec()).ok()?;
        Some((u32::from_le_bytes(*tenant), route))
    };
    let builder = StoredKeyLimiter::builder(Rate::per_hour(10), 100);
    let restored: StoredKeyLimiter<_> = builder
        .restore(scratch.path("keys.snapshot"), decode)
        .unwrap();
    assert!(!restored.allow(&key));
}

#[test]
fn only_the_owner_reads_the_file_and_nothing_else_is_left() {
    let scratch = TempFolder::new("exact-replace");
    save(
        &some(Algorithm::SlidingLog, 1_000),
        &scratch.path("keys.snapshot"),
    );
    assert_eq!(
        save(&some(Algorithm::Gcra, 0), &scratch.path("keys.snapshot")),
        1
    );
    assert_eq!(fs::read_dir(scratch.folder()).unwrap().count(), 1);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = fs::metadata(scratch.path("keys.snapshot"))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}

/// The error of restoring the file into a limiter of this algorithm, as text.
fn refused(scratch: &TempFolder, algorithm: Algorithm) -> String {
    match load(
        builder(algorithm, Duration::ZERO),
        &scratch.path("keys.snapshot"),
    ) {
        Ok(_) => "restored".to_owned(),
        Err(error) => scratch.text(&error),
    }
}

#[test]
fn a_file_that_is_not_right_says_what_is_wrong_with_it() {
    let scratch = TempFolder::new("exact-wrong");
    let file = scratch.path("keys.snapshot");
    let log = Algorithm::SlidingLog;
    save(&some(log, 20), &file);
    let right = fs::read(&file).unwrap();
    assert_eq!(
        refused(&scratch, Algorithm::SlidingCounter),
        "snapshot keys.snapshot was written by a limiter of another algorithm; build this one with \
         the same"
    );

    tamper(&file, VERSION, |_| 1);
    assert_eq!(
        refused(&scratch, log),
        "snapshot keys.snapshot has version 1, but this build reads version 2; start without it, or \
         restore it with the build that wrote it"
    );

    // One key less than there are words for, and one more.
    for change in [|keys: u64| keys - 1, |keys: u64| keys + 1, |_| u64::MAX] {
        fs::write(&file, &right).unwrap();
        snapshot_corruption::corrupt_snapshot(&file, |words| {
            let keys = words.last_mut().expect("how many there are");
            *keys = change(*keys);
        });
        assert_eq!(
            refused(&scratch, log),
            "snapshot keys.snapshot is corrupt: its checksum doesn't fit"
        );
    }

    fs::write(&file, &right).unwrap();
    let error = builder(log, Duration::ZERO)
        .restore(&file, |_| None)
        .unwrap_err();
    assert_eq!(
        scratch.text(&error),
        "snapshot keys.snapshot holds a key that can't be decoded; decode keys as they were encoded"
    );
    let one_for_all = |_: &[u8]| Some(String::from("the same"));
    let error = builder(log, Duration::ZERO).restore(&file, one_for_all);
    assert!(matches!(error, Err(SnapshotError::Key { .. })));

    // The file of the other kind of limiter.
    let other = KeyedLimiter::new(Rate::per_hour(10), 100);
    other.snapshot(&file).unwrap();
    assert_eq!(
        refused(&scratch, log),
        "keys.snapshot is not a snapshot of a limiter"
    );
    fs::write(&file, &right).unwrap();
    let builder = KeyedLimiter::builder(Rate::per_hour(10), 100);
    let error = builder.restore(&file).unwrap_err();
    assert!(matches!(error, SnapshotError::Foreign { .. }));
}

#[test]
fn no_damaged_or_shortened_file_is_loaded() {
    for algorithm in [Algorithm::Gcra, Algorithm::SlidingLog] {
        let scratch = TempFolder::new("exact-damaged");
        save(&some(algorithm, 3), &scratch.path("keys.snapshot"));
        let right = fs::read(scratch.path("keys.snapshot")).unwrap();
        for length in 0..right.len() {
            fs::write(scratch.path("keys.snapshot"), &right[..length]).unwrap();
            let error = load(
                builder(algorithm, Duration::ZERO),
                &scratch.path("keys.snapshot"),
            )
            .unwrap_err();
            let named = matches!(
                error,
                SnapshotError::Length { .. } | SnapshotError::Foreign { .. }
            );
            assert!(named, "{length}: {error}");
        }
        for place in 0..right.len() {
            let mut damaged = right.clone();
            damaged[place] ^= 0x10;
            fs::write(scratch.path("keys.snapshot"), damaged).unwrap();
            let loaded = load(
                builder(algorithm, Duration::ZERO),
                &scratch.path("keys.snapshot"),
            );
            assert!(loaded.is_err(), "{place}");
        }
    }
}

#[test]
fn more_keys_than_fit_are_an_error() {
    let scratch = TempFolder::new("exact-many");
    save(
        &some(Algorithm::TokenBucket, 110),
        &scratch.path("keys.snapshot"),
    );
    let small = StoredKeyLimiter::builder(Rate::per_hour(10), 50)
        .algorithm(Algorithm::TokenBucket)
        .clock(Manual::new());
    let error = load(small, &scratch.path("keys.snapshot")).unwrap_err();
    assert_eq!(
        scratch.text(&error),
        "snapshot keys.snapshot holds 101 active keys, too many for a capacity of 50"
    );
}
