//! State across restarts: what is restored, the lock of the folder, and unreadable or unwritable files.

use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::Command;

use tollgate_testkit::redis::{Client, Reply, wait_until};
use tollgate_testkit::snapshot_corruption::corrupt_snapshot;
use tollgate_testkit::temp_folder::TempFolder;

use crate::kit::{ANY, LONG, Service, fails, file};

const POLICY: &str = "\
limits:
- {name: calls, key: user, rate: 100/30d}
- {name: codes, key: code, rate: 100/30d, algorithm: sliding-log}
- {name: monthly, key: account, quota: 100/month}
";

/// The requests to the policy, and to a limit that a client brings along.
const ASKED: [&[&str]; 4] = [
    &["TG.CHECK", "user=ada"],
    &["TG.CHECK", "code=7"],
    &["TG.CHECK", "account=acme"],
    &["CL.THROTTLE", "k", "99", "100", "2592000"],
];

/// A service that keeps its state, and the files that it is started with.
pub(crate) struct Kept {
    pub(crate) scratch: TempFolder,
}

impl Kept {
    pub(crate) fn new(name: &str) -> Self {
        let scratch = TempFolder::new(name);
        file(&scratch, "policy.yaml", POLICY);
        Self { scratch }
    }

    pub(crate) fn path(&self, name: &str) -> std::path::PathBuf {
        self.scratch.path("state").join(name)
    }

    pub(crate) fn with(&self, more: &[&str], change: impl FnOnce(&mut Command)) -> Service {
        let (policy, state) = (self.scratch.path("policy.yaml"), self.scratch.path("state"));
        let mut options = vec![policy.to_str().expect("text"), "--state"];
        options.push(state.to_str().expect("text"));
        options.extend(more);
        options.extend(ANY);
        Service::with(&options, change)
    }

    pub(crate) fn start(&self) -> Service {
        self.with(&[], |_| {})
    }

    /// Files of the folder that were set aside.
    fn aside(&self) -> Vec<String> {
        let names = fs::read_dir(self.scratch.path("state")).expect("a folder");
        let names = names.map(|entry| entry.expect("an entry").file_name());
        let mut names: Vec<_> = names
            .map(|name| name.into_string().expect("text"))
            .filter(|name| name.contains("damaged"))
            .collect();
        names.sort();
        names
    }
}

pub(crate) fn resp(service: &Service) -> Client {
    let address = service.ready["resp"].as_str().expect("an address");
    Client::tcp(address.parse().expect("an address")).expect("a connection")
}

/// Whether it passed, and what is left.
fn answer(reply: &Reply) -> (bool, u64) {
    let number = |at: usize| reply.items()[at].integer().expect("a number");
    let left = |at| u64::try_from(number(at)).expect("a count");
    match reply.items().len() {
        // As redis-cell: 0 is allowed.
        5 => (number(0) == 0, left(2)),
        _ => (number(1) == 1, left(7)),
    }
}

pub(crate) fn ask(client: &mut Client, words: &[&str]) -> (bool, u64) {
    answer(&client.command(words).expect("an answer"))
}

/// The remaining tokens of all limits, after one more charge.
pub(crate) fn spend(service: &Service) -> [u64; 4] {
    let mut client = resp(service);
    ASKED.map(|words| ask(&mut client, words).1)
}

#[test]
fn after_a_stop_in_order_nothing_is_lost_and_nothing_came_back() {
    let kept = Kept::new("state-stop");
    let mut expect = 100;
    for _ in 0..3 {
        // Longer than the test: only the end saves.
        let service = kept.with(&["--state-every", "1h"], |_| {});
        let said = service.said("admin on");
        assert!(said.contains("and saved every 1h\n"), "{said}");
        for _ in 0..7 {
            expect -= 1;
            assert_eq!(spend(&service), [expect; 4]);
        }
        assert_eq!(service.end("TERM").code(), Some(0));
    }
    let service = kept.start();
    let told = "keys=3 quotas=1 left_out=0 limits_retired=0";
    let warned = service.told(told);
    let line = warned
        .lines()
        .find(|line| line.contains("info: state restored folder="));
    assert!(line.is_some_and(|line| line.ends_with(told)), "{warned}");
    assert_eq!(spend(&service), [expect - 1; 4]);
    assert_eq!(kept.aside(), [""; 0]);
}

