//! A client that heeds the response headers, beside one that doesn't.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use tollgate::clock::Tokio;
use tollgate::{KeyedLimiter, Rate};
use tollgate_tower::{RateLimitLayer, RatePerKey, RequestLimiter, Tarpit, keys};

use crate::kit::{Answer, app, ask, from};

/// What a client got in a minute.
#[derive(Clone, Copy, Debug, Default)]
struct Got {
    served: u32,
    refused: u32,
}

fn limited(tarpit: Option<Tarpit>) -> Router {
    let limiter =
        KeyedLimiter::builder(Rate::per_second(2).burst(5), 1_000).clock(Arc::new(Tokio::new()));
    let limiter = Arc::new(limiter.build().expect("a rate"));
    let guard = RequestLimiter::new(RatePerKey::with_limiter(
        limiter,
        keys::ClientAddress::new(),
    ))
    .clock(Tokio::new());
    app(RateLimitLayer::from_limiter(match tarpit {
        Some(tarpit) => guard.tarpit(tarpit, keys::ClientAddress::new()),
        None => guard,
    }))
}

/// Asks for a minute, and waits after each answer for as long as it likes.
async fn client(app: &Router, address: &str, wait: impl Fn(&Answer) -> Duration) -> Got {
    let began = tokio::time::Instant::now();
    let mut got = Got::default();
    while began.elapsed() < Duration::from_secs(60) {
        let answer = ask(app, from(address, "/")).await;
        match answer.status {
            200 => got.served += 1,
            _ => got.refused += 1,
        }
        tokio::time::sleep(wait(&answer)).await;
    }
    got
}

/// Waits as long as the header says, and a hundredth of a second after an allowed request.
fn listens(answer: &Answer) -> Duration {
    let mut lines = answer.fields.iter();
    match lines.find_map(|line| line.strip_prefix("retry-after: ")) {
        Some(seconds) => Duration::from_secs(seconds.parse().expect("a number")),
        None => Duration::from_millis(10),
    }
}

fn doesnt(_: &Answer) -> Duration {
    Duration::from_millis(10)
}

#[tokio::test(start_paused = true)]
async fn who_listens_is_refused_seldom_and_who_doesnt_costs_no_more_than_the_tarpit_lets_it() {
    let mut costs = Vec::new();
    for tarpit in [None, Some(Tarpit::new(Duration::from_secs(5), 10))] {
        let app = limited(tarpit);
        let (good, bad) = tokio::join!(
            client(&app, "192.0.2.1", listens),
            client(&app, "192.0.2.2", doesnt)
        );
        for (name, got) in [("listens", good), ("doesn't", bad)] {
            println!(
                "{} a tarpit, who {name}: {} served, {} refused, {:.2} refusals a served request",
                if tarpit.is_some() { "with" } else { "without" },
                got.served,
                got.refused,
                f64::from(got.refused) / f64::from(got.served),
            );
        }
        // Both are served what they may have.
        assert!((110..=126).contains(&good.served), "{good:?}");
        assert!(good.refused <= good.served, "{good:?}");
        costs.push(bad);
    }
    let [free, held_up] = costs[..] else {
        panic!("two")
    };
    assert!(free.refused > 20 * free.served, "{free:?}");
    // Whoever is held up until it may pass is refused once or twice for each that is served.
    assert!(held_up.served >= 90, "{held_up:?}");
    assert!(held_up.refused <= 2 * held_up.served, "{held_up:?}");
}
