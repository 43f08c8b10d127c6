//! The fast path while something else happens: waits, threads that end, nested layers.

use std::cell::RefCell;
use std::time::Duration;

use axum::Router;
use tollgate::Rate;
use tollgate_tower::{RateLimitLayer, RequestHead, keys};
use tower::ServiceExt;

use crate::kit::{app, ask, fields, from, per_key, task};

/// One of some dozens is searched for what a proxy may have told that isn't trusted, and that one waits as the others do.
#[tokio::test]
async fn who_is_to_wait_waits_whichever_of_many_it_is() {
    let (limits, clock) = per_key(Rate::per_second(1), keys::ClientAddress::new());
    let app = app(RateLimitLayer::new(limits.max_wait(Duration::from_secs(2))));
    for round in 0..1_000 {
        assert_eq!(
            ask(&app, from("192.0.2.1", "/")).await.status,
            200,
            "{round}"
        );
        let mut second = task(app.clone().oneshot(from("192.0.2.1", "/")));
        let refused = second
            .poll_once()
            .map(|answer| answer.map(|answer| answer.status()));
        assert_eq!(refused, None, "round {round}");
        drop(second);
        // Of another client, so that others are searched in the next rounds.
        if round % 2 == 0 {
            ask(&app, from("192.0.2.2", "/")).await;
        }
        clock.advance(Duration::from_secs(2));
    }
}

thread_local! {
    static LAST_WORDS: RefCell<Option<LastWords>> = const { RefCell::new(None) };
}

struct LastWords(Router, std::sync::mpsc::Sender<Vec<u16>>);

impl Drop for LastWords {
    fn drop(&mut self) {
        let mut heard = Vec::new();
        for _ in 0..3 {
            let mut call = task(self.0.clone().oneshot(from("192.0.2.1", "/")));
            let answer = call.poll_once().expect("an answer at once");
            heard.push(answer.expect("an answer").status().as_u16());
        }
        self.1.send(heard).expect("somebody who listens");
    }
}

/// What a thread remembers of texts may be gone before the last request that it serves.
#[test]
fn a_thread_that_ends_still_answers() {
    let (limits, _) = per_key(Rate::per_hour(3), keys::ClientAddress::new());
    let app = app(RateLimitLayer::new(limits));
    let (sender, heard) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        LAST_WORDS.set(Some(LastWords(app.clone(), sender)));
        let mut call = task(app.oneshot(from("192.0.2.1", "/")));
        assert!(call.poll_once().is_some());
    });
    assert!(thread.join().is_ok());
    assert_eq!(heard.recv(), Ok(vec![200, 200, 429]));
}

/// A key function inside one layer may call another layer.
#[tokio::test]
async fn guards_are_asked_within_guards() {
    let other = |rate| {
        let (limits, _) = per_key(rate, keys::ClientAddress::new());
        app(RateLimitLayer::new(limits.named("inner")))
    };
    let (inner, refuser) = (other(Rate::per_hour(1_000)), other(Rate::per_hour(1)));
    let ask_now = |app: &Router| {
        let mut call = task(app.clone().oneshot(from("192.0.2.1", "/")));
        let answer = call.poll_once().expect("at once").expect("an answer");
        (answer.status().as_u16(), fields(answer.headers()))
    };
    let (in_key, in_handler) = ((inner.clone(), refuser.clone()), (inner, refuser));
    let key = keys::from_fn(move |_: &RequestHead| {
        ask_now(&in_key.0);
        ask_now(&in_key.1);
        Some(1)
    });
    let (limits, _) = per_key(Rate::per_hour(2), key);
    let layer = RateLimitLayer::new(limits.named("outer")).configure(|guard| {
        guard.on_denied(move |_, _, refused| {
            ask_now(&in_handler.0);
            ask_now(&in_handler.1);
            refused.fields.set("ratelimit", "changed");
            refused.body = "changed".into();
        })
    });
    let app = app(layer);
    for _ in 0..2 {
        let answer = ask(&app, from("192.0.2.1", "/")).await;
        assert!(
            answer.fields.iter().all(|line| !line.contains("inner")),
            "{answer:?}"
        );
        assert_eq!(answer.status, 200);
    }
    for _ in 0..3 {
        let answer = ask(&app, from("192.0.2.1", "/")).await;
        assert_eq!((answer.status, &*answer.body), (429, "changed"));
        assert!(answer.fields.contains(&"ratelimit: changed".to_owned()));
        assert!(
            answer.fields.iter().all(|line| !line.contains("inner")),
            "{answer:?}"
        );
    }
}
