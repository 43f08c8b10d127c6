//! Requests that rules and trees limit together, in memory and on a store, exact and leased: a checker counts the
//! allowed requests, and each limit has charged exactly those.

use std::time::Duration;

use tokio::runtime::Builder;
use tollgate::clock::Manual;
use tollgate_engine::backend::{Backend, Memory};
use tollgate_engine::document::Format;
use tollgate_engine::engine::{DescriptorRequest, MixedDecision};
use tollgate_engine::facts::Descriptor;
use tollgate_engine::{DecideOptions, Engine, Facts, Policy};
use tollgate_redis::Redis;
use tollgate_testkit::redis::Server;
use tollgate_testkit::traffic::Random;

const USERS: [&str; 3] = ["ada", "bob", "eve"];
const PLANS: [&str; 2] = ["free", "paid"];
const REQUESTS: u64 = 60;
const HISTORIES: u64 = 40;

/// The limits of a history: none of them has any room again while it lasts.
struct Limits {
    /// For each user, by a rule.
    user: u64,
    /// For all users, by a rule.
    all: u64,
    /// For each user, by the tree.
    tree_user: u64,
    /// For each plan, by the tree.
    tree_plan: u64,
}

impl Limits {
    fn new(random: &mut Random) -> Self {
        Self {
            user: 3 + random.below(12),
            all: 10 + random.below(25),
            tree_user: 3 + random.below(12),
            tree_plan: 5 + random.below(25),
        }
    }

    fn policy(&self, counting: &str) -> Policy {
        let read = |text: String| {
            let read = Policy::from_text(&text, Format::Yaml);
            read.expect("a policy").policy
        };
        let Self {
            user,
            all,
            tree_user,
            tree_plan,
        } = self;
        let mut policy = read(format!(
            "limits: [{{name: user, key: user, rate: {user}/d, counting: {counting}}}, \
             {{name: all, rate: {all}/d, counting: {counting}}}, \
             {{name: trial, key: user, rate: 2/d, mode: shadow, counting: {counting}}}]"
        ));
        let tree = read(format!(
            "domain: edge\ndescriptors: [\
             {{key: user, rate_limit: {{unit: day, requests_per_unit: {tree_user}}}}}, \
             {{key: plan, rate_limit: {{unit: day, requests_per_unit: {tree_plan}}}}}]"
        ));
        policy.domains = tree.domains;
        policy
    }
}

/// What passed so far.
#[derive(Debug, Default)]
struct Passed {
    by_user: [u64; USERS.len()],
    by_plan: [u64; PLANS.len()],
    /// By user, of requests of which a tree knows the user.
    by_tree_user: [u64; USERS.len()],
}

impl Passed {
    fn all(&self) -> u64 {
        self.by_user.iter().sum()
    }
}

/// Which descriptors a request has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Has {
    User,
    Plan,
    Both,
}

/// Plays a history; the judge knows of each request whether it has to pass, and of each limit what it has charged.
async fn play<B: Backend>(engine: &Engine<B>, limits: &Limits, random: &mut Random)
where
    B::Error: std::fmt::Debug,
{
    let mut passed = Passed::default();
    for number in 0..REQUESTS {
        let (user, plan) = (below(random, USERS.len()), below(random, PLANS.len()));
        let has = [Has::User, Has::Plan, Has::Both][below(random, 3)];
        let entries = [[("user", USERS[user])], [("plan", PLANS[plan])]];
        let descriptors = entries.each_ref().map(|one| Descriptor::new(one));
        let descriptors = match has {
            Has::User => &descriptors[..1],
            Has::Plan => &descriptors[1..],
            Has::Both => &descriptors[..],
        };
        let request = DescriptorRequest {
            domain: "edge",
            descriptors,
            hits_addend: 1,
        };
        let facts = Facts::new().with("user", USERS[user]);
        let verdict = engine.decide_with_descriptors(DecideOptions::new(), &facts, request);
        let verdict = verdict.await.expect("a backend").expect("a verdict");
        let by_rules = passed.by_user[user] < limits.user && passed.all() < limits.all;
        let by_trees = (has == Has::Plan || passed.by_tree_user[user] < limits.tree_user)
            && (has == Has::User || passed.by_plan[plan] < limits.tree_plan);
        match verdict {
            MixedDecision::Passed(..) => {
                assert!(by_rules && by_trees, "request {number} passed: {passed:?}");
                passed.by_user[user] += 1;
                passed.by_plan[plan] += u64::from(has != Has::User);
                passed.by_tree_user[user] += u64::from(has != Has::Plan);
            }
            MixedDecision::DeniedByRule(denied) => {
                assert!(!by_rules, "request {number}, {denied:?}: {passed:?}");
            }
            MixedDecision::DeniedByDescriptor(_) => {
                assert!(!by_trees, "request {number} denied: {passed:?}");
            }
        }
    }
    compare(engine, limits, &passed).await;
}