#[test]
fn a_second_process_is_refused_for_as_long_as_the_first_runs() {
    let kept = Kept::new("state-second");
    let first = kept.start();
    let state = kept.scratch.path("state");
    let options = ["--state", state.to_str().expect("text")];
    let mut options = options.to_vec();
    options.extend(ANY);
    let line = format!(
        "error: {} is in use by process {}: give each service a folder of its own by --state\n",
        state.display(),
        first.pid()
    );
    assert_eq!(fails(&options, |_| {}), (1, line));
    // Also if it is killed, nobody has to clean up.
    drop(first);
    kept.start();
}

#[test]
fn a_folder_that_cant_be_used_is_told_at_the_start() {
    let scratch = TempFolder::new("state-unusable");
    let path = file(&scratch, "file", "");
    for (state, why) in [
        (path.as_path(), "File exists (os error 17)"),
        (
            Path::new("/proc/tollgate"),
            "No such file or directory (os error 2)",
        ),
    ] {
        let options = ["--state", state.to_str().expect("text"), "--http", "0"];
        let (code, said) = fails(&options, |_| {});
        let line = format!(
            "error: can't keep state in {}: {why}; choose another folder by --state\n",
            state.display()
        );
        assert_eq!((code, said), (1, line));
    }
}

/// Damages a file in this way; the service starts without it, names it and the cause, and keeps it.
fn set_aside(kept: &Kept, name: &str, damage: impl FnOnce(&Path), why: &str) {
    let path = kept.path(name);
    damage(&path);
    let service = kept.start();
    let event = "error: state can't be read, and is set aside: the service starts without it why=";
    let warned = service.told(event);
    let line = warned.lines().find(|line| line.contains(event));
    let line = line.unwrap_or_else(|| panic!("{why}: {warned}"));
    assert!(line.contains(path.to_str().expect("text")), "{line}");
    assert!(line.contains(why), "{why}: {line}");
    let aside = kept.path(&format!("{name}.damaged-"));
    let aside = format!(" kept_as={}", aside.display());
    assert!(line.contains(&aside), "{line}");
    let left = spend(&service);
    assert_eq!(service.end("TERM").code(), Some(0));
    // What the other file keeps is kept, and what was lost begins anew.
    let lost: &[usize] = if name == "snapshot" { &[0, 1, 3] } else { &[2] };
    for (number, left) in left.into_iter().enumerate() {
        assert_eq!(
            left == 99,
            lost.contains(&number),
            "{why}: {number}: {left}"
        );
    }
}

/// A folder in which everything has been spent twice.
fn spent(name: &str) -> Kept {
    let kept = Kept::new(name);
    let service = kept.start();
    assert_eq!(spend(&service), [99; 4]);
    assert_eq!(service.end("TERM").code(), Some(0));
    kept
}

fn flip(path: &Path, place: usize) {
    let mut bytes = fs::read(path).expect("a file");
    let place = place % bytes.len();
    bytes[place] ^= 1 << (place % 8);
    fs::write(path, bytes).expect("a file");
}

fn cut(path: &Path, length: usize) {
    let bytes = fs::read(path).expect("a file");
    fs::write(path, &bytes[..length.min(bytes.len() - 1)]).expect("a file");
}

#[test]
fn a_damaged_snapshot_is_set_aside_and_the_service_starts_without_it() {
    let kept = spent("state-damaged");
    let name = "snapshot";
    let length = fs::read(kept.path(name)).expect("a snapshot").len();
    for place in [0, 9, 17, 24, length / 3, length / 2, length - 1] {
        let why = if place == 0 {
            "is not a snapshot"
        } else {
            "snapshot"
        };
        set_aside(&kept, name, |path| flip(path, place), why);
    }
    for cut_to in [8, 31, length / 2, length - 1] {
        let why = if cut_to == 8 {
            "bytes instead of"
        } else {
            "cut short"
        };
        set_aside(&kept, name, |path| cut(path, cut_to), why);
    }
    let empty = |path: &Path| fs::write(path, "").expect("a file");
    set_aside(&kept, name, empty, "is not a snapshot");
    let other = |path: &Path| corrupt_snapshot(path, |words| words[1] = 2);
    set_aside(
        &kept,
        name,
        other,
        "has version 2, but this build reads version 1",
    );
    let folder = |path: &Path| {
        fs::remove_file(path).expect("a file");
        fs::create_dir(path).expect("a folder");
    };
    set_aside(&kept, name, folder, "Is a directory");
    // More than three came together, and the latest are there.
    assert_eq!(kept.aside().len(), 3);
}

