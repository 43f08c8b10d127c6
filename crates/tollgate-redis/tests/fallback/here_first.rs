//! Rules that are counted in this process although there is a store: charged first, all or none with the rest.

use super::*;

const LOCAL_FIRST: &str = "
limits:
- {name: address, key: ip, rate: 2/s, counting: local}
- {name: user, key: user, rate: 3/s, counting: local}
- {name: tenant, key: tenant, rate: 4/s}
- {name: slots, key: tenant, concurrency: 8, counting: local}
";

#[test]
fn what_is_counted_here_is_asked_first_and_what_it_refuses_is_not_sent() {
    let fleet = Fleet::new(LOCAL_FIRST, 4);
    let facts = |ip| {
        Facts::new()
            .with("ip", ip)
            .with("user", "ada")
            .with("tenant", "acme")
    };
    let (a, b) = (facts("192.0.2.1"), facts("192.0.2.2"));
    // By the whole limit: it isn't divided by anything.
    assert_eq!(fleet.passed(&a, 10), 2);
    assert_eq!(fleet.asked(), 2, "eight refusals sent nothing");
    assert_eq!(fleet.decide(&a).cause(), Cause::Rule("address"));
    assert_eq!(fleet.passed(&b, 10), 1, "the user's third");
    assert_eq!(fleet.asked(), 3);
    let other = b.clone().with("user", "grace");
    let verdict = fleet.decide(&other);
    assert_eq!(
        (verdict.cause(), verdict.decision().remaining),
        (Cause::Rule("address"), 0)
    );
    assert!(verdict.denied().is_none());
    drop(verdict);
    // Whether the store is there or not, and what it decides besides.
    fleet.clock.advance(Duration::from_secs(1));
    fleet.switch(true);
    let verdict = fleet.decide(&a);
    assert_eq!(
        (verdict.denied().is_none(), verdict.fallback()),
        (true, Some(OnStoreFailure::Local))
    );
    drop(verdict);
    let slots = Facts::new().with("tenant", "idle");
    fleet.switch(false);
    let held: Vec<_> = (0..3)
        .filter_map(|_| fleet.decide(&slots).allowed())
        .collect();
    assert_eq!(fleet.engine.backend().local().memory().keys_in_flight(), 1);
    drop(held);
    assert_eq!(fleet.engine.backend().local().memory().keys_in_flight(), 0);
}

#[test]
fn what_the_store_refuses_costs_nothing_here() {
    let fleet = Fleet::new(LOCAL_FIRST, 1);
    let who = |ip, user| {
        Facts::new()
            .with("ip", ip)
            .with("user", user)
            .with("tenant", "acme")
    };
    for user in ["a", "b"] {
        assert_eq!(fleet.passed(&who(user, user), 2), 2);
    }
    let third = who("c", "c");
    for _ in 0..10 {
        assert_eq!(fleet.decide(&third).cause(), Cause::Rule("tenant"));
    }
    assert_eq!(fleet.engine.backend().local().memory().keys_in_flight(), 0);
    let alone = Facts::new().with("ip", "c").with("user", "c");
    assert_eq!(fleet.passed(&alone, 10), 2, "of the address");
}

/// A store that never answers.
struct Silent(Manual);

impl Backend for Silent {
    type Error = &'static str;

    fn ask<'a>(
        &'a self,
        _: &'a [Check<'a>],
        _: Option<&'a mut Vec<CheckResult>>,
    ) -> impl Future<Output = Result<Answer, &'static str>> + Send + 'a {
        std::future::pending()
    }

    fn now(&self) -> Timestamp {
        use tollgate::Clock;
        self.0.now()
    }
}

impl RemoteBackend for Silent {}

#[test]
fn what_is_given_up_while_the_store_is_asked_costs_nothing_here() {
    let clock = Manual::starting_at(Timestamp::from_secs(1_000));
    let memory = Memory::builder().capacity(100).clock(clock.clone());
    let local = Arc::new(LocalLimits::new(memory.wall(clock.clone()).build()));
    let store = Fallback::with_local(Silent(clock), local);
    let policy = Policy::from_text(LOCAL_FIRST, Format::Yaml).expect("a policy");
    let engine = Engine::new(policy.policy, store).expect("a policy");
    let facts = Facts::new().with("ip", "c").with("user", "c");
    let asks_the_store = facts.clone().with("tenant", "acme");
    for _ in 0..10 {
        let mut asking = Box::pin(engine.decide_async(&asks_the_store));
        let mut context = Context::from_waker(Waker::noop());
        assert!(asking.as_mut().poll(&mut context).is_pending());
        assert_eq!(engine.backend().local().memory().keys_in_flight(), 1);
    }
    assert_eq!(engine.backend().local().memory().keys_in_flight(), 0);
    let mut passed = 0;
    for _ in 0..10 {
        let Ok(verdict) = at_once(engine.decide_async(&facts));
        passed += u32::from(verdict.denied().is_none());
    }
    assert_eq!(passed, 2, "of the address");
}
