//! Kill -9 at random points: the reopened state is within the stated bound, each time.
//!
//! The test runs itself as a child that grants and reports each grant on a pipe. The parent kills it somewhere, reopens
//! the file, and compares.
#![cfg(unix)]

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use tollgate::clock::Manual;
use tollgate::quota::Durability;
use tollgate::{Clock, Quota, QuotaLimiter, Timestamp};

use crate::scratch::Scratch;

/// Tells the child its file.
const FILE: &str = "TOLLGATE_QUOTA_KILL_FILE";
/// Tells the child how many keys it has, and the bytes of each.
const KEYS: &str = "TOLLGATE_QUOTA_KILL_KEYS";
/// Tells the child to save ahead.
const AHEAD: &str = "TOLLGATE_QUOTA_KILL_AHEAD";
const MAX_UNSAVED: u64 = 500;
const BLOCK: u64 = 40;

const GRANTED: u8 = b'g';
const SAVED: u8 = b's';

/// Few short keys append; many long ones write the file anew every few flushes.
#[derive(Clone, Copy)]
struct Keys {
    count: u64,
    bytes: usize,
}

impl Keys {
    fn name(self, number: u64) -> String {
        format!("{:0>width$}", number % self.count, width = self.bytes)
    }
}

const COUNT: u64 = 1_000_000_000;

/// Charges go by one or the other, and each counts all of them.
fn quotas() -> [Quota; 2] {
    [Quota::per_month(COUNT), Quota::per_day(COUNT)]
}

/// What a key has used by each.
fn used(limiter: &QuotaLimiter<Manual>, key: &str) -> [u64; 2] {
    let now = limiter.clock().now();
    quotas().map(|quota| COUNT - limiter.peek_at(now, key, Some(&quota), 0).remaining)
}

fn open(file: &Path, durability: Durability) -> QuotaLimiter<Manual> {
    // A clock that stands: no period ends meanwhile.
    QuotaLimiter::builder(Quota::per_month(COUNT), 1_000_000)
        .clock(Manual::starting_at(Timestamp::from_secs(1_717_200_000)))
        .flush_every(Duration::from_millis(2))
        .max_unsaved(MAX_UNSAVED)
        .durability(durability)
        .open(file)
        .expect("a store that opens after a crash")
}

/// Not a test of its own: what the parent below runs and kills.
#[test]
fn child() {
    let (Ok(file), Ok(keys)) = (std::env::var(FILE), std::env::var(KEYS)) else {
        return;
    };
    let (count, bytes) = keys.split_once('x').unwrap();
    let keys = Keys {
        count: count.parse().unwrap(),
        bytes: bytes.parse().unwrap(),
    };
    let durability = match std::env::var_os(AHEAD) {
        Some(_) => Durability::WriteAhead { block: BLOCK },
        None => Durability::Periodic,
    };
    let limiter = open(Path::new(&file), durability);
    let quotas = quotas();
    let mut pipe = std::io::stderr().lock();
    let mut number = 0;
    loop {
        // Each key is charged by both in turn.
        let quota = &quotas[usize::from(number / keys.count % 2 == 1)];
        if limiter
            .key(&keys.name(number))
            .at(quota)
            .check_n(1)
            .is_allowed()
        {
            number += 1;
            pipe.write_all(&[GRANTED]).unwrap();
        } else {
            // As much is unsaved as may be.
            std::thread::yield_now();
        }
        if number % 701 == 700 && limiter.flush().is_ok() {
            pipe.write_all(&[SAVED]).unwrap();
        }
    }
}

/// The child's reports before it was killed.
struct Told {
    granted: u64,
    /// Grants before a flush that it saw succeed.
    saved: u64,
}

