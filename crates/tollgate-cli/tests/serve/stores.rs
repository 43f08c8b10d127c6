//! Stores that are reachable, unreachable, and that reject our credentials.

use tollgate_testkit::redis::{Port, Server, wait_until};
use tollgate_testkit::temp_folder::TempFolder;

use crate::kit::{ANY, LONG, Service, fails, file};

const POLICY: &str =
    "limits: [{name: daily, key: user, quota: 5/day}, {name: calls, key: tenant, rate: 5/s}]";

const ADA: &str = r#"{"facts": {"user": "ada"}}"#;
const ACME: &str = r#"{"facts": {"tenant": "acme"}}"#;

/// A policy, a store, and all ports free.
fn options<'a>(policy: &'a str, store: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    // A busy machine may take its time. A store that isn't there is noticed at once all the same.
    let mut options = vec![policy, "--backend", store, "--store-timeout", "20s"];
    options.extend(more);
    options.extend(ANY);
    options
}

#[test]
fn services_on_one_store_count_together() {
    let (scratch, store) = (TempFolder::new("store"), Server::start());
    let policy = file(&scratch, "policy.yaml", POLICY);
    let (policy, url) = (policy.to_str().expect("text"), store.url());
    let options = options(policy, &url, &["--require-store"]);
    let both = [Service::start(&options), Service::start(&options)];
    let passed = (0..8).filter(|number| both[number % 2].post("/v1/check", ADA).0 == 200);
    assert_eq!(passed.count(), 5);
    let said = both[0].said("admin on");
    assert!(!said.contains("count apart"), "{said}");
    let place = format!("limits are counted in {url}, together with all that count there\n");
    assert!(said.contains(&place), "{said}");
    for service in both {
        assert_eq!(service.end("TERM").code(), Some(0));
    }
}

#[test]
fn a_store_that_refuses_the_credentials_is_one_line() {
    let scratch = TempFolder::new("credentials");
    let policy = file(&scratch, "policy.yaml", POLICY);
    let store = Server::builder().password("right").start();
    let url = format!("redis://:not-it@127.0.0.1:{}", store.port());
    let (code, said) = fails(&options(policy.to_str().expect("text"), &url, &[]), |_| {});
    assert_eq!(code, 1, "{said}");
    let said: Vec<_> = said
        .lines()
        .filter(|line| !line.starts_with("warning: "))
        .collect();
    assert_eq!(
        said,
        [format!(
            "error: redis://…@127.0.0.1:{}: the store answered with an error: wrong user or password; correct them in its URL, as user:password@ before the host, with %40 for @ and the like",
            store.port()
        )]
    );
    // With the right one it starts.
    let url = store.url();
    Service::start(&options(
        policy.to_str().expect("text"),
        &url,
        &["--require-store"],
    ));
}

#[test]
fn a_store_that_isnt_there_is_a_warning_and_each_rule_decides() {
    let (scratch, nobody) = (TempFolder::new("nobody"), Port::reserve_free());
    let policy = file(&scratch, "policy.yaml", POLICY);
    let url = format!("redis://127.0.0.1:{}", nobody.number());
    let service = Service::start(&options(policy.to_str().expect("text"), &url, &[]));
    let warned = service.told("each rule's on_store_failure decides\n");
    let start = format!("warning: {url}: the store can't be reached: ");
    let about = warned.lines().find(|line| line.starts_with(&start));
    let end = "; until it can be asked, each rule's on_store_failure decides";
    assert!(about.is_some_and(|line| line.ends_with(end)), "{warned}");
    assert_eq!(service.post("/v1/check", ADA).0, 503, "quotas are closed");
    assert_eq!(service.post("/v1/check", ACME).0, 200, "rates are local");
    let (code, said) = fails(
        &options(policy.to_str().expect("text"), &url, &["--require-store"]),
        |_| {},
    );
    assert_eq!(code, 1);
    let errors: Vec<_> = said
        .lines()
        .filter(|line| line.starts_with("error: "))
        .collect();
    assert_eq!(errors.len(), 1, "{said}");
    assert!(errors[0].starts_with(&format!("error: {url}: the store can't be reached: ")));
}

#[test]
fn a_store_that_comes_after_the_start_is_counted_in() {
    let (scratch, store) = (TempFolder::new("later"), Server::start());
    let policy = file(&scratch, "policy.yaml", POLICY);
    let (policy, url) = (policy.to_str().expect("text"), store.url());
    store.kill();
    let service = Service::start(&options(policy, &url, &[]));
    service.warns("on_store_failure decides");
    assert_eq!(service.post("/v1/check", ADA).0, 503, "quotas are closed");
    store.restart_empty();
    let peek = |service: &Service| service.post("/v1/peek", ADA).0;
    wait_until(LONG, "the store to be asked", || peek(&service) == 200);
    let other = Service::start(&options(policy, &url, &["--require-store"]));
    let both = [&service, &other];
    let passed = (0..8).filter(|number| both[number % 2].post("/v1/check", ADA).0 == 200);
    assert_eq!(passed.count(), 5, "they count together");
    assert_eq!(service.end("TERM").code(), Some(0));
}

