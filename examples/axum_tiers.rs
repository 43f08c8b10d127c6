//! An axum service whose clients have tokens. One layer finds the user and the tier, and the layer inside it limits
//! each user by them. Anonymous clients are limited by address, before their token is read.

use std::net::SocketAddr;

use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use axum::routing::get;
use axum::{Extension, Router};
use tokio::net::TcpListener;
use tollgate::Rate;
use tollgate_engine::backend::Memory;
use tollgate_engine::document::Format;
use tollgate_engine::{Engine, Policy};
use tollgate_tower::{RateLimitLayer, Tenant, Tier, User};

type BoxError = Box<dyn std::error::Error>;

/// Each tenant has the limit of its tier, shared by all its users. Each user has 3 exports an hour.
const POLICY: &str = "
tiers:
  free: {rate: 2/h}
  paid: {rate: 5/h}
tier_fact: tier
default_tier: free
limits:
- {name: exports, match: {path: /export}, key: user, rate: 3/h}
";

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), BoxError> {
    let policy = Policy::from_text(POLICY, Format::Yaml)?.policy;
    let engine = Engine::new(policy, Memory::new())?;
    let app = Router::new()
        .route("/", get(|Extension(user): Extension<User>| async move { user.0.to_string() }))
        .route("/export", get(|| async { "rows" }))
        // The last layer sees a request first: limit by address, then authenticate, then limit by user.
        .layer(RateLimitLayer::from_policy(engine))
        .layer(from_fn(authenticate))
        .layer(RateLimitLayer::per_client(Rate::per_second(1_000)));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, app).await });

    let client = reqwest::Client::new();
    for (token, path, times, expect) in [
        ("ada", "/", 3, vec![200, 200, 429]),
        ("bob", "/", 6, vec![200, 200, 200, 200, 200, 429]),
        ("cyd", "/export", 4, vec![200, 200, 200, 429]),
        ("forged", "/", 1, vec![401]),
    ] {
        let mut statuses = Vec::new();
        for _ in 0..times {
            let request = client.get(format!("{url}{path}")).bearer_auth(token);
            statuses.push(request.send().await?.status().as_u16());
        }
        println!("{token:>6} {path:<8} {statuses:?}");
        assert_eq!(statuses, expect, "{token}");
    }
    Ok(())
}

/// Finds the user: a real service reads a session or verifies a signature.
async fn authenticate(mut request: Request, next: Next) -> Result<Response, StatusCode> {
    let token = request.headers().get("authorization");
    let token = token.and_then(|token| token.to_str().ok()?.strip_prefix("Bearer "));
    let (user, tenant, tier) = match token {
        Some("ada") => ("ada", "small shop", "free"),
        Some("bob") => ("bob", "acme", "paid"),
        Some("cyd") => ("cyd", "globex", "paid"),
        _ => return Err(StatusCode::UNAUTHORIZED),
    };
    let extensions = request.extensions_mut();
    extensions.insert(User::from(user));
    extensions.insert(Tenant::from(tenant));
    extensions.insert(Tier::from(tier));
    Ok(next.run(request).await)
}
