//! Hooks for operators.

use std::future::ready;
use std::num::NonZero;
use std::sync::Arc;
use std::time::Duration;

use tollgate::{Rate, Timestamp};
use tollgate_engine::backend::{Answer, Backend, Check, CheckResult};
use tollgate_engine::document::Format;
use tollgate_engine::{Engine, Policy};
use tollgate_tower::{
    BlockAfter, OnMissingKey, PolicyLimits, RateLimitLayer, Request as _, RequestHead,
    RequestLimiter, ResponseFormat, User, keys,
};
use tracing::Level;

use crate::kit::{app, ask, from, per_key};
use crate::log::{Log, run};

#[test]
fn refusals_are_told_with_rule_and_key_and_some_of_many() {
    let log = Log::new(Level::INFO);
    tracing::subscriber::with_default(log.clone(), || {
        run(async {
            let (limits, clock) = per_key(Rate::per_hour(1), keys::Bearer);
            let guard = RequestLimiter::new(limits.named("per-token"))
                .clock(Arc::clone(&clock))
                .denial_log_rate(Rate::per_minute(2));
            let app = app(RateLimitLayer::from_limiter(guard));
            let request = || {
                let mut request = from("192.0.2.1", "/");
                let token = "Bearer sesame".parse().expect("a value");
                request.headers_mut().insert("authorization", token);
                request
            };
            for _ in 0..6 {
                ask(&app, request()).await;
            }
            let lines = log.take();
            assert_eq!(lines.len(), 2, "{lines:?}");
            for part in [
                "INFO tollgate",
                "rule=\"per-token\"",
                "outcome=\"refused\"",
                "reason=\"rate\"",
                "retry_after_ms=3600000",
                "suppressed=0",
            ] {
                assert!(lines[0].contains(part), "{part}: {lines:?}");
            }
            assert!(!lines[0].contains("sesame"), "{lines:?}");
            let (_, key) = lines[0].split_once("key=").expect("a key");
            let hex = key.chars().take_while(char::is_ascii_hexdigit).count();
            assert_eq!(hex, 16, "{lines:?}");
            clock.advance(Duration::from_secs(60));
            ask(&app, request()).await;
            assert!(log.take()[0].contains("suppressed=3"));
        });
    });
}

#[test]
fn what_shadow_lets_pass_and_what_passes_is_told_to_those_who_ask() {
    let log = Log::new(Level::TRACE);
    tracing::subscriber::with_default(log.clone(), || {
        run(async {
            let (limits, _) = per_key(Rate::per_hour(1), keys::ClientAddress::new());
            let app = app(RateLimitLayer::from_limiter(
                RequestLimiter::new(limits).shadow(),
            ));
            for _ in 0..2 {
                assert_eq!(ask(&app, from("192.0.2.1", "/")).await.status, 200);
            }
            let lines = log.take();
            let has = |parts: [&str; 2]| {
                let mut found = lines.iter();
                found.any(|line| parts.iter().all(|part| line.contains(part)))
            };
            assert!(has(["TRACE tollgate", "outcome=\"passed\""]), "{lines:?}");
            assert!(has(["TRACE tollgate", "outcome=\"over\""]), "{lines:?}");
            assert!(has(["INFO tollgate", "outcome=\"shadow\""]), "{lines:?}");
        });
    });
}

#[test]
fn mistakes_are_told_at_start_and_once() {
    let log = Log::new(Level::WARN);
    tracing::subscriber::with_default(log.clone(), || {
        run(async {
            let _all = RateLimitLayer::per_key(Rate::per_hour(1), keys::Global);
            assert!(log.take()[0].contains("all requests are counted as one client's"));
            let (limits, _) = per_key(Rate::per_hour(1), keys::ClientAddress::new());
            let by_address = app(RateLimitLayer::new(limits));
            for _ in 0..3 {
                let mut request = from("192.0.2.1", "/");
                let forged = "198.51.100.1".parse().expect("a value");
                request.headers_mut().insert("x-forwarded-for", forged);
                ask(&by_address, request).await;
            }
            let lines = log.take();
            assert_eq!(lines.len(), 1, "{lines:?}");
            assert!(lines[0].contains("x-forwarded-for"), "{lines:?}");
            let (limits, _) = per_key(Rate::per_hour(1), keys::Extension::<User>::new());
            let by_user = app(RateLimitLayer::new(limits));
            assert_eq!(ask(&by_user, from("192.0.2.1", "/")).await.status, 500);
            let expected = "ERROR tollgate message=a request has no key to be limited by: it lacks the extension \
                            tollgate_http::guard::request::User: put the layer that sets it outside of this one, which in \
                            axum means to add it after this one: the layer that is added last runs first suppressed=0";
            assert_eq!(log.take(), [expected]);
        });
    });
}

