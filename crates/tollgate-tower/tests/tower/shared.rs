//! All clones of a service share their counters, and clients have separate ones.

use std::time::Duration;

use http::Method;
use tollgate::Rate;
use tollgate_tower::client::Trust;
use tollgate_tower::{OnMissingKey, RateLimitLayer, User, keys};

use crate::kit::{app, ask, from, per_key};

/// A router clones its services for each connection: a limit of tower's own kind would be a new one each time.
#[tokio::test]
async fn a_router_has_one_limit_however_often_it_is_cloned() {
    let (limits, clock) = per_key(Rate::per_second(1).burst(3), keys::ClientAddress::new());
    let app = app(RateLimitLayer::new(limits));
    let mut passed = 0;
    for _ in 0..10 {
        passed += u32::from(ask(&app.clone(), from("192.0.2.1", "/")).await.status == 200);
    }
    assert_eq!(passed, 3);
    assert_eq!(ask(&app, from("192.0.2.2", "/")).await.status, 200);
    clock.advance(Duration::from_secs(1));
    assert_eq!(ask(&app, from("192.0.2.1", "/")).await.status, 200);
    assert_eq!(ask(&app, from("192.0.2.1", "/")).await.status, 429);
}

#[tokio::test]
async fn one_layer_around_two_services_is_one_limit() {
    let (limits, _) = per_key(Rate::per_second(1).burst(3), keys::ClientAddress::new());
    let layer = RateLimitLayer::new(limits);
    let (one, other) = (app(layer.clone()), app(layer));
    let mut passed = 0;
    for _ in 0..5 {
        passed += u32::from(ask(&one, from("192.0.2.1", "/")).await.status == 200);
        passed += u32::from(ask(&other, from("192.0.2.1", "/")).await.status == 200);
    }
    assert_eq!(passed, 3);
}

/// What is chosen after a clone, or after a service was made, is for the new layer alone.
#[tokio::test]
async fn a_layer_that_is_changed_after_it_was_cloned_still_counts_together() {
    let (limits, _) = per_key(Rate::per_second(1).burst(3), keys::ClientAddress::new());
    let layer = RateLimitLayer::new(limits);
    let (one, twin) = (app(layer.clone()), layer.clone());
    let other = app(layer.exempt_probes());
    let third = app(twin
        .exempt(|head| head.uri().path() == "/users/7")
        .exempt_probes());
    let status = async |app, path| ask(app, from("192.0.2.1", path)).await.status;
    assert_eq!(status(&one, "/healthz").await, 200);
    assert_eq!(status(&other, "/").await, 200);
    assert_eq!(status(&third, "/").await, 200);
    for app in [&one, &other, &third] {
        assert_eq!(status(app, "/").await, 429);
    }
    assert_eq!(status(&one, "/healthz").await, 429);
    assert_eq!(status(&other, "/healthz").await, 200);
    assert_eq!(status(&other, "/users/7").await, 429);
    assert_eq!(status(&third, "/users/7").await, 200);
}

#[tokio::test]
async fn what_a_client_forges_makes_no_new_client() {
    let (limits, _) = per_key(Rate::per_second(1).burst(2), keys::ClientAddress::new());
    let app = app(RateLimitLayer::new(limits));
    let mut passed = 0;
    for number in 0..10 {
        let mut request = from("192.0.2.1", "/");
        let forged = format!("198.51.100.{number}").parse().expect("a value");
        request.headers_mut().insert("x-forwarded-for", forged);
        passed += u32::from(ask(&app, request).await.status == 200);
    }
    assert_eq!(passed, 2);
}

#[tokio::test]
async fn clients_of_a_trusted_proxy_are_told_apart() {
    let trust = Trust::proxies(["10.0.0.0/8".parse().expect("a range")]);
    let (limits, _) = per_key(Rate::per_second(1), keys::ClientAddress::new().trust(trust));
    let app = app(RateLimitLayer::new(limits));
    for (client, status) in [
        ("198.51.100.1", 200),
        ("198.51.100.1", 429),
        ("198.51.100.2", 200),
    ] {
        let mut request = from("10.0.0.1", "/");
        let field = format!("1.1.1.1, {client}").parse().expect("a value");
        request.headers_mut().insert("x-forwarded-for", field);
        assert_eq!(ask(&app, request).await.status, status, "{client}");
    }
}

