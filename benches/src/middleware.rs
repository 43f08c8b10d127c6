//! The group `middleware`: the cost of a layer around a service that does nothing, in process, against
//! tower_governor around the same service.

use std::sync::Arc;

use tollgate::Rate;
use tollgate_engine::backend::Memory;
use tollgate_engine::document::Format;
use tollgate_engine::{Engine, Policy};
use tollgate_tower::{RateLimitLayer, ResponseFormat};
use tower_governor::GovernorLayer;
use tower_governor::governor::GovernorConfigBuilder;
use tower_layer::Layer;

mod calls;

use calls::{
    Calls, Clients, DropService, DroppedCalls, EmptyService, Serve, allocations, on_two_threads,
};

use crate::report::{Line, Report};
use crate::runner::{Measure, Peer, ROUNDS, compare, median};
use crate::two_threads::ThreadPair;

/// The target for a layer in addition to none, in nanoseconds.
const BARE: f64 = 80.0;
/// The target for header fields in addition to no layer.
const HEADERS: f64 = 150.0;
/// The target for a policy in addition to no layer.
const POLICY: f64 = 600.0;
const RULES: u64 = 100;
/// Clients of `two-threads`.
const CLIENTS: u64 = 1_000;

pub(crate) fn run(report: &mut Report) {
    let quiet = || ours(ample_rate()).response_format(ResponseFormat::new().dialects([]));
    let mut bare = Calls::new(Clients::One, EmptyService::<false>);
    let mut admitted = Calls::new(Clients::One, quiet().layer(EmptyService::<false>));
    let mut typed = Calls::new(Clients::One, quiet().layer(EmptyService::<true>));
    let mut with_fields = Calls::new(Clients::One, ours(ample_rate()).layer(EmptyService::<true>));
    let mut refused = DroppedCalls::new(ours(exhausted_rate()).layer(EmptyService::<false>));

    let governor = Calls::new(
        Clients::One,
        theirs(AMPLE_QUOTA).layer(EmptyService::<false>),
    );
    let mut peers = [Peer::new("tower_governor", governor).target(0.9)];
    compare(report, "admitted", &mut admitted, &mut peers);

    let governor = DroppedCalls::new(theirs(EXHAUSTED_QUOTA).layer(EmptyService::<false>));
    let mut peers = [Peer::new("tower_governor", governor).target(0.03)];
    compare(report, "refused", &mut refused, &mut peers);

    // Both drop their requests, as the last owner of a request does.
    let fields = DroppedCalls::new(ours(ample_rate()).layer(DropService));
    let mut peers = [Peer::new("admitted-headers", fields).target(2.0)];
    compare(report, "refused-vs-admitted", &mut refused, &mut peers);

    extra_nanos(
        report,
        ("admitted-bare", "bare", BARE),
        &mut admitted,
        &mut bare,
    );
    let none = (allocations(&mut admitted), allocations(&mut bare));
    allocated(report, ("admitted-bare", "bare"), none, 0.0);
    extra_nanos(
        report,
        ("admitted-headers", "admitted-bare", HEADERS),
        &mut with_fields,
        &mut typed,
    );
    // Two fields are written: RateLimit-Policy and RateLimit.
    let some = (allocations(&mut with_fields), allocations(&mut typed));
    allocated(report, ("admitted-headers", "admitted-bare"), some, 2.0);
    by_policy(report, &mut bare);
    two_threads(report);
    report.note(format!(
        "a request of GET with three header fields and the address of its connection is made ready before, and an answer \
         with a content type and an empty body is polled and dropped; medians of {ROUNDS} rounds in turns. tower_governor keeps its own clock and table; without fields on both \
         sides, but for refusals, which tell when to come back and why. policy: {RULES} rules, of which three are for the request, by user, \
         tenant and address. two-threads: {CLIENTS} clients"
    ));
}

fn ample_rate() -> Rate {
    Rate::per_second(1_000_000_000).burst(1_000_000_000)
}

fn exhausted_rate() -> Rate {
    Rate::per_day(1)
}

type TollgateService =
    RateLimitLayer<tollgate_tower::RatePerKey<tollgate_tower::keys::ClientAddress>>;

