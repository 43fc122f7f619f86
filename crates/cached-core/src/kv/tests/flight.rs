//! Values created on a miss: one flight per key, however its leader ends.

use super::{secs, store, value_of};
use crate::kv::*;
use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;

#[test]
fn a_miss_makes_the_value_and_a_hit_does_not() {
    let (kv, clock) = store(8 << 20, 1 << 20);
    assert_eq!(kv.get_or_insert_with(b"k", || "made"), b"made");
    assert_eq!(kv.get_or_insert_with(b"k", || -> Vec<u8> { panic!("it is there") }), b"made");
    assert_eq!(kv.get(b"k").unwrap(), b"made");
    assert_eq!(kv.get_or_insert_with(b"t", || NewValue::new("brief").ttl(secs(10))), b"brief");
    clock.advance(10);
    assert_eq!(kv.get(b"t"), None);
    kv.validate();
}

#[test]
fn an_error_is_returned_and_nothing_is_stored() {
    let (kv, _) = store(8 << 20, 1 << 20);
    assert_eq!(kv.try_get_or_insert_with(b"k", || Err::<Vec<u8>, _>("no")), Err("no"));
    assert_eq!(kv.get(b"k"), None);
    assert_eq!(kv.try_get_or_insert_with(b"k", || Ok::<_, ()>("yes")), Ok(b"yes".to_vec()));
}

/// `make` may have read what it makes the value of before the other value was stored.
#[test]
fn a_value_that_is_stored_meanwhile_stays_and_is_returned() {
    let (kv, _) = store(8 << 20, 1 << 20);
    for made in [value_of(1, 4), value_of(1, 600_000)] {
        let got = kv.get_or_insert_with(b"k", || {
            kv.set(b"k", b"newer").unwrap();
            made
        });
        assert_eq!(got, b"newer");
        assert_eq!(kv.get(b"k").unwrap(), b"newer");
        assert!(kv.remove(b"k"));
    }
    kv.validate();
}

#[test]
fn a_value_that_cannot_be_stored_is_returned() {
    let (kv, _) = store(8 << 20, 1 << 10);
    let large = value_of(1, 100_000);
    assert!(kv.get_or_insert_with(b"k", || large.clone()) == large);
    assert_eq!(kv.get(b"k"), None);
}

#[test]
fn threads_that_miss_together_make_one_value() {
    const THREADS: usize = 8;
    for round in 0..if cfg!(miri) { 2 } else { 200u32 } {
        let (kv, _) = store(1 << 20, 512 << 10);
        let (made, start) = (AtomicU32::new(0), Barrier::new(THREADS));
        // In every other round, the value is too large to store, so that only the flight can pass
        // it on.
        let value = value_of(round.into(), if round % 2 == 0 { 100 } else { 600_000 });
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    start.wait();
                    let got = kv.get_or_insert_with(b"k", || {
                        made.fetch_add(1, Ordering::Relaxed);
                        thread::yield_now();
                        value.clone()
                    });
                    assert!(got == value);
                });
            }
        });
        let made = made.load(Ordering::Relaxed);
        assert!(made == 1 || round % 2 == 1, "{made} times");
        kv.validate();
    }
}

/// Returns once `count` callers wait in the flight of key `k`.
fn wait_for_followers(kv: &Kv, count: usize) {
    while kv.inner.flights.followers(b"k", kv.hash(b"k")) < count {
        thread::yield_now();
    }
}

#[test]
fn after_a_panic_another_caller_makes_the_value() {
    let (kv, _) = store(8 << 20, 1 << 20);
    let (go, wait) = mpsc::channel();
    thread::scope(|scope| {
        let handle = kv.clone();
        let leader = scope.spawn(move || {
            handle.get_or_insert_with(b"k", || -> Vec<u8> {
                wait.recv().unwrap();
                panic!("the closure's own");
            })
        });
        while !kv.inner.flights.is_under_way(b"k", kv.hash(b"k")) {
            thread::yield_now();
        }
        let followers: Vec<_> =
            (0..3).map(|_| scope.spawn(|| kv.get_or_insert_with(b"k", || "second"))).collect();
        wait_for_followers(&kv, 3);
        go.send(()).unwrap();
        assert!(leader.join().is_err());
        followers.into_iter().for_each(|follower| assert_eq!(follower.join().unwrap(), b"second"));
    });
    assert!(!kv.inner.flights.is_under_way(b"k", kv.hash(b"k")));
}

/// A waker that counts its wake-ups.
#[derive(Default)]
struct Count(AtomicU32);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_dropped_future_hands_the_flight_to_one_that_waits() {
    let (kv, _) = store(8 << 20, 1 << 20);
    let count = Arc::new(Count::default());
    let waker = Waker::from(count.clone());
    let mut context = Context::from_waker(&waker);
    let mut leader = Box::pin(kv.get_or_insert_async(b"k", std::future::pending::<Vec<u8>>()));
    assert!(leader.as_mut().poll(&mut context).is_pending());
    let mut dropped = Box::pin(kv.get_or_insert_async(b"k", async { "dropped while it waits" }));
    let mut second = pin!(kv.get_or_insert_async(b"k", async { "second" }));
    let mut third = pin!(kv.get_or_insert_async(b"k", async { "third" }));
    for _ in 0..3 {
        assert!(dropped.as_mut().poll(&mut context).is_pending());
        assert!(second.as_mut().poll(&mut context).is_pending());
        assert!(third.as_mut().poll(&mut context).is_pending());
    }
    assert_eq!(
        kv.inner.flights.followers(b"k", kv.hash(b"k")),
        3,
        "one waker each, however often they are polled"
    );
    drop(dropped);
    assert_eq!(count.0.load(Ordering::Relaxed), 0);
    drop(leader);
    assert_eq!(count.0.load(Ordering::Relaxed), 2);
    assert_eq!(third.as_mut().poll(&mut context), Poll::Ready(b"third".to_vec()));
    assert_eq!(second.as_mut().poll(&mut context), Poll::Ready(b"third".to_vec()));
    assert!(!kv.inner.flights.is_under_way(b"k", kv.hash(b"k")));
}

#[test]
fn tasks_and_threads_wait_for_one_another() {
    let (kv, _) = store(8 << 20, 1 << 20);
    let ready = Cell::new(false);
    let mut leader = pin!(kv.try_get_or_insert_async(b"k", async {
        poll_fn(|_| if ready.get() { Poll::Ready(()) } else { Poll::Pending }).await;
        Ok::<_, ()>("a task's")
    }));
    let mut context = Context::from_waker(Waker::noop());
    assert!(leader.as_mut().poll(&mut context).is_pending());
    thread::scope(|scope| {
        let follower = scope.spawn(|| kv.get_or_insert_with(b"k", || "a thread's"));
        wait_for_followers(&kv, 1);
        ready.set(true);
        assert_eq!(leader.as_mut().poll(&mut context), Poll::Ready(Ok(b"a task's".to_vec())));
        assert_eq!(follower.join().unwrap(), b"a task's");
    });
}

#[test]
fn flights_of_other_keys_are_independent() {
    let (kv, _) = store(8 << 20, 1 << 20);
    let outer = kv.get_or_insert_with(b"outer", || {
        let inner = kv.get_or_insert_with(b"inner", || "1");
        [&inner[..], b"2"].concat()
    });
    assert_eq!(outer, b"12");
}

#[test]
fn futures_of_a_flight_may_move_between_threads() {
    fn is_send(_: impl Send) {}
    let (kv, _) = store(8 << 20, 1 << 20);
    is_send(kv.get_or_insert_async(b"k", async { "v" }));
}
