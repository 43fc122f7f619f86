//! The gate from the perspective of tasks: which are woken, that nothing is left behind, and that
//! no wake-up is lost.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use blocker::{Clock, ManualClock, Result};

use super::*;

/// SplitMix64.
struct Rng(std::cell::Cell<u64>);

impl Rng {
    fn below(&self, count: u64) -> u64 {
        self.0.set(self.0.get().wrapping_add(0x9e37_79b9_7f4a_7c15));
        let mixed = (self.0.get() ^ self.0.get() >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % count
    }
}

struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// A task that waits at the gate; polled only after it was woken.
struct Task {
    entering: Pin<Box<Enter>>,
    flag: Arc<Flag>,
}

impl Task {
    fn new(gate: &Arc<Gate>, ask: Ask) -> Self {
        let flag = Arc::new(Flag(AtomicBool::new(true)));
        Self { entering: Box::pin(enter(Arc::clone(gate), ask)), flag }
    }

    /// Polls the task if it was woken.
    fn poll(&mut self) -> Option<Pass> {
        if !self.flag.0.swap(false, Ordering::SeqCst) {
            return None;
        }
        let waker = Waker::from(Arc::clone(&self.flag));
        match self.entering.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(passed) => Some(passed.unwrap_or_else(|error| panic!("{error}"))),
            Poll::Pending => None,
        }
    }
}

fn gate(loads_max: usize, flushes_max: usize) -> (Arc<Gate>, ManualClock) {
    let clock = ManualClock::new();
    (Arc::new(Gate::new(Arc::new(clock.clone()), loads_max, flushes_max)), clock)
}

fn load(namespace: Number) -> Ask {
    Ask { namespace, lane: Lane::Load, class: Class::Demand, bytes: 4096 }
}

fn limited(rate: u64) -> StoreTerms {
    StoreTerms { requests_per_second_max: Some(rate), burst: Duration::ZERO, ..StoreTerms::default() }
}

#[test]
fn without_terms_a_lane_is_limited_and_forwarded_changes_pass() {
    let (gate, _) = gate(1, 1);
    let held = Task::new(&gate, load(1)).poll().expect("there is room");
    let (mut second, mut third) = (Task::new(&gate, load(2)), Task::new(&gate, load(3)));
    assert!(second.poll().is_none() && third.poll().is_none());
    let change = Ask { lane: Lane::Change, ..load(1) };
    let _changes: Vec<_> = (0..9).map(|_| Task::new(&gate, change).poll().expect("passes")).collect();
    assert!(Task::new(&gate, Ask { lane: Lane::Flush, ..load(1) }).poll().is_some(), "another lane");
    gate.validate().unwrap();
    drop(held);
    assert!(third.poll().is_none(), "not before the second");
    drop(second);
    assert!(third.poll().is_some(), "the second gave up");
    assert_eq!(gate.waiting(), 0);
    gate.validate().unwrap();
}

#[test]
fn the_number_of_places_can_change() {
    let (gate, _) = gate(1, 1);
    let mut tasks: Vec<Task> = (0..4).map(|_| Task::new(&gate, load(1))).collect();
    let poll = |tasks: &mut Vec<Task>| -> Vec<Option<Pass>> { tasks.iter_mut().map(Task::poll).collect() };
    let first = poll(&mut tasks);
    assert!(gate.is_crowded(), "the only one is for those that wait");
    assert_eq!(first.iter().flatten().count(), 1);
    gate.set_max(3, 1);
    let more = poll(&mut tasks);
    assert_eq!(more.iter().flatten().count(), 2);
    gate.set_max(1, 1);
    drop(first);
    assert_eq!(poll(&mut tasks).iter().flatten().count(), 0, "two are under way");
    drop(more);
    let last = poll(&mut tasks);
    assert_eq!(last.iter().flatten().count(), 1);
    gate.set_max(6, 1);
    assert!(!gate.is_crowded(), "a second of six");
    gate.set_max(2, 1);
    assert!(gate.is_crowded(), "the second of two");
}

#[test]
fn a_limit_wakes_one_task_at_a_time_and_the_keeper_may_give_up() {
    let (gate, clock) = gate(8, 8);
    gate.set_terms(&[(1, limited(10))]);
    assert!(Task::new(&gate, load(1)).poll().is_some());
    let mut tasks: Vec<Task> = (0..3).map(|_| Task::new(&gate, load(1))).collect();
    (0..3).for_each(|_| tasks.iter_mut().for_each(|task| assert!(task.poll().is_none())));
    assert_eq!(clock.next_timer(), Some(Timestamp(100_000_000)));
    assert!(!gate.is_crowded(), "they wait for their limit, and for no place");
    // The keeper gives up: another task must wake up in time.
    drop(tasks.remove(0));
    (0..3).for_each(|_| tasks.iter_mut().for_each(|task| assert!(task.poll().is_none())));
    clock.advance(Duration::from_millis(100));
    let passed = (0..2).flat_map(|_| tasks.iter_mut().filter_map(Task::poll).collect::<Vec<_>>()).count();
    assert_eq!(passed, 1);
    gate.validate().unwrap();
    assert!(Task::new(&gate, load(2)).poll().is_some(), "no other namespace waits for it");
    clock.advance(Duration::from_millis(100));
    let passed = (0..2).flat_map(|_| tasks.iter_mut().filter_map(Task::poll).collect::<Vec<_>>()).count();
    assert_eq!(passed, 1);
}

