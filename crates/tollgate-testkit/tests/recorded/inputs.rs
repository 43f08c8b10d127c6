//! The policies and requests of a story, which follow from its seed alone.

use std::fmt::Write;

/// How many steps a story has.
pub(crate) const REQUESTS: usize = 100;

/// Some policies, and what is done to an engine that has them one after the other.
pub(crate) struct Story {
    /// As texts, so that they are read as an operator's are. The first is in force at the start.
    pub(crate) policies: Vec<String>,
    pub(crate) steps: Vec<Step>,
}

/// One step, after some time.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) after_millis: u64,
    pub(crate) action: Action,
}

pub(crate) type Pair = (&'static str, &'static str);

#[derive(Clone, Debug)]
pub(crate) enum Action {
    /// A request, which ends so many steps later.
    Decide {
        facts: Vec<Pair>,
        is_async: bool,
        runs: usize,
    },
    Peek(Vec<Pair>),
    /// How much each limit of such a request has left.
    Left(Vec<Pair>),
    Refund(Vec<Pair>),
    Forget(Vec<Pair>),
    /// A request of descriptors, and what it costs.
    Descriptors {
        descriptors: Vec<Asked>,
        hits: u32,
        runs: usize,
    },
    /// The policy of this number is put in force.
    Reload(usize),
}

/// A descriptor.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) entries: Vec<Pair>,
    pub(crate) cost: Option<u64>,
    pub(crate) refund: bool,
    /// A limit that it brings along, an hour's.
    pub(crate) limit: Option<u32>,
}

impl Story {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        // A third of the stories are of descriptors.
        let is_of_descriptors = random.one_in(3);
        let count = 1 + random.below(3);
        let policy = |random: &mut Random| {
            if is_of_descriptors {
                trees(random)
            } else {
                rules(random)
            }
        };
        let policies: Vec<_> = (0..count).map(|_| policy(&mut random)).collect();
        let step = |random: &mut Random| Step {
            after_millis: after_millis(random),
            action: match random.below(40) {
                0 => Action::Reload(random.below(count)),
                _ if is_of_descriptors => Action::Descriptors {
                    descriptors: (0..=random.below(3)).map(|_| asked(random)).collect(),
                    hits: random.pick(&[0, 0, 1, 1, 2, 5]),
                    runs: random.below(6),
                },
                1..3 => Action::Peek(facts(random)),
                3 => Action::Left(facts(random)),
                4 => Action::Refund(facts(random)),
                5 if random.one_in(4) => Action::Forget(facts(random)),
                _ => Action::Decide {
                    facts: facts(random),
                    is_async: random.one_in(2),
                    runs: random.below(6),
                },
            },
        };
        let steps = (0..REQUESTS).map(|_| step(&mut random)).collect();
        Self { policies, steps }
    }
}

/// Mostly in quick succession, so that limits are met.
fn after_millis(random: &mut Random) -> u64 {
    match random.below(25) {
        0..17 => 0,
        17..21 => random.below(60) as u64,
        21..24 => random.below(2_500) as u64,
        _ => random.pick(&[61_000, 3_600_000, 90_000_000]),
    }
}

fn facts(random: &mut Random) -> Vec<Pair> {
    let values: [(&str, &[&str]); 6] = [
        ("path", &["/api/a", "/api/a", "/api/b", "/healthz", "/x"]),
        ("method", &["GET", "POST"]),
        ("user", &["1", "1", "1", "2", ""]),
        (
            "ip",
            &["10.0.0.1", "10.0.0.9", "2001:db8::1", "2001:db8::2"],
        ),
        ("tenant", &["acme", "globex", "unknown"]),
        ("units", &["1", "2", "3", "many", "0"]),
    ];
    let known = values.into_iter().filter_map(|(name, values)| {
        let value = random.pick(values);
        (!random.one_in(6)).then_some((name, value))
    });
    known.collect()
}

fn asked(random: &mut Random) -> Asked {
    let mut entries = vec![random.pick(&[
        ("user", "1"),
        ("user", "1"),
        ("user", "2"),
        ("path", "/a"),
        ("path", "/b"),
        ("other", "x"),
    ])];
    if random.one_in(3) {
        entries.push(random.pick(&[("plan", "free"), ("plan", "pro"), ("path", "/a")]));
    }
    Asked {
        entries,
        cost: random.one_in(5).then(|| random.below(4) as u64),
        refund: random.one_in(20),
        limit: random.one_in(15).then(|| [1, 2, 3, 4][random.below(4)]),
    }
}

const RATES: [&str; 10] = [
    "3/s",
    "1/s burst 3",
    "2/s",
    "5 per 250ms",
    "7/minute",
    "4/m burst 2",
    "6/h",
    "20/d",
    "30/m burst 10",
    "2/h burst 5",
];

