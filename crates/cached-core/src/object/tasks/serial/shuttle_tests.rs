use std::future::Future;
use std::task::{Context, Waker};

use super::*;

/// However callers interleave, each job runs exactly once, alone, and none is forgotten.
#[test]
fn every_job_runs_once_and_alone() {
    shuttle::check_random(
        || {
            let serial: Arc<Serial<(bool, u32)>> = Arc::new(Serial::new((false, 0)));
            let job = |value: &mut (bool, u32)| {
                assert!(!std::mem::replace(&mut value.0, true), "two inside");
                shuttle::thread::yield_now();
                value.1 += 1;
                value.0 = false;
            };
            let threads: Vec<_> = (0..3)
                .map(|n| {
                    let serial = Arc::clone(&serial);
                    shuttle::thread::spawn(move || {
                        if n == 0 {
                            serial.post(job);
                            serial.post(job);
                        } else {
                            shuttle::future::block_on(Serial::run(Arc::clone(&serial), job));
                            shuttle::future::block_on(Serial::run(serial, job));
                        }
                    })
                })
                .collect();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            let count = serial.try_run(|value| value.1).ok().expect("no thread is inside");
            assert_eq!(count, 6);
        },
        2_000,
    );
}

/// With more jobs than a single caller runs, and some tasks that give up at any time, every other
/// task gets its section.
#[test]
fn a_hand_off_reaches_one_that_still_waits() {
    shuttle::check_random(
        || {
            let serial: Arc<Serial<u32>> = Arc::new(Serial::new(0));
            let threads: Vec<_> = (0..4)
                .map(|n| {
                    let serial = Arc::clone(&serial);
                    shuttle::thread::spawn(move || {
                        let job = |value: &mut u32| {
                            shuttle::thread::yield_now();
                            *value += 1;
                        };
                        if n == 0 {
                            (0..DRAIN_JOBS_MAX + 2).for_each(|_| serial.post(job));
                        } else if n == 1 {
                            let mut cx = Context::from_waker(Waker::noop());
                            let mut run = Box::pin(Serial::run(serial, job));
                            let _ = run.as_mut().poll(&mut cx);
                            shuttle::thread::yield_now();
                        } else {
                            shuttle::future::block_on(Serial::run(serial, job));
                        }
                    })
                })
                .collect();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            let count = serial.try_run(|value| *value).ok().expect("no thread is inside, and nothing waits");
            let sure = DRAIN_JOBS_MAX as u32 + 4;
            assert!((sure..=sure + 1).contains(&count), "{count}");
        },
        5_000,
    );
}

/// A task that gives up leaves no trace and stops no other task, even if it was the successor.
#[test]
fn a_task_that_gives_up_stops_no_other() {
    shuttle::check_random(
        || {
            let serial: Arc<Serial<u32>> = Arc::new(Serial::new(0));
            let threads: Vec<_> = (0..3)
                .map(|n| {
                    let serial = Arc::clone(&serial);
                    shuttle::thread::spawn(move || {
                        let run = Serial::run(serial, |value: &mut u32| *value += 1);
                        if n > 0 {
                            shuttle::future::block_on(run);
                        }
                    })
                })
                .collect();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            let count = serial.try_run(|value| *value).ok().expect("no thread is inside");
            assert!((2..=3).contains(&count));
        },
        2_000,
    );
}
