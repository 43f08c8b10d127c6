//! Corner cases of several features: calls from inside of an action, behind a slow action, and after the runtime is
//! gone.

use std::future::{Future, pending};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use tollgate::Rate;
use tollgate::clock::{Clock, Manual, sleep_until};
use tollgate_shape::{
    Coalesce, Coalescer, Debounce, Debouncer, DrainTimeout, Edge, FlushOutcome, KeyedDebouncer,
    WeakDebouncer, WhenFull, WorkPacer,
};

use crate::{Record, go_to, ms};

const LONG: Duration = Duration::from_secs(60);

#[test]
fn the_closure_of_an_async_action_may_stop_and_wait() {
    static SELF: OnceLock<WeakDebouncer<(), tollgate::clock::Monotonic>> = OnceLock::new();
    let (sender, stopped) = mpsc::channel::<Result<(), DrainTimeout>>();
    let debouncer = Debounce::new(ms(1)).build_async(move |(): ()| {
        let itself = SELF.get().and_then(WeakDebouncer::upgrade).unwrap();
        let _ = sender.send(itself.stop_and_wait_blocking(ms(10)));
        async {}
    });
    SELF.get_or_init(|| debouncer.downgrade());
    debouncer.call(());
    assert_eq!(stopped.recv_timeout(LONG), Ok(Ok(())));
}

#[test]
fn a_flush_may_close_its_coalescer_and_the_rest_is_flushed() {
    type Itself = Coalescer<u32, (), tollgate::clock::Monotonic>;
    let itself: Arc<Mutex<Option<Itself>>> = Arc::default();
    let (sender, seen) = mpsc::channel();
    let held = Arc::clone(&itself);
    let coalescer = Coalesce::window(LONG).max_items(1).build(move |batch| {
        let _ = sender.send((batch.items()[0].0, None));
        if let Some(itself) = held.lock().unwrap().take() {
            itself.try_add(2, ()).unwrap();
            let closed = itself.close_blocking(ms(10));
            let _ = sender.send((0, Some((closed, itself.try_add(3, ()).is_err()))));
        }
        FlushOutcome::Done
    });
    *itself.lock().unwrap() = Some(coalescer.clone());
    coalescer.try_add(1, ()).unwrap();
    let got = || seen.recv_timeout(LONG).unwrap();
    assert_eq!(got(), (1, None));
    assert_eq!(got(), (0, Some((Ok(()), true))), "it returns at once");
    assert_eq!(got(), (2, None), "what there was is flushed");
}

/// Says when it is dropped, and takes its time.
struct Captured(Arc<AtomicBool>);

