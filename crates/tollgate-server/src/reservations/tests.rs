//! The bookkeeping of what is held, without a service around it.

use super::*;

/// Permits that hold something.
fn some() -> Permits {
    let text = "limits: [{name: jobs, concurrency: 1000000}]";
    let policy = tollgate_engine::Policy::from_text(text, tollgate_engine::document::Format::Yaml);
    let memory = tollgate_engine::backend::Memory::builder()
        .capacity(10)
        .build();
    let engine = tollgate_engine::Engine::new(policy.expect("a policy").policy, memory);
    let facts = tollgate_engine::Facts::new();
    let passed = engine.expect("a policy").decide(&facts).passed();
    passed.expect("room").into_permits()
}

#[test]
fn what_was_given_back_or_renewed_leaves_no_end_behind() {
    let (holds, hour) = (Holds::new(10), Duration::from_secs(3_600));
    assert!(holds.keep(b"kept", some(), hour, None).is_ok());
    let check = || {
        let ends = holds.table().ends.len();
        assert!(ends <= 100, "{ends} ends of one that is held");
    };
    for _ in 0..1_000 {
        assert!(holds.keep(b"short", some(), hour, None).is_ok());
        assert!(holds.take(b"short").is_some());
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
    let (holds, hour) = (Holds::new(1), Duration::from_secs(3_600));
    let name = |number: usize| number.to_string().into_bytes();
    for number in 0..MAX_REMEMBERED + 5 {
        let name = name(number);
        assert!(matches!(
            holds.ask_for(&name, b"asked", true),
            Known::Nothing
        ));
        holds.hold_with_answer(&name, Permits::default(), hour, b"asked", b"answer");
        holds.decided(&name);
    }
    assert_eq!(
        (holds.count(), holds.table().held.len()),
        (0, MAX_REMEMBERED)
    );
    assert!(matches!(
        holds.ask_for(&name(4), b"asked", true),
        Known::Nothing
    ));
    holds.decided(&name(4));
    assert!(matches!(
        holds.ask_for(&name(5), b"asked", true),
        Known::Held(_)
    ));
}

#[test]
fn room_is_asked_for_before_anything_is_decided() {
    let (holds, hour) = (Holds::new(2), Duration::from_secs(3_600));
    assert!(matches!(holds.ask_for(b"a", b"", true), Known::Nothing));
    assert!(matches!(holds.ask_for(b"a", b"", true), Known::Undecided));
    assert!(matches!(holds.ask_for(b"b", b"", true), Known::Nothing));
    assert!(matches!(holds.ask_for(b"c", b"", true), Known::Full(_)));
    assert!(holds.keep(b"other", some(), hour, None).is_err());
    // One that came to nothing leaves its room.
    holds.decided(b"a");
    holds.hold_with_answer(b"b", some(), hour, b"", b"");
    holds.decided(b"b");
    assert!(matches!(holds.ask_for(b"c", b"", true), Known::Nothing));
    assert!(matches!(holds.ask_for(b"d", b"", true), Known::Full(_)));
}

#[test]
fn room_that_is_reserved_is_had_and_given_up() {
    let (holds, hour) = (Holds::new(1), Duration::from_secs(3_600));
    let room = holds.reserve().expect("room");
    assert!(holds.reserve().is_err());
    assert!(holds.keep(b"other", some(), hour, None).is_err());
    let full = holds.ask_for(b"a", b"", true);
    assert!(matches!(full, Known::Full(_)));
    // What holds nothing needs none.
    let nothing = holds.ask_for(b"a", b"", false);
    assert!(matches!(nothing, Known::Nothing));
    holds.decided(b"a");
    drop(room);
    let room = holds.reserve().expect("room again");
    assert!(holds.keep(b"own", some(), hour, Some(room)).is_ok());
    assert!(holds.reserve().is_err());
    assert!(holds.take(b"own").is_some());
    assert!(holds.reserve().is_ok());
}