fn ours(rate: Rate) -> TollgateService {
    RateLimitLayer::per_client(rate)
}

/// Nanoseconds between two requests, and the burst.
const AMPLE_QUOTA: (u64, u32) = (1, u32::MAX);
const EXHAUSTED_QUOTA: (u64, u32) = (86_400_000_000_000, 1);

type PeerService = GovernorLayer<
    tower_governor::key_extractor::PeerIpKeyExtractor,
    governor::middleware::NoOpMiddleware<governor::clock::QuantaInstant>,
    axum::body::Body,
>;

fn theirs((nanos, burst): (u64, u32)) -> PeerService {
    let mut builder = GovernorConfigBuilder::default();
    let config = builder.per_nanosecond(nanos).burst_size(burst).finish();
    GovernorLayer::new(Arc::new(config.expect("a rate that governor takes")))
}

/// How many nanoseconds more than the other a call takes.
fn extra_nanos(
    report: &mut Report,
    (case, peer, most): (&'static str, &'static str, f64),
    ours: &mut dyn Measure,
    other: &mut dyn Measure,
) {
    let mut rounds: Vec<(f64, bool)> = (0..ROUNDS)
        .map(|round| {
            let (ours, other) = if round % 2 == 0 {
                let ours = ours.sample();
                (ours, other.sample())
            } else {
                let other = other.sample();
                (ours.sample(), other)
            };
            (ours.nanos - other.nanos, ours.switched || other.switched)
        })
        .collect();
    let clean = rounds.iter().filter(|(_, switched)| !switched).count();
    if clean >= crate::runner::MIN_CLEAN_ROUNDS {
        rounds.retain(|(_, switched)| !switched);
    }
    let disturbed = rounds.iter().filter(|(_, switched)| *switched).count();
    let nanos = median(rounds.into_iter().map(|(nanos, _)| nanos).collect());
    let mut line = Line::new(case, peer, (nanos, most, "ns more"), nanos / most);
    line.disturbed = disturbed;
    report.add(line.target(Some(1.0)));
}

/// How many allocations more than the other a call makes.
fn allocated(
    report: &mut Report,
    (case, peer): (&str, &'static str),
    (ours, other): (f64, f64),
    most: f64,
) {
    let numbers = (ours - other, most, "allocations");
    let line = Line::new(format!("{case}-allocations"), peer, numbers, ours - other);
    report.add(line.target(Some(most)));
}

/// A hundred rules, three of which match each request.
fn by_policy(report: &mut Report, bare: &mut Calls<EmptyService<false>>) {
    let mut text = "limits:\n".to_owned();
    for number in 0..RULES - 2 {
        text.push_str(&format!(
            "- {{name: service-{number}, match: {{path: '/service-{number}/**', method: [GET, POST]}}, key: user, rate: 1000000000/s}}\n"
        ));
    }
    text.push_str("- {name: address, key: ip, rate: 1000000000/s}\n");
    text.push_str("- {name: tenant, key: tenant, rate: 1000000000/s}\n");
    let policy = Policy::from_text(&text, Format::Yaml).expect("a policy that is one");
    let engine = Engine::new(policy.policy, Memory::new()).expect("an engine in memory");
    let layer =
        RateLimitLayer::from_policy(engine).response_format(ResponseFormat::new().dialects([]));
    let mut ours = Calls::new(Clients::Known, layer.layer(EmptyService::<false>));
    extra_nanos(report, ("policy-3-of-100", "bare", POLICY), &mut ours, bare);
}

fn two_threads(report: &mut Report) {
    fn compare_both<'c, S: Serve>(crew: &'c ThreadPair, service: S) -> impl Measure + 'c {
        on_two_threads(crew, Clients::Many(CLIENTS), service)
    }
    let crew = ThreadPair::new();
    let quiet = ours(ample_rate()).response_format(ResponseFormat::new().dialects([]));
    let mut ours = compare_both(&crew, quiet.layer(EmptyService::<false>));
    let governor = compare_both(&crew, theirs(AMPLE_QUOTA).layer(EmptyService::<false>));
    let mut peers = [Peer::new("tower_governor", governor).target(0.6)];
    compare(report, "two-threads", &mut ours, &mut peers);
}
