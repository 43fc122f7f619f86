use std::cell::Cell;
use std::future::Future;
use std::task::{Context, Waker};

use super::*;

thread_local! {
    static JOBS_RUN: Cell<u64> = const { Cell::new(0) };
}

pub(super) fn count_job() {
    JOBS_RUN.set(JOBS_RUN.get() + 1);
}

/// Returns the number of jobs that this thread has run in exclusive sections.
pub(crate) fn jobs_run() -> u64 {
    JOBS_RUN.get()
}

type Handle = Arc<Serial<Vec<u32>>>;

fn serial() -> Handle {
    Arc::new(Serial::new(Vec::new()))
}

#[test]
fn queued_jobs_run_in_order_before_the_section_ends() {
    let serial = serial();
    let inner = Arc::clone(&serial);
    let ran = serial.try_run(move |values| {
        for n in 1..=3 {
            let job = move |values: &mut Vec<u32>| values.push(n);
            assert!(inner.try_run(job).is_err());
            inner.post(job);
        }
        values.push(0);
    });
    assert!(ran.is_ok());
    assert_eq!(serial.try_run(|values| values.clone()).ok(), Some(vec![0, 1, 2, 3]));
}

#[test]
fn a_job_dropped_before_its_section_never_runs() {
    let serial = serial();
    let inner = Arc::clone(&serial);
    let _ = serial.try_run(move |_| {
        let kept = Serial::run(Arc::clone(&inner), |values| values.push(1));
        drop(Serial::run(Arc::clone(&inner), |values| values.push(2)));
        std::mem::forget(kept);
    });
    assert_eq!(serial.try_run(|values| values.clone()).ok(), Some(vec![1]));
}

#[test]
fn one_caller_runs_a_bounded_number_of_jobs_of_others() {
    let serial = serial();
    let inner = Arc::clone(&serial);
    let mut waiting = Vec::new();
    let many = DRAIN_JOBS_MAX as u32 + 10;
    let _ = serial.try_run(|_| {
        waiting = (0..many)
            .map(|n| Serial::run(Arc::clone(&inner), move |values: &mut Vec<u32>| values.push(n)))
            .collect();
    });
    assert!(serial.try_run(|_| ()).is_err(), "ten wait for the successor");
    let mut cx = Context::from_waker(Waker::noop());
    let last = waiting.pop().unwrap();
    drop(waiting);
    let mut last = std::pin::pin!(last);
    assert!(last.as_mut().poll(&mut cx).is_ready(), "the next task continues");
    let seen = serial.try_run(|values| values.clone()).ok().unwrap();
    assert_eq!(seen.last(), Some(&(many - 1)));
}

/// Counts how often it is woken.
#[derive(Default)]
struct Counting(std::sync::atomic::AtomicU32);

impl std::task::Wake for Counting {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    }
}

#[test]
fn jobs_are_not_handed_off_to_a_task_that_has_given_up() {
    let serial = serial();
    let inner = Arc::clone(&serial);
    let woken = Arc::new(Counting::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut cx = Context::from_waker(&waker);
    let mut last = None;
    let _ = serial.try_run(|_| {
        (0..DRAIN_JOBS_MAX as u32).for_each(|n| inner.post(move |values: &mut Vec<u32>| values.push(n)));
        drop(Serial::run(Arc::clone(&inner), |values: &mut Vec<u32>| values.push(1000)));
        let mut waits = Box::pin(Serial::run(Arc::clone(&inner), |values: &mut Vec<u32>| values.push(1001)));
        assert!(waits.as_mut().poll(&mut cx).is_pending());
        last = Some(waits);
    });
    assert!(woken.0.load(std::sync::atomic::Ordering::SeqCst) > 0, "no task continues");
    assert!(last.unwrap().as_mut().poll(&mut cx).is_ready());
    let seen = serial.try_run(|values| values.clone()).ok().unwrap();
    assert_eq!((seen.len(), seen.last()), (DRAIN_JOBS_MAX + 1, Some(&1001)));
}

#[test]
fn a_panic_inside_does_not_lock_out_others() {
    let serial = serial();
    let inner = Arc::clone(&serial);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _ = inner.try_run(|_| panic!("on purpose"));
    }));
    assert!(panicked.is_err());
    assert!(serial.try_run(|_| ()).is_ok());
}