#[test]
fn an_outage_is_told_when_it_begins_and_when_it_ends() {
    let (scratch, store) = (TempFolder::new("outage"), Server::start());
    let policy = file(&scratch, "policy.yaml", POLICY);
    let (policy, url) = (policy.to_str().expect("text"), store.url());
    let service = Service::start(&options(policy, &url, &["--require-store"]));
    assert_eq!(service.post("/v1/check", ADA).0, 200);
    assert!(
        !service.warned().contains("store: "),
        "{}",
        service.warned()
    );
    store.kill();
    wait_until(LONG, "a failure", || {
        service.post("/v1/check", ADA).0 == 503
            && service
                .warned()
                .contains("store: requests are decided without")
    });
    for _ in 0..20 {
        assert_eq!(service.post("/v1/check", ADA).0, 503);
    }
    // It is said with its reason, and clients come all the same.
    let (status, ready) = service.get("http", "/readyz");
    assert_eq!(status, 200, "{ready}");
    let start = r#"{"status":"degraded","reasons":{"store":""#;
    assert!(ready.starts_with(start), "{ready}");
    let (_, metrics) = service.get("admin", "/metrics");
    let own = |line: &str| metrics.lines().any(|own| own == line);
    assert!(own("tollgate_fallback_active 1"), "{metrics}");
    assert!(own(r#"tollgate_concern{concern="store"} 1"#), "{metrics}");
    assert!(!own(
        r#"tollgate_denied_total{limiter="daily",reason="store"} 0"#
    ));
    store.restart_empty();
    wait_until(LONG, "the store", || {
        let (status, _) = service.post("/v1/check", r#"{"facts": {"user": "bea"}, "cost": 0}"#);
        status == 200
            && service
                .warned()
                .contains("store: the store answers again, after ")
    });
    let lines = service
        .warned()
        .lines()
        .filter(|line| line.contains(": store: "))
        .count();
    let (_, ready) = service.get("admin", "/readyz");
    assert_eq!(ready, "{\"status\":\"ready\",\"reasons\":{}}\n");
    assert!(
        lines <= 8,
        "one a failure would be 20: {}",
        service.warned()
    );
}

#[test]
fn a_store_that_comes_back_is_known_though_nobody_asks() {
    let (scratch, store) = (TempFolder::new("comes-back"), Server::start());
    let policy = file(&scratch, "policy.yaml", POLICY);
    let (policy, url) = (policy.to_str().expect("text"), store.url());
    store.kill();
    let service = Service::start(&options(policy, &url, &[]));
    let (status, ready) = service.get("http", "/readyz");
    assert_eq!(status, 200);
    assert!(
        ready.contains("\"degraded\",\"reasons\":{\"store\":"),
        "{ready}"
    );
    store.restart_empty();
    wait_until(LONG, "the store to be known", || {
        service.get("http", "/readyz").1.contains("\"ready\"")
    });
    // Its clock and this one are the same, but for the time between two looks.
    wait_until(LONG, "its clock to be known", || {
        let (_, metrics) = service.get("admin", "/metrics");
        let name = "tollgate_store_clock_offset_seconds ";
        let offset = metrics.lines().find_map(|line| line.strip_prefix(name));
        let offset: f64 = offset.expect("an offset").parse().expect("a number");
        assert!(offset.abs() < 5.0, "{offset}");
        offset != 0.0
    });
}

#[test]
fn a_replica_without_requests_knows_that_its_store_is_gone_and_back() {
    let (scratch, store) = (TempFolder::new("idle-outage"), Server::start());
    let policy = file(&scratch, "policy.yaml", POLICY);
    let (policy, url) = (policy.to_str().expect("text"), store.url());
    let service = Service::start(&options(policy, &url, &[]));
    let fallback = || {
        let (_, metrics) = service.get("admin", "/metrics");
        let mut lines = metrics.lines();
        let line = lines.find_map(|line| line.strip_prefix("tollgate_fallback_active "));
        line.expect("a gauge").to_owned()
    };
    assert_eq!(fallback(), "0");
    store.kill();
    wait_until(LONG, "the outage to be known", || {
        let (_, ready) = service.get("http", "/readyz");
        ready.contains("\"degraded\",\"reasons\":{\"store\":")
    });
    assert_eq!(fallback(), "1");
    store.restart_empty();
    wait_until(LONG, "the store to be known", || {
        service.get("http", "/readyz").1.contains("\"ready\"")
    });
    assert_eq!(fallback(), "0");
    service.warns("error: store: it doesn't answer, though no request asks it why=");
    service.warns("info: store: it answers again");
}

const LEASED: &str = "limits: [{name: calls, key: user, rate: 100000/h, counting: leased}]";

#[test]
fn whether_leases_went_back_at_the_end_is_logged_as_it_was() {
    for (is_stopped, told, not_told) in [
        (false, "is given back", "could not be given back"),
        (true, "could not be given back", "is given back"),
    ] {
        let (scratch, store) = (TempFolder::new("leases-at-the-end"), Server::start());
        let policy = file(&scratch, "policy.yaml", LEASED);
        let (policy, url) = (policy.to_str().expect("text"), store.url());
        let service = Service::start(&options(policy, &url, &["--drain-delay", "0s"]));
        for _ in 0..20 {
            assert_eq!(service.post("/v1/check", ADA).0, 200);
        }
        if is_stopped {
            store.pause();
        }
        service.signal("TERM");
        let event = "what was taken from the store in advance";
        let log = service.told(event);
        assert!(log.contains(&format!("{event} {told}")), "{log}");
        assert!(!log.contains(&format!("{event} {not_told}")), "{log}");
        store.resume();
    }
}