#[tokio::test]
async fn a_household_of_ipv6_is_one_client() {
    let (limits, _) = per_key(Rate::per_second(1), keys::ClientAddress::new());
    let app = app(RateLimitLayer::new(limits));
    let rows = [
        ("[2001:db8:0:1::1]", 200),
        ("[2001:db8:0:1:ffff::9]", 429),
        ("[2001:db8:0:2::1]", 200),
        ("192.0.2.1", 200),
        ("[::ffff:192.0.2.1]", 429),
    ];
    for (address, status) in rows {
        assert_eq!(
            ask(&app, from(address, "/")).await.status,
            status,
            "{address}"
        );
    }
}

#[tokio::test]
async fn keys_are_found_where_they_are() {
    let key = (keys::Extension::<User>::new(), keys::Method);
    let (limits, _) = per_key(Rate::per_second(1), key);
    let app = app(RateLimitLayer::new(limits));
    let rows = [
        ("ada", Method::GET, 200),
        ("ada", Method::GET, 429),
        ("ada", Method::POST, 200),
        ("bob", Method::GET, 200),
    ];
    for (user, method, status) in rows {
        let mut request = from("192.0.2.1", "/users/7");
        *request.method_mut() = method;
        request.extensions_mut().insert(User::from(user));
        assert_eq!(ask(&app, request).await.status, status, "{user}");
    }
}

#[tokio::test]
async fn fields_and_cookies_that_are_doubled_are_no_key() {
    let rows = [
        ("x-api-key", vec!["a"], 200),
        ("x-api-key", vec!["a"], 429),
        ("x-api-key", vec!["b"], 200),
        ("x-api-key", vec!["c", "d"], 400),
        ("x-api-key", vec![" "], 400),
        ("cookie", vec!["x=1; id=a"], 400),
    ];
    let (limits, _) = per_key(Rate::per_second(1), keys::Header::new("X-API-Key"));
    let by_field = app(RateLimitLayer::new(limits));
    for (name, values, status) in rows {
        let mut request = from("192.0.2.1", "/");
        for value in &values {
            request
                .headers_mut()
                .append(name, value.parse().expect("a value"));
        }
        assert_eq!(ask(&by_field, request).await.status, status, "{values:?}");
    }
    let (limits, _) = per_key(Rate::per_second(1), (keys::Cookie::new("id"), keys::Bearer));
    let by_both = app(RateLimitLayer::new(limits));
    let rows = [
        ("id=a", "Bearer t", 200),
        ("x=1; id=a", "bearer t", 429),
        ("id=a", "Bearer u", 200),
        // Two cookies count by the address.
        ("id=a; id=b", "Bearer t", 200),
        ("id=c; id=a", "Bearer t", 429),
        ("idx=a", "Bearer t", 400),
        ("id=b", "Basic t", 401),
        ("id=b", "Bearer", 401),
    ];
    for (cookie, token, status) in rows {
        let mut request = from("192.0.2.1", "/");
        let headers = request.headers_mut();
        headers.insert("cookie", cookie.parse().expect("a value"));
        headers.insert("authorization", token.parse().expect("a value"));
        assert_eq!(
            ask(&by_both, request).await.status,
            status,
            "{cookie} {token}"
        );
    }
}

#[tokio::test]
async fn without_a_key_requests_are_denied_or_pass_or_share_one_counter() {
    for (missing, statuses) in [
        (OnMissingKey::Deny, [401, 401]),
        (OnMissingKey::Pass, [200, 200]),
        (OnMissingKey::OneCounter, [200, 429]),
    ] {
        let (limits, _) = per_key(Rate::per_second(1), keys::Bearer);
        let app = app(RateLimitLayer::new(limits.on_missing_key(missing)));
        for (address, status) in ["192.0.2.1", "192.0.2.2"].into_iter().zip(statuses) {
            let answer = ask(&app, from(address, "/")).await;
            assert_eq!(answer.status, status, "{missing:?}");
        }
    }
}

