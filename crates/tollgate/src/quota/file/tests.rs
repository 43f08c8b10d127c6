//! Damage to the file: every bit of every byte, every length, and everything that isn't one.

use super::*;
use crate::quota::Quota;
use crate::quota::entry::{PeriodAccount, UsageLot};

/// The contents of a file: for each key, the lots of its accounts by period.
type State = Vec<(Vec<u8>, Vec<(String, Vec<UsageLot>)>)>;

fn account(quota: &Quota, lots: &[(u64, u64)]) -> PeriodAccount {
    let mut account = PeriodAccount::new(Arc::clone(quota.period().expect("a limited one")));
    account.lots = lots
        .iter()
        .map(|&(until, amount)| UsageLot { until, amount })
        .collect();
    account
}

/// A key with these daily lots; those at odd positions count in a rolling week too.
fn entry(key: &str, lots: &[(u64, u64)]) -> QuotaEntry {
    let own = account(&Quota::per_day(1), lots);
    let mut entry = QuotaEntry::new(Arc::from(key.as_bytes()), 0, own);
    let odd: Vec<_> = lots.iter().copied().filter(|lot| lot.1 % 2 == 1).collect();
    if !odd.is_empty() {
        let week = std::time::Duration::from_secs(7 * 86_400);
        entry
            .previous
            .push(account(&Quota::rolling(1, week).expect("a period"), &odd));
    }
    entry
}

fn batch(entries: &[QuotaEntry], gone: &[&str]) -> RecordBatch {
    let mut batch = RecordBatch::new();
    batch.raise_floor(5);
    for entry in entries {
        batch.add_entry(entry, PeriodAccount::latest);
    }
    gone.iter()
        .for_each(|key| batch.add_removal(key.as_bytes()));
    batch
}

fn state(contents: &FileContents) -> State {
    let entries = contents.entries.values();
    let accounts = |entry: &QuotaEntry| -> Vec<_> {
        let accounts = entry.accounts();
        accounts
            .map(|account| (account.period.to_string(), account.lots.clone()))
            .collect()
    };
    let mut state: State = entries
        .map(|entry| (entry.key.to_vec(), accounts(entry)))
        .collect();
    state.sort_by(|a, b| a.0.cmp(&b.0));
    state
}

fn try_read(bytes: &[u8]) -> Result<(State, u64), FileError> {
    let contents = read(Path::new("quotas"), bytes)?;
    Ok((state(&contents), contents.torn_bytes))
}

/// The file of a killed process, with its length and its contents after each write.
struct Sample {
    bytes: Vec<u8>,
    steps: Vec<(usize, State)>,
}

