//! Random requests whose descriptors repeat and overlap, compared with a model that only counts.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use tollgate_engine::engine::DescriptorDecision;
use tollgate_engine::envoy::StatusCode;
use tollgate_engine::facts::{Descriptor, Unit};
use tollgate_engine::policy::Charging;

use super::Edge;

/// All of it within one window, so that a limit is a number.
const TREE: &str = "
- {key: user, rate_limit: {unit: hour, requests_per_unit: 3}}
- {key: path, value: '/f/*', share_threshold: true, rate_limit: {unit: day, requests_per_unit: 5}}
- {key: site, rate_limit: {rate: 4/h}}
- {key: plan, rate_limit: {quota: 6/day}}
- {key: slot, rate_limit: {concurrency: 1}}
- {key: q1, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 2}}
- {key: q2, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 4}}
- {key: tried, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 3}}
- {key: quiet, shadow_mode: true, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 1}}
";

const ENTRIES: [(&str, &str); 12] = [
    ("user", "ann"),
    ("user", "bob"),
    ("path", "/f/a"),
    ("path", "/f/b"),
    ("site", "x"),
    ("plan", "x"),
    ("slot", "x"),
    ("q1", "x"),
    ("q2", "x"),
    ("tried", "x"),
    ("quiet", "x"),
    ("nothing", "x"),
];

/// One descriptor of a request.
#[derive(Clone, Copy, Debug)]
struct Part {
    entry: (&'static str, &'static str),
    cost: Option<u64>,
    refund: bool,
    /// The limit that the proxy sends in place of the user's.
    asks: Option<(u32, Unit)>,
}

fn part() -> impl Strategy<Value = Part> {
    let cost = select(vec![None, None, None, Some(0), Some(1), Some(2), Some(7)]);
    let asks = select(vec![
        None,
        None,
        Some((2, Unit::Hour)),
        Some((4, Unit::Hour)),
        Some((2, Unit::Day)),
    ]);
    let refund = prop::bool::weighted(0.08);
    (select(ENTRIES.to_vec()), cost, refund, asks).prop_map(|(entry, cost, refund, asks)| Part {
        entry,
        cost,
        refund,
        asks: asks.filter(|_| entry.0 == "user"),
    })
}

/// What a descriptor meets: its counter, the limit, and whether that is in quota mode and in shadow.
#[derive(Clone, Debug)]
struct Meets {
    counter: String,
    limit: u64,
    quota: bool,
    shadow: bool,
    cost: u64,
}

impl Meets {
    fn new(part: &Part, hits: u32) -> Option<Self> {
        let (key, value) = part.entry;
        let (limit, quota, shadow) = match key {
            "user" => (3, false, false),
            "path" => (5, false, false),
            "site" => (4, false, false),
            "plan" => (6, false, false),
            "slot" => (1, false, false),
            "q1" => (2, true, false),
            "q2" => (4, true, false),
            "tried" => (3, false, true),
            "quiet" => (1, true, true),
            _ => return None,
        };
        let counter = match part.asks {
            Some((_, Unit::Day)) => format!("{key} {value} by day"),
            _ if key == "path" => key.to_owned(),
            _ => format!("{key} {value}"),
        };
        let cost = part.cost.unwrap_or(u64::from(hits));
        Some(Self {
            counter,
            limit: part.asks.map_or(limit, |(requests, _)| u64::from(requests)),
            quota,
            shadow,
            // A request runs once, whatever it costs.
            cost: match (key, part.refund) {
                ("slot", _) => 1,
                (_, true) => 0,
                _ => cost,
            },
        })
    }
}

#[derive(Default)]
struct Model {
    used: BTreeMap<String, u64>,
}

/// The model's answer to a request, and to each descriptor: whether it is over the limit, and the remaining tokens.
struct Said {
    allowed: bool,
    each: Vec<Option<(bool, u64)>>,
}

impl Model {
    fn used(&self, counter: &str) -> u64 {
        self.used.get(counter).copied().unwrap_or(0)
    }

