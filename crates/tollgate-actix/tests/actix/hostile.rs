//! Requests that try to get past a limit, and error messages.

use actix_web::dev::Service as _;
use actix_web::http::header::HeaderValue;
use actix_web::{App, error, test, web};
use tokio::io::AsyncWriteExt;
use tollgate::Rate;
use tollgate_actix::{Cost, RateLimit, keys};
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
        let limit = RateLimit::from_policy(Engine::new(policy, Memory::new()).expect("an engine"));
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
        let (limits, _) = per_key(Rate::per_hour(5), keys::ClientAddress::new());
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
        assert_eq!(
            refused.field("ratelimit"),
            Some("\"requests:5/h\";r=4;t=720")
        );
        server.stop().await;
    });
}

/// A limit around another adds to its header fields.
#[test]
fn what_an_inner_limit_tells_stays() {
    run(async {
        let (user, _) = per_key(Rate::per_hour(1), keys::ClientAddress::new());
        let (address, _) = per_key(Rate::per_hour(100), keys::ClientAddress::new());
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

/// A header in two fields, and bytes that aren't text, hide no value from a policy.
#[test]
fn no_line_of_a_header_hides_another() {
    run(async {
        let text = "{block: [{header.user-agent: {prefix: evil}}], exempt: [{header.x-app: good}], \
                    limits: [{name: keys, key: header.x-api-key, rate: 1/h}, \
                    {name: bots, match: {header.user-agent: {prefix: bot}}, key: ip, rate: 1/h}]}";
        let policy = Policy::from_text(text, Format::Yaml).expect("a policy");
        let engine = Engine::new(policy.policy, Memory::new()).expect("an engine");
        let limit = RateLimit::from_policy(engine);
        let app = App::new().wrap(limit).route("/", web::to(hello));
        let app = test::init_service(app).await;
        type Lines<'a> = &'a [(&'a str, &'a [u8])];
        let rows: [(Lines<'_>, u16); 10] = [
            (&[("user-agent", b"good"), ("user-agent", b"evil/1")], 429),
            (&[("user-agent", b"evil\xff")], 429),
            (&[("user-agent", b"good"), ("user-agent", b"fine")], 200),
            (&[("x-api-key", b"k"), ("x-api-key", b"k")], 400),
            (&[("x-api-key", b"k"), ("x-api-key", b"l")], 400),
            (&[("user-agent", b"bot"), ("user-agent", b"good")], 200),
            (&[("user-agent", b"good"), ("user-agent", b"bot")], 429),
            (
                &[
                    ("user-agent", b"bot"),
                    ("x-app", b"good"),
                    ("x-app", b"good"),
                ],
                200,
            ),
            (
                &[
                    ("user-agent", b"bot"),
                    ("x-app", b"good"),
                    ("x-app", b"bad"),
                ],
                429,
            ),
            (&[("x-api-key", b"\xfe")], 200),
        ];
        for (lines, status) in rows {
            let mut request = test::TestRequest::default();
            request = request.peer_addr("192.0.2.1:1".parse().expect("an address"));
            for (name, value) in lines {
                let value = HeaderValue::from_bytes(value).expect("a value");
                request = request.append_header((*name, value));
            }
            let answer = test::call_service(&app, request.to_request()).await;
            assert_eq!(answer.status(), status, "{lines:?}");
        }
    });
}

/// actix-web passes all bytes behind a WebSocket request to its handler, whatever length is declared.
#[test]
fn a_body_behind_an_upgrade_is_of_unknown_size() {
    async fn read(body: web::Bytes) -> String {
        body.len().to_string()
    }
    run(async {
        let per = std::num::NonZero::new(1_000).expect("more than zero");
        let rows = [
            (
                "content-length: 1\r\nupgrade: websocket\r\nconnection: upgrade\r\n",
                36,
            ),
            ("upgrade: WebSocket\r\nconnection: upgrade\r\n", 36),
            (
                "content-length: 1\r\nupgrade: h2c\r\nupgrade: websocket \r\n",
                36,
            ),
            ("content-length: 2000\r\n", 98),
            ("", 99),
        ];
        for (lines, left) in rows {
            let (limits, _) = per_key(Rate::per_hour(100), keys::ClientAddress::new());
            let cost = Cost::BodySize { per, unknown: 64 };
            let limit = RateLimit::new(limits).configure(|guard| guard.cost_table(cost));
            let server = Server::start(move || {
                App::new()
                    .wrap(limit.clone())
                    .route("/", web::get().to(read))
            });
            let mut client = server.connect().await;
            client.send("/", lines).await;
            client
                .0
                .write_all(&[b'x'; 5_000])
                .await
                .expect("it takes it");
            client.0.shutdown().await.expect("its half");
            let head = client.head().await;
            let told = format!("r={left};");
            assert!(head.contains(&told), "{lines:?}: {head}");
            server.stop().await;
        }
    });
}
