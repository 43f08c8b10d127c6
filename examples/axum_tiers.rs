//! A service of axum whose clients are known by a token: a layer finds out who asks and what they pay for, and the one behind
//! it limits each by that. Anonymous ones are limited by address before anybody looks at their token.

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

/// A tenant has what its tier allows, all of its users together, and each of them 3 an hour of the exports.
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
        // The last layer is the first to see a request: by address, then who it is, then by that.
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

/// Who asks: a real service looks at a session or a signature.
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
