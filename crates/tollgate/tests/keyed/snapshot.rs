//! Snapshots: the restored state equals the saved one, and an invalid file restores nothing.

use std::error::Error;
use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use tollgate::clock::{Manual, Wall};
use tollgate::{
    Algorithm, Clock, KeyedLimiter, Rate, Tier, Timestamp, WhenFull,
    keyed::{self, SnapshotError},
};
use tollgate_testkit::snapshot_corruption;
use tollgate_testkit::temp_folder::TempFolder;

/// Where the words of the file lie, in words from its start.
const VERSION: usize = 1;
const LENGTH: usize = 2;
const SECTION: usize = 3;
const PROBE: usize = 5;
const WALL: usize = 9;
/// Of a file with 19 keys.
const COUNT: usize = 49;
const INTERVAL: usize = 52;

fn builder(capacity: usize, starting_at: u64) -> keyed::Builder<Manual> {
    KeyedLimiter::builder(Rate::per_hour(10), capacity)
        .at_cap(WhenFull::DenyNew)
        .clock(Manual::starting_at(Timestamp::from_secs(starting_at)))
}

/// A limiter with `keys` keys, of which key n has spent n modulo 11, and a blocked one.
fn some(keys: u64) -> KeyedLimiter<Manual> {
    let limiter = builder(10_000, 500).build().expect("a rate that fits");
    for key in 0..keys {
        let _ = limiter.check_n(&key, key % 11);
    }
    let day = Duration::from_secs(86_400);
    limiter.key("blocked").block_for(day).expect("a slot");
    limiter
}

/// Changes one word of a file and makes the checksum fit again.
fn tamper(path: &Path, word: usize, change: impl Fn(u64) -> u64) {
    snapshot_corruption::corrupt_snapshot(path, |words| words[word] = change(words[word]));
}

/// As if the snapshot came from the future: then no time has passed since, exactly.
fn without_time(path: &Path) {
    tamper(path, WALL, |_| u64::MAX);
}

fn active(limiter: &KeyedLimiter<Manual>) -> Vec<(u64, Duration, bool)> {
    let mut keys = Vec::new();
    limiter.for_each_active(|key| keys.push((key.key, key.idle_after, key.blocked)));
    keys.sort_unstable();
    keys
}

#[test]
fn what_is_restored_is_what_was_there() {
    let scratch = TempFolder::new("same");
    let limiter = some(5_000);
    // Keys that spent nothing aren't active.
    let count = 5_000 - 5_000u64.div_ceil(11) + 1;
    assert_eq!(
        limiter.snapshot(scratch.path("limits.snapshot")).unwrap(),
        count
    );
    without_time(&scratch.path("limits.snapshot"));
    // On a clock that shows another time.
    let restored = builder(10_000, 9)
        .restore(scratch.path("limits.snapshot"))
        .unwrap();
    assert_eq!(active(&restored), active(&limiter));
    for key in 0..5_000u64 {
        assert_eq!(restored.key(&key).peek(), limiter.key(&key).peek(), "{key}");
        assert_eq!(restored.check(&key), limiter.check(&key), "{key}");
    }
    assert_eq!(restored.check("blocked"), limiter.check("blocked"));
    assert_eq!(restored.fingerprint("any"), limiter.fingerprint("any"));
}

#[test]
fn a_table_of_another_size_takes_the_keys_too() {
    let scratch = TempFolder::new("size");
    let limiter = some(3_000);
    limiter.snapshot(scratch.path("limits.snapshot")).unwrap();
    without_time(&scratch.path("limits.snapshot"));
    for capacity in [3_000, 200_000] {
        let restored = builder(capacity, 0)
            .restore(scratch.path("limits.snapshot"))
            .unwrap();
        assert_eq!(active(&restored), active(&limiter), "{capacity}");
    }
}

#[test]
fn the_time_since_the_snapshot_counts() {
    let scratch = TempFolder::new("time");
    let limiter = some(11);
    limiter
        .key("half an hour")
        .block_for(Duration::from_secs(1_800))
        .unwrap();
    limiter.snapshot(scratch.path("limits.snapshot")).unwrap();
    // An hour ago: ten tokens came back, and the shorter block is over.
    tamper(&scratch.path("limits.snapshot"), WALL, |wall| {
        wall - 3_600_000_000_000
    });
    let restored = builder(10_000, 0)
        .restore(scratch.path("limits.snapshot"))
        .unwrap();
    assert!((0..11u64).all(|key| restored.key(&key).peek().remaining == 10));
    assert!(restored.allow("half an hour"));
    let wait = restored.check("blocked").wait_or_max();
    assert!(wait <= Duration::from_secs(82_800), "{wait:?}");
    assert!(wait > Duration::from_secs(82_000), "{wait:?}");
    assert_eq!(restored.len(), 2);
    // Years ago: nobody is active any more.
    tamper(&scratch.path("limits.snapshot"), WALL, |_| 0);
    assert!(
        builder(1, 0)
            .restore(scratch.path("limits.snapshot"))
            .unwrap()
            .is_empty()
    );
}

