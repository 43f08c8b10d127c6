//! The counting itself: a disagreement is reported and counted, ends its sequence, and fails the set.

use super::Side::{Model, Ours};
use super::Verdict::{Compared, Excused};
use super::{Side, TOLD, Tally};

/// Replays three sequences of four operations; the second has its say at its second operation.
fn three_sequences(side: Side) -> Tally {
    let mut tally = Tally::new("set");
    for id in 0..3 {
        tally.replay(id, &[10, 11, 12, 13], |op| {
            if id == 1 {
                side.says("answer", *op, 10)?;
            }
            Ok(Compared)
        });
    }
    tally
}

#[test]
fn a_wrong_model_ends_its_sequence_and_fails_the_set_at_the_end() {
    let tally = three_sequences(Model);
    assert_eq!(
        tally.to_string(),
        "set: 3 sequences, 9 operations, 9 compared, 0 excused"
    );
    assert_eq!(
        tally.judged().unwrap_err(),
        "set: the model of the peer is wrong in 1 of 3 sequences, 3 operations left out\n  \
         sequence 1, operation 1: 11: answer: said 11, recorded 10\n"
    );
}

#[test]
fn what_ours_says_wrong_is_told_apart_from_the_model() {
    assert_eq!(
        three_sequences(Ours).judged().unwrap_err(),
        "set: ours differs from the peer in 1 of 3 sequences, 3 operations left out\n  \
         sequence 1, operation 1: 11: answer: said 11, recorded 10\n"
    );
}

#[test]
fn many_are_counted_and_the_first_told() {
    let mut tally = Tally::new("set");
    for id in 0..14 {
        tally.replay(id, &[1.0], |op| {
            Model.says_nearly("answer", *op, 2.0, 0.5)?;
            Ok(Compared)
        });
    }
    let wrong = tally.judged().unwrap_err();
    let mut lines = wrong.lines();
    let first = "set: the model of the peer is wrong in 14 of 14 sequences, 14 operations left out";
    assert_eq!(lines.next(), Some(first));
    for id in 0..TOLD {
        let told = "answer: said 1.0, recorded 2.0 ± 0.5";
        let told = format!("  sequence {id}, operation 0: 1.0: {told}");
        assert_eq!(lines.next(), Some(told.as_str()));
    }
    assert_eq!(lines.next(), Some("  and 4 more"));
    assert_eq!(lines.next(), Some("set: nothing was compared"));
    assert_eq!(lines.next(), None);
}

#[test]
#[should_panic(expected = "the model of the peer is wrong in 1 of 3 sequences")]
fn a_set_with_a_wrong_model_fails_its_test() {
    three_sequences(Model).finish();
}

#[test]
fn more_than_one_in_twenty_excused_is_wrong() {
    let mut tally = Tally::new("set");
    let mut left = 20;
    tally.replay(0, &[(); 20], |()| {
        left -= 1;
        Ok(if left == 0 { Excused("why") } else { Compared })
    });
    assert_eq!(tally.judged(), Ok(()));
    tally.replay(1, &[()], |()| Ok(Excused("why")));
    assert_eq!(
        tally.judged().unwrap_err(),
        "set: only 19 of 21 operations compared\n"
    );
}

#[test]
fn what_is_no_number_is_near_nothing() {
    assert!(Ours.says_nearly("answer", f64::NAN, 1.0, 2.0).is_err());
    assert!(Ours.says_nearly("answer", 3, 1, 2).is_ok());
    assert!(Ours.says_nearly("answer", 1_u64, 4, 2).is_err());
}