/// A request with these header fields.
fn with(lines: &[(&'static str, &str)]) -> http::Request<axum::body::Body> {
    let mut request = from("198.51.100.7", "/");
    for (name, value) in lines {
        request
            .headers_mut()
            .append(*name, value.parse().expect("a value"));
    }
    request
}

/// The commonest key: clients with an API key have a limit for it, and others one for their address.
#[tokio::test]
async fn the_first_key_that_a_request_has_counts_and_no_two_share_a_counter() {
    let or = keys::Header::new("x-api-key").or(keys::ClientAddress::new());
    let first = keys::first_of((
        keys::Bearer,
        keys::Header::new("x-api-key"),
        keys::ClientAddress::new(),
    ));
    let apps = [
        app(RateLimitLayer::new(per_key(Rate::per_hour(1), or).0)),
        app(RateLimitLayer::new(per_key(Rate::per_hour(1), first).0)),
    ];
    for app in apps {
        // An API key that looks like the address is no address.
        for (lines, status) in [
            (&[][..], 200),
            (&[][..], 429),
            (&[("x-api-key", "198.51.100.7")][..], 200),
            (&[("x-api-key", "198.51.100.7")][..], 429),
            (&[("x-api-key", "a")][..], 200),
            // Of two lines none is believed, and a client doesn't choose its key by them.
            (&[("x-api-key", "a"), ("x-api-key", "b")][..], 400),
        ] {
            assert_eq!(ask(&app, with(lines)).await.status, status, "{lines:?}");
        }
    }
    // The same text as a token and as an API key is two keys.
    let two = keys::first_of((keys::Bearer, keys::Header::new("x-api-key")));
    let app = app(RateLimitLayer::new(per_key(Rate::per_hour(1), two).0));
    for (lines, status) in [
        ([("authorization", "Bearer t")], 200),
        ([("authorization", "Bearer t")], 429),
        ([("x-api-key", "t")], 200),
        ([("x-api-key", "t")], 429),
        ([("accept", "t")], 400),
    ] {
        assert_eq!(ask(&app, with(&lines)).await.status, status, "{lines:?}");
    }
}

/// A client reads what it has to send.
#[tokio::test]
async fn a_client_is_told_what_its_request_lacks() {
    let no_key = per_key(Rate::per_hour(1), keys::Header::new("X-API-Key")).0;
    let answer = ask(&app(RateLimitLayer::new(no_key)), from("192.0.2.1", "/")).await;
    assert_eq!(answer.status, 400);
    assert_eq!(
        answer.body,
        r#"{"type":"about:blank","title":"The request lacks the key that it has to be limited by","status":400,"detail":"The request lacks exactly one header x-api-key","reason":"missing_key","violated-policies":["requests:1/h"]}"#
    );
    let expected = [
        "content-type: application/problem+json",
        "cache-control: no-store",
    ];
    assert_eq!(answer.fields, expected);
    let no_token = per_key(Rate::per_hour(1), keys::Bearer).0;
    let answer = ask(&app(RateLimitLayer::new(no_token)), from("192.0.2.1", "/")).await;
    assert_eq!(answer.status, 401);
    assert!(answer.body.contains(r#""status":401"#), "{}", answer.body);
    let challenge = "www-authenticate: Bearer".to_owned();
    assert!(answer.fields.contains(&challenge), "{:?}", answer.fields);
}

#[tokio::test]
async fn probes_are_exempt_if_that_is_asked_for() {
    for (is_exempt, expected) in [(false, 429), (true, 200)] {
        let (limits, _) = per_key(Rate::per_second(1), keys::ClientAddress::new());
        let layer = RateLimitLayer::new(limits);
        let app = app(if is_exempt {
            layer.exempt_probes()
        } else {
            layer
        });
        let _first = ask(&app, from("192.0.2.1", "/")).await;
        assert_eq!(
            ask(&app, from("192.0.2.1", "/healthz")).await.status,
            expected
        );
        let mut post = from("192.0.2.1", "/healthz");
        *post.method_mut() = Method::POST;
        assert_eq!(ask(&app, post).await.status, 429);
        assert_eq!(ask(&app, from("192.0.2.1", "/healthz/")).await.status, 429);
    }
}