/// A clock that notes when it was read by the wall clock.
#[derive(Debug, Default)]
struct Noted(Mutex<Timestamp>);

impl Clock for &Noted {
    fn now(&self) -> Timestamp {
        *self.0.lock().expect("no panic") = Wall.now();
        Timestamp::from_secs(500)
    }
}

#[test]
fn time_between_the_two_clocks_of_a_snapshot_grants_nothing() {
    let (scratch, clock) = (TempFolder::new("stall"), Noted::default());
    let limiter = KeyedLimiter::builder(Rate::per_hour(10), 100).clock(&clock);
    let limiter = limiter.build().unwrap();
    let file = scratch.path("limits.snapshot");
    let _ = limiter.check_n("user", 8);
    limiter.snapshot(&file).unwrap();
    // What the keys' states are as of comes before the time that elapsed time is counted from.
    let bytes = fs::read(&file).unwrap();
    let wall = bytes[WALL * 8..].first_chunk().unwrap();
    let wall = Timestamp::from_nanos(u64::from_le_bytes(*wall));
    let noted = *clock.0.lock().unwrap();
    assert!(wall >= noted, "{wall} before {noted}");
}

#[test]
fn the_default_clock_restores_too() {
    let scratch = TempFolder::new("default");
    some(100).snapshot(scratch.path("limits.snapshot")).unwrap();
    let builder = KeyedLimiter::builder(Rate::per_hour(10), 10_000);
    let restored: KeyedLimiter = builder.restore(scratch.path("limits.snapshot")).unwrap();
    assert!(!restored.allow("blocked"));
    assert_eq!(restored.key(&10u64).peek().remaining, 0);
}

#[test]
fn a_snapshot_replaces_the_one_before_and_leaves_nothing_else() {
    let scratch = TempFolder::new("replace");
    some(1_000)
        .snapshot(scratch.path("limits.snapshot"))
        .unwrap();
    assert_eq!(
        some(0).snapshot(scratch.path("limits.snapshot")).unwrap(),
        1
    );
    let files = fs::read_dir(scratch.folder()).unwrap().count();
    assert_eq!(files, 1);
    assert_eq!(
        fs::metadata(scratch.path("limits.snapshot")).unwrap().len(),
        8 * 19
    );
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = fs::metadata(scratch.path("limits.snapshot"))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}

/// The error of restoring the file, as text.
fn refused(scratch: &TempFolder, capacity: usize) -> String {
    match builder(capacity, 0).restore(scratch.path("limits.snapshot")) {
        Ok(_) => "restored".to_owned(),
        Err(error) => scratch.text(&error),
    }
}

#[test]
fn a_file_that_is_not_right_says_what_is_wrong_with_it() {
    let scratch = TempFolder::new("wrong");
    let file = scratch.path("limits.snapshot");
    some(20).snapshot(&file).unwrap();
    let right = fs::read(&file).unwrap();

    fs::write(&file, "limits: none\n").unwrap();
    assert_eq!(
        refused(&scratch, 100),
        "limits.snapshot is not a snapshot of a limiter"
    );
    fs::write(&file, "").unwrap();
    assert_eq!(
        refused(&scratch, 100),
        "limits.snapshot is not a snapshot of a limiter"
    );

    fs::write(&file, &right).unwrap();
    tamper(&file, VERSION, |_| 2);
    assert_eq!(
        refused(&scratch, 100),
        "snapshot limits.snapshot has version 2, but this build reads version 3; start without it, \
         or restore it with the build that wrote it"
    );

    fs::write(&file, &right[..right.len() - 1]).unwrap();
    assert_eq!(
        refused(&scratch, 100),
        "snapshot limits.snapshot has 439 bytes instead of 440: it was cut short or changed"
    );

    // Nothing but the header is read of a file that is longer than that says, however long it is.
    let longer = fs::File::options().write(true).open(&file).unwrap();
    longer.set_len(1 << 43).unwrap();
    assert_eq!(
        refused(&scratch, 100),
        "snapshot limits.snapshot has 8796093022208 bytes instead of 440: it was cut short or changed"
    );

    fs::write(&file, &right).unwrap();
    tamper(&file, LENGTH, |_| u64::MAX);
    assert_eq!(
        refused(&scratch, 100),
        "snapshot limits.snapshot has 440 bytes instead of 18446744073709551615: it was cut short \
         or changed"
    );

    // The section says the same again, for files that have several.
    fs::write(&file, &right).unwrap();
    tamper(&file, SECTION, |_| 2);
    assert!(refused(&scratch, 100).contains("has version 2"));
    for change in [|keys: u64| keys - 1, |keys: u64| keys + 1] {
        fs::write(&file, &right).unwrap();
        tamper(&file, COUNT, change);
        assert!(refused(&scratch, 100).contains("corrupt"));
    }

    fs::write(&file, &right).unwrap();
    for (place, change) in [(PROBE, 1), (INTERVAL - 1, 1), (INTERVAL - 1, u64::MAX)] {
        fs::write(&file, &right).unwrap();
        tamper(&file, place, |word| word ^ change);
        assert_eq!(
            refused(&scratch, 100),
            "snapshot limits.snapshot was written by a build that hashes keys in another way"
        );
    }
    fs::write(&file, &right).unwrap();
    tamper(&file, INTERVAL, |_| 0);
    assert!(refused(&scratch, 100).contains("in another way"));
}

