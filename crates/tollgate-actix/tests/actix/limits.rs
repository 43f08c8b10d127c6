//! Which clients are limited, by which key, and the responses.

use std::sync::Arc;
use std::time::Duration;

use actix_web::dev::Service as _;
use actix_web::http::{Method, StatusCode, Version};
use actix_web::{App, HttpMessage, HttpRequest, HttpResponse, error, test, web};
use tollgate::Rate;
use tollgate::clock::Manual;
use tollgate_actix::{
    DenialBodyFormat, HeaderDialect, OnMissingKey, RateLimit, ResponseFormat, Settle,
    SettlingRatePerKey, UsageReporter, User, keys,
};
use tollgate_engine::backend::Memory;
use tollgate_engine::document::Format;
use tollgate_engine::{Engine, Policy};

use crate::kit::{Server, per_key, run, wait_until};

async fn hello() -> &'static str {
    "hello"
}

/// What is chosen after a clone is for the new limit alone.
#[test]
fn a_limit_that_is_changed_after_it_was_cloned_still_counts_together() {
    run(async {
        let (limits, _) = per_key(Rate::per_second(1), keys::ClientAddress::new());
        let limit = RateLimit::new(limits);
        let changed = limit.clone().exempt_probes();
        let app = move || {
            let hello_at = |path| web::scope(path).route("/x", web::get().to(hello));
            App::new()
                .service(hello_at("/one").wrap(limit.clone()))
                .service(web::resource("/healthz").wrap(changed.clone()).get(hello))
                .service(hello_at("/other").wrap(changed.clone()))
        };
        let server = Server::start(app);
        let mut statuses = Vec::new();
        for path in ["/one/x", "/other/x", "/one/x", "/healthz"] {
            statuses.push(server.get(path).await.status);
        }
        assert_eq!(statuses, [200, 429, 429, 200]);
        server.stop().await;
    });
}

/// Each worker has an app of its own.
#[test]
fn all_workers_and_connections_count_together() {
    run(async {
        let (limits, clock) = per_key(Rate::per_second(1).burst(3), keys::ClientAddress::new());
        let limit = RateLimit::new(limits);
        let app = move || {
            App::new()
                .wrap(limit.clone())
                .route("/", web::get().to(hello))
        };
        let server = Server::start(app);
        let mut statuses = Vec::new();
        for _ in 0..8 {
            statuses.push(server.get("/").await.status);
        }
        assert_eq!(statuses, [200, 200, 200, 429, 429, 429, 429, 429]);
        clock.advance(Duration::from_secs(1));
        let mut client = server.connect().await;
        let passed = client.get_with("/", "").await;
        assert_eq!((passed.status, &*passed.body), (200, "hello"));
        assert_eq!(
            passed.field("ratelimit"),
            Some("\"requests:1/s burst 3\";r=0;t=1")
        );
        // The same connection goes on after a refusal.
        let refused = client.get_with("/", "").await;
        assert_eq!(refused.status, 429);
        assert_eq!(refused.field("retry-after"), Some("1"));
        assert_eq!(
            refused.field("ratelimit-policy"),
            Some("\"requests:1/s burst 3\";q=3;w=3")
        );
        assert_eq!(
            refused.field("content-type"),
            Some("application/problem+json")
        );
        assert!(refused.body.contains("quota-exceeded"), "{}", refused.body);
        clock.advance(Duration::from_secs(1));
        assert_eq!(client.get_with("/", "").await.status, 200);
        server.stop().await;
    });
}

#[test]
fn routes_are_known_around_an_app() {
    run(async {
        let (limits, _) = per_key(Rate::per_hour(1), keys::Route);
        let limit = RateLimit::new(limits.on_missing_key(OnMissingKey::Pass)).exempt_probes();
        let server = Server::start(move || {
            App::new()
                .wrap(limit.clone())
                .route("/users/{id}", web::get().to(hello))
                .route("/items/{id}", web::get().to(hello))
                .route("/healthz", web::get().to(hello))
        });
        for (path, status) in [
            ("/users/1", 200),
            ("/users/2", 429),
            ("/items/1", 200),
            ("/healthz", 200),
            ("/healthz", 200),
            ("/nowhere", 404),
            ("/nowhere", 404),
        ] {
            assert_eq!(server.get(path).await.status, status, "{path}");
        }
        server.stop().await;
    });
}