/// Who sends what has no key fills no disk.
#[test]
fn mistakes_are_logged_as_sparingly_as_refusals() {
    let log = Log::new(Level::WARN);
    let _guard = tracing::subscriber::set_default(log.clone());
    run(async {
        let (limits, clock) = per_key(Rate::per_second(1), keys::Extension::<User>::new());
        let guard = RequestLimiter::new(limits).clock(Arc::clone(&clock));
        let app = app(RateLimitLayer::from_limiter(
            guard.denial_log_rate(Rate::per_second(2).burst(2)),
        ));
        let ask_one = async || ask(&app, from("192.0.2.1", "/")).await.status;
        for _ in 0..100 {
            assert_eq!(ask_one().await, 500);
        }
        assert_eq!(log.take().len(), 2);
        clock.advance(Duration::from_secs(1));
        assert_eq!(ask_one().await, 500);
        let told = log.take();
        assert_eq!(told.len(), 1);
        assert!(told[0].contains("suppressed=98"), "{told:?}");
    });
}

#[test]
fn a_key_that_not_one_request_has_is_warned_of_once() {
    let user = || keys::Extension::<User>::new();
    for missing in [OnMissingKey::Pass, OnMissingKey::OneCounter] {
        for with_user in [None, Some(50), Some(99)] {
            let log = Log::new(Level::WARN);
            tracing::subscriber::with_default(log.clone(), || {
                run(async {
                    let (limits, _) = per_key(Rate::per_second(1_000).burst(1_000), user());
                    let app = app(RateLimitLayer::new(limits.on_missing_key(missing)));
                    for number in 0..300 {
                        let mut request = from("192.0.2.1", "/");
                        if Some(number) == with_user {
                            request.extensions_mut().insert(User::from("ada"));
                        }
                        assert_eq!(ask(&app, request).await.status, 200);
                    }
                    let lines = log.take();
                    let told = lines.iter().filter(|line| line.contains("not one request"));
                    let expected = usize::from(with_user.is_none());
                    assert_eq!(
                        told.count(),
                        expected,
                        "{missing:?}, {with_user:?}: {lines:?}"
                    );
                });
            });
        }
    }
}

/// A missing header is the client's mistake: it logs nothing for operators, except once if no client ever sends it.
#[test]
fn clients_cause_neither_500_nor_lines_above_debug() {
    let log = Log::new(Level::INFO);
    let debug = Log::new(Level::DEBUG);
    for (log, is_debug) in [(log, false), (debug, true)] {
        tracing::subscriber::with_default(log.clone(), || {
            run(async {
                let key = keys::Header::new("x-api-key");
                let (limits, _) = per_key(Rate::per_second(1_000).burst(1_000), key);
                let app = app(RateLimitLayer::new(limits));
                let mut good = from("192.0.2.1", "/");
                let headers = good.headers_mut();
                headers.insert("x-api-key", "a".parse().expect("a value"));
                assert_eq!(ask(&app, good).await.status, 200);
                for _ in 0..150 {
                    assert_eq!(ask(&app, from("192.0.2.1", "/")).await.status, 400);
                }
                let lines = log.take();
                if is_debug {
                    let expected = "DEBUG tollgate message=a request lacks the key of its limit rule=\"requests:1000/s\" \
                                    outcome=\"refused\" reason=\"missing_key\" wanted=\"exactly one header x-api-key\" \
                                    suppressed=0";
                    assert_eq!(lines[0], expected);
                } else {
                    assert_eq!(lines, [] as [String; 0]);
                }
            });
        });
    }
}

/// A layer that denies every request, as nobody sends its header, warns once.
#[test]
fn a_header_that_nobody_sends_is_warned_of_within_100_requests() {
    let log = Log::new(Level::INFO);
    tracing::subscriber::with_default(log.clone(), || {
        run(async {
            let key = keys::Header::new("x-api-kye");
            let app = app(RateLimitLayer::new(per_key(Rate::per_hour(1), key).0));
            for _ in 0..300 {
                assert_eq!(ask(&app, from("192.0.2.1", "/")).await.status, 400);
            }
            let expected = "WARN tollgate message=not one request so far had the key of its limit: if clients needn't send \
                            it, add another key to fall back to: keys::first_of((…, keys::ClientAddress::new())) \
                            requests=100 on_missing_key=\"deny\" wanted=\"exactly one header x-api-kye\"";
            assert_eq!(log.take(), [expected]);
        });
    });
}

/// The log names the cause: a list, a block, or a limit.
#[test]
fn who_is_on_a_list_is_not_logged_as_over_a_limit() {
    let log = Log::new(Level::INFO);
    tracing::subscriber::with_default(log.clone(), || {
        run(async {
            let (limits, clock) = per_key(Rate::per_hour(1), keys::ClientAddress::new());
            let block = BlockAfter::after(NonZero::<u32>::MIN, Duration::from_secs(60));
            let guard = RequestLimiter::new(limits)
                .clock(Arc::clone(&clock))
                .deny(|head: &RequestHead| head.path() == "/users/666")
                .block(block, keys::ClientAddress::new())
                .expect("a block");
            let app = app(RateLimitLayer::from_limiter(guard));
            let mut told = Vec::new();
            for path in ["/users/666", "/", "/", "/"] {
                ask(&app, from("192.0.2.1", path)).await;
                told.extend(log.take());
            }
            assert_eq!(told.len(), 3, "{told:?}");
            for (line, message) in told.iter().zip(["denied", "over the limit", "blocked"]) {
                let is_said = line.contains(&format!("message={message}"));
                assert!(is_said && line.contains("outcome=\"refused\""), "{line}");
            }
        });
    });
}