fn sample(name: &str) -> Sample {
    let folder = std::env::temp_dir().join(format!("tollgate-store-{name}-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let path = folder.join("quotas");
    let (mut store, contents) = QuotaFile::open(&path).unwrap();
    assert!(contents.entries.is_empty());
    let mut steps = Vec::new();
    let step = |steps: &mut Vec<(usize, State)>| {
        let bytes = fs::read(&path).unwrap();
        let (state, torn) = try_read(&bytes).unwrap();
        assert_eq!(torn, 0);
        steps.push((bytes.len(), state));
    };
    let [a, b, c] = ["a", "bb", "tenant-with-a-longer-name"];
    let base = [entry(a, &[(10, 1)]), entry(b, &[(10, 2), (20, 3)])];
    store.write_base(batch(&base, &[]), FileEnd::Open).unwrap();
    step(&mut steps);
    for (entries, gone) in [
        (vec![entry(a, &[(10, 9)])], vec![]),
        (vec![entry(c, &[(10, 4), (11, 5)])], vec![b]),
        (vec![entry(b, &[(10, 7)]), entry(a, &[(10, 10)])], vec![]),
    ] {
        store.append(batch(&entries, &gone)).unwrap();
        step(&mut steps);
    }
    let bytes = fs::read(&path).unwrap();
    fs::remove_dir_all(&folder).unwrap();
    Sample { bytes, steps }
}

#[test]
fn each_write_is_read_back() {
    let sample = sample("back");
    let amounts = |step: usize| -> Vec<u64> {
        let state = sample.steps[step].1.iter();
        state
            .flat_map(|(_, accounts)| accounts.iter().flat_map(|(_, lots)| lots))
            .map(|lot| lot.amount)
            .collect()
    };
    assert_eq!(amounts(0), [1, 1, 2, 3, 3]);
    assert_eq!(amounts(1), [9, 9, 2, 3, 3]);
    assert_eq!(amounts(2), [9, 9, 4, 5, 5]);
    assert_eq!(amounts(3), [10, 7, 7, 4, 5, 5]);
    let periods: Vec<&str> = sample.steps[0].1[0]
        .1
        .iter()
        .map(|(text, _)| &**text)
        .collect();
    assert_eq!(periods, ["/day", " in any 7d"]);
}

#[test]
fn after_a_failed_append_only_a_base_will_do() {
    let folder = std::env::temp_dir().join(format!("tollgate-store-append-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let path = folder.join("quotas");
    let (mut store, _) = QuotaFile::open(&path).unwrap();
    assert!(store.needs_base());
    let a = entry("a", &[(10, 1)]);
    store.write_base(batch(&[a], &[]), FileEnd::Open).unwrap();
    assert!(!store.needs_base());
    // A handle that can't be written to stands for a full disk.
    let right = store.file.replace(File::open(&path).unwrap());
    let b = entry("b", &[(10, 2)]);
    assert!(store.append(batch(std::slice::from_ref(&b), &[])).is_err());
    drop(right);
    assert!(store.needs_base());
    assert!(store.append(batch(std::slice::from_ref(&b), &[])).is_err());
    store.write_base(batch(&[b], &[]), FileEnd::Open).unwrap();
    assert!(!store.needs_base());
    // Another process writes to the file, or removes it.
    let right = fs::read(&path).unwrap();
    fs::write(&path, &right[1..]).unwrap();
    assert!(store.needs_base());
    fs::write(&path, &right).unwrap();
    assert!(!store.needs_base());
    fs::remove_file(&path).unwrap();
    assert!(store.needs_base());
    fs::remove_dir_all(&folder).unwrap();
}

#[cfg(unix)]
#[test]
fn a_folder_that_was_taken_away_and_is_anothers_by_now_is_left_to_it() {
    let folder = std::env::temp_dir().join(format!("tollgate-store-moved-{}", std::process::id()));
    let (away, path) = (folder.with_extension("away"), folder.join("quotas"));
    for own in [&folder, &away] {
        let _ = fs::remove_dir_all(own);
    }
    fs::create_dir_all(&folder).unwrap();
    let base = |key: &str| batch(&[entry(key, &[(10, 1)])], &[]);
    let (mut first, _) = QuotaFile::open(&path).unwrap();
    first.write_base(base("a"), FileEnd::Open).unwrap();
    fs::rename(&folder, &away).unwrap();
    fs::create_dir(&folder).unwrap();
    let (mut second, _) = QuotaFile::open(&path).unwrap();
    // As long as the first, and then different.
    second.write_base(base("b"), FileEnd::Open).unwrap();
    assert!(first.needs_base() && !second.needs_base());
    let why = first.write_base(base("a"), FileEnd::Open).unwrap_err();
    assert_eq!(
        why.to_string(),
        "its folder was taken away, and another limiter has the one that is there now"
    );
    let keys = || {
        let (state, _) = try_read(&fs::read(&path).unwrap()).unwrap();
        state.into_iter().map(|(key, _)| key).collect::<Vec<_>>()
    };
    assert_eq!(keys(), [b"b"]);
    // Once it is unlocked, the first limiter gets it back.
    drop(second);
    first.write_base(base("a"), FileEnd::Open).unwrap();
    assert_eq!(keys(), [b"a"]);
    assert!(matches!(
        QuotaFile::open(&path),
        Err(FileError::Locked { .. })
    ));
    for own in [folder, away] {
        fs::remove_dir_all(own).unwrap();
    }
}

#[test]
fn a_file_cut_anywhere_is_an_error_or_an_earlier_state() {
    let sample = sample("cut");
    for length in 0..sample.bytes.len() {
        let whole = sample.steps.iter().rfind(|(bytes, _)| *bytes <= length);
        match (try_read(&sample.bytes[..length]), whole) {
            (Ok((state, torn)), Some((bytes, expected))) => {
                assert_eq!(state, *expected, "{length}");
                assert_eq!(torn, (length - bytes) as u64, "{length}");
            }
            // The base is written as a whole, so a partial one is not from a crash.
            (Err(_), None) => {}
            (Ok(_), None) => panic!("read {length} bytes, less than the base"),
            (Err(error), Some(_)) => panic!("{length}: {error}"),
        }
    }
}

#[test]
fn a_flipped_bit_is_an_error_or_the_last_write_is_left_out() {
    let sample = sample("flip");
    let [.., (last, before), _] = &sample.steps[..] else {
        panic!("too few writes");
    };
    for place in 0..sample.bytes.len() {
        for bit in 0..8 {
            let mut bytes = sample.bytes.clone();
            bytes[place] ^= 1 << bit;
            match try_read(&bytes) {
                Err(_) => {}
                Ok((state, torn)) => {
                    assert!(place >= *last, "byte {place} was not missed");
                    assert_eq!(state, *before, "byte {place}");
                    assert_eq!(torn, (bytes.len() - last) as u64);
                }
            }
        }
    }
}

#[test]
fn overwritten_and_shuffled_stretches_are_errors_or_earlier_states() {
    let sample = sample("stretch");
    let states: Vec<_> = sample.steps.iter().map(|(_, state)| state).collect();
    let length = sample.bytes.len();
    for start in 0..length {
        for run in [2, 5, 16, 40] {
            let end = (start + run).min(length);
            for fill in [0x00, 0xFF, 0xF5] {
                let mut bytes = sample.bytes.clone();
                bytes[start..end].fill(fill);
                if let Ok((state, _)) = try_read(&bytes) {
                    assert!(states.contains(&&state), "{start}..{end}");
                }
            }
            let mut bytes = sample.bytes.clone();
            bytes.drain(start..end);
            if let Ok((state, _)) = try_read(&bytes) {
                assert!(states.contains(&&state), "without {start}..{end}");
            }
        }
    }
    // A duplicate or swapped batch is detected by its number.
    let [(base, _), (first, _), (second, _), _] = sample.steps[..] else {
        panic!("four writes");
    };
    let (one, two) = (&sample.bytes[base..first], &sample.bytes[first..second]);
    for tail in [[one, one], [two, one]] {
        let bytes = [&sample.bytes[..base], tail[0], tail[1]].concat();
        let text = try_read(&bytes).unwrap_err().to_string();
        assert!(text.contains("a batch is out of order at byte"), "{text}");
    }
    // What a power failure may leave: a tail of zeros, or of earlier contents.
    let bytes = [&sample.bytes[..second], &[0; 4096][..]].concat();
    assert_eq!(try_read(&bytes).unwrap().0, *states[2]);
}

/// A file with one key followed by a batch of these keys, and the offset of the batch.
fn with_keys(name: &str, keys: &[Vec<u8>]) -> (Vec<u8>, usize) {
    let folder = std::env::temp_dir().join(format!("tollgate-store-{name}-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let path = folder.join("quotas");
    let (mut store, _) = QuotaFile::open(&path).unwrap();
    let first = entry("first", &[(10, 1)]);
    store
        .write_base(batch(&[first], &[]), FileEnd::Open)
        .unwrap();
    let base = fs::read(&path).unwrap().len();
    let own = |key: &Vec<u8>| {
        QuotaEntry::new(
            Arc::from(&**key),
            0,
            account(&Quota::per_day(1), &[(10, 1)]),
        )
    };
    let entries: Vec<_> = keys.iter().map(own).collect();
    store.append(batch(&entries, &[])).unwrap();
    let bytes = fs::read(&path).unwrap();
    fs::remove_dir_all(&folder).unwrap();
    (bytes, base)
}

#[test]
fn a_key_that_looks_like_a_batch_is_none() {
    // The most that an attacker who chooses keys can know: the batches of another file.
    let (theirs, base) = with_keys("theirs", &[b"a".to_vec()]);
    let (bytes, _) = with_keys("looks", &[theirs[base..].to_vec()]);
    assert_eq!(try_read(&bytes).unwrap().0.len(), 2);
    // A crash has cut the last batch short, after the key.
    let (state, torn) = try_read(&bytes[..bytes.len() - 1]).unwrap();
    assert_eq!((state.len(), torn > 0), (1, true));
}

#[test]
fn recovery_sums_no_byte_twice_whatever_keys_hold() {
    let long: Vec<_> = (0..400u32)
        .map(|key| vec![b'k'; 60 + (key % 7) as usize])
        .collect();
    let (theirs, base) = with_keys("long", &long);
    let start = &theirs[base..base + FRAME_BYTES];
    // Keys full of batch headers that announce a long batch, in a file that a crash has cut short.
    let keys: Vec<_> = (0..400u32)
        .map(|key| [&key.to_le_bytes()[..], &start.repeat(8)].concat())
        .collect();
    let (bytes, _) = with_keys("marks", &keys);
    let before = crate::quota::crc32c::SUMMED.get();
    assert!(try_read(&bytes[..bytes.len() - 1]).unwrap().1 > 0);
    let summed = crate::quota::crc32c::SUMMED.get() - before;
    assert!(summed < 2 * bytes.len(), "{summed} of {}", bytes.len());
}

#[test]
fn a_file_that_was_closed_has_nothing_to_lose() {
    let folder = std::env::temp_dir().join(format!("tollgate-store-closed-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let path = folder.join("quotas");
    let (mut store, _) = QuotaFile::open(&path).unwrap();
    let entries = [entry("a", &[(10, 1)]), entry("b", &[(10, 2)])];
    store
        .write_base(batch(&entries, &[]), FileEnd::Closed)
        .unwrap();
    let right = fs::read(&path).unwrap();
    fs::remove_dir_all(&folder).unwrap();
    assert_eq!(try_read(&right).unwrap().0.len(), 2);
    for length in 0..right.len() {
        assert!(try_read(&right[..length]).is_err(), "{length}");
    }
    for place in 0..right.len() {
        for bit in 0..8 {
            let mut bytes = right.clone();
            bytes[place] ^= 1 << bit;
            assert!(try_read(&bytes).is_err(), "byte {place}");
        }
    }
    let longer = [&right[..], &[0]].concat();
    let text = try_read(&longer).unwrap_err().to_string();
    assert!(text.contains("something follows the end at byte"), "{text}");
}

#[test]
fn what_is_wrong_with_a_file_is_said() {
    let sample = sample("said");
    let said = |bytes: &[u8]| try_read(bytes).unwrap_err().to_string();
    assert_eq!(said(b""), "quotas is not a quota store");
    assert_eq!(said(b"limits: none\n"), "quotas is not a quota store");
    let advice = "put a copy in its place, or move it away to start from nothing";
    assert_eq!(
        said(&sample.bytes[..20]),
        format!("quota store quotas is corrupt: the header is cut short at byte 20; {advice}")
    );
    assert_eq!(
        said(&sample.bytes[..60]),
        format!("quota store quotas is corrupt: the base is cut short at byte 60; {advice}")
    );
    let mut bytes = sample.bytes.clone();
    bytes[50] ^= 1;
    assert_eq!(
        said(&bytes),
        format!(
            "quota store quotas is corrupt: the checksum of the base doesn't fit at byte 48; {advice}"
        )
    );
    let mut bytes = sample.bytes.clone();
    let base = sample.steps[0].0;
    bytes[base + 20] ^= 1;
    assert_eq!(
        said(&bytes),
        format!(
            "quota store quotas is corrupt: a batch before the last can't be read at byte {base}; \
             {advice}"
        )
    );
    for version in [1, 2, 4] {
        let mut bytes = sample.bytes.clone();
        bytes[8] = version;
        let sum = crc32c(&[&bytes[..28]]);
        bytes[28..32].copy_from_slice(&sum.to_le_bytes());
        assert_eq!(
            said(&bytes),
            format!(
                "quota store quotas has version {version}, but this build reads version 3; open it with \
                 the build that wrote it, or move it away to start from nothing"
            )
        );
    }
}

#[test]
fn a_period_that_nobody_knows_is_no_batch() {
    let folder = std::env::temp_dir().join(format!("tollgate-store-period-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let path = folder.join("quotas");
    let zone = "Europe/Zurich";
    let quota = Quota::per_day(1).in_zone(zone).unwrap();
    let entry = QuotaEntry::new(Arc::from(&b"a"[..]), 0, account(&quota, &[(10, 1)]));
    let (mut store, _) = QuotaFile::open(&path).unwrap();
    store
        .write_base(batch(&[entry], &[]), FileEnd::Closed)
        .unwrap();
    let right = fs::read(&path).unwrap();
    fs::remove_dir_all(&folder).unwrap();
    let place = right
        .windows(zone.len())
        .position(|text| text == zone.as_bytes())
        .unwrap();
    let mut bytes = right;
    bytes[place..place + 6].copy_from_slice(b"Atland");
    let sum = crc32c(&[&bytes[SECRET_OFFSET..]]);
    bytes[24..28].copy_from_slice(&sum.to_le_bytes());
    let sum = crc32c(&[&bytes[..28]]);
    bytes[28..32].copy_from_slice(&sum.to_le_bytes());
    let text = try_read(&bytes).unwrap_err().to_string();
    assert!(text.contains("the base can't be read"), "{text}");
}