    fn decide(&mut self, parts: &[Part], hits: u32, charging: Charging) -> Said {
        for part in parts.iter().filter(|part| part.refund) {
            let back = part.cost.unwrap_or(u64::from(hits));
            if let Some(meets) = Meets::new(part, hits).filter(|_| part.entry.0 != "slot") {
                let used = self.used.entry(meets.counter).or_default();
                *used = used.saturating_sub(back);
            }
        }
        let met: Vec<_> = parts.iter().map(|part| Meets::new(part, hits)).collect();
        let all = || met.iter().flatten();
        let total = |counter: &str| -> u64 {
            let own = all().filter(|meets| meets.counter == counter);
            let costs = own.map(|meets| meets.cost);
            if counter.starts_with("slot") {
                costs.max().unwrap_or(0)
            } else {
                costs.sum()
            }
        };
        let before = self.used.clone();
        let before = |counter: &str| before.get(counter).copied().unwrap_or(0);
        // A limit is over if all that is asked of its counter is beyond it.
        let over = |meets: &Meets| {
            meets.cost > 0 && before(&meets.counter) + total(&meets.counter) > meets.limit
        };
        let fits = |counter: &str| !all().any(|meets| meets.counter == counter && over(meets));
        let alone = all().any(|meets| !meets.quota && !meets.shadow && over(meets));
        let mut quotas = all().filter(|meets| meets.quota).peekable();
        let quotas = quotas.peek().is_some() && quotas.all(|meets| !meets.shadow && over(meets));
        let allowed = !alone && !quotas;
        let mut counters: Vec<_> = all().map(|meets| meets.counter.clone()).collect();
        counters.sort();
        counters.dedup();
        for counter in counters {
            if fits(&counter) && (allowed || charging == Charging::Each) {
                *self.used.entry(counter.clone()).or_default() += total(&counter);
            }
        }
        let each = met.iter().map(|meets| {
            let meets = meets.as_ref()?;
            let left = meets.limit.saturating_sub(self.used(&meets.counter));
            Some((over(meets), left))
        });
        let each = each.collect();
        // Nobody holds on to a slot here.
        self.used.retain(|counter, _| !counter.starts_with("slot"));
        Said { allowed, each }
    }
}

fn agrees(parts: &[Part], said: &Said, verdict: &DescriptorDecision) -> Result<(), TestCaseError> {
    prop_assert_eq!(verdict.denied().is_none(), said.allowed, "{:?}", verdict);
    for ((part, said), status) in parts.iter().zip(&said.each).zip(&verdict.statuses) {
        let Some((over, left)) = said else {
            prop_assert!(status.decision.is_none());
            continue;
        };
        let shadow = matches!(part.entry.0, "tried" | "quiet");
        let code = if *over && !shadow {
            StatusCode::OverLimit
        } else {
            StatusCode::Ok
        };
        prop_assert_eq!(status.code, code, "{:?} of {:?}", part, verdict);
        prop_assert_eq!(status.would_deny, *over && shadow, "{:?}", part);
        let decision = status.decision.expect("a limit");
        // What would be left of a slot that isn't held says nothing.
        if part.entry.0 != "slot" {
            prop_assert_eq!(decision.remaining, *left, "{:?} of {:?}", part, verdict);
        }
    }
    let Some(decider) = verdict.decider else {
        prop_assert!(said.each.iter().all(Option::is_none));
        return Ok(());
    };
    let decider = &verdict.statuses[decider];
    if !said.allowed {
        prop_assert_eq!(decider.code, StatusCode::OverLimit);
        let wait = decider.decision.map(|decision| decision.wait_or_max());
        prop_assert_eq!(Some(verdict.retry_after), wait);
    } else {
        prop_assert_eq!(decider.code, StatusCode::Ok);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 400,
        ..ProptestConfig::default()
    })]

    #[test]
    fn one_answer_follows_from_what_was_charged(
        requests in vec((vec(part(), 0..7), 1..3u32), 1..25),
        charging in select(vec![Charging::AllOrNone, Charging::Each]),
    ) {
        let edge = match charging {
            Charging::AllOrNone => Edge::new(TREE),
            Charging::Each => Edge::charging("each", TREE),
        };
        let mut model = Model::default();
        for (parts, hits) in requests {
            let entries: Vec<_> = parts.iter().map(|part| [part.entry]).collect();
            let descriptors: Vec<_> = parts
                .iter()
                .zip(&entries)
                .map(|(part, entry)| Descriptor {
                    limit: part.asks,
                    cost: part.cost,
                    refund: part.refund,
                    ..Descriptor::new(entry)
                })
                .collect();
            let said = model.decide(&parts, hits, charging);
            let verdict = edge.engine.decide_descriptors("edge", &descriptors, hits);
            agrees(&parts, &said, &verdict)?;
        }
    }
}
