//! Concurrent changes of a limit: the final limit is the algorithm's, and within its bounds.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use tollgate::clock::Manual;
use tollgate::{ConcurrencyLimiter, Rate};
use tollgate_adaptive::{AdaptiveController, Aimd, Bounds, ChangeReason, LimitAlgorithm, Sample};

type Limiter = ConcurrencyLimiter<Manual>;

/// What happens on another thread.
type Meanwhile = Box<dyn FnOnce() + Send>;

fn law(max: f64, from: f64) -> Box<dyn LimitAlgorithm> {
    Box::new(Aimd::new(Bounds::new(1.0, max).unwrap()).initial(from))
}

/// Another law is put in force between what a permit that ends has made the old one say and when that is in force, as on
/// another thread.
#[test]
fn a_permit_that_ends_while_the_bounds_change_does_not_put_the_old_limit_in_force() {
    type Both = (AdaptiveController<Box<dyn LimitAlgorithm>>, Arc<Limiter>);
    let both: Arc<OnceLock<Both>> = Arc::default();
    let (known, clock) = (Arc::clone(&both), Manual::new());
    let is_first = AtomicBool::new(true);
    let controller = AdaptiveController::new(law(200.0, 100.0)).on_change(move |_| {
        if is_first.swap(false, Ordering::Relaxed) {
            let (controller, limiter) = known.get().unwrap();
            controller.set_law(law(8.0, 8.0));
            controller.apply_to(limiter);
            assert_eq!(limiter.peek().limit, 8);
        }
    });
    let limiter = controller.concurrency().clock(clock.clone()).build();
    let limiter = Arc::new(limiter);
    both.set((controller.clone(), Arc::clone(&limiter)))
        .unwrap_or_else(|_| panic!("once"));
    let permit = limiter.try_acquire_owned().unwrap();
    clock.advance(Duration::from_millis(1));
    permit.dropped();
    assert_eq!((controller.limit(), limiter.peek().limit), (8.0, 8));
}

/// Returns a scripted limit, and lets another permit end in between.
struct Between {
    bounds: Bounds,
    limit: f64,
    says: Vec<f64>,
    during: Arc<Mutex<Option<Meanwhile>>>,
}

impl LimitAlgorithm for Between {
    fn bounds(&self) -> Bounds {
        self.bounds
    }

    fn limit(&self) -> f64 {
        self.limit
    }

    fn set_limit(&mut self, limit: f64) {
        self.limit = limit;
    }

    fn step(&mut self, _: &Sample) -> Option<ChangeReason> {
        if let Some(during) = self.during.lock().unwrap().take() {
            during();
        }
        self.limit = self.says.pop()?;
        Some(ChangeReason::SetByOperator)
    }
}

/// The gate changed after a permit had read it, and the law is back at what was read: that is no agreement.
#[test]
fn a_limit_that_changed_meanwhile_is_put_right_also_if_the_law_says_what_it_was_before() {
    let clock = Manual::new();
    let during: Arc<Mutex<Option<Meanwhile>>> = Arc::default();
    let controller = AdaptiveController::new(Between {
        bounds: Bounds::new(1.0, 200.0).unwrap(),
        limit: 20.0,
        says: vec![20.0],
        during: Arc::clone(&during),
    });
    let limiter = controller.concurrency().clock(clock.clone()).build();
    let limiter = Arc::new(limiter);
    let permit = limiter.try_acquire_owned().unwrap();
    clock.advance(Duration::from_millis(1));
    // Another permit's change, which the law takes back with the next sample.
    let other = Arc::clone(&limiter);
    *during.lock().unwrap() = Some(Box::new(move || other.set_limit(30)));
    permit.success();
    assert_eq!((controller.limit(), limiter.peek().limit), (20.0, 20));
}

#[test]
fn a_limit_that_an_operator_orders_is_put_in_force_for_rates() {
    let limiter = tollgate::Limiter::with_clock(Rate::per_second(5_000), Manual::new());
    let law = Aimd::new(Bounds::new(10.0, 5_000.0).unwrap()).initial(5_000.0);
    let controller = AdaptiveController::new(law);
    let answered = Sample::new(Duration::from_millis(1), 0);
    controller
        .observe_and_apply_rate(&limiter, &answered)
        .unwrap();
    assert_eq!(limiter.rate(), Rate::per_second(5_000), "it is the same");
    controller.set_limit::<Sample>(100.0);
    controller.apply_rate_to::<Sample, _>(&limiter).unwrap();
    let ordered = "100000 per 1000s burst 5000";
    assert_eq!(limiter.rate().to_string(), ordered);
    // And by the next sample, whoever forgets that.
    controller.set_limit::<Sample>(50.0);
    controller
        .observe_and_apply_rate(&limiter, &answered)
        .unwrap();
    assert_eq!(limiter.rate().to_string(), "50000 per 1000s burst 5000");
}