/// Each limit has charged what passed, and nothing of what was denied.
async fn compare<B: Backend>(engine: &Engine<B>, limits: &Limits, passed: &Passed)
where
    B::Error: std::fmt::Debug,
{
    for (number, user) in USERS.into_iter().enumerate() {
        let facts = Facts::new().with("user", user);
        let left = engine.remaining_async(&facts).await.expect("a backend");
        let left = |rule: &str| {
            let mut own = left.iter().filter(|one| one.rule == rule);
            own.next().expect("the rule").decision.remaining
        };
        assert_eq!(left("user"), limits.user - passed.by_user[number], "{user}");
        assert_eq!(left("all"), limits.all - passed.all());
        // What would have been denied in shadow was never charged there.
        assert_eq!(left("trial"), 2_u64.saturating_sub(passed.by_user[number]));
    }
    let of_tree = async |key: &str, value: &str| {
        let entries = [(key, value)];
        let look = Descriptor {
            cost: Some(0),
            ..Descriptor::new(&entries)
        };
        let verdict = engine.decide_descriptors_async("edge", &[look], 0).await;
        u64::from(verdict.expect("a backend").statuses[0].remaining)
    };
    for (number, user) in USERS.into_iter().enumerate() {
        let left = of_tree("user", user).await;
        assert_eq!(
            left,
            limits.tree_user - passed.by_tree_user[number],
            "{user}"
        );
    }
    for (number, plan) in PLANS.into_iter().enumerate() {
        let left = of_tree("plan", plan).await;
        assert_eq!(left, limits.tree_plan - passed.by_plan[number], "{plan}");
    }
}

fn below(random: &mut Random, end: usize) -> usize {
    let end = u64::try_from(end).expect("a few");
    usize::try_from(random.below(end)).expect("a few")
}

#[test]
fn rules_and_trees_are_charged_together_or_not_at_all_in_memory() {
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    for seed in 0..5 * HISTORIES {
        let random = &mut Random::new(seed);
        let limits = Limits::new(random);
        let memory = Memory::builder().clock(Manual::new()).wall(Manual::new());
        let engine = Engine::new(limits.policy("exact"), memory.build()).expect("a policy");
        runtime.block_on(play(&engine, &limits, random));
    }
}

#[test]
fn rules_and_trees_are_charged_together_or_not_at_all_on_a_store() {
    let server = Server::start();
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    for counting in ["exact", "leased"] {
        for seed in 0..HISTORIES {
            server.command(&["FLUSHALL"]);
            let random = &mut Random::new(seed);
            let limits = Limits::new(random);
            runtime.block_on(async {
                let redis = Redis::builder(&server.url()).expect("an address");
                let redis = redis.timeout(Duration::from_secs(60)).node_count(1);
                let redis = redis.build().expect("a store");
                let engine = Engine::new(limits.policy(counting), redis).expect("a policy");
                play(&engine, &limits, random).await;
            });
        }
    }
}
