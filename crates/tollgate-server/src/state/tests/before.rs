//! Files that the version before has written: which counters go on, and which begin anew, as `docs/reference/service.md` says.
//!
//! `before.snapshot.hex` and `before.quotas.hex` are the folder of a service by [`POLICY_FIELDS`]: three requests of `ada` by each
//! rule, three of `CL.THROTTLE`, a block of `bad` and an override of `vip`. They are never written anew: a change of the
//! form that makes this test fail is a change that an upgrade meets.

use std::fs;

use tollgate::Timestamp;
use tollgate_engine::RestoreReport;

use super::*;

const POLICY: &str = "
limits:
- {name: gcra, match: {path: /gcra}, key: user, rate: 20/d}
- {name: bucket, match: {path: /bucket}, key: user, rate: 20/d, algorithm: token-bucket}
- {name: leaky, match: {path: /leaky}, key: user, rate: 20/d, algorithm: leaky}
- {name: fixed, match: {path: /fixed}, key: user, rate: 20/d, algorithm: fixed-window}
- {name: log, match: {path: /log}, key: user, rate: 20/d, algorithm: sliding-log}
- {name: window, match: {path: /window}, key: user, rate: 20/d, algorithm: sliding-window}
- {name: daily, match: {path: /daily}, key: user, quota: 20/day}
- {name: rolling, match: {path: /rolling}, key: user, quota: 20 in any 30d}
- {name: address, match: {path: /address}, key: ip, rate: 20/d}
- {name: network, match: {path: /network}, key: ip/64, rate: 20/d}
";
const LIMIT: u64 = 20;
const SPENT: u64 = 3;
/// When the files were written, in nanoseconds since 1970.
const WRITTEN: u64 = 0x18e9_10bd_3117_56f3;

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<_> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    let (pairs, rest) = digits.as_chunks::<2>();
    assert!(rest.is_empty());
    let value = |pair: &[u8; 2]| {
        let pair = std::str::from_utf8(pair).expect("digits");
        u8::from_str_radix(pair, 16).expect("digits")
    };
    pairs.iter().map(value).collect()
}

#[test]
fn a_folder_of_the_version_before_goes_on() {
    let scratch = TempFolder::new("state-of-the-version-before");
    let options = StateOptions {
        uptime: || None,
        ..StateOptions::in_folder(scratch.path("state"))
    };
    fs::create_dir_all(&options.folder).expect("a folder");
    for (name, hex) in [
        ("snapshot", include_str!("before.snapshot.hex")),
        ("quotas", include_str!("before.quotas.hex")),
    ] {
        fs::write(options.folder.join(name), bytes(hex)).expect("a file");
    }
    let wall = Manual::starting_at(Timestamp::from_nanos(WRITTEN));
    let log = Log::disabled();
    let opening = StateOpener {
        policy: Policy::from_text(POLICY, Format::Yaml)
            .expect("a policy")
            .policy,
        builder: Memory::builder().clock(Manual::new()).wall(wall),
        throttle_keys: 1_000,
        options: &options,
        log: &log,
    };
    let folder = Folder::lock(&options.folder).expect("a folder");
    let found = snapshot::restore(&opening, &folder);
    let found = found.unwrap_or_else(|error| panic!("{error:?}"));
    let RestoreReport {
        dropped_keys: left_out,
        retired,
        ..
    } = found.restored.expect("a snapshot");
    assert_eq!((left_out, retired), (0, Vec::new()));

    let left = |path: &str, user: &str| {
        let facts = Facts::new().with("path", path).with("user", user);
        let facts = facts.with("ip", "10.1.2.3");
        found.engine.peek(&facts).decision().remaining
    };
    for path in [
        "/gcra", "/bucket", "/leaky", "/fixed", "/log", "/window", "/daily", "/rolling", "/network",
    ] {
        assert_eq!(left(path, "ada"), LIMIT - SPENT, "{path}");
    }
    // Operators' overrides of limits, and blocks.
    assert_eq!(left("/gcra", "vip"), 40);
    let bad = Facts::new().with("path", "/gcra").with("user", "bad");
    assert!(found.engine.decide(&bad).denied().is_some());
    // Since then, clients are counted by their network, so `key: ip` begins anew.
    assert_eq!(left("/address", "ada"), LIMIT);
    // Since then, keys of `CL.THROTTLE` owe nanoseconds. Old tokens are read as nanoseconds, which amounts to a fresh
    // key.
    let owed = found.cells.debt_of(b"k").now_or_never();
    let owed = owed.expect("at once").expect("a time");
    assert!(owed <= Duration::from_nanos(SPENT), "{owed:?}");
}
