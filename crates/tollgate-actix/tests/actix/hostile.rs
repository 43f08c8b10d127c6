//! Requests that are written to get past a limit, and what errors are told.

use actix_web::dev::Service as _;
use actix_web::{App, error, web};
use tollgate::Rate;
use tollgate_actix::{RateLimit, keys};
use tollgate_engine::backend::Memory;
use tollgate_engine::document::Format;
use tollgate_engine::{Engine, Policy};

use crate::kit::{Server, per_key, run};

async fn hello() -> &'static str {
    "hello"
}

/// actix-web decodes a path before it looks for the route, so a rule has to look at the same text.
#[test]
fn a_rule_of_a_path_is_for_all_ways_to_write_it() {
    run(async {
        let text = "limits: [{name: login, match: {path: /login}, key: ip, rate: 1/h}]";
        let policy = Policy::from_text(text, Format::Yaml);
        let policy = policy.expect("a policy").policy;
        let limit = RateLimit::by_policy(Engine::new(policy, Memory::new()).expect("an engine"));
        let server = Server::start(move || {
            App::new()
                .wrap(limit.clone())
                .route("/login", web::get().to(hello))
        });
        for (path, status) in [
            ("/login", 200),
            ("/login", 429),
            ("/%6Cogin", 429),
            ("/lo%67in?x=1", 429),
            ("/Login", 404),
        ] {
            assert_eq!(server.get(path).await.status, status, "{path}");
        }
        server.stop().await;
    });
}

/// An error of a middleware becomes an answer only outside of the limit.
#[test]
fn errors_are_told_what_is_left_as_well() {
    run(async {
        let (limits, _) = per_key(Rate::per_hour(5), keys::Address::new());
        let limit = RateLimit::new(limits);
        let server = Server::start(move || {
            App::new()
                .wrap_fn(|request, app| {
                    let answered = app.call(request);
                    async move {
                        answered.await?;
                        Err::<actix_web::dev::ServiceResponse, _>(error::ErrorForbidden("no"))
                    }
                })
                .wrap(limit.clone())
                .route("/", web::get().to(hello))
        });
        let refused = server.get("/").await;
        assert_eq!((refused.status, &*refused.body), (403, "no"));
        assert_eq!(refused.field("ratelimit"), Some("\"requests\";r=4;t=720"));
        server.stop().await;
    });
}

/// A limit around another adds to what that one tells.
#[test]
fn what_an_inner_limit_tells_stays() {
    run(async {
        let (user, _) = per_key(Rate::per_hour(1), keys::Address::new());
        let (address, _) = per_key(Rate::per_hour(100), keys::Address::new());
        let inner = RateLimit::new(user.named("user"));
        let outer = RateLimit::new(address.named("address"));
        let server = Server::start(move || {
            App::new()
                .wrap(inner.clone())
                .wrap(outer.clone())
                .route("/", web::get().to(hello))
        });
        assert_eq!(server.get("/").await.status, 200);
        let refused = server.get("/").await;
        assert_eq!(refused.status, 429);
        let lines = refused
            .head
            .lines()
            .filter_map(|line| line.split_once(": "));
        let told: Vec<_> = lines.filter(|(name, _)| *name == "ratelimit").collect();
        assert_eq!(
            told,
            [
                ("ratelimit", "\"user\";r=0;t=3600"),
                ("ratelimit", "\"address\";r=98;t=36")
            ]
        );
        server.stop().await;
    });
}
