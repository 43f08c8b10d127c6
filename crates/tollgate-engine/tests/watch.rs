//! A policy that is put in force when its file changes, by a library's engine.

use std::fs;
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tollgate_engine::backend::Memory;
use tollgate_engine::watch::FileWatcher;
use tollgate_engine::{Engine, Policy};
use tollgate_testkit::temp_folder::TempFolder;

/// An engine whose file is watched, and its log.
struct Watched {
    engine: Arc<Engine>,
    log: Receiver<String>,
    _watch: FileWatcher,
}

impl Watched {
    fn new(path: &std::path::Path) -> Self {
        let policy = Policy::from_path(path).expect("a policy").policy;
        let engine = Arc::new(Engine::new(policy, Memory::new()).expect("a policy"));
        let (send, log) = mpsc::channel();
        let send = Mutex::new(send);
        let watch = engine.watch(path, move |event| {
            let send = send.lock().expect("one thread");
            send.send(format!("{} {event}", event.is_error())).ok();
        });
        Self {
            engine,
            log,
            _watch: watch.expect("a thread"),
        }
    }

    /// The next line, however long it takes.
    fn line(&self) -> String {
        let line = self.log.recv_timeout(Duration::from_secs(60));
        line.expect("a line of the log")
    }

    fn rate(&self) -> String {
        self.engine.policy().rules[0].limits.rates[0].to_string()
    }
}

#[test]
fn a_changed_file_is_put_in_force_and_one_with_a_mistake_changes_nothing() {
    let scratch = TempFolder::new("engine-watch");
    let path = scratch.path("policy.yaml");
    let write = |text: &str| fs::write(&path, text).expect("a file");
    write("limits: [{name: all, rate: 1/h}]");
    let watched = Watched::new(&path);

    write("limits: [{name: all, rate: 2/h}]");
    assert_eq!(watched.line(), "false policy reloaded: 1 changed");
    assert_eq!(watched.rate(), "2/h");

    write("limits: [{name: all, raet: 3/h}]");
    let line = watched.line();
    let prefix = "true policy not reloaded, the one before stays in force: ";
    assert!(line.starts_with(prefix), "{line}");
    assert!(line.contains("unknown field \"raet\""), "{line}");
    assert_eq!(watched.rate(), "2/h");

    // As most editors do it, and Kubernetes: another file takes the place.
    let other = scratch.path("other.yaml");
    fs::write(&other, "limits: [{name: all, rate: 2/h}]").expect("a file");
    fs::rename(&other, &path).expect("a file");
    let line = watched.line();
    assert!(line.starts_with("false policy reloaded: "), "{line}");
}

#[test]
fn a_file_that_is_included_is_watched_and_the_engine_can_be_dropped() {
    let scratch = TempFolder::new("engine-watch-include");
    let (path, part) = (scratch.path("policy.yaml"), scratch.path("part.yaml"));
    fs::write(&part, "limits: [{name: all, rate: 1/h}]").expect("a file");
    fs::write(&path, "include: [part.yaml]").expect("a file");
    let watched = Watched::new(&path);
    fs::write(&part, "limits: [{name: all, rate: 5/h}]").expect("a file");
    assert_eq!(watched.line(), "false policy reloaded: 1 changed");

    let Watched {
        engine,
        log,
        _watch,
    } = watched;
    drop((engine, _watch));
    // The watch's thread ends, and with it the log.
    let after = log.recv_timeout(Duration::from_secs(60));
    assert_eq!(after, Err(mpsc::RecvTimeoutError::Disconnected));
}
