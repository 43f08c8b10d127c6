//! A policy that changes while the service runs: every way in which files change, and their errors.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use serde_json::Value;
use tollgate_testkit::redis::wait_until;
use tollgate_testkit::temp_folder::TempFolder;

use crate::kit::{ANY, LONG, Service, file};

fn policy(limit: u64) -> String {
    format!("limits: [{{name: calls, key: user, rate: {limit}/h}}]\n")
}

fn serve(path: &Path, more: &[&str]) -> Service {
    let mut options = vec![path.to_str().expect("text")];
    options.extend(ANY);
    options.extend(more);
    Service::start(&options)
}

/// The limit that requests meet.
fn limit(service: &Service) -> Option<u64> {
    let (status, body) = service.post("/v1/peek", r#"{"facts": {"user": "ada"}}"#);
    assert_eq!(status, 200, "{body}");
    let body: Value = serde_json::from_str(&body).expect("JSON");
    body["limit"].as_u64()
}

#[track_caller]
fn meets(service: &Service, wanted: u64) {
    wait_until(LONG, "a limit to be in force", || {
        limit(service) == Some(wanted)
    });
}

/// Puts a file in the place of another, as editors do.
fn replace(path: &Path, text: &str) {
    let beside = path.with_extension("new");
    fs::write(&beside, text).expect("a file");
    fs::rename(&beside, path).expect("renamed");
}

#[test]
fn sighup_reads_the_policy_again_and_ends_nothing() {
    let scratch = TempFolder::new("sighup");
    let path = file(&scratch, "policy.yaml", &policy(10));
    let service = serve(&path, &["--watch", "off"]);
    meets(&service, 10);
    replace(&path, &policy(20));
    service.signal("HUP");
    service.warns("policy reloaded from=SIGHUP changes=");
    assert_eq!(limit(&service), Some(20));
    service.signal("HUP");
    service.warns("policy unchanged from=SIGHUP");
    replace(&path, "limits: [{name: calls, key: user, rate: soon}]");
    service.signal("HUP");
    service.warns("policy not reloaded, the one before stays in force from=SIGHUP");
    assert_eq!(limit(&service), Some(20));
    assert_eq!(service.end("TERM").code(), Some(0));
}

#[test]
fn sighup_without_a_file_is_told_and_ends_nothing() {
    let service = Service::start(&ANY);
    service.signal("HUP");
    service.warns("nothing to reload from=SIGHUP why=the policy in force is from no file");
    assert!(limit(&service).is_some());
}

#[test]
fn a_file_that_is_written_replaced_broken_deleted_and_made_again() {
    let scratch = TempFolder::new("watched");
    let path = file(&scratch, "policy.yaml", &policy(10));
    let service = serve(&path, &[]);
    meets(&service, 10);
    fs::write(&path, policy(11)).expect("written in place");
    meets(&service, 11);
    replace(&path, &policy(12));
    meets(&service, 12);
    // What is wrong is told, with its place, and nothing changes.
    replace(&path, "limits: [{name: calls, key: user, rate: soon}]");
    service.warns("policy not reloaded, the one before stays in force from=file watch");
    assert!(
        service.warned().contains("policy.yaml:1:"),
        "{}",
        service.warned()
    );
    assert_eq!(limit(&service), Some(12));
    replace(&path, &policy(13));
    meets(&service, 13);
    fs::remove_file(&path).expect("removed");
    wait_until(LONG, "the loss to be told", || {
        let said = service.warned();
        said.matches("policy not reloaded").count() == 2
    });
    assert_eq!(limit(&service), Some(13));
    fs::write(&path, policy(14)).expect("made again");
    meets(&service, 14);
    assert_eq!(service.end("TERM").code(), Some(0));
}

#[test]
fn a_link_that_kubernetes_swaps() {
    let scratch = TempFolder::new("configmap");
    for (version, limit) in [("..1", 10), ("..2", 20), ("..3", 30)] {
        file(
            &scratch,
            &format!("mount/{version}/policy.yaml"),
            &policy(limit),
        );
    }
    let mount = scratch.path("mount");
    symlink("..1", mount.join("..data")).expect("a link");
    symlink("..data/policy.yaml", mount.join("policy.yaml")).expect("a link");
    let service = serve(&mount.join("policy.yaml"), &[]);
    meets(&service, 10);
    for (version, limit) in [("..2", 20), ("..3", 30)] {
        let next = mount.join("..data_tmp");
        symlink(version, &next).expect("a link");
        fs::rename(&next, mount.join("..data")).expect("swapped");
        meets(&service, limit);
    }
}

#[test]
fn a_folder_and_what_a_file_includes() {
    let scratch = TempFolder::new("folder");
    let other = "limits: [{name: others, key: tenant, rate: 5/h}]";
    file(&scratch, "policies/a.yaml", other);
    let one = file(&scratch, "policies/b.yaml", &policy(10));
    let service = serve(&scratch.path("policies"), &[]);
    meets(&service, 10);
    fs::remove_file(&one).expect("removed");
    wait_until(LONG, "no limit", || limit(&service).is_none());
    file(&scratch, "policies/c.yaml", &policy(20));
    meets(&service, 20);
    drop(service);

    let included = file(&scratch, "parts/limits.yaml", &policy(10));
    let top = file(&scratch, "top.yaml", "include: [parts/limits.yaml]\n");
    let service = serve(&top, &[]);
    meets(&service, 10);
    replace(&included, &policy(30));
    meets(&service, 30);
    let second = file(&scratch, "parts/second.yaml", &policy(40));
    replace(&top, "include: [parts/second.yaml]\n");
    meets(&service, 40);
    replace(&second, &policy(50));
    meets(&service, 50);
}

#[test]
fn of_hundreds_of_quick_changes_the_last_is_in_force() {
    let scratch = TempFolder::new("quick");
    let path = file(&scratch, "policy.yaml", &policy(1));
    let service = serve(&path, &[]);
    meets(&service, 1);
    for number in 2..=400 {
        match number % 3 {
            0 => replace(&path, "limits: ["),
            1 => replace(&path, &policy(number)),
            _ => fs::write(&path, policy(number)).expect("written"),
        }
        if number % 50 == 0 {
            assert!(limit(&service).is_some(), "it answers meanwhile");
        }
    }
    replace(&path, &policy(1_000));
    meets(&service, 1_000);
}
