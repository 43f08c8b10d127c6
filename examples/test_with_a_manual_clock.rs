//! How to test rate-limited code: pass it a clock that only the test moves.

use std::time::Duration;

use tollgate::clock::{Manual, Monotonic};
use tollgate::{Clock, Limiter, Rate};

/// The code under test: generic over the clock, with the real one by default.
struct Mailer<C: Clock = Monotonic> {
    limiter: Limiter<C>,
    sent: u32,
}

impl<C: Clock> Mailer<C> {
    fn send(&mut self) -> bool {
        let passes = self.limiter.allow();
        self.sent += u32::from(passes);
        passes
    }
}

fn main() {
    let clock = Manual::new();
    let limiter = Limiter::with_clock(Rate::per_hour(2), clock.clone());
    let mut mailer = Mailer { limiter, sent: 0 };

    assert!(mailer.send() && mailer.send() && !mailer.send());
    clock.advance(Duration::from_secs(30 * 60));
    assert!(mailer.send());
    assert!(!mailer.send());
    println!("an hour of mail in no time at all: {} sent", mailer.sent);
}