fn limits(random: &mut Random, text: &mut String) {
    let put = |text: &mut String, field: &str, value: &str| {
        let _ = write!(text, ", {field}: {value}");
    };
    match random.below(10) {
        0..6 => put(text, "rate", random.pick(&RATES)),
        6..8 => {
            let (one, other) = (random.pick(&RATES), random.pick(&RATES));
            put(text, "rate", &format!("[{one}, {other}]"));
        }
        8 => put(
            text,
            "quota",
            random.pick(&["9/hour", "20/day", "40/month"]),
        ),
        _ => put(text, "concurrency", random.pick(&["1", "2", "3"])),
    }
    if random.one_in(6) && !text.contains("quota") {
        put(text, "quota", random.pick(&["8/hour", "15/day"]));
    }
    if random.one_in(8) && !text.contains("concurrency") {
        put(text, "concurrency", random.pick(&["1", "2"]));
    }
    if random.one_in(2) && text.contains("rate") {
        let algorithms = [
            "token-bucket",
            "leaky",
            "gcra",
            "fixed-window",
            "sliding-log",
            "sliding-window",
        ];
        // Windows take no burst but their count.
        let possible = if text.contains("burst") { 3 } else { 6 };
        put(text, "algorithm", random.pick(&algorithms[..possible]));
    }
    if random.one_in(5) && (text.contains("rate") || text.contains("quota")) {
        put(
            text,
            "cost",
            random.pick(&["{fact: units, default: 2}", "2", "{fact: units}"]),
        );
    }
}

/// A policy of our form.
fn rules(random: &mut Random) -> String {
    let mut text = "limits:\n".to_owned();
    let count = 1 + random.below(6);
    for number in 0..count {
        let mut rule = format!("- {{name: r{number}");
        let conditions = [
            "{path: \"/api/**\"}",
            "{path: {prefix: /api/a}}",
            "{method: POST}",
            "{user: \"1\"}",
            "{ip: 10.0.0.0/29}",
            "{user: {present: false}}",
        ];
        if random.one_in(2) {
            let _ = write!(rule, ", match: {}", random.pick(&conditions));
        }
        let keys = [
            "user",
            "[user, path]",
            "ip",
            "ip/24",
            "tenant",
            "{first: [user, ip]}",
        ];
        if !random.one_in(4) {
            let _ = write!(rule, ", key: {}", random.pick(&keys));
            if random.one_in(4) {
                let words = ["pass", "deny", "one_counter"];
                let _ = write!(rule, ", on_missing_key: {}", random.pick(&words));
            }
        }
        limits(random, &mut rule);
        if random.one_in(4) {
            let modes = ["shadow", "shadow", "off", "{enforce: 50%}"];
            // A part of the keys, where there are keys.
            let possible = if rule.contains("key:") { 4 } else { 3 };
            let _ = write!(rule, ", mode: {}", random.pick(&modes[..possible]));
        }
        if number > 0 && random.one_in(6) {
            let _ = write!(rule, ", replaces: [r{}]", random.below(number));
        }
        let _ = writeln!(text, "{rule}}}");
    }
    if random.one_in(3) {
        text.push_str("tiers:\n");
        for name in ["free", "pro"] {
            let mut tier = String::new();
            limits(random, &mut tier);
            let _ = writeln!(text, "  {name}: {{{}}}", &tier[2..]);
        }
        text.push_str("tenants: {acme: pro}\ndefault_tier: free\n");
    }
    if random.one_in(5) {
        text.push_str("exempt: [{path: /healthz}]\n");
    }
    if random.one_in(6) {
        text.push_str("block: [{user: \"2\", method: POST}]\n");
    }
    if random.one_in(12) {
        text.push_str("mode: shadow\n");
    }
    text
}

/// A policy of Envoy's form.
fn trees(random: &mut Random) -> String {
    let mut text = "domain: edge\ndescriptors:\n".to_owned();
    let limit = |random: &mut Random| {
        let unit = random.pick(&["second", "minute", "hour", "day"]);
        let requests = 1 + random.below(8);
        format!("rate_limit: {{unit: {unit}, requests_per_unit: {requests}}}")
    };
    for (key, values) in [("user", ["1", "2"]), ("path", ["/a", "/b"])] {
        let _ = write!(text, "- {{key: {key}, {}", limit(random));
        if random.one_in(4) {
            text.push_str(", shadow_mode: true");
        }
        if random.one_in(2) {
            let nested = limit(random);
            let _ = write!(text, ", descriptors: [{{key: plan, {nested}}}]");
        }
        text.push_str("}\n");
        if random.one_in(2) {
            let value = random.pick(&values);
            let _ = writeln!(
                text,
                "- {{key: {key}, value: \"{value}\", {}}}",
                limit(random)
            );
        }
    }
    text
}

/// Numbers that look random, and are the same wherever and whenever they are drawn: SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, most: usize) -> usize {
        usize::try_from(self.next() % most as u64).expect("less than a usize")
    }

    fn one_in(&mut self, several: usize) -> bool {
        self.below(several) == 0
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}
