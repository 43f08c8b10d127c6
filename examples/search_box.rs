//! A search box: the first letter is searched immediately, the rest when typing pauses, and never more than one
//! request in half a second. A response to an older text isn't shown.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tollgate::Clock;
use tollgate::clock::Manual;
use tollgate_shape::{Debounce, Edge};

fn main() {
    let clock = Manual::new();
    let searched = Arc::new(Mutex::new(Vec::new()));
    let (log, time) = (Arc::clone(&searched), clock.clone());
    let search = Debounce::new(Duration::from_millis(150))
        .leading(Edge::On)
        .then_throttle(Duration::from_millis(500))
        .clock(clock.clone())
        .build(move |text: String| log.lock().expect("no panic").push((time.now(), text)));

    let mut text = String::new();
    for (pause, letters) in [(80, "toll"), (200, "gate"), (60, " rate limit")] {
        for letter in letters.chars() {
            text.push(letter);
            search.call(text.clone());
            clock.advance(Duration::from_millis(pause));
        }
    }
    clock.advance(Duration::from_secs(1));

    let searched = searched.lock().expect("no panic");
    for (at, text) in searched.iter() {
        println!("{at}: searched {text:?}");
    }
    println!("{} letters typed, {} searches", text.len(), searched.len());
    assert_eq!(searched.first().map(|(_, text)| text.as_str()), Some("t"));
    assert_eq!(
        searched.last().map(|(_, text)| text.as_str()),
        Some("tollgate rate limit")
    );
}
