//! Tokens that are forgiven in one call: those that came back late, and an operator's refund.

use super::*;
use crate::lease::request::FORGIVE_ALL;
use crate::lease::request::LeaseRequest;
use crate::lease::request::{LeaseQuery, RefillGoal};

#[test]
fn what_came_back_late_and_a_refund_are_both_forgiven() {
    let numbers = numbers("100/d");
    let now = Timestamp::from_secs(1_000);
    for (late, refunded, expected) in [
        (5, 0, 5),
        (0, 10, 10),
        (5, 10, 15),
        (10, 5, 15),
        (5, FORGIVE_ALL, FORGIVE_ALL),
    ] {
        let book = LeaseBook::default();
        let granted = Grant {
            more: 20,
            dropped: 0,
            expires_at: now + Duration::from_secs(1),
            retry_after: Duration::ZERO,
            asked: 20,
            remaining: 80,
        };
        book.take(now, &granted, 20, None).expect("it is enough");
        book.restore_after_report(late, now);
        let asks = LeaseQuery::new(&book, RefillGoal::ReturnAll, now, 10, numbers);
        let question = asks.request_for(LeaseRequest {
            holder: 1,
            number: 1,
            forgiven: refunded,
            ..LeaseRequest::anonymous(Duration::from_secs(1))
        });
        assert_eq!(question.forgiven, expected, "{late} and {refunded}");
    }
}
