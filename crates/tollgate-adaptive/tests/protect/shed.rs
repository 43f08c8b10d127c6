//! Which calls pass when not all can.

use std::sync::Arc;

use tollgate::ConcurrencyLimiter;
use tollgate::concurrency::PermitOutcome;
use tollgate_adaptive::shed::{Criticality, LoadShedder, Partitions};

use Criticality::{Critical, Default, Sheddable};

#[test]
fn lower_classes_are_shed_first_as_the_limit_falls() {
    let limiter = Arc::new(ConcurrencyLimiter::new(100));
    let shedder = LoadShedder::new(Arc::clone(&limiter));
    let held: Vec<_> = (0..50)
        .map(|_| shedder.try_acquire(Critical).unwrap())
        .collect();
    // What each class may at these limits, with 50 in use.
    for (limit, passes) in [
        (100, [true, true, true]),
        (72, [false, true, true]),
        (56, [false, false, true]),
        (50, [false, false, false]),
    ] {
        limiter.set_limit(limit);
        let may = [Sheddable, Default, Critical].map(|class| shedder.try_acquire(class).is_ok());
        assert_eq!(may, passes, "{limit}");
    }
    assert_eq!(
        [Sheddable, Default, Critical].map(|class| shedder.shed(class)),
        [3, 2, 1]
    );
    drop(held);
    // However low the limit is, one passes while nothing is in use.
    limiter.set_limit(1);
    assert!(shedder.try_acquire(Sheddable).is_ok());
}

#[test]
fn a_share_is_there_whatever_others_use() {
    let limiter = Arc::new(ConcurrencyLimiter::new(10));
    let partitions = Partitions::new(Arc::clone(&limiter), &[("a", 50), ("b", 30), ("c", 20)]);
    let take = |name: &str, count: usize| -> Vec<_> {
        (0..count)
            .filter_map(|_| partitions.try_acquire(name).ok())
            .collect()
    };
    let a = take("a", 20);
    assert_eq!(a.len(), 10, "what nobody else uses");
    let (b, c, stranger) = (take("b", 20), take("c", 20), take("d", 20));
    assert_eq!((b.len(), c.len(), stranger.len()), (3, 2, 0));
    assert_eq!(limiter.peek().in_use, 15);
    assert_eq!(
        limiter.stats().denied,
        10 + 17 + 18 + 20,
        "who got what was promised wasn't refused"
    );
    drop(a);
    // What was lent is back: the limit holds again.
    assert_eq!(take("d", 20).len(), 5);
    for permit in b {
        permit.end(PermitOutcome::Success);
    }
    assert_eq!((partitions.in_use("b"), limiter.stats().succeeded), (0, 3));
    drop(c);
    assert_eq!(limiter.peek().in_use, 0);
}

#[test]
fn permits_may_outlive_who_gave_them() {
    let limiter = Arc::new(ConcurrencyLimiter::new(10));
    let shedder = LoadShedder::new(Arc::clone(&limiter));
    let partitions = Partitions::new(Arc::clone(&limiter), &[("a", 50)]);
    let classed: Vec<_> = (0..9)
        .filter_map(|_| shedder.try_acquire_owned(Sheddable).ok())
        .collect();
    let shared = partitions.try_acquire_owned("a").unwrap();
    assert_eq!((classed.len(), shedder.shed(Sheddable)), (7, 2));
    assert_eq!(
        partitions.try_acquire_owned("nobody").unwrap().in_flight(),
        9
    );
    drop((shedder, partitions));
    assert_eq!(limiter.peek().in_use, 8);
    std::thread::spawn(move || drop((classed, shared)))
        .join()
        .unwrap();
    assert_eq!(limiter.peek().in_use, 0);
}
