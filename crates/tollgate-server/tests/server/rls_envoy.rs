//! A real Envoy whose clients disconnect: that affects no other client's requests.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use tollgate_testkit::envoy_process::{Envoy, port_value};

use crate::kit::Running;
use crate::metrics::{scraped, value};
use crate::rls_raw::{END_HEADERS, END_STREAM, HEADERS, SETTINGS, frame, reset};

/// Its clients' requests are limited by the service, which has an authority as Istio writes it; without an answer they
/// pass.
const CONFIG: &str = r#"
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
                  rate_limits: [{actions: [{generic_key: {descriptor_key: user, descriptor_value: ada}}]}]
          http_filters:
          - name: envoy.filters.http.ratelimit
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit
              domain: edge
              failure_mode_deny: false
              timeout: 30s
              rate_limit_service:
                transport_api_version: V3
                grpc_service:
                  envoy_grpc: {cluster_name: limits, authority: "outbound|8081||limits.default.svc.cluster.local"}
          - name: envoy.filters.http.router
            typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
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
            - {name: all, domains: ["*"], routes: [{match: {prefix: /}, direct_response: {status: 200}}]}
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
  clusters:
  - name: upstream
    load_assignment:
      cluster_name: upstream
      endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: 10001}}}}]}]
  - name: limits
    connect_timeout: 30s
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http2_protocol_options: {}}
    load_assignment:
      cluster_name: limits
      endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: 8081}}}}]}]
"#;

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: edge\r\nconnection: close\r\n\r\n";

fn get(edge: SocketAddr) -> u16 {
    let mut stream = TcpStream::connect(edge).expect("a connection");
    stream.write_all(REQUEST).expect("written");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    let status = text.split(' ').nth(1).expect("a status");
    status.parse().expect("a number")
}

/// One client of HTTP/2 that begins many requests and gives them all up, in one write.
fn give_up_many(edge: SocketAddr) -> TcpStream {
    let mut said = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    said.extend(frame(SETTINGS, 0, 0, &[]));
    for stream in (0..25).map(|number| 2 * number + 1) {
        // GET, http, /, and a name.
        let block = [&[0x82, 0x86, 0x84, 0x01, 4][..], b"edge"].concat();
        said.extend(frame(HEADERS, END_HEADERS | END_STREAM, stream, &block));
        said.extend(reset(stream));
    }
    let mut stream = TcpStream::connect(edge).expect("a connection");
    stream.write_all(&said).expect("written");
    stream
}

#[test]
fn clients_of_a_real_envoy_that_hang_up_switch_no_limit_off() {
    let tree =
        "domain: edge\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 3}}]";
    let running = Running::new(tree, |_| {});
    let config = CONFIG.replace(&port_value(8_081), &port_value(running.grpc().port()));
    let envoy = Envoy::start(&config, &[10_000, 10_001]);
    let edge = envoy.address(10_000);
    // By an authority that is none of a URI.
    let first: Vec<_> = (0..5).map(|_| get(edge)).collect();
    assert_eq!(first, [200, 200, 200, 429, 429]);
    for _ in 0..4 {
        let others = std::thread::spawn(move || (0..50).map(|_| get(edge)).collect::<Vec<_>>());
        let mut kept = Vec::new();
        for number in 0..100 {
            let mut leaving = TcpStream::connect(edge).expect("a connection");
            leaving.write_all(REQUEST).expect("written");
            drop(leaving);
            if number % 10 == 0 {
                kept.push(give_up_many(edge));
            }
        }
        assert_eq!(others.join().expect("no panic"), [429; 50]);
    }
    let text = scraped(&running);
    assert_eq!(
        value(&text, "tollgate_allowed_total{limiter=\"edge/user\"}"),
        "3"
    );
    for kind in ["malformed", "rejected", "flood"] {
        let series = format!("tollgate_protocol_errors_total{{protocol=\"grpc\",kind=\"{kind}\"}}");
        assert_eq!(value(&text, &series), "0", "{series}");
    }
}
