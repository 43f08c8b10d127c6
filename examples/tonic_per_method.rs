//! A tonic service in which each client has a limit for each method. A denied client gets a gRPC status with details.

use tokio::net::TcpListener;
use tollgate::Rate;
use tollgate_tower::{RateLimitLayer, Request, RequestHead, keys};
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Server};
use tonic::{Code, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

type BoxError = Box<dyn std::error::Error>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), BoxError> {
    // The path of a call is its method, as "/grpc.health.v1.Health/Check".
    let method = keys::from_fn(|head: &RequestHead| Some(head.path().to_owned()));
    let limit = RateLimitLayer::per_key(Rate::per_hour(2), (keys::ClientAddress::new(), method));

    // An existing service, for the sake of the example.
    let (_reporter, health) = tonic_health::server::health_reporter();
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    let server = Server::builder().layer(limit).add_service(health);
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));

    let channel = Channel::from_shared(url)?.connect().await?;
    let mut client = HealthClient::new(channel);
    let mut codes = Vec::new();
    for _ in 0..4 {
        let answer = client.check(HealthCheckRequest::default()).await;
        codes.push(answer.map_or_else(|status| status_text(&status), |_| Code::Ok));
    }
    // Another method has its own limit.
    let watch = client.watch(HealthCheckRequest::default()).await;
    codes.push(watch.map_or_else(|status| status.code(), |_| Code::Ok));
    println!("{codes:?}");
    let (ok, exhausted) = (Code::Ok, Code::ResourceExhausted);
    assert_eq!(codes, [ok, ok, exhausted, exhausted, ok]);
    Ok(())
}

/// The fields of a denied call's status.
fn status_text(status: &Status) -> Code {
    let pushback = status.metadata().get("grpc-retry-pushback-ms");
    let pushback = pushback.and_then(|value| value.to_str().ok());
    println!(
        "{}: {} (come back in {} ms)",
        status.code(),
        status.message(),
        pushback.unwrap_or("?")
    );
    assert!(pushback.is_some());
    status.code()
}
