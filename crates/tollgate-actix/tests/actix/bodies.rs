//! A request's permits are released when its response has ended, or the client has disconnected.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use actix_web::body::{BodySize, MessageBody};
use actix_web::web::Bytes;
use actix_web::{App, HttpResponse, web};
use tokio::io::AsyncReadExt;
use tollgate::{KeyedConcurrencyLimiter, Rate};
use tollgate_actix::{ConcurrencyLimit, RateLimit, keys};

use crate::kit::{Server, per_key, run, wait_until};

/// A body without an end.
struct Endless;

impl MessageBody for Endless {
    type Error = Infallible;

    fn size(&self) -> BodySize {
        BodySize::Stream
    }

    fn poll_next(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Infallible>>> {
        Poll::Ready(Some(Ok(Bytes::from_static(&[b'x'; 1_024]))))
    }
}

#[test]
fn a_place_is_held_until_the_body_has_ended() {
    run(async {
        let slots = Arc::new(KeyedConcurrencyLimiter::new(2, 100));
        let limit = RateLimit::new(ConcurrencyLimit::with_limiter(
            Arc::clone(&slots),
            keys::ClientAddress::new(),
        ));
        let server = Server::start(move || {
            App::new()
                .wrap(limit.clone())
                .route("/", web::get().to(|| async { "hello" }))
                .route(
                    "/endless",
                    web::get().to(|| async { HttpResponse::Ok().message_body(Endless) }),
                )
        });
        for _ in 0..5 {
            assert_eq!(server.get("/").await.status, 200, "one after the other");
        }
        let (mut one, mut other) = (server.connect().await, server.connect().await);
        for client in [&mut one, &mut other] {
            client.send("/endless", "").await;
            assert!(client.head().await.starts_with("HTTP/1.1 200"));
        }
        let refused = server.get("/").await;
        assert_eq!(refused.status, 429);
        assert!(refused.body.contains("concurrency"), "{}", refused.body);
        // One client reads a little and goes; the other goes without a word.
        let mut some = [0; 100];
        one.0.read_exact(&mut some).await.expect("a part of it");
        drop(one);
        while server.get("/").await.status != 200 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        drop(other);
        wait_until("all are free", || slots.is_empty()).await;
        server.stop().await;
    });
}

#[test]
fn who_waits_and_goes_frees_its_place() {
    run(async {
        let (limits, clock) = per_key(Rate::per_second(1), keys::ClientAddress::new());
        let limiter = Arc::clone(limits.limiter());
        let limit = RateLimit::new(limits.max_wait(Duration::from_secs(60)));
        let app = move || {
            App::new()
                .wrap(limit.clone())
                .route("/", web::get().to(|| async { "hi" }))
        };
        let server = Server::start(app);
        assert_eq!(server.get("/").await.status, 200);
        let mut gone = Vec::new();
        for _ in 0..5 {
            let mut client = server.connect().await;
            client.send("/", "").await;
            gone.push(client);
        }
        let mut patient = server.connect().await;
        patient.send("/", "").await;
        wait_until("six wait", || limiter.waiters() == 6).await;
        drop(gone);
        wait_until("five went", || limiter.waiters() == 1).await;
        // The one that is left has the next place, however late it came.
        clock.advance(Duration::from_secs(1));
        assert!(patient.head().await.starts_with("HTTP/1.1 200"));
        server.stop().await;
    });
}