#[test]
fn a_damaged_journal_of_quotas_is_set_aside_and_an_unfinished_one_isnt() {
    let kept = spent("state-journal");
    let name = "quotas";
    set_aside(&kept, name, |path| flip(path, 60), "is corrupt: ");
    set_aside(
        &kept,
        name,
        |path| cut(path, 50),
        "is corrupt: the base is cut short",
    );
    let other = |path: &Path| fs::write(path, "something else").expect("a file");
    set_aside(&kept, name, other, "is not a quota store");
    assert_eq!(kept.aside().len(), 3);
    // A crash in the middle of a write: what was written before counts.
    let service = kept.with(&["--state-every", "10ms"], |_| {});
    // Written anew first, as one that isn't closed: its twelfth byte says so. From here on it grows by what is spent.
    let is_open = || fs::read(kept.path(name)).is_ok_and(|bytes| bytes.get(12) == Some(&0));
    wait_until(LONG, "a journal that goes on", is_open);
    let length = || fs::metadata(kept.path(name)).map_or(0, |file| file.len());
    let base = length();
    let before = spend(&service)[2];
    wait_until(LONG, "the journal to grow", || length() > base);
    drop(service);
    let mut bytes = fs::read(kept.path(name)).expect("a journal");
    bytes.extend([7; 9]);
    fs::write(kept.path(name), bytes).expect("a journal");
    let service = kept.start();
    service.warns(
        "warning: the end of the quotas' journal, which a crash left unfinished, is left out bytes=9\n",
    );
    assert_eq!(spend(&service)[2], before - 1);
}

