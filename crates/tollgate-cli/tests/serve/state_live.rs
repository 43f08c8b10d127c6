//! Saving while a service runs: nothing without changes, else decisions, reloads and overrides.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use tollgate_testkit::redis::wait_until;

use crate::kit::{LONG, Service, file, tollgate};
use crate::state::{Kept, ask, resp};

/// Which file it is: one that is written anew is another.
fn number(path: &Path) -> u64 {
    fs::metadata(path).expect("a file").ino()
}

/// Waits until the snapshot is another.
fn saved_anew(kept: &Kept, before: u64) {
    wait_until(LONG, "another snapshot", || {
        fs::metadata(kept.path("snapshot")).is_ok_and(|file| file.ino() != before)
    });
}

fn often(kept: &Kept) -> Service {
    kept.with(&["--state-every", "10ms"], |_| {})
}

#[test]
fn nothing_is_written_while_nothing_is_decided() {
    let kept = Kept::new("state-quiet");
    let service = often(&kept);
    let mut client = resp(&service);
    let first = number(&kept.path("snapshot"));
    let journal =
        || fs::metadata(kept.path("quotas")).map_or((0, 0), |file| (file.ino(), file.len()));
    for _ in 0..30 {
        // Quotas are saved as often, and tell that time passes.
        let before = journal();
        assert!(ask(&mut client, &["TG.CHECK", "account=acme"]).0);
        assert!(ask(&mut client, &["TG.PEEK", "user=ada"]).0);
        wait_until(LONG, "the journal", || journal() != before);
    }
    assert_eq!(number(&kept.path("snapshot")), first);
    for words in [
        &["TG.CHECK", "user=ada"][..],
        &["TG.CHECK", "code=7"],
        &["CL.THROTTLE", "k", "99", "100", "2592000"],
    ] {
        let before = number(&kept.path("snapshot"));
        assert!(ask(&mut client, words).0);
        saved_anew(&kept, before);
    }
}

#[test]
fn what_was_settled_is_saved_though_nothing_else_is_decided() {
    let kept = Kept::new("state-settled");
    let text = "limits: [{name: tokens, key: tenant, rate: 1000/30d, cost: {fact: tokens, settle_within: 1h}}]";
    file(&kept.scratch, "policy.yaml", text);
    let service = often(&kept);
    let asked = r#"{"id": "a", "facts": {"tenant": "acme", "tokens": "10"}}"#;
    let before = number(&kept.path("snapshot"));
    assert_eq!(service.post("/v1/reserve", asked).0, 200);
    saved_anew(&kept, before);
    // The next of them is of a time after it.
    let before = number(&kept.path("snapshot"));
    assert_eq!(
        service.post("/v1/settle", r#"{"id": "a", "spent": 600}"#).0,
        200
    );
    saved_anew(&kept, before);
    service.end("KILL");
    let service = often(&kept);
    let left = service.post(
        "/v1/peek",
        r#"{"facts": {"tenant": "acme", "tokens": "1"}}"#,
    );
    assert!(left.1.contains(r#""remaining":400"#), "{left:?}");
}

#[test]
fn after_a_reload_the_snapshot_is_of_the_new_policy() {
    let kept = Kept::new("state-reload");
    let service = often(&kept);
    let mut client = resp(&service);
    for words in [["TG.CHECK", "user=ada"], ["TG.CHECK", "code=7"]] {
        assert!(ask(&mut client, &words).0);
    }
    drop(client);
    let text =
        "limits: [{name: calls, key: user, rate: 50/30d}, {name: new, key: path, rate: 5/30d}]";
    file(&kept.scratch, "policy.yaml", text);
    wait_until(LONG, "the policy", || {
        service.warned().contains("policy reloaded")
    });
    // It holds the new counters, so that a start by the same policy drops nothing. The first that is seen may have begun
    // before the decision, and the second hasn't.
    for fact in ["path=/", "path=/other"] {
        let before = number(&kept.path("snapshot"));
        assert!(ask(&mut resp(&service), &["TG.CHECK", fact]).0);
        saved_anew(&kept, before);
    }
    drop(service);
    let service = kept.start();
    let warned = service.told(" limits_retired=");
    assert!(warned.contains(" limits_retired=0\n"), "{warned}");
    let mut client = resp(&service);
    assert_eq!(ask(&mut client, &["TG.PEEK", "user=ada"]), (true, 49));
    assert_eq!(ask(&mut client, &["TG.PEEK", "path=/"]), (true, 4));
}

#[test]
fn an_order_of_an_operator_outlives_a_kill_once_it_is_saved() {
    let kept = Kept::new("state-order");
    let service = often(&kept);
    let before = number(&kept.path("snapshot"));
    let admin = service.ready["admin"].as_str().expect("an address");
    let state = kept.scratch.path("state");
    // The token that the service made lies with its state.
    let mut block = tollgate();
    block.args([
        "admin", "block", "--rule", "calls", "user=eve", "--for", "1h", "--admin", admin,
    ]);
    let ran = block.arg("--state").arg(&state).output().expect("it runs");
    assert!(
        ran.status.success(),
        "{}",
        String::from_utf8_lossy(&ran.stderr)
    );
    saved_anew(&kept, before);
    let eve = ["TG.CHECK", "user=eve"];
    assert!(!ask(&mut resp(&service), &eve).0);
    drop(service);
    let service = kept.start();
    assert!(!ask(&mut resp(&service), &eve).0);
    assert!(ask(&mut resp(&service), &["TG.CHECK", "user=ada"]).0);
}
