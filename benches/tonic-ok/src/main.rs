//! A tonic server of Envoy's rate-limit service that reads each request and answers OK without looking at it: what
//! gRPC costs by itself. It prints its address, and serves until it is ended.

use std::convert::Infallible;
use std::error::Error;
use std::future::{Future, Ready, ready};
use std::io::Write;
use std::pin::Pin;
use std::task::{Context, Poll};

use prost::Message;
use tokio::net::TcpListener;
use tonic::body::Body;
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;
use tower_service::Service;

#[derive(Clone, PartialEq, Message)]
struct Entry {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(string, tag = "2")]
    value: String,
}

#[derive(Clone, PartialEq, Message)]
struct Descriptor {
    #[prost(message, repeated, tag = "1")]
    entries: Vec<Entry>,
}

#[derive(Clone, PartialEq, Message)]
struct RateLimitRequest {
    #[prost(string, tag = "1")]
    domain: String,
    #[prost(message, repeated, tag = "2")]
    descriptors: Vec<Descriptor>,
    #[prost(uint32, tag = "3")]
    hits_addend: u32,
}

#[derive(Clone, PartialEq, Message)]
struct DescriptorStatus {
    #[prost(int32, tag = "1")]
    code: i32,
}

#[derive(Clone, PartialEq, Message)]
struct RateLimitResponse {
    #[prost(int32, tag = "1")]
    overall_code: i32,
    #[prost(message, repeated, tag = "2")]
    statuses: Vec<DescriptorStatus>,
}

struct Ok1;

impl UnaryService<RateLimitRequest> for Ok1 {
    type Response = RateLimitResponse;
    type Future = Ready<Result<Response<RateLimitResponse>, Status>>;

    fn call(&mut self, request: Request<RateLimitRequest>) -> Self::Future {
        let statuses = vec![DescriptorStatus { code: 1 }; request.get_ref().descriptors.len()];
        ready(Ok(Response::new(RateLimitResponse {
            overall_code: 1,
            statuses,
        })))
    }
}

#[derive(Clone)]
struct RateLimitService;

impl NamedService for RateLimitService {
    const NAME: &'static str = "envoy.service.ratelimit.v3.RateLimitService";
}

impl Service<http::Request<Body>> for RateLimitService {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<http::Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(async move { Ok(Grpc::new(ProstCodec::default()).unary(Ok1, request).await) })
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    std::io::stdout().flush()?;
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    Server::builder()
        .add_service(RateLimitService)
        .serve_with_incoming(incoming)
        .await?;
    Ok(())
}
