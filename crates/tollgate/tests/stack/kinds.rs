//! Every kind of limit as a member of a composite: by reference, and by value where it shares its limit.

use std::sync::Arc;

use tollgate::clock::Manual;
use tollgate::stack::LimitRef;
use tollgate::{
    ClassTree, CompositeLimiter, ConcurrencyLimiter, KeyedConcurrencyLimiter, KeyedLimiter, Limit,
    Limiter, Quota, QuotaLimiter, Rate, StoredKeyLimiter, tree::Class,
};

/// Passes twice by a limit of two, and not a third time.
fn passes_twice<'a>(stack: &CompositeLimiter, what: &str, limit: impl Fn() -> LimitRef<'a>) {
    let meet = || stack.allow(&[Limit::new("limit", limit())]);
    // Slots are held as long as what passed is there.
    let passed: Vec<_> = (0..3).map(|_| meet()).collect();
    let which: Vec<_> = passed.iter().map(Option::is_some).collect();
    assert_eq!(which, [true, true, false], "{what}");
}

#[test]
fn each_is_given_by_reference_or_as_what_shares_it() {
    let (stack, clock, rate) = (CompositeLimiter::new(), Manual::new(), Rate::per_hour(2));
    let limiter = || Limiter::with_clock(rate, clock.clone());
    let keyed = || KeyedLimiter::builder(rate, 10).clock(clock.clone()).build();
    let exact = || {
        let builder = StoredKeyLimiter::<String>::builder(rate, 10);
        builder.clock(clock.clone()).build()
    };
    let quotas = || {
        let builder = QuotaLimiter::builder(Quota::per_day(2), 10);
        builder.clock(clock.clone()).build()
    };

    let one = limiter();
    passes_twice(&stack, "&Limiter", || (&one).into());
    let shared = Arc::new(limiter());
    passes_twice(&stack, "&Arc<Limiter>", || (&shared).into());
    let shared = Arc::new(limiter());
    passes_twice(&stack, "Arc<Limiter>", || Arc::clone(&shared).into());

    let slots = Arc::new(ConcurrencyLimiter::new(2));
    passes_twice(&stack, "&Arc<ConcurrencyLimiter>", || (&slots).into());
    passes_twice(&stack, "Arc<ConcurrencyLimiter>", || {
        Arc::clone(&slots).into()
    });
    let slots = Arc::new(KeyedConcurrencyLimiter::<String>::new(2, 10));
    let key = slots.key_owned("acme");
    passes_twice(&stack, "&concurrency::Key", || (&key).into());

    let keys = Arc::new(keyed().unwrap());
    passes_twice(&stack, "&keyed::Key", || (&keys.key("a")).into());
    let key = keys.key_owned("b");
    passes_twice(&stack, "&keyed::OwnedKey", || (&key).into());
    passes_twice(&stack, "keyed::OwnedKey", || keys.key_owned("c").into());

    let keys = Arc::new(exact().unwrap());
    let key = keys.key("a");
    passes_twice(&stack, "&exact_keyed::Key", || (&key).into());
    let key = keys.key_owned("b");
    passes_twice(&stack, "&exact_keyed::OwnedKey", || (&key).into());
    passes_twice(&stack, "exact_keyed::OwnedKey", || {
        keys.key_owned("c").into()
    });

    let keys = Arc::new(quotas().unwrap());
    let key = keys.key("a");
    passes_twice(&stack, "&quota::Key", || (&key).into());
    let key = keys.key_owned("b");
    passes_twice(&stack, "&quota::OwnedKey", || (&key).into());
    passes_twice(&stack, "quota::OwnedKey", || keys.key_owned("c").into());

    let tree = ClassTree::builder(rate)
        .clock(clock.clone())
        .build()
        .unwrap();
    let leaf = tree
        .add_leaf("leaf", tree.root(), Class::new(rate))
        .unwrap();
    let level = tree.level(leaf);
    passes_twice(&stack, "&tree::TreeLevel", || (&level).into());
}
