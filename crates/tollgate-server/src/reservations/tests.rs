//! The bookkeeping of what is held, without a service around it.

use super::*;

/// Permits of one concurrency limit.
fn some() -> Permits {
    let text = "limits: [{name: jobs, concurrency: 1000000}]";
    let policy = tollgate_engine::Policy::from_text(text, tollgate_engine::document::Format::Yaml);
    let memory = tollgate_engine::backend::Memory::builder()
        .capacity(10)
        .build();
    let engine = tollgate_engine::Engine::new(policy.expect("a policy").policy, memory);
    let facts = tollgate_engine::Facts::new();
    let passed = engine.expect("a policy").decide(&facts).allowed();
    passed.expect("room").into_permits()
}

#[test]
fn what_was_given_back_or_renewed_leaves_no_end_behind() {
    let (holds, hour) = (Reservations::new(10), Duration::from_secs(3_600));
    assert!(holds.hold(b"kept", some(), hour, None).is_ok());
    let check = || {
        let ends = holds.table().expiries.len();
        assert!(ends <= 100, "{ends} ends of one that is held");
    };
    for _ in 0..1_000 {
        assert!(holds.hold(b"short", some(), hour, None).is_ok());
        assert!(holds.take_oldest(b"short").is_some());
    }
    check();
    for _ in 0..1_000 {
        assert!(holds.renew(b"kept", hour));
    }
    check();
    assert_eq!(holds.count(), 1);
}

#[test]
fn what_holds_nothing_needs_no_room_and_is_bounded() {
    let (holds, hour) = (Reservations::new(1), Duration::from_secs(3_600));
    let name = |number: usize| number.to_string().into_bytes();
    for number in 0..MAX_REMEMBERED + 5 {
        let name = name(number);
        assert!(matches!(
            holds.look_up(&name, b"asked", true),
            NameLookup::Nothing
        ));
        holds.hold_with_answer(&name, Permits::default(), hour, b"asked", b"answer");
        holds.finish_lookup(&name);
    }
    assert_eq!(
        (holds.count(), holds.table().held.len()),
        (0, MAX_REMEMBERED)
    );
    assert!(matches!(
        holds.look_up(&name(4), b"asked", true),
        NameLookup::Nothing
    ));
    holds.finish_lookup(&name(4));
    assert!(matches!(
        holds.look_up(&name(5), b"asked", true),
        NameLookup::Held(_)
    ));
}

#[test]
fn room_is_asked_for_before_anything_is_decided() {
    let (holds, hour) = (Reservations::new(2), Duration::from_secs(3_600));
    assert!(matches!(
        holds.look_up(b"a", b"", true),
        NameLookup::Nothing
    ));
    assert!(matches!(
        holds.look_up(b"a", b"", true),
        NameLookup::InProgress
    ));
    assert!(matches!(
        holds.look_up(b"b", b"", true),
        NameLookup::Nothing
    ));
    assert!(matches!(
        holds.look_up(b"c", b"", true),
        NameLookup::Full(_)
    ));
    assert!(holds.hold(b"other", some(), hour, None).is_err());
    // A lookup without a reservation frees its capacity.
    holds.finish_lookup(b"a");
    holds.hold_with_answer(b"b", some(), hour, b"", b"");
    holds.finish_lookup(b"b");
    assert!(matches!(
        holds.look_up(b"c", b"", true),
        NameLookup::Nothing
    ));
    assert!(matches!(
        holds.look_up(b"d", b"", true),
        NameLookup::Full(_)
    ));
}

#[test]
fn room_that_is_reserved_is_had_and_given_up() {
    let (holds, hour) = (Reservations::new(1), Duration::from_secs(3_600));
    let room = holds.reserve_capacity().expect("room");
    assert!(holds.reserve_capacity().is_err());
    assert!(holds.hold(b"other", some(), hour, None).is_err());
    let full = holds.look_up(b"a", b"", true);
    assert!(matches!(full, NameLookup::Full(_)));
    // A request without permits needs no capacity.
    let nothing = holds.look_up(b"a", b"", false);
    assert!(matches!(nothing, NameLookup::Nothing));
    holds.finish_lookup(b"a");
    drop(room);
    let room = holds.reserve_capacity().expect("room again");
    assert!(holds.hold(b"own", some(), hour, Some(room)).is_ok());
    assert!(holds.reserve_capacity().is_err());
    assert!(holds.take_oldest(b"own").is_some());
    assert!(holds.reserve_capacity().is_ok());
}