#[test]
fn what_gives_up_after_it_was_let_through_leaves_nothing() {
    let (gate, _) = gate(1, 1);
    gate.set_terms(&[(1, limited(10))]);
    let held = Task::new(&gate, load(2)).poll().expect("there is room");
    let mut first = Task::new(&gate, load(1));
    let mut second = Task::new(&gate, load(1));
    assert!(first.poll().is_none() && second.poll().is_none());
    drop(held);
    assert!(first.flag.0.load(Ordering::SeqCst), "let through, and not polled yet");
    drop(first);
    gate.validate().unwrap();
    assert!(second.poll().is_some(), "neither the place nor the limit is used up");
}

#[test]
fn too_many_requests_are_refused() {
    let (gate, _) = gate(1, 1);
    let _held = Task::new(&gate, load(1)).poll().expect("there is room");
    let mut waiting: Vec<Task> = (0..WAITERS_MAX).map(|_| Task::new(&gate, load(1))).collect();
    waiting.iter_mut().for_each(|task| assert!(task.poll().is_none()));
    let mut one_more = Box::pin(enter(Arc::clone(&gate), load(1)));
    let answer: Poll<Result<_>> = one_more.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(answer, Poll::Ready(Err(Error::Retryable(_)))));
}

/// Random requests that arrive, end, and are given up at every point, while terms and numbers of
/// places change; only woken tasks are polled. In the end all waiting tasks are admitted.
#[test]
fn no_wake_up_is_lost_and_nothing_is_left_behind() {
    for seed in 0..300 {
        let rng = Rng(std::cell::Cell::new(seed));
        let below = |count: u64| rng.below(count);
        let (gate, clock) = gate(1 + below(3) as usize, 1 + below(3) as usize);
        let (mut tasks, mut passes) = (Vec::<Task>::new(), Vec::new());
        for _ in 0..400 {
            match below(12) {
                0..=3 => tasks.push(Task::new(
                    &gate,
                    Ask {
                        namespace: 1 + below(4),
                        lane: Lane::ALL[below(3) as usize],
                        class: Class::ALL[below(4) as usize],
                        bytes: below(3) * 40_000,
                    },
                )),
                4 if !tasks.is_empty() => drop(tasks.swap_remove(below(tasks.len() as u64) as usize)),
                5 | 6 if !passes.is_empty() => {
                    let pass: Pass = passes.swap_remove(below(passes.len() as u64) as usize);
                    match below(2) {
                        0 => drop(pass),
                        _ => pass.answered(below(40_000), Duration::from_micros(1 + below(9000))),
                    }
                }
                7 => clock.advance(Duration::from_millis(below(40))),
                8 if below(4) == 0 => gate.set_max(1 + below(4) as usize, 1 + below(4) as usize),
                9 if below(4) == 0 => {
                    let draw = |number| {
                        let terms = StoreTerms {
                            requests_per_second_max: (below(2) == 0).then(|| 1 + below(200)),
                            bytes_per_second_max: (below(3) == 0).then(|| 4096 + below(1 << 22)),
                            requests_per_second_min: (below(3) == 0).then_some(1),
                            weight: 1 + below(9) as u32,
                            burst: Duration::from_millis(below(50)),
                        };
                        (number, terms)
                    };
                    let terms: Vec<_> = (1..1 + below(5)).map(draw).collect();
                    gate.set_terms(&terms);
                }
                _ if !tasks.is_empty() => {
                    let index = below(tasks.len() as u64) as usize;
                    if let Some(pass) = tasks[index].poll() {
                        passes.push(pass);
                        drop(tasks.swap_remove(index));
                    }
                }
                _ => (),
            }
            gate.validate().unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        }
        passes.clear();
        let mut rounds = 0;
        while !tasks.is_empty() {
            tasks.retain_mut(|task| task.poll().is_none());
            if !tasks.iter().any(|task| task.flag.0.load(Ordering::SeqCst)) && !tasks.is_empty() {
                let due = clock.next_timer().unwrap_or_else(|| panic!("seed {seed}: {} hang", tasks.len()));
                clock.advance(due.since(clock.now()));
            }
            rounds += 1;
            assert!(rounds < 100_000, "seed {seed}: {} tasks hang", tasks.len());
        }
        gate.validate().unwrap();
        assert_eq!((gate.waiting(), gate.lanes.under_way()), (0, 0), "seed {seed}");
    }
}
