//! A permit of an adaptive limit and a call through a closed breaker allocate nothing.

use std::time::Duration;

use tollgate::clock::Manual;
use tollgate_adaptive::breaker::{CircuitBreaker, Thresholds};
use tollgate_adaptive::{AdaptiveAlgorithm, AdaptiveController, Bounds};
use tollgate_testkit::allocation_counter::{CountingAllocator, allocation_count};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

#[test]
fn a_permit_that_adapts_a_law_and_a_closed_breaker_allocate_nothing() {
    let clock = Manual::new();
    let bounds = Bounds::new(5.0, 100.0).unwrap();
    let breaker = CircuitBreaker::with_clock(Thresholds::default(), clock.clone());
    for law in AdaptiveAlgorithm::ALL {
        let controller = AdaptiveController::new(law.make(bounds, 1).unwrap());
        let limiter = controller.concurrency().clock(clock.clone()).build();
        let before = allocation_count();
        for number in 0..5_000 {
            let call = breaker.try_call().unwrap();
            let permit = limiter.try_acquire().unwrap();
            clock.advance(Duration::from_millis(1 + number % 7));
            if number % 10 == 0 {
                permit.dropped();
                call.failure();
            } else {
                permit.success();
                call.success();
            }
        }
        assert_eq!(allocation_count(), before, "{law}");
    }
}
