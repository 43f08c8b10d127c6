//! Allow or drop: five requests against a limit with a burst of two.

use tollgate::{Limiter, Rate};

fn main() {
    let limiter = Limiter::new(Rate::per_second(1).burst(2));
    for request in 1..=5 {
        let decision = limiter.check();
        if decision.is_allowed() {
            println!("request {request}: served, {} left", decision.remaining);
        } else {
            println!(
                "request {request}: 429, retry after {:?}",
                decision.wait_or_max()
            );
        }
    }
}