/// A limit sees what was found out before it, and the app sees it after.
#[test]
fn what_an_earlier_layer_found_out_is_seen_and_stays() {
    run(async {
        let whoami = |request: HttpRequest| async move {
            let user = request.extensions().get::<User>().cloned();
            user.map_or_else(|| "nobody".to_owned(), |user| user.0.to_string())
        };
        let (limits, _) = per_key(Rate::per_hour(1), keys::Extension::<User>::new());
        let github = ResponseFormat::new()
            .dialects([HeaderDialect::XRateLimit])
            .form(DenialBodyFormat::Plain);
        let limit = RateLimit::new(limits).response_format(github);
        let server = Server::start(move || {
            App::new()
                .wrap(limit.clone())
                .wrap_fn(|request, app| {
                    let token = request.headers().get("authorization");
                    let user = token.and_then(|token| token.to_str().ok()).map(User::from);
                    if let Some(user) = user {
                        request.extensions_mut().insert(user);
                    }
                    app.call(request)
                })
                .route("/", web::get().to(whoami))
        });
        let ada = "authorization: ada\r\n";
        let first = server.get_with("/", ada).await;
        assert_eq!((first.status, &*first.body), (200, "ada"));
        assert_eq!(first.field("x-ratelimit-remaining"), Some("0"));
        let second = server.get_with("/", ada).await;
        assert_eq!(second.status, 429);
        assert_eq!(
            second.body,
            r#"{"code":"RATE_LIMIT","limit_dim":"requests:1/h"}"#
        );
        let bob = server.get_with("/", "authorization: bob\r\n").await;
        assert_eq!((bob.status, &*bob.body), (200, "bob"));
        assert_eq!(server.get("/").await.status, 500, "nobody has no key");
        server.stop().await;
    });
}

#[test]
fn only_failures_count_whether_they_are_answers_or_errors() {
    run(async {
        let limit = RateLimit::limit_failures(Rate::per_hour(2), keys::ClientAddress::new());
        let login = |request: HttpRequest| async move {
            match request.query_string() {
                "right" => Ok(HttpResponse::Ok().finish()),
                "answer" => Ok(HttpResponse::new(StatusCode::UNAUTHORIZED)),
                _ => Err(error::ErrorUnauthorized("wrong")),
            }
        };
        let server = Server::start(move || {
            App::new()
                .wrap_fn(|request, app| {
                    let refused = request.query_string() == "before";
                    let answered = app.call(request);
                    async move {
                        if refused {
                            return Err(error::ErrorForbidden("not even looked at"));
                        }
                        answered.await
                    }
                })
                .wrap(limit.clone())
                .route("/", web::get().to(login))
        });
        for (query, status) in [
            ("right", 200),
            ("right", 200),
            ("right", 200),
            ("answer", 401),
            ("right", 200),
            ("before", 403),
            ("right", 429),
            ("wrong", 429),
        ] {
            assert_eq!(
                server.get(&format!("/?{query}")).await.status,
                status,
                "{query}"
            );
        }
        server.stop().await;
    });
}

#[test]
fn what_was_used_is_settled_after_the_answer() {
    run(async {
        let limits = SettlingRatePerKey::new(Rate::per_hour(100), keys::ClientAddress::new())
            .expect("a rate");
        let limit = RateLimit::new(limits)
            .configure(|guard| guard.cost(|_| 60).settle(Settle::ReportedByHandler));
        let story = |usage: web::ReqData<UsageReporter>| async move {
            usage.add(15);
            "a short story"
        };
        let server = Server::start(move || {
            App::new()
                .wrap(limit.clone())
                .route("/", web::get().to(story))
        });
        // Each holds 60 while it runs, and costs 15: after three of them, 55 are left.
        for status in [200, 200, 200, 429] {
            assert_eq!(server.get("/").await.status, status);
        }
        server.stop().await;
    });
}