#[test]
fn keys_at_several_rates_are_restored_with_what_they_owe() {
    let scratch = TempFolder::new("rates");
    let file = scratch.path("limits.snapshot");
    let limiter = some(0);
    let rates: Vec<_> = (1..=200)
        .map(|count| Tier::new(Algorithm::Gcra, Rate::per_minute(count).burst(9)).unwrap())
        .collect();
    for (key, rate) in (0u64..).zip(&rates) {
        assert!(limiter.key(&key).at(rate).unwrap().allow_n(1 + key % 9));
    }
    limiter.snapshot(&file).unwrap();
    without_time(&file);
    // A limiter whose own rate is another, and gets a tag among those of the file.
    let restored = KeyedLimiter::builder(Rate::per_second(7), 10_000)
        .clock(Manual::starting_at(Timestamp::from_secs(9)))
        .restore(&file)
        .unwrap();
    for (key, rate) in (0u64..).zip(&rates) {
        let look =
            |limiter: &KeyedLimiter<Manual>, rate| limiter.key(&key).at(rate).unwrap().check_n(0);
        assert_eq!(look(&restored, rate), look(&limiter, rate), "{key}");
        // At any other rate it owes as many.
        let other = &rates[usize::try_from(key * 7 % 200).unwrap()];
        assert_eq!(look(&restored, other), look(&limiter, other), "{key}");
        assert_eq!(look(&restored, other).remaining, 8 - key % 9, "{key}");
    }
    assert_eq!(active(&restored), active(&limiter));
}

#[test]
fn no_damaged_or_shortened_file_is_loaded() {
    let scratch = TempFolder::new("damaged");
    some(20).snapshot(scratch.path("limits.snapshot")).unwrap();
    let right = fs::read(scratch.path("limits.snapshot")).unwrap();
    for length in 0..right.len() {
        fs::write(scratch.path("limits.snapshot"), &right[..length]).unwrap();
        let error = builder(100, 0)
            .restore(scratch.path("limits.snapshot"))
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
        fs::write(scratch.path("limits.snapshot"), damaged).unwrap();
        assert!(
            builder(100, 0)
                .restore(scratch.path("limits.snapshot"))
                .is_err(),
            "{place}"
        );
    }
    let mut damaged = right;
    damaged[8 * 10] ^= 1;
    fs::write(scratch.path("limits.snapshot"), damaged).unwrap();
    assert_eq!(
        refused(&scratch, 100),
        "snapshot limits.snapshot is corrupt: its checksum doesn't fit"
    );
}

#[test]
fn more_keys_than_fit_are_an_error() {
    let scratch = TempFolder::new("many");
    some(1_100)
        .snapshot(scratch.path("limits.snapshot"))
        .unwrap();
    assert_eq!(
        refused(&scratch, 50),
        "snapshot limits.snapshot holds 1001 active keys, too many for a capacity of 50"
    );
}

#[test]
fn what_the_system_says_comes_with_the_path() {
    let missing = Path::new("/no/such/folder/limits");
    let error = builder(10, 0).restore(missing).unwrap_err();
    let text = error.to_string();
    assert!(
        text.starts_with("snapshot /no/such/folder/limits: "),
        "{text}"
    );
    assert!(error.source().is_some());
    let error = some(1).snapshot(missing).unwrap_err();
    let text = error.to_string();
    assert!(
        text.starts_with("snapshot /no/such/folder/limits: "),
        "{text}"
    );
    let error = some(1).snapshot(Path::new("/")).unwrap_err();
    assert_eq!(error.to_string(), "snapshot /: not the name of a file");
    // A rate that can't be represented is refused as by `build`.
    let scratch = TempFolder::new("rate");
    some(1).snapshot(scratch.path("limits.snapshot")).unwrap();
    let slow = Rate::new(1, Duration::from_secs(100 * 365 * 86_400));
    let builder = KeyedLimiter::builder(slow, 10).clock(Manual::new());
    let expected = KeyedLimiter::builder(slow, 10).build().unwrap_err();
    let error = builder
        .restore(scratch.path("limits.snapshot"))
        .unwrap_err();
    assert_eq!(error.to_string(), expected.to_string());
}

#[test]
fn of_two_snapshots_at_once_each_is_whole() {
    let scratch = TempFolder::new("at-once");
    let limiter = some(500);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..20 {
                    limiter
                        .snapshot(scratch.path("limits.snapshot"))
                        .expect("written");
                    builder(10_000, 0)
                        .restore(scratch.path("limits.snapshot"))
                        .expect("whole");
                }
            });
        }
    });
    let files = fs::read_dir(scratch.folder()).expect("the folder").count();
    assert_eq!(files, 1, "nothing is left behind");
}
