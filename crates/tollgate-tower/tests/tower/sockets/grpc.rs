//! gRPC calls, with tonic on both sides.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpListener;
use tollgate::Rate;
use tollgate_tower::{
    ConcurrencyLimit, RateLimitLayer, RequestHead, RequestLimiter, RequestLimits, keys,
};
use tonic::Code;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Server};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_types::StatusExt;

use super::wait_until;
use crate::kit::per_key;

async fn serve<L: RequestLimits<RequestHead>>(layer: RateLimitLayer<L>) -> HealthClient<Channel> {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address: SocketAddr = listener.local_addr().expect("an address");
    let (_reporter, health) = tonic_health::server::health_reporter();
    let server = Server::builder().layer(layer).add_service(health);
    // It ends with the test's runtime.
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
    let endpoint = Channel::from_shared(format!("http://{address}")).expect("a URL");
    HealthClient::new(endpoint.connect().await.expect("a connection"))
}

fn anything() -> HealthCheckRequest {
    HealthCheckRequest::default()
}

#[tokio::test]
async fn a_refusal_is_a_status_with_details() {
    let (limits, _) = per_key(Rate::per_minute(2), keys::ClientAddress::new());
    let layer = RateLimitLayer::new(limits.named("per-client"));
    let mut client = serve(layer).await;
    for _ in 0..2 {
        let answer = client.check(anything()).await.expect("an answer");
        assert!(answer.metadata().contains_key("ratelimit"));
    }
    let status = client.check(anything()).await.expect_err("a refusal");
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!(status.message(), "Too many requests: try again later");
    let pushback = status.metadata().get("grpc-retry-pushback-ms");
    assert_eq!(
        pushback.and_then(|value| value.to_str().ok()),
        Some("30000")
    );
    let details = status.get_error_details();
    let retry = details.retry_info().expect("when to come again");
    assert_eq!(retry.retry_delay.map(|delay| delay.as_secs()), Some(30));
    let quota = details.quota_failure().expect("which limit");
    assert_eq!(quota.violations[0].subject, "per-client");
    assert_eq!(quota.violations[0].description, "rate");
}

#[tokio::test]
async fn a_service_that_is_full_is_unavailable() {
    let limits = ConcurrencyLimit::new(1, keys::Global);
    let limiter = Arc::clone(limits.limiter());
    let mut client = serve(RateLimitLayer::new(limits)).await;
    // A stream that ends when the client has seen enough.
    let watch = client.watch(anything()).await.expect("a stream");
    let status = client.check(anything()).await.expect_err("it is full");
    assert_eq!(status.code(), Code::Unavailable);
    drop(watch);
    wait_until("a free slot", || limiter.is_empty()).await;
    assert!(client.check(anything()).await.is_ok());
}

/// A missing header is the caller's mistake, and the error names it.
#[tokio::test]
async fn a_call_without_its_key_is_an_invalid_one() {
    let key = || keys::Header::new("x-api-key");
    let (limits, _) = per_key(Rate::per_minute(2), key());
    let mut client = serve(RateLimitLayer::new(limits)).await;
    let status = client.check(anything()).await.expect_err("it has no key");
    assert_eq!(status.code(), Code::InvalidArgument);
    let message = "The call lacks exactly one header x-api-key";
    assert_eq!(status.message(), message);
    // In shadow nothing comes of it.
    let (limits, _) = per_key(Rate::per_minute(2), key());
    let mut client = serve(RateLimitLayer::new(limits).configure(RequestLimiter::shadow)).await;
    assert!(client.check(anything()).await.is_ok());
}
