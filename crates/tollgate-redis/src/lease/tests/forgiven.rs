//! What is forgiven in one call: what came back late, and what an operator gives back.

use super::*;
use crate::lease::request::EVERYTHING;
use crate::lease::request::Lessee;
use crate::lease::request::{Asks, Wants};

#[test]
fn what_came_back_late_and_a_refund_are_both_forgiven() {
    let numbers = numbers("100/d");
    let now = Timestamp::from_secs(1_000);
    for (late, refunded, expected) in [
        (5, 0, 5),
        (0, 10, 10),
        (5, 10, 15),
        (10, 5, 15),
        (5, EVERYTHING, EVERYTHING),
    ] {
        let book = Book::default();
        let granted = Granted {
            more: 20,
            dropped: 0,
            until: now + Duration::from_secs(1),
            retry_after: Duration::ZERO,
            asked: 20,
            remaining: 80,
        };
        book.take(now, &granted, 20, None).expect("it is enough");
        book.restore_after_report(late, now);
        let asks = Asks::new(&book, Wants::Nothing, now, 10, numbers);
        let question = asks.question(Lessee {
            holder: 1,
            number: 1,
            forgiven: refunded,
            ..Lessee::of_nobody(Duration::from_secs(1))
        });
        assert_eq!(question.forgiven, expected, "{late} and {refunded}");
    }
}