impl Drop for Captured {
    fn drop(&mut self) {
        (0..1_000).for_each(|_| thread::yield_now());
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn when_a_stop_has_waited_the_action_is_gone_with_its_captures() {
    let is_gone = Arc::new(AtomicBool::new(false));
    let (began, begun) = mpsc::channel();
    let (go_on, goes_on) = mpsc::channel::<()>();
    let (captured, goes_on) = (Captured(Arc::clone(&is_gone)), Mutex::new(goes_on));
    let debouncer = Debounce::new(ms(100))
        .leading(Edge::On)
        .build(move |(): ()| {
            let _held = &captured;
            began.send(()).unwrap();
            let _ = goes_on.lock().unwrap().recv();
        });
    thread::scope(|scope| {
        scope.spawn(|| debouncer.call(()));
        begun.recv().unwrap();
        debouncer.stop();
        go_on.send(()).unwrap();
        assert_eq!(debouncer.stop_and_wait_blocking(LONG), Ok(()));
        assert!(is_gone.load(Ordering::SeqCst));
    });
}

/// Panics when it is dropped, though what it does has ended.
struct Sore;

impl Future for Sore {
    type Output = ();

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        Poll::Ready(())
    }
}

impl Drop for Sore {
    fn drop(&mut self) {
        panic!("on purpose, as it is dropped");
    }
}

#[test]
fn a_future_that_panics_as_it_is_dropped_kills_nothing() {
    let clock = Manual::new();
    let debouncer = Debounce::new(ms(10))
        .clock(clock.clone())
        .build_async(|(): ()| Sore);
    for _ in 0..2 {
        debouncer.call(());
        clock.advance(ms(10));
    }
    assert_eq!(
        (debouncer.stats().fired, debouncer.stats().panicked),
        (2, 2)
    );
    assert_eq!(debouncer.stop_and_wait_blocking(LONG), Ok(()));
}

#[test]
fn async_work_that_panics_does_not_reach_who_moves_the_time() {
    let (clock, record) = (Manual::new(), Record::new(&Manual::new()));
    let pacer = WorkPacer::builder(Rate::per_second(10), 10)
        .clock(clock.clone())
        .build()
        .unwrap();
    let _first = pacer.submit(|| {}).unwrap();
    let bad = pacer
        .submit_async(|| async { panic!("on purpose") })
        .unwrap();
    let noted = record.clone();
    let _good = pacer
        .submit_async(move || async move { noted.note(()) })
        .unwrap();
    clock.advance(ms(500));
    assert!(bad.is_done());
    assert_eq!(record.take().len(), 1);
}

type Keyed = KeyedDebouncer<u32, u32, Manual>;

fn slow(clock: &Manual, capacity: usize, when_full: WhenFull) -> Keyed {
    Debounce::new(ms(100))
        .clock(clock.clone())
        .keyed(capacity)
        .when_full(when_full)
        .build_async(|_, _| pending())
}

#[test]
fn behind_a_slow_action_the_keys_that_have_fired_are_bounded() {
    let clock = Manual::new();
    for when_full in [WhenFull::FireEarliest, WhenFull::Deny] {
        let keyed = slow(&clock, 10, when_full);
        keyed.call(0, 0).unwrap();
        assert!(keyed.flush(&0), "its action never ends");
        let mut taken = 0;
        for key in 1..1_000 {
            taken += u32::from(keyed.call(key, key).is_ok());
            keyed.flush_all();
        }
        assert!((9..=30).contains(&taken), "{taken} of {when_full:?}");
    }
}

#[test]
fn the_key_that_makes_room_is_the_one_whose_time_comes_first() {
    let clock = Manual::new();
    let record = Record::new(&clock);
    let noted = record.clone();
    let keyed: Keyed = Debounce::new(ms(100))
        .clock(clock.clone())
        .keyed(2)
        .when_full(WhenFull::FireEarliest)
        .build(move |key, _| noted.note(key));
    keyed.call(1, 0).unwrap();
    go_to(&clock, 50);
    keyed.call(2, 0).unwrap();
    go_to(&clock, 90);
    keyed.call(1, 0).unwrap();
    keyed.call(3, 0).unwrap();
    assert_eq!(record.take(), [(90, 2)], "1 was called later than 2");
    go_to(&clock, 300);
    assert_eq!(record.take(), [(190, 1), (190, 3)]);
    assert!(keyed.is_empty());
}

/// Counts how often it is woken.
#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// A coalescer whose flushes take ten milliseconds.
fn lasting<K, V>(clock: &Manual, builder: Coalesce<K, V>) -> Coalescer<K, V, Manual>
where
    K: std::hash::Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    let time = clock.clone();
    builder.clock(clock.clone()).build_async(move |_| {
        let sleep = sleep_until(time.clone(), time.now() + ms(10));
        async move {
            sleep.await;
            FlushOutcome::Done
        }
    })
}

#[test]
fn a_wait_for_room_goes_on_when_the_one_before_it_was_merged() {
    let clock = Manual::new();
    let builder = Coalesce::window(ms(100))
        .max_pending(2)
        .max_items(2)
        .merge(|_: &u32, sum: &mut u32, more| *sum += more);
    let coalescer = lasting(&clock, builder);
    coalescer.try_add(1, 1).unwrap();
    coalescer.try_add(2, 1).unwrap();
    let counts: Vec<Arc<Count>> = (0..3).map(|_| Arc::default()).collect();
    let wakers: Vec<Waker> = counts
        .iter()
        .map(|count| Waker::from(Arc::clone(count)))
        .collect();
    let mut adds: Vec<_> = [3, 3, 4].map(|key| Box::pin(coalescer.add(key, 1))).into();
    let mut poll = |place: usize| {
        adds[place]
            .as_mut()
            .poll(&mut Context::from_waker(&wakers[place]))
    };
    assert!((0..3).all(|place| poll(place).is_pending()));
    clock.advance(ms(10));
    assert_eq!(poll(0), Poll::Ready(Ok(())));
    assert_eq!(poll(1), Poll::Ready(Ok(())), "merged");
    assert_eq!(
        counts[2].0.load(Ordering::SeqCst),
        1,
        "there is room, and it is told so"
    );
    assert_eq!(poll(2), Poll::Ready(Ok(())));
}