#[test]
fn a_policy_decides_by_facts_of_the_request() {
    run(async {
        let text = "limits:\n\
                    - {name: by-key, match: {path: '/api/**'}, key: header.x-key, rate: 2/h}\n\
                    - {name: by-ip, key: ip, rate: 4/h}\n";
        let policy = Policy::from_text(text, Format::Yaml)
            .expect("a policy")
            .policy;
        let limit = RateLimit::from_policy(Engine::new(policy, Memory::new()).expect("an engine"));
        let server = Server::start(move || {
            App::new()
                .wrap(limit.clone())
                .default_service(web::to(hello))
        });
        for (path, key, status) in [
            ("/api/x", "a", 200),
            ("/api/x", "a", 200),
            ("/api/x", "a", 429),
            ("/api/x", "b", 200),
            ("/", "b", 200),
            ("/", "b", 429),
        ] {
            let answer = server.get_with(path, &format!("x-key: {key}\r\n")).await;
            assert_eq!(answer.status, status, "{path} {key}: {answer:?}");
        }
        server.stop().await;
    });
}

/// Rules that arrive while a request waits may need a header that none needed before: it is extracted then.
#[test]
fn who_waits_while_rules_change_is_asked_for_the_headers_of_the_new_ones() {
    run(async {
        let read = |text: &str| {
            let read = Policy::from_text(text, Format::Yaml);
            read.expect("a policy").policy
        };
        let clock = Manual::new();
        let memory = Memory::builder().clock(clock.clone()).wall(Manual::new());
        let text = "limits: [{name: all, rate: 1/s, over: wait 9s}]";
        let engine = Engine::new(read(text), memory.build()).expect("an engine");
        let engine = Arc::new(engine);
        let limit = RateLimit::from_policy(Arc::clone(&engine));
        let app = move || {
            App::new()
                .wrap(limit.clone())
                .route("/", web::get().to(hello))
        };
        let server = Server::start(app);
        assert_eq!(server.get("/").await.status, 200);
        let mut clients = Vec::new();
        for name in ["one", "one", "two"] {
            let mut client = server.connect().await;
            client.send("/", &format!("x-app: {name}\r\n")).await;
            clients.push(client);
            wait_until("it waits", || engine.waiter_count() == clients.len()).await;
        }
        let text =
            "limits: [{name: apps, match: {header.x-app: '*'}, key: header.x-app, rate: 1/h}]";
        engine.reload(read(text)).expect("a policy");
        let mut seen = Vec::new();
        for left in (0..3).rev() {
            clock.advance(Duration::from_secs(1));
            wait_until("one had its turn", || engine.waiter_count() <= left).await;
        }
        for client in &mut clients {
            let head = client.head().await;
            seen.push(head[9..12].to_owned());
        }
        // Of the first two, whichever thread was quicker.
        seen[..2].sort_unstable();
        assert_eq!(seen, ["200", "429", "200"]);
        server.stop().await;
    });
}

/// A call of gRPC reads its status in trailers, and only POST over HTTP/2 is one: a `GET` with that content type reads a status,
/// and no cache keeps it.
#[test]
fn only_post_over_http_2_is_told_as_grpc_does() {
    run(async {
        let (limits, _) = per_key(Rate::per_hour(1), keys::Header::new("x-api-key"));
        let limit = RateLimit::new(limits);
        let app = App::new().wrap(limit).route("/", web::to(hello));
        let app = test::init_service(app).await;
        for (method, version, status) in [
            (Method::GET, Version::HTTP_11, 400),
            (Method::GET, Version::HTTP_2, 400),
            (Method::POST, Version::HTTP_11, 400),
            (Method::POST, Version::HTTP_2, 200),
        ] {
            let request = test::TestRequest::default()
                .method(method.clone())
                .version(version)
                .insert_header(("content-type", "application/grpc"));
            let answer = test::call_service(&app, request.to_request()).await;
            assert_eq!(answer.status(), status, "{method} {version:?}");
            let field = |name: &str| Some(answer.headers().get(name)?.to_str().ok()?.to_owned());
            let told = ["grpc-status", "content-type", "cache-control"].map(field);
            let expected = match status {
                200 => [Some("3"), Some("application/grpc"), None],
                _ => [None, Some("application/problem+json"), Some("no-store")],
            };
            assert_eq!(told, expected.map(|text| text.map(str::to_owned)));
        }
    });
}