/// A file that something stands in the place of, and what does.
type Block = (&'static str, fn(&Path));

#[test]
fn what_cant_be_opened_now_is_left_as_it_is_and_the_service_doesnt_start() {
    let kept = spent("state-unopened");
    let (policy, state) = (kept.scratch.path("policy.yaml"), kept.scratch.path("state"));
    let mut options = vec![policy.to_str().expect("text"), "--state"];
    options.push(state.to_str().expect("text"));
    options.extend(ANY);
    // What stands in the way, as a disk that is full, or files of another user: and how that ends.
    let blocks: [Block; 2] = [
        ("quotas.lock", |path| {
            fs::create_dir(path).expect("a folder")
        }),
        ("snapshot", |path| {
            std::os::unix::fs::symlink(path, path).expect("a link to itself");
        }),
    ];
    for (name, block) in blocks {
        let (path, saved) = (kept.path(name), kept.scratch.path("saved"));
        fs::rename(&path, &saved).expect("renamed");
        block(&path);
        for _ in 0..2 {
            let (code, said) = fails(&options, |_| {});
            assert_eq!(code, 1, "{said}");
            let end = "; mend that and start again, or move the file away to start without what it holds\n";
            assert!(said.ends_with(end) && said.contains("error: "), "{said}");
        }
        assert_eq!(kept.aside(), [""; 0], "{name}");
        let _ = fs::remove_dir(&path).or_else(|_| fs::remove_file(&path));
        fs::rename(&saved, &path).expect("renamed");
    }
    assert_eq!(spend(&kept.start()), [98; 4]);
}

#[test]
fn another_policy_goes_on_with_what_has_the_same_name_and_algorithm() {
    let kept = Kept::new("state-policies");
    let start = |text: &str| {
        file(&kept.scratch, "policy.yaml", text);
        kept.start()
    };
    let rule =
        |name: &str, fact: &str, more: &str| format!("{{name: {name}, key: {fact}, rate: {more}}}");
    let day = "100/day, algorithm: sliding-log";
    let rules = [
        rule("same", "a", "100/30d"),
        rule("old", "b", "100/30d"),
        rule("faster", "c", "100/30d"),
        rule("counted", "d", "100/30d"),
        rule("gone", "e", "100/30d"),
        rule("logged", "f", day),
    ];
    let service = start(&format!("limits: [{}]", rules.join(", ")));
    let facts = ["a=1", "b=1", "c=1", "d=1", "f=1"];
    let mut client = resp(&service);
    for fact in facts.iter().chain(&["e=1"]) {
        let words = ["TG.CHECK", fact, "COST", "40"];
        assert_eq!(ask(&mut client, &words), (true, 60));
    }
    assert_eq!(service.end("TERM").code(), Some(0));
    let rules = [
        rule("logged", "f", day),
        rule("counted", "d", "100/30d, algorithm: sliding-log"),
        rule("faster", "c", "200/30d"),
        rule("new", "b", "100/30d"),
        rule("same", "a", "100/30d"),
    ];
    let service = start(&format!("limits: [{}]", rules.join(", ")));
    let mut client = resp(&service);
    let left = facts.map(|fact| ask(&mut client, &["TG.PEEK", fact]).1);
    // Of the one that is faster 40 are spent, too.
    assert_eq!(left, [60, 100, 160, 100, 60]);
    service.warns("limits_retired=3\n");
    service.warns("what was spent of them is kept until it is idle, in case they return limits=rule/counted, rule/gone, rule/old\n");
}

#[test]
fn a_folder_that_goes_away_is_told_and_decisions_go_on_until_it_is_back() {
    let kept = Kept::new("state-away");
    let service = kept.with(&["--state-every", "10ms"], |_| {});
    let state = kept.scratch.path("state");
    assert_eq!(spend(&service), [99; 4]);
    fs::rename(&state, kept.scratch.path("elsewhere")).expect("renamed");
    let failed =
        "error: state not saved: decisions go on, and it is tried again why=can't keep state in ";
    wait_until(LONG, "a failure", || service.warned().contains(failed));
    assert_eq!(spend(&service), [98; 4]);
    assert!(!state.exists(), "it may be the place of a disk");
    fs::create_dir(&state).expect("a folder");
    wait_until(LONG, "it to be saved again", || {
        service.warned().contains("info: state is saved again\n")
    });
    // Each reason is told once: the snapshot, the folder, the journal, as far as each was noticed.
    let warned = service.warned();
    let reasons = warned
        .lines()
        .filter_map(|line| line.split_once("not saved"));
    let mut reasons: Vec<_> = reasons.map(|(_, why)| why).collect();
    let told = reasons.len();
    reasons.sort_unstable();
    reasons.dedup();
    assert!(reasons.len() == told && told <= 3, "{warned}");
    // Quotas are written anew, too.
    wait_until(LONG, "quotas", || kept.path("quotas").exists());
    drop(service);
    assert_eq!(spend(&kept.start()), [97; 4]);
}

#[test]
fn a_full_disk_is_told_and_decisions_go_on_until_there_is_room() {
    let scratch = TempFolder::new("state-full");
    // Each key is idle after three seconds, and the snapshot small again.
    let text = "limits: [{name: calls, key: user, rate: 1/3s}]";
    let policy = file(&scratch, "policy.yaml", text);
    let kept = Kept { scratch };
    // A shell that lets files grow to 8 KiB and then has writes fail, as a full disk does.
    let state = kept.scratch.path("state");
    let service = Service::with(&[], |command| {
        let ready = command.get_args().last().expect("a ready file").to_owned();
        let tollgate = command.get_program().to_owned();
        let mut shell = Command::new("sh");
        shell.args(["-c", "trap '' XFSZ; ulimit -f 16; exec \"$@\"", "sh"]);
        shell.arg(tollgate).arg("serve").arg(&policy).args(ANY);
        shell.arg("--state").arg(&state);
        shell
            .args(["--state-every", "10ms", "--ready-file"])
            .arg(ready);
        shell.stdout(fs::File::create(kept.scratch.path("out")).expect("a file"));
        shell.stderr(fs::File::create(kept.scratch.path("err")).expect("a file"));
        *command = shell;
    });
    let warned = || fs::read_to_string(kept.scratch.path("err")).expect("text");
    let mut client = resp(&service);
    let mut number = 0;
    let failed = "why=snapshot ";
    // All at once: they are idle after a while, and too many of them never come together one by one on a slow machine.
    let address = service.ready["resp"].as_str().expect("an address");
    let mut stream = std::net::TcpStream::connect(address).expect("a connection");
    stream.set_read_timeout(Some(LONG)).expect("a timeout");
    wait_until(LONG, "a failure", || {
        let keys = (number..number + 2_000).map(|user| format!("TG.CHECK user={user}\r\n"));
        let asked = keys.collect::<String>() + "PING\r\n";
        number += 2_000;
        stream.write_all(asked.as_bytes()).expect("written");
        let (mut heard, mut bytes) = (Vec::new(), [0; 65_536]);
        while !heard.ends_with(b"+PONG\r\n") {
            let read = stream.read(&mut bytes).expect("an answer");
            assert!(read > 0, "closed");
            heard.extend(&bytes[..read]);
        }
        warned().contains(failed)
    });
    assert!(
        warned().contains("File too large (os error 27)"),
        "{}",
        warned()
    );
    wait_until(LONG, "it to be saved again", || {
        let _ = ask(&mut client, &["TG.CHECK", "user=last"]);
        warned().contains("info: state is saved again\n")
    });
    assert_eq!(service.end("TERM").code(), Some(0));
}
