//! A rolling restart: two services on one store are replaced one after the other. A real Envoy in front of them denies
//! requests that it can't have decided, and its clients notice nothing.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tollgate::clock::{Clock, Wall};
use tollgate_testkit::envoy_process::{Envoy, port_value};
use tollgate_testkit::redis::{Port, Server, wait_until};
use tollgate_testkit::temp_folder::TempFolder;

use crate::envoy::get;
use crate::kit::{LONG, Service, file};

/// What may pass in a year, and in a second.
const YEARLY: usize = 400;
const EACH_SECOND: usize = 10;

const POLICY: &str = "\
domain: edge
descriptors:
- {key: path, value: /year, rate_limit: {unit: year, requests_per_unit: 400}}
- {key: path, value: /second, rate_limit: {unit: second, requests_per_unit: 10}}
";

const CONFIG: &str = r#"
admin: {address: {socket_address: {address: 127.0.0.1, port_value: 10002}}}
static_resources:
  listeners:
  - name: edge
    address: {socket_address: {address: 127.0.0.1, port_value: 10000}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: edge
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes:
              - match: {prefix: /}
                route:
                  cluster: upstream
                  rate_limits:
                  - actions: [{request_headers: {header_name: ":path", descriptor_key: path}}]
          http_filters:
          - name: envoy.filters.http.ratelimit
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit
              domain: edge
              failure_mode_deny: true
              timeout: 10s
              rate_limit_service:
                transport_api_version: V3
                grpc_service: {envoy_grpc: {cluster_name: tollgate}}
          - name: envoy.filters.http.router
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
  - name: upstream
    address: {socket_address: {address: 127.0.0.1, port_value: 10001}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: upstream
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes: [{match: {prefix: /}, direct_response: {status: 200}}]
          http_filters:
          - name: envoy.filters.http.router
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
  clusters:
  - name: upstream
    load_assignment:
      cluster_name: upstream
      endpoints:
      - lb_endpoints:
        - endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: 10001}}}
  - name: tollgate
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http2_protocol_options: {}}
    common_lb_config: {healthy_panic_threshold: {value: 0}}
    health_checks:
    - {timeout: 5s, interval: 0.1s, no_traffic_interval: 0.1s, unhealthy_threshold: 1, healthy_threshold: 1, grpc_health_check: {}}
    load_assignment:
      cluster_name: tollgate
      endpoints:
      - lb_endpoints:
        - endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: 8081}}}
        - endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: 8082}}}
"#;

/// When a request was sent and answered, in nanoseconds of the clock that windows are counted by, and its status.
struct Answered {
    sent: u64,
    heard: u64,
    status: u16,
}

fn now() -> u64 {
    Wall.now().as_nanos()
}

/// Asks steadily until it is enough.
#[expect(clippy::disallowed_methods, reason = "clients have pauses")]
fn ask(edge: SocketAddr, path: &str, pause: Duration, is_over: &AtomicBool) -> Vec<Answered> {
    let mut answers = Vec::new();
    while !is_over.load(Ordering::Relaxed) {
        let sent = now();
        let status = get(edge, path, "").status;
        answers.push(Answered {
            sent,
            heard: now(),
            status,
        });
        std::thread::sleep(pause);
    }
    answers
}

/// Whether Envoy sends requests to the service on a port.
fn asks(admin: SocketAddr, port: &Port) -> bool {
    let mut stream = TcpStream::connect(admin).expect("a connection");
    let request = b"GET /clusters HTTP/1.1\r\nhost: envoy\r\nconnection: close\r\n\r\n";
    stream.write_all(request).expect("written");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    let own = format!("127.0.0.1:{}::health_flags::healthy", port.number());
    text.contains(&own)
}

#[test]
fn clients_of_envoy_notice_nothing_of_a_rolling_restart() {
    let (scratch, store) = (TempFolder::new("rolling"), Server::start());
    let policy = file(&scratch, "policy.yaml", POLICY);
    let ports = [Port::reserve_free(), Port::reserve_free()];
    let start = |port: &Port| {
        let (url, grpc) = (store.url(), format!("127.0.0.1:{}", port.number()));
        let mut options = vec![policy.to_str().expect("text"), "--backend", &url];
        options.extend(["--require-store", "--store-timeout", "5s", "--grpc", &grpc]);
        options.extend(["--http", "off", "--resp", "off", "--admin", "off"]);
        // Much longer than Envoy takes to hear of it, on a busy machine too.
        options.extend(["--drain-delay", "5s"]);
        Service::start(&options)
    };
    let mut services = [start(&ports[0]), start(&ports[1])].map(Some);
    let config = CONFIG
        .replace(&port_value(8081), &port_value(ports[0].number()))
        .replace(&port_value(8082), &port_value(ports[1].number()));
    let envoy = Envoy::start(&config, &[10_000, 10_001, 10_002]);
    let edge = envoy.address(10_000);
    wait_until(LONG, "Envoy to find the services", || {
        ports.iter().all(|port| asks(envoy.address(10_002), port))
    });
    let is_over = AtomicBool::new(false);
    let (yearly, each_second) = std::thread::scope(|scope| {
        let yearly = scope.spawn(|| ask(edge, "/year", Duration::from_millis(15), &is_over));
        let each_second = scope.spawn(|| ask(edge, "/second", Duration::from_millis(5), &is_over));
        for (port, service) in ports.iter().zip(&mut services) {
            let old = service.take().expect("a service");
            assert_eq!(old.end("TERM").code(), Some(0));
            *service = Some(start(port));
            // The other goes only once Envoy asks this one.
            wait_until(LONG, "Envoy to come back", || {
                asks(envoy.address(10_002), port)
            });
        }
        // However slow a machine is, some second sees more than it may.
        wait_until(LONG, "a second that is full", || {
            get(edge, "/second", "").status == 429
        });
        is_over.store(true, Ordering::Relaxed);
        (yearly.join(), each_second.join())
    });
    let (mut yearly, each_second) = (yearly.expect("no panic"), each_second.expect("no panic"));
    // What is left of the year.
    while yearly.iter().filter(|one| one.status == 200).count() < YEARLY
        && yearly.len() < 2 * YEARLY
    {
        let sent = now();
        let status = get(edge, "/year", "").status;
        let heard = now();
        yearly.push(Answered {
            sent,
            heard,
            status,
        });
    }
    for _ in 0..20 {
        assert_eq!(get(edge, "/year", "").status, 429, "the year is spent");
    }
    for one in yearly.iter().chain(&each_second) {
        assert!(
            matches!(one.status, 200 | 429),
            "{}: {}",
            one.status,
            envoy.log()
        );
    }
    let passed = yearly.iter().filter(|one| one.status == 200).count();
    assert_eq!(passed, YEARLY, "of {}", yearly.len());
    a_window_is_kept(&each_second);
}

/// No window has more than its limit of those that were sent and answered inside of it.
fn a_window_is_kept(answers: &[Answered]) {
    let second = |nanos: u64| nanos / 1_000_000_000;
    let passed = answers.iter().filter(|one| one.status == 200);
    let inside = passed.filter(|one| second(one.sent) == second(one.heard));
    let mut windows = std::collections::BTreeMap::new();
    for one in inside {
        *windows.entry(second(one.sent)).or_insert(0) += 1;
    }
    let most = windows.values().max().copied().unwrap_or(0);
    assert!((1..=EACH_SECOND).contains(&most), "{windows:?}");
}
