//! `docs/start/envoy.md` is true: its two files, a real Envoy, and `tollgate serve` as a process.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use tollgate_testkit::envoy_process::{Envoy, port_value};
use tollgate_testkit::redis::{Port, wait_until};
use tollgate_testkit::temp_folder::TempFolder;

use crate::kit::{Service, file};

/// A service for Envoy alone.
fn start(scratch: &TempFolder, policy: &str, grpc: u16, options: &[&str]) -> Service {
    let policy = file(scratch, "policy.yaml", policy);
    let address = format!("127.0.0.1:{grpc}");
    let mut all = vec![policy.to_str().expect("text"), "--grpc", &address];
    all.extend(["--http", "off", "--resp", "off", "--admin", "off"]);
    all.extend(options);
    Service::start(&all)
}

/// What came back: the status, and header fields by their names.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    fields: BTreeMap<String, String>,
}

impl Answer {
    fn field(&self, name: &str) -> &str {
        self.fields.get(name).map_or("", String::as_str)
    }
}

pub(crate) fn get(address: SocketAddr, path: &str, fields: &str) -> Answer {
    let mut stream = TcpStream::connect(address).expect("a connection");
    let request = format!("GET {path} HTTP/1.1\r\nhost: edge\r\nconnection: close\r\n{fields}\r\n");
    stream.write_all(request.as_bytes()).expect("written");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    let mut lines = text.lines();
    let status = lines.next().and_then(|line| line.split(' ').nth(1));
    let fields = lines.map_while(|line| line.split_once(": "));
    Answer {
        status: status.expect("a status").parse().expect("a number"),
        fields: fields
            .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
            .collect(),
    }
}

/// A file of the page.
fn block(page: &str, name: &str) -> String {
    let fence = format!("```yaml file={name}\n");
    let (_, rest) = page.split_once(&fence).expect("a block of the page");
    rest.split_once("```")
        .expect("an end of the block")
        .0
        .to_owned()
}

/// A row of requests, and their statuses.
fn statuses(edge: SocketAddr, path: &str, fields: &str, times: usize) -> Vec<u16> {
    (0..times).map(|_| get(edge, path, fields).status).collect()
}

fn limits_and_what_is_left(edge: SocketAddr) {
    for left in ["2", "1", "0"] {
        let answer = get(edge, "/", "");
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(answer.field("x-ratelimit-limit"), "3, 3;w=86400");
        assert_eq!(answer.field("x-ratelimit-remaining"), left);
        let reset: u32 = answer.field("x-ratelimit-reset").parse().expect("seconds");
        assert!(reset <= 86_400, "{answer:?}");
    }
    let refused = get(edge, "/", "");
    assert_eq!(refused.status, 429, "{refused:?}");
    assert_eq!(refused.field("x-ratelimit-remaining"), "0");
    assert_eq!(refused.field("x-envoy-ratelimited"), "true");
    // Another descriptor, and another value of it: other limits.
    for key in ["one", "two"] {
        let key = format!("x-api-key: {key}\r\n");
        let answer = get(edge, "/", &key);
        assert_eq!(answer.status, 200, "{answer:?}");
        let limit = answer.field("x-ratelimit-limit");
        assert_eq!(limit, "2, 2;w=86400;name=\"per-key\"");
        assert_eq!(statuses(edge, "/", &key, 2), [200, 429]);
    }
}

fn shadow_override_and_hits(edge: SocketAddr) {
    let answer = get(edge, "/trial", "");
    assert_eq!(answer.field("x-ratelimit-limit"), "1, 1;w=86400");
    assert_eq!(statuses(edge, "/trial", "", 3), [200; 3]);
    // The policy knows nothing of this descriptor: the request brings its limit along.
    let answer = get(edge, "/plan", "");
    assert_eq!(answer.field("x-ratelimit-limit"), "2, 2;w=86400");
    assert_eq!(statuses(edge, "/plan", "", 2), [200, 429]);
    // 4 + 6 of the 10 megabytes; the files are counted one by one beside them, and are the next limit.
    let answer = get(edge, "/upload", "x-megabytes: 4\r\n");
    assert_eq!(answer.field("x-ratelimit-remaining"), "6", "{answer:?}");
    let answer = get(edge, "/upload", "x-megabytes: 6\r\n");
    assert_eq!(
        (answer.status, answer.field("x-ratelimit-remaining")),
        (200, "0")
    );
    assert_eq!(get(edge, "/upload", "x-megabytes: 1\r\n").status, 429);
}

#[test]
fn a_real_envoy_asks_tollgate() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/start/envoy.md");
    let page = fs::read_to_string(page).expect("docs/start/envoy.md");
    let (policy, config) = (block(&page, "policy.yaml"), block(&page, "envoy.yaml"));
    let (scratch, grpc) = (TempFolder::new("behind-envoy"), Port::reserve_free());
    let service = start(&scratch, &policy, grpc.number(), &[]);
    let config = config.replace(&port_value(8081), &port_value(grpc.number()));
    let strict = config.replace("failure_mode_deny: false", "failure_mode_deny: true");
    assert_ne!(config, strict);
    let listeners = [10_000, 10_001];
    let (open, strict) = (
        Envoy::start(&config, &listeners),
        Envoy::start(&strict, &listeners),
    );
    let (edge, strict) = (open.address(10_000), strict.address(10_000));

    limits_and_what_is_left(edge);
    shadow_override_and_hits(edge);
    // The log tells which limit it was.
    let long = Duration::from_secs(60);
    wait_until(long, "Envoy to write its log", || {
        let log = open.log();
        log.contains("429 / edge/tier=free/remote_address\n")
            && log.contains("429 / edge/api_key\n")
    });
    // Both ask the same service.
    assert_eq!(get(strict, "/", "").status, 429);

    drop(service);
    let answer = get(edge, "/", "");
    assert_eq!(
        (answer.status, answer.field("x-ratelimit-limit")),
        (200, "")
    );
    assert_eq!(get(strict, "/", "").status, 500);

    // It counts in memory, and begins anew.
    let _service = start(&scratch, &policy, grpc.number(), &[]);
    wait_until(long, "Envoy to ask again", || {
        !get(edge, "/trial", "")
            .field("x-ratelimit-limit")
            .is_empty()
    });
    wait_until(long, "the other Envoy to ask again", || {
        get(strict, "/trial", "").status == 200
    });
    assert_eq!(statuses(edge, "/", "", 4), [200, 200, 200, 429]);
}

#[test]
fn who_starts_it_on_a_store_is_told_of_limits_that_are_closed() {
    let scratch = TempFolder::new("closed-at-start");
    let nobody = Port::reserve_free();
    let store = format!("redis://127.0.0.1:{}", nobody.number());
    let closed = "limits: [{name: monthly, key: user, quota: 5/month}]";
    let open = "limits: [{name: quick, key: user, rate: 5/s}]";
    let said = |policy: &str, options: &[&str]| {
        let service = start(&scratch, policy, 0, options);
        let said = service.said("gRPC  on");
        said + &service.warned()
    };
    let error = said(closed, &["--backend", &store]);
    assert!(error.contains("nothing passes \"monthly\""), "{error}");
    assert!(error.contains("--rls-closed deny"), "{error}");
    let deny = said(closed, &["--backend", &store, "--rls-closed", "deny"]);
    assert!(deny.contains("--rls-closed error"), "{deny}");
    for text in [said(open, &["--backend", &store]), said(closed, &[])] {
        assert!(!text.contains("--rls-closed"), "{text}");
    }
}