fn run_and_kill(file: &Path, keys: Keys, durability: Durability, after: u64) -> Told {
    let mut command = Command::new(std::env::current_exe().expect("a child that runs"));
    if durability != Durability::Periodic {
        command.env(AHEAD, "1");
    }
    let mut child = command
        .args(["--exact", "kill::child", "--nocapture", "--test-threads=1"])
        .env(FILE, file)
        .env(KEYS, format!("{}x{}", keys.count, keys.bytes))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("a child that runs");
    let mut pipe = child.stderr.take().expect("a child that runs");
    let mut told = Told {
        granted: 0,
        saved: 0,
    };
    let mut buffer = [0; 64];
    let mut killed = false;
    loop {
        if told.granted >= after && !killed {
            child.kill().expect("a child that runs");
            killed = true;
        }
        let length = pipe.read(&mut buffer).expect("a child that runs");
        if length == 0 {
            break;
        }
        for byte in &buffer[..length] {
            match *byte {
                GRANTED => told.granted += 1,
                SAVED => told.saved = told.granted,
                other => panic!("the child said {:?}", char::from(other)),
            }
        }
    }
    let status = child.wait().expect("a child that runs");
    assert_eq!(
        std::os::unix::process::ExitStatusExt::signal(&status),
        Some(libc::SIGKILL)
    );
    told
}

fn kills() -> u32 {
    match std::env::var_os("TOLLGATE_SOAK") {
        Some(_) => 200,
        None => 20,
    }
}

/// Marsaglia's xorshift.
fn next(random: &mut u64) -> u64 {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    *random
}

#[test]
fn a_kill_grants_nothing_twice_if_saved_ahead() {
    let keys = Keys {
        count: 7,
        bytes: 10,
    };
    let scratch = Scratch::new("kill-ahead");
    let file = scratch.file();
    let mut held = vec![[0; 2]; 7];
    let mut random = 0x9E37_79B9_7F4A_7C15u64;
    let mut most_unused = 0;
    for round in 0..kills() / 2 {
        let ahead = Durability::WriteAhead { block: BLOCK };
        let told = run_and_kill(&file, keys, ahead, next(&mut random) % 2_000);
        let reopened = open(&file, ahead);
        for (number, held) in (0u64..).zip(&mut held) {
            let share = |total: u64| total.saturating_sub(number).div_ceil(keys.count);
            for (used, held) in used(&reopened, &keys.name(number)).into_iter().zip(held) {
                let granted = *held + share(told.granted);
                assert!(
                    used >= granted,
                    "round {round}: {} are granted twice",
                    granted - used
                );
                // The kill may have come between the last grant and its report.
                let most = *held + share(told.granted + 1) + BLOCK;
                assert!(used <= most, "round {round}: more than a block is lost");
                most_unused = most_unused.max(used - granted);
                *held = used;
            }
        }
    }
    println!("at most {most_unused} units of a key lost, of blocks of {BLOCK}");
}

#[test]
fn a_kill_loses_no_more_than_the_bound() {
    let kills = kills();
    let mut random = 0x2545_F491_4F6C_DD1Du64;
    for keys in [
        Keys {
            count: 7,
            bytes: 10,
        },
        Keys {
            count: 600,
            bytes: 900,
        },
    ] {
        let scratch = Scratch::new(&format!("kill-{}", keys.count));
        let file = scratch.file();
        // What the file holds of each key: it goes on from kill to kill.
        let mut held = vec![[0; 2]; usize::try_from(keys.count).unwrap()];
        let (mut most_lost, mut torn) = (0, 0);
        for round in 0..kills / 2 {
            let after = next(&mut random) % 4_000;
            let told = run_and_kill(&file, keys, Durability::Periodic, after);
            let reopened = open(&file, Durability::Periodic);
            torn += u64::from(reopened.stats().recovered_bytes > 0);
            // The kill may have come between the last grant and its report.
            let granted = told.granted + 1;
            let mut lost = 0;
            for (number, held) in (0u64..).zip(&mut held) {
                let share = |total: u64| total.saturating_sub(number).div_ceil(keys.count);
                let mut lost_of_key = 0;
                for (used, held) in used(&reopened, &keys.name(number)).into_iter().zip(held) {
                    assert!(
                        used <= *held + share(granted),
                        "round {round}: grants from nowhere"
                    );
                    assert!(
                        used >= *held + share(told.saved),
                        "round {round}: a flush was lost"
                    );
                    let lost = (*held + share(told.granted)).saturating_sub(used);
                    lost_of_key = lost_of_key.max(lost);
                    *held = used;
                }
                lost += lost_of_key;
            }
            assert!(lost <= MAX_UNSAVED, "round {round}: {lost} units were lost");
            most_lost = most_lost.max(lost);
        }
        println!(
            "{} keys: at most {most_lost} of {MAX_UNSAVED} units lost, {torn} unfinished writes",
            keys.count
        );
    }
}
