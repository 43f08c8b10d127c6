//! Logins: only failures count (responses from 400 on, which on this route are wrong passwords). Concurrent attempts
//! get no further than sequential ones.

use std::net::SocketAddr;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::post;
use tokio::net::TcpListener;
use tollgate::Rate;
use tollgate_tower::{RateLimitLayer, keys};

type BoxError = Box<dyn std::error::Error>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), BoxError> {
    let url = serve().await?;
    let client = reqwest::Client::new();
    let login = |password: &'static str| {
        let request = client.post(&url).body(password);
        async { Ok::<u16, BoxError>(request.send().await?.status().as_u16()) }
    };

    // With the right password, a client may log in as often as it wants.
    for _ in 0..10 {
        assert_eq!(login("secret").await?, 200);
    }
    // 50 concurrent guesses: each reserves a token until its response, so no more than five are checked.
    let guesses: Vec<_> = (0..50)
        .map(|_| tokio::spawn(try_password(client.clone(), url.clone())))
        .collect();
    let (mut looked_at, mut refused) = (0, 0);
    for guess in guesses {
        match guess.await?? {
            401 => looked_at += 1,
            429 => refused += 1,
            other => return Err(format!("{other}?").into()),
        }
    }
    println!("50 wrong passwords at once: {looked_at} were looked at, {refused} refused");
    assert_eq!((looked_at, refused), (5, 45));
    // Now even the right password is denied, until time has passed.
    assert_eq!(login("secret").await?, 429);
    Ok(())
}

/// A service that accepts one password.
async fn serve() -> Result<String, BoxError> {
    let login = |password: String| async move {
        match password.as_str() {
            "secret" => StatusCode::OK,
            _ => StatusCode::UNAUTHORIZED,
        }
    };
    let limit = RateLimitLayer::limit_failures(Rate::per_hour(5), keys::ClientAddress::new());
    // On this route alone: elsewhere, a 404 would count as well.
    let app = Router::new().route("/login", post(login).layer(limit));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/login", listener.local_addr()?);
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, app).await });
    Ok(url)
}

async fn try_password(client: reqwest::Client, url: String) -> Result<u16, reqwest::Error> {
    Ok(client
        .post(url)
        .body("guess")
        .send()
        .await?
        .status()
        .as_u16())
}
