//! A rate that warms up in front of a store: in this process alone.

use std::future::{Future, ready};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tollgate::clock::Manual;
use tollgate::{Clock, Decision, Timestamp};
use tollgate_engine::backend::{Answer, Backend, Check, CheckResult, Memory};
use tollgate_engine::document::Format;
use tollgate_engine::{Engine, Facts, Policy};
use tollgate_redis::{Fallback, LocalLimits, RemoteBackend};

/// A store that allows everything, and records its requests.
struct Store(Manual, Arc<Mutex<Vec<String>>>);

impl Backend for Store {
    type Error = &'static str;

    fn ask<'a>(
        &'a self,
        checks: &'a [Check<'a>],
        _: Option<&'a mut Vec<CheckResult>>,
    ) -> impl Future<Output = Result<Answer, &'static str>> + Send + 'a {
        let names = checks
            .iter()
            .map(|check| check.limit.counter().name.clone());
        self.1.lock().expect("not poisoned").extend(names);
        ready(Ok(Answer::new(None, Decision::UNLIMITED)))
    }

    fn now(&self) -> Timestamp {
        self.0.now()
    }
}

impl RemoteBackend for Store {}

#[test]
fn a_node_that_starts_holds_back_by_itself_and_tells_the_store_nothing_of_it() {
    let (clock, asked) = (Manual::new(), Arc::new(Mutex::new(Vec::new())));
    let memory = Memory::builder()
        .clock(clock.clone())
        .wall(clock.clone())
        .build();
    let store = Store(clock.clone(), Arc::clone(&asked));
    let store = Fallback::with_local(store, Arc::new(LocalLimits::new(memory))).node_count(8);
    let text = "limits: [{name: api, key: user, rate: 100/s, warm_up: 9s}]";
    let policy = Policy::from_text(text, Format::Yaml).expect("a policy");
    let engine = Engine::new(policy.policy, store).expect("a policy");
    let facts = Facts::new().with("user", "1");
    let passes = || {
        let deciding = pin!(engine.decide_async(&facts));
        match deciding.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(verdict)) => verdict.allowed().is_some(),
            _ => panic!("it answers at once"),
        }
    };
    let passed = (0..50).filter(|_| passes()).count();
    // Of a tenth, whatever the number of nodes: it is this node's own.
    assert_eq!(passed, 10);
    let names = asked.lock().expect("not poisoned").clone();
    assert_eq!(names, vec!["rule/api".to_owned(); 10]);
    clock.advance(Duration::from_secs(9));
    assert_eq!((0..50).filter(|_| passes()).count(), 50);
}
