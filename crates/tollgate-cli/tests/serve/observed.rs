//! The service's output for its real readers: Prometheus, a reader of the log, and a log that nobody reads.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use tollgate_testkit::external_programs::find_program;
use tollgate_testkit::redis::{Port, wait_until};
use tollgate_testkit::temp_folder::TempFolder;

use crate::kit::{ANY, LONG, Service, fails, file, get};

const POLICY: &str = "limits: [{name: per-user, key: user, rate: 7/h}]";

/// A service by a policy, with all ports free.
fn started(scratch: &TempFolder, policy: &str, more: &[&str]) -> Service {
    started_with(scratch, policy, more, |_| {})
}

fn started_with(
    scratch: &TempFolder,
    policy: &str,
    more: &[&str],
    change: impl FnOnce(&mut Command),
) -> Service {
    let policy = file(scratch, "policy.yaml", policy);
    let options = [&[policy.to_str().expect("text")], more, &ANY].concat();
    Service::with(&options, change)
}

/// A Prometheus that runs, killed when it is dropped.
struct Prometheus {
    child: Child,
    address: String,
    /// Nobody else gets it meanwhile.
    _port: Port,
}

impl Prometheus {
    /// One that scrapes this address every second.
    fn of(target: &str, scratch: &TempFolder) -> Self {
        let program = find_program("prometheus", "apt-get install prometheus");
        let jobs = format!(
            "global: {{scrape_interval: 1s}}\n\
             scrape_configs: [{{job_name: tollgate, static_configs: [{{targets: ['{target}']}}]}}]\n"
        );
        let config = file(scratch, "prometheus.yml", &jobs);
        let port = Port::reserve_free();
        let address = format!("127.0.0.1:{}", port.number());
        let child = Command::new(program)
            .arg(format!("--config.file={}", config.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                scratch.path("series").display()
            ))
            .arg(format!("--web.listen-address={address}"))
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(scratch.path("prometheus.log")).expect("a file"))
            .spawn()
            .expect("prometheus starts");
        Self {
            child,
            address,
            _port: port,
        }
    }

    /// What a query comes to, if it is one number.
    fn asked(&self, query: &str) -> Option<String> {
        TcpStream::connect(&self.address).ok()?;
        let query: String = query.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let (status, body) = get(&self.address, &format!("/api/v1/query?query={query}"));
        let answer: Value = serde_json::from_str(&body).ok().filter(|_| status == 200)?;
        let value = answer["data"]["result"][0]["value"][1].as_str();
        value.map(str::to_owned)
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_real_prometheus_scrapes_it() {
    let scratch = TempFolder::new("prometheus");
    let service = started(&scratch, POLICY, &["--metrics", "0"]);
    for _ in 0..10 {
        service.post("/v1/check", r#"{"facts":{"user":"ada"}}"#);
    }
    let target = service.ready["metrics"].as_str().expect("an address");
    let prometheus = Prometheus::of(target, &scratch);
    let expected = [
        (r#"up{job="tollgate"}"#, "1"),
        (r#"tollgate_allowed_total{limiter="per-user"}"#, "7"),
        (
            r#"tollgate_denied_total{limiter="per-user",reason="rate"}"#,
            "3",
        ),
        (
            r#"tollgate_denied_total{limiter="per-user",reason="quota"}"#,
            "0",
        ),
        (r#"tollgate_request_seconds_count{protocol="http"}"#, "10"),
        (
            r#"tollgate_request_seconds_bucket{protocol="http",le="+Inf"}"#,
            "10",
        ),
        (r#"tollgate_active_keys{table="gcra"}"#, "1"),
        (r#"count(tollgate_build_info{backend="memory"})"#, "1"),
    ];
    for (query, value) in expected {
        wait_until(LONG, query, || {
            prometheus.asked(query).as_deref() == Some(value)
        });
    }
    // What is new is seen by the next scrape.
    service.post("/v1/check", r#"{"facts":{"user":"bea"}}"#);
    let allowed = r#"tollgate_allowed_total{limiter="per-user"}"#;
    wait_until(LONG, "the next scrape", || {
        prometheus.asked(allowed).as_deref() == Some("8")
    });
}

#[test]
fn the_metrics_listener_has_metrics_and_probes_and_nothing_else() {
    let scratch = TempFolder::new("metrics-listener");
    let service = started(&scratch, POLICY, &["--metrics", "0"]);
    service.said("metrics on 127.0.0.1:");
    for (path, status) in [
        ("/metrics", 200),
        ("/healthz", 200),
        ("/readyz", 200),
        ("/v1/usage", 404),
        ("/admin/rules", 404),
        ("/openapi.json", 404),
    ] {
        assert_eq!(service.get("metrics", path).0, status, "{path}");
    }
    assert_eq!(service.get("http", "/metrics").0, 404);
    let quiet = started(&TempFolder::new("no-metrics"), POLICY, &[]);
    assert!(quiet.ready["metrics"].is_null(), "{}", quiet.ready);
}

#[test]
fn lines_of_json_have_a_time_and_refusals_a_hash_in_place_of_the_key() {
    let scratch = TempFolder::new("log-json");
    let options = ["--log-format", "json", "--log-denials", "100%"];
    let service = started(&scratch, POLICY, &options);
    for _ in 0..10 {
        service.post("/v1/check", r#"{"facts":{"user":"ada-lovelace"}}"#);
    }
    let denied = || {
        let log = service.logged();
        // The last line may not be written whole yet.
        let (whole, _) = log.rsplit_once('\n').unwrap_or_default();
        let lines = whole
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).expect(line));
        let denied = lines.inspect(|line| {
            let time = line["time"].as_str().expect("a time");
            assert!(time.len() == 24 && time.ends_with('Z'), "{time}");
            assert!(
                line["level"].is_string() && line["event"].is_string(),
                "{line}"
            );
        });
        denied
            .filter(|line| line["event"] == "denied")
            .collect::<Vec<_>>()
    };
    wait_until(LONG, "all refusals", || denied().len() == 3);
    let first = &denied()[0];
    assert_eq!(
        (&first["rule"], &first["reason"]),
        (&"per-user".into(), &"rate".into())
    );
    let hash = first["key_hash"].as_str().expect("a hash");
    assert!(hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()));
    assert!(denied().iter().all(|line| line["key_hash"] == hash));
    assert!(
        !service.logged().contains("lovelace"),
        "{}",
        service.logged()
    );
}

#[test]
fn a_log_that_nobody_reads_keeps_nobody_waiting() {
    let scratch = TempFolder::new("log-blocked");
    let name = "n".repeat(150);
    let policy = format!("limits: [{{name: {name}, key: user, rate: 1/h}}]");
    let options = [
        "--log-denials",
        "100%",
        "--log-denials-per-second",
        "1000000",
    ];
    // A pipe that is full after some hundred lines.
    let service = started_with(&scratch, &policy, &options, |command| {
        command.stderr(Stdio::piped());
    });
    let address = service.ready["resp"].as_str().expect("an address");
    let mut stream = TcpStream::connect(address).expect("a connection");
    stream.set_read_timeout(Some(LONG)).expect("a timeout");
    // Each a line of more than 200 bytes: twice what may wait.
    for _ in 0..20 {
        let asked = "TG.CHECK user=ada\r\n".repeat(500) + "PING\r\n";
        stream.write_all(asked.as_bytes()).expect("written");
        let (mut heard, mut bytes) = (Vec::new(), [0; 65_536]);
        while !heard.ends_with(b"+PONG\r\n") {
            let read = stream.read(&mut bytes).expect("an answer");
            assert!(read > 0, "closed");
            heard.extend(&bytes[..read]);
        }
    }
    let (_, metrics) = service.get("admin", "/metrics");
    let dropped = metrics
        .lines()
        .find_map(|line| line.strip_prefix("tollgate_log_dropped_total "));
    let dropped: u64 = dropped.expect("a count").parse().expect("a number");
    assert!(dropped > 1_000, "{dropped}");
    assert_eq!(service.end("TERM").code(), Some(0));
}

#[test]
fn what_cant_be_meant_is_told_in_one_line() {
    for (options, says) in [
        (
            ["--log-format", "xml"],
            "no form \"xml\": write text or json",
        ),
        (
            ["--log-level", "loud"],
            "no level \"loud\": write error, warning, info or debug",
        ),
        (
            ["--log-denials", "5"],
            "no share \"5\": write 1%, 0.01%, 100%, or 0 for none",
        ),
        (
            ["--metrics", "127.0.0.1:8080"],
            "--http and --metrics are both 127.0.0.1:8080",
        ),
    ] {
        let (code, said) = fails(&options, |_| {});
        assert_eq!((code, said.lines().count()), (2, 1), "{said}");
        assert!(said.contains(says), "{said}");
    }
}
