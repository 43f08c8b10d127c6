//! Every request that the admin listener rejects changes nothing.

use bytes::Bytes;
use tollgate_server::{AdminToken, Settings};

use crate::admin_kit::{Asked, JSON, Operated, TOKEN};
use crate::kit::Running;

/// Each valid request of the admin API.
const ROUTES: [Asked<'static>; 17] = [
    ("GET", "/admin/rules", ""),
    ("GET", "/admin/top", ""),
    ("GET", "/admin/overrides", ""),
    ("GET", "/admin/key?user=ada", ""),
    ("POST", "/admin/key", r#"{"facts":{"user":"ada"}}"#),
    ("GET", "/debug/limiters", ""),
    ("GET", "/admin/reload", ""),
    ("GET", "/admin/log", ""),
    (
        "POST",
        "/admin/block",
        r#"{"facts":{"user":"bob"},"for":"1h"}"#,
    ),
    ("POST", "/admin/unblock", r#"{"facts":{"user":"eve"}}"#),
    ("POST", "/admin/reset", r#"{"facts":{"user":"ada"}}"#),
    ("POST", "/admin/override", r#"{"rule":"all","rate":"50/s"}"#),
    ("POST", "/admin/bypass", r#"{"all":true,"for":"1m"}"#),
    ("POST", "/admin/reload", "{}"),
    ("PUT", "/admin/log", r#"{"level":"debug"}"#),
    ("DELETE", "/admin/overrides/1", ""),
    ("POST", "/admin/bypass", r#"{"rule":"per-user"}"#),
];

/// State that could be lost: ada has spent one token, eve is blocked, and the file differs from the policy in force.
fn serving(name: &str) -> Operated {
    let operated = Operated::new(name, |_| {});
    assert!(operated.check(r#"{"user":"ada"}"#).0);
    operated.done((
        "POST",
        "/admin/block",
        r#"{"facts":{"user":"eve"},"for":"2h"}"#,
    ));
    let file = operated.scratch.path("policy.yaml");
    std::fs::write(file, "limits: [{name: other, rate: 1/s}]").expect("a file");
    operated
}

#[test]
fn each_is_answered_to_an_operator() {
    for asked in ROUTES {
        let operated = serving("admin-routes");
        let before = operated.state();
        let (status, body) = operated.operate(asked);
        assert_eq!(status, 200, "{asked:?}: {body}");
        let is_read = asked.0 == "GET" || asked.1 == "/admin/key";
        assert_eq!(operated.state() == before, is_read, "{asked:?}");
    }
}

#[test]
fn who_isnt_an_operator_is_refused_and_changes_nothing() {
    let operated = serving("admin-refused");
    let before = operated.state();
    let (own, port) = (operated.host(), operated.running.admin_address().port());
    let token = format!("authorization: Bearer {TOKEN}\r\n");
    let evil = format!("evil.example:{port}");
    let rebound = format!("127.0.0.1.evil.example:{port}");
    let with = |more: &str| format!("{JSON}{token}{more}");
    let cut = TOKEN.split_at(TOKEN.len() - 1).0;
    let table: Vec<(&str, &str, String, u16)> = vec![
        ("no token", &own, JSON.to_owned(), 401),
        (
            "an empty one",
            &own,
            format!("{JSON}authorization: Bearer \r\n"),
            401,
        ),
        (
            "a wrong one",
            &own,
            format!("{JSON}authorization: Bearer guess\r\n"),
            401,
        ),
        (
            "a part of it",
            &own,
            format!("{JSON}authorization: Bearer {cut}\r\n"),
            401,
        ),
        (
            "more than it",
            &own,
            format!("{JSON}authorization: Bearer {TOKEN}x\r\n"),
            401,
        ),
        (
            "another scheme",
            &own,
            format!("{JSON}authorization: Basic {TOKEN}\r\n"),
            401,
        ),
        (
            "as a cookie",
            &own,
            format!("{JSON}cookie: token={TOKEN}\r\n"),
            401,
        ),
        (
            "as another field",
            &own,
            format!("{JSON}x-authorization: Bearer {TOKEN}\r\n"),
            401,
        ),
        ("a foreign host", &evil, with(""), 403),
        ("a name that begins like it", &rebound, with(""), 403),
        ("another port", "127.0.0.1:1", with(""), 403),
        ("no port", "127.0.0.1", with(""), 403),
        (
            "a foreign origin",
            &own,
            with("origin: http://evil.example\r\n"),
            403,
        ),
        (
            "the public listener's origin",
            &own,
            with("origin: http://127.0.0.1:8080\r\n"),
            403,
        ),
        ("no origin's", &own, with("origin: null\r\n"), 403),
        (
            "another site",
            &own,
            with("sec-fetch-site: cross-site\r\n"),
            403,
        ),
        (
            "a site beside",
            &own,
            with("sec-fetch-site: same-site\r\n"),
            403,
        ),
    ];
    for asked in ROUTES {
        for (what, host, fields, expected) in &table {
            let (status, head, body) = operated.asked(asked, host, fields);
            assert_eq!(status, *expected, "{what}: {asked:?}: {body}");
            let challenge = head.contains("\r\nwww-authenticate: Bearer");
            assert_eq!(challenge, status == 401, "{head}");
            assert!(!head.contains("access-control"), "{head}");
        }
    }
    assert_eq!(operated.state(), before);
}

#[test]
fn what_isnt_asked_as_it_should_be_is_refused_and_changes_nothing() {
    let operated = serving("admin-wrong");
    let before = operated.state();
    let (own, token) = (
        operated.host(),
        format!("authorization: Bearer {TOKEN}\r\n"),
    );
    for asked in ROUTES {
        let (right, path, body) = asked;
        let place = |path: &'static str| path.split('?').next();
        let others = ROUTES
            .iter()
            .filter(|(_, other, _)| place(other) == place(path));
        let taken: Vec<_> = others.map(|(method, ..)| *method).collect();
        let all = ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"];
        for method in all {
            if taken.contains(&method) {
                continue;
            }
            let fields = format!("{JSON}{token}");
            let (status, _, answer) = operated.asked((method, path, body), &own, &fields);
            assert_eq!(status, 405, "{method} {path}: {answer}");
        }
        if right == "GET" {
            continue;
        }
        // As a form of a page would send it, or a script without asking first.
        for media in [
            "",
            "content-type: text/plain\r\n",
            "content-type: application/x-www-form-urlencoded\r\n",
            "content-type: multipart/form-data\r\n",
        ] {
            let (status, _, answer) = operated.asked(asked, &own, &format!("{media}{token}"));
            assert_eq!(status, 415, "{asked:?} {media:?}: {answer}");
        }
        let long = format!("{{\"facts\":{{\"user\":\"{}\"}}}}", "x".repeat(70_000));
        let (status, ..) = operated.asked((right, path, &long), &own, &format!("{JSON}{token}"));
        assert_eq!(status, 413, "{asked:?}");
        for broken in ["{", "[]", r#"{"unknown":1}"#, "\u{0}"] {
            // What has no body takes none into account.
            if path == "/admin/reload" || right == "DELETE" {
                continue;
            }
            let fields = format!("{JSON}{token}");
            let (status, _, answer) = operated.asked((right, path, broken), &own, &fields);
            assert_eq!(status, 400, "{asked:?} {broken}: {answer}");
        }
    }
    let no_host = format!("GET /admin/rules HTTP/1.1\r\n{token}\r\n");
    assert_eq!(operated.raw(&no_host).0, 400);
    let old = format!("POST /admin/reload HTTP/1.0\r\n{JSON}{token}content-length: 0\r\n\r\n");
    assert_eq!(operated.raw(&old).0, 400);
    let absolute = format!(
        "POST http://evil.example/admin/reload HTTP/1.1\r\nhost: {own}\r\nconnection: close\r\n{JSON}{token}content-length: 0\r\n\r\n"
    );
    assert_eq!(operated.raw(&absolute).0, 400);
    assert_eq!(operated.state(), before);
}

#[test]
fn no_other_listener_knows_any_of_it() {
    let operated = serving("admin-elsewhere");
    let before = operated.state();
    let running = &operated.running;
    let fields = format!("{JSON}authorization: Bearer {TOKEN}\r\n");
    for (method, path, body) in ROUTES {
        let (status, answer) = running.http().request(method, path, &fields, body);
        assert_eq!(status, 404, "{method} {path}: {answer}");
        // To a client of Redis' protocol the words of HTTP are none.
        let mut client = running.resp();
        let text = format!("{method} {path} HTTP/1.1\r\n{fields}\r\n{body}");
        client.expect(&text, "-ERR ");
        let (status, answer) = by_http2(running, method, path);
        assert!(
            !answer.contains("rules") && status != "0",
            "{path}: {answer}"
        );
    }
    let (_, public) = running.http().request("GET", "/admin/rules", "", "");
    let (_, unknown) = running.http().request("GET", "/nothing/abc", "", "");
    assert_eq!(
        public.replace("/admin/rules", "/nothing/abc"),
        unknown,
        "it is as if it weren't there"
    );
    assert_eq!(operated.state(), before);
}

/// A request to the gRPC listener, with the token: its status, and all bytes of the response.
fn by_http2(running: &Running, method: &str, path: &str) -> (String, String) {
    running.block_on(async {
        let stream = tokio::net::TcpStream::connect(running.grpc()).await;
        let (mut client, connection) = h2::client::handshake(stream.expect("a connection"))
            .await
            .expect("HTTP/2");
        let connection = tokio::spawn(connection);
        let request = http::Request::builder()
            .method(method)
            .uri(format!("http://{}{path}", running.grpc()))
            .header("content-type", "application/json")
            .header("authorization", format!("Bearer {TOKEN}"))
            .body(())
            .expect("a request");
        let (answer, mut say) = client.send_request(request, false).expect("sent");
        let _ = say.send_data(Bytes::from_static(b"{}"), true);
        let answer = match answer.await {
            Ok(answer) => answer,
            Err(error) => return ("reset".to_owned(), error.to_string()),
        };
        let status = answer.headers().get("grpc-status");
        let status = status.map_or_else(String::new, |status| format!("{status:?}"));
        let mut body = format!("{answer:?}");
        let mut hear = answer.into_body();
        while let Some(Ok(bytes)) = hear.data().await {
            body.push_str(&String::from_utf8_lossy(&bytes));
        }
        connection.abort();
        (status, body)
    })
}

#[test]
fn without_a_token_nobody_is_an_operator() {
    let operated = Operated::new("admin-nobody", |settings| {
        settings.admin_token = AdminToken::Disabled;
    });
    for token in ["", TOKEN] {
        let fields = format!("{JSON}authorization: Bearer {token}\r\n");
        let (status, _, body) =
            operated.asked(("POST", "/admin/reload", "{}"), &operated.host(), &fields);
        assert_eq!(status, 403, "{body}");
    }
}

#[test]
fn a_name_of_its_own_is_answered_and_its_origin_too() {
    let operated = Operated::new("admin-names", |settings: &mut Settings| {
        settings.admin_hosts = vec!["limits.example".parse().expect("a name")];
    });
    let token = format!("authorization: Bearer {TOKEN}\r\n");
    let port = operated.running.admin_address().port();
    for (host, more, expected) in [
        ("limits.example".to_owned(), "", 200),
        (format!("localhost:{port}"), "", 200),
        (format!("[::1]:{port}"), "", 200),
        (
            "limits.example".to_owned(),
            "origin: http://limits.example\r\n",
            200,
        ),
        (
            "limits.example".to_owned(),
            "origin: https://limits.example\r\n",
            403,
        ),
        ("other.example".to_owned(), "", 403),
    ] {
        let fields = format!("{token}{more}");
        let (status, ..) = operated.asked(("GET", "/admin/rules", ""), &host, &fields);
        assert_eq!(status, expected, "{host} {more}");
    }
    // Whoever probes knows no name.
    let probed = operated.asked(("GET", "/healthz", ""), "10.1.2.3:6070", "");
    assert_eq!(probed.0, 200);
}