#[test]
fn thousands_who_wait_for_room_are_each_woken_about_once() {
    const MANY: usize = 1_000;
    let clock = Manual::new();
    let count = Arc::new(Count::default());
    let waker = Waker::from(Arc::clone(&count));
    let mut context = Context::from_waker(&waker);
    let lasting = lasting(&clock, Coalesce::window(LONG).max_pending(MANY));
    for key in 0..MANY {
        lasting.try_add(key, ()).unwrap();
    }
    let mut adds: Vec<_> = (0..MANY)
        .map(|key| Box::pin(lasting.add(key, ())))
        .collect();
    for add in &mut adds {
        assert!(add.as_mut().poll(&mut context).is_pending());
    }
    clock.advance(ms(10));
    for add in &mut adds {
        assert_eq!(add.as_mut().poll(&mut context), Poll::Ready(Ok(())));
    }
    clock.advance(ms(10));
    let woken = count.0.load(Ordering::SeqCst);
    assert!((MANY..=2 * MANY).contains(&woken), "{woken}");
}

#[test]
fn a_retry_after_no_time_lets_time_be_moved() {
    let clock = Manual::new();
    let coalescer = Coalesce::window(ms(10))
        .clock(clock.clone())
        .build(|batch| {
            match batch.attempt() {
                // Without an end of its own it would never return.
                0..1_000 => FlushOutcome::RetryIn(Duration::ZERO),
                _ => FlushOutcome::Done,
            }
        });
    coalescer.try_add(1, ()).unwrap();
    clock.advance(ms(10));
    assert_eq!(coalescer.stats().fired, 1);
    clock.advance(ms(1));
    assert_eq!(coalescer.stats().fired, 2);
}

#[test]
fn an_action_that_is_cut_off_by_its_executor_has_not_panicked() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let (began, begun) = mpsc::channel();
    let entered = runtime.enter();
    let debouncer: Debouncer<(), _> =
        Debounce::new(ms(1))
            .leading(Edge::On)
            .build_async(move |()| {
                let _ = began.send(());
                pending()
            });
    drop(entered);
    debouncer.call(());
    runtime.block_on(async {
        while begun.try_recv().is_err() {
            tokio::task::yield_now().await;
        }
    });
    drop(runtime);
    assert!(debouncer.is_stopped());
    assert_eq!(
        (debouncer.stats().fired, debouncer.stats().panicked),
        (1, 0)
    );
    let mut stopped = pin!(debouncer.stop_and_wait(LONG));
    let poll = stopped
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()));
    assert_eq!(poll, Poll::Ready(Ok(())));
}

#[test]
fn a_year_at_once_fires_each_thing_once() {
    let year = Duration::from_secs(365 * 24 * 3600);
    let (clock, record) = (Manual::new(), Record::new(&Manual::new()));
    let noted = record.clone();
    let debouncer = Debounce::new(ms(10))
        .max_wait(ms(20))
        .leading(Edge::On)
        .then_throttle(ms(30))
        .clock(clock.clone())
        .build(move |value: &str| noted.note(value));
    debouncer.call("a");
    debouncer.call("b");
    clock.advance(year);
    clock.advance(ms(30));
    debouncer.call("c");
    debouncer.call("d");
    assert!(debouncer.cancel());
    clock.advance(year);
    let fired: Vec<&str> = record.take().into_iter().map(|(_, value)| value).collect();
    assert_eq!(fired, ["a", "b", "c"]);
    assert_eq!(clock.parked(), 0);
}

#[test]
fn stops_flushes_calls_and_time_on_several_threads_agree() {
    for _ in 0..200 {
        let clock = Manual::new();
        let (stopped, running) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicUsize::new(0)),
        );
        let (seen, now) = (Arc::clone(&stopped), Arc::clone(&running));
        let debouncer = Debounce::new(ms(1))
            .leading(Edge::On)
            .max_wait(ms(2))
            .clock(clock.clone())
            .build(move |_: u32| {
                assert!(!seen.load(Ordering::SeqCst), "after stop had returned");
                assert_eq!(now.fetch_add(1, Ordering::SeqCst), 0, "two at once");
                thread::yield_now();
                now.fetch_sub(1, Ordering::SeqCst);
            });
        thread::scope(|scope| {
            scope.spawn(|| (0..50).for_each(|value| debouncer.call(value)));
            scope.spawn(|| (0..50).for_each(|_| _ = debouncer.flush()));
            scope.spawn(|| (0..50).for_each(|_| clock.advance(ms(1))));
            scope.spawn(|| {
                (0..20).for_each(|_| thread::yield_now());
                assert_eq!(debouncer.stop_and_wait_blocking(LONG * 1_000), Ok(()));
                stopped.store(true, Ordering::SeqCst);
            });
        });
        assert_eq!(debouncer.stats().panicked, 0);
        assert_eq!(clock.parked(), 0);
    }
}