/// Clones of a key are one in what they have warned of.
#[test]
fn clones_of_an_address_warn_once() {
    let forged = || {
        let mut request = from("192.0.2.1", "/");
        let forged = "198.51.100.1".parse().expect("a value");
        request.headers_mut().insert("x-forwarded-for", forged);
        request
    };
    let log = Log::new(Level::WARN);
    tracing::subscriber::with_default(log.clone(), || {
        run(async {
            let address = keys::ClientAddress::new();
            let apps = [address.clone(), address.clone().ipv6_bits(56), address];
            let apps = apps.map(|address| {
                let (limits, _) = per_key(Rate::per_hour(100), address);
                app(RateLimitLayer::new(limits))
            });
            for app in apps {
                for _ in 0..3 {
                    ask(&app, forged()).await;
                }
            }
            let lines = log.take();
            assert_eq!(lines.len(), 1, "{lines:?}");
            // Who has no key of its own, and is counted by its address, is no other.
            let or_address = keys::Bearer.or(keys::ClientAddress::new());
            let (limits, _) = per_key(Rate::per_hour(100), or_address);
            let app = app(RateLimitLayer::new(limits));
            for _ in 0..3 {
                ask(&app, forged()).await;
            }
            let lines = log.take();
            assert_eq!(lines.len(), 1, "{lines:?}");
        });
    });
}

/// A proxy may be put before a service that has run for long, where requests are searched for its field now and then.
#[test]
fn a_proxy_that_comes_late_is_warned_of_as_well() {
    for answers in [ResponseFormat::new(), ResponseFormat::new().dialects([])] {
        let log = Log::new(Level::WARN);
        tracing::subscriber::with_default(log.clone(), || {
            run(async {
                let (limits, _) = per_key(Rate::per_second(1_000_000), keys::ClientAddress::new());
                let app = app(RateLimitLayer::new(limits).response_format(answers));
                for _ in 0..1_000 {
                    ask(&app, from("192.0.2.1", "/")).await;
                }
                assert_eq!(log.take(), [] as [String; 0]);
                for _ in 0..61 {
                    let mut request = from("192.0.2.1", "/");
                    let forged = "198.51.100.1".parse().expect("a value");
                    request.headers_mut().insert("x-forwarded-for", forged);
                    ask(&app, request).await;
                }
                assert_eq!(log.take().len(), 1);
            });
        });
    }
}

/// A backend that is unreachable, without a fallback.
struct Broken;

impl Backend for Broken {
    type Error = &'static str;

    fn ask<'a>(
        &'a self,
        _: &'a [Check<'a>],
        _: Option<&'a mut Vec<CheckResult>>,
    ) -> impl Future<Output = Result<Answer, &'static str>> + Send + 'a {
        ready(Err("the cable is cut"))
    }

    fn now(&self) -> Timestamp {
        Timestamp::ZERO
    }
}

/// An unreachable store doesn't fill the disk with log lines.
#[test]
fn what_can_not_be_asked_is_logged_as_sparingly_as_refusals() {
    for level in [Level::ERROR, Level::INFO] {
        let log = Log::new(level);
        tracing::subscriber::with_default(log.clone(), || {
            run(async {
                let text = "limits: [{name: all, rate: 1/s}]";
                let policy = Policy::from_text(text, Format::Yaml).expect("a policy");
                let engine = Engine::new(policy.policy, Broken).expect("an engine");
                let clock = Arc::new(tollgate::clock::Manual::new());
                let guard =
                    RequestLimiter::new(PolicyLimits::new(engine)).clock(Arc::clone(&clock));
                let app = app(RateLimitLayer::from_limiter(
                    guard.denial_log_rate(Rate::per_second(2).burst(2)),
                ));
                for _ in 0..100 {
                    let answer = ask(&app, from("192.0.2.1", "/")).await;
                    assert_eq!(answer.status, 503);
                    assert!(!answer.body.contains("cable"), "{answer:?}");
                }
                let told = log.take();
                assert_eq!(told.len(), 2, "{told:?}");
                for part in [
                    "ERROR tollgate",
                    "the cable is cut",
                    "the limits can't be asked",
                ] {
                    assert!(told.iter().all(|line| line.contains(part)), "{told:?}");
                }
                clock.advance(Duration::from_secs(1));
                ask(&app, from("192.0.2.1", "/")).await;
                let told = log.take();
                assert!(told[0].contains("suppressed=98"), "{told:?}");
            });
        });
    }
}
