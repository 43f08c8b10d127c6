//! An indexer that owns its debouncer. A document is indexed when it hasn't changed for a while; closing the indexer
//! indexes all pending documents and waits for running work.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tollgate::Clock;
use tollgate::clock::{Manual, Monotonic};
use tollgate_shape::{Debounce, DrainTimeout, KeyedDebouncer};

type Index = Arc<Mutex<BTreeMap<String, String>>>;

/// Takes the clock as a parameter, so that tests can move the time.
struct Indexer<C: Clock + Clone + 'static = Monotonic> {
    index: Index,
    documents: KeyedDebouncer<String, String, C>,
}

impl<C: Clock + Clone + 'static> Indexer<C> {
    fn new(clock: C) -> Self {
        let index = Index::default();
        let own = Arc::clone(&index);
        let documents = Debounce::new(Duration::from_secs(1))
            .max_wait(Duration::from_secs(10))
            .clock(clock)
            .keyed(100_000)
            .build(move |name: String, text: String| {
                own.lock()
                    .expect("indexing doesn't panic")
                    .insert(name, text);
            });
        Self { index, documents }
    }

    fn changed(&self, name: &str, text: &str) {
        if let Err(full) = self.documents.call(name.into(), text.into()) {
            println!("not indexed for now: {full}");
        }
    }

    /// Nothing is indexed after this has returned.
    fn close(self) -> Result<Index, DrainTimeout> {
        self.documents.flush_all();
        self.documents
            .stop_and_wait_blocking(Duration::from_secs(30))?;
        Ok(self.index)
    }
}

fn main() -> Result<(), DrainTimeout> {
    let clock = Manual::new();
    let indexer = Indexer::new(clock.clone());
    for version in 1..=5 {
        indexer.changed("plan.md", &format!("version {version}"));
        clock.advance(Duration::from_millis(300));
    }
    indexer.changed("notes.md", "a first note");
    clock.advance(Duration::from_millis(700));
    println!(
        "after a second of quiet: {:?}",
        indexer.index.lock().expect("no panic")
    );
    assert_eq!(indexer.index.lock().expect("no panic").len(), 1);

    let index = indexer.close()?;
    println!("after closing: {:?}", index.lock().expect("no panic"));
    assert_eq!(index.lock().expect("no panic").len(), 2);
    Ok(())
}
