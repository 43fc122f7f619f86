//! A scheduler of one thread on a clock that stands still: who is polled next is drawn from a seed, and
//! only who was woken is polled at all.

use std::cell::RefCell;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use blocker::{Clock, ManualClock};

use crate::rng::Rng;

/// More polls than this without anything coming to rest is a livelock.
const POLLS_MAX: u64 = 200_000;
/// More time than this for one answer is a hang.
const PATIENCE: Duration = Duration::from_secs(24 * 3600);

type Task = Pin<Box<dyn Future<Output = ()>>>;
type SendTask = Pin<Box<dyn Future<Output = ()> + Send>>;

pub struct Sim {
    tasks: Vec<Option<Task>>,
    free: Vec<usize>,
    shared: Arc<Shared>,
    rng: Option<Rng>,
    pub clock: ManualClock,
    /// How many polls there have been.
    pub polls: u64,
}

#[derive(Default)]
struct Shared {
    /// Woken and not polled since, in the order of the wake-ups.
    ready: Mutex<Vec<usize>>,
    spawned: Mutex<Vec<SendTask>>,
}

/// Starts tasks from anywhere.
#[derive(Clone)]
pub struct Spawner(Arc<Shared>);

impl Spawner {
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.0.spawned.lock().unwrap().push(Box::pin(task));
    }
}

struct TaskWaker {
    index: usize,
    shared: Arc<Shared>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        let mut ready = self.shared.ready.lock().unwrap();
        if !ready.contains(&self.index) {
            ready.push(self.index);
        }
    }
}

/// A task's answer, once it is there.
pub struct Handle<T> {
    index: usize,
    answer: Rc<RefCell<Option<T>>>,
}

impl<T> Handle<T> {
    pub fn is_done(&self) -> bool {
        self.answer.borrow().is_some()
    }

    pub fn take(&self) -> Option<T> {
        self.answer.borrow_mut().take()
    }

    /// The answer, which must be there.
    #[track_caller]
    pub fn get(self) -> T {
        self.take().expect("no answer yet")
    }
}

impl Sim {
    /// With a seed the order is drawn, without one it is that of the wake-ups.
    pub fn new(seed: Option<u64>) -> Self {
        Self {
            tasks: Vec::new(),
            free: Vec::new(),
            shared: Arc::default(),
            rng: seed.map(Rng::new),
            clock: ManualClock::new(),
            polls: 0,
        }
    }

    pub fn spawner(&self) -> Spawner {
        Spawner(Arc::clone(&self.shared))
    }

    /// Starts a task; it is polled first by a later step.
    pub fn spawn<F: IntoFuture>(&mut self, future: F) -> Handle<F::Output>
    where
        F::IntoFuture: 'static,
        F::Output: 'static,
    {
        let answer = Rc::new(RefCell::new(None));
        let (future, slot) = (future.into_future(), Rc::clone(&answer));
        let index = self.place(Box::pin(async move { *slot.borrow_mut() = Some(future.await) }));
        Handle { index, answer }
    }

    fn place(&mut self, task: Task) -> usize {
        let index = self.free.pop().unwrap_or_else(|| {
            self.tasks.push(None);
            self.tasks.len() - 1
        });
        self.tasks[index] = Some(task);
        self.shared.ready.lock().unwrap().push(index);
        index
    }

    fn adopt(&mut self) {
        let spawned = std::mem::take(&mut *self.shared.spawned.lock().unwrap());
        for task in spawned {
            self.place(task);
        }
    }

    /// Polls one task that was woken. Whether there was one.
    pub fn step(&mut self) -> bool {
        self.adopt();
        let index = {
            let mut ready = self.shared.ready.lock().unwrap();
            if ready.is_empty() {
                return false;
            }
            let at = self.rng.as_mut().map_or(0, |rng| rng.index(ready.len()));
            ready.remove(at)
        };
        self.poll(index);
        true
    }

    fn poll(&mut self, index: usize) {
        // Gone meanwhile: a wake-up that came too late.
        let Some(task) = self.tasks[index].as_mut() else { return };
        self.polls += 1;
        let waker = Waker::from(Arc::new(TaskWaker { index, shared: Arc::clone(&self.shared) }));
        if task.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
            self.end(index);
        }
    }

    fn end(&mut self, index: usize) {
        drop(self.tasks[index].take());
        self.shared.ready.lock().unwrap().retain(|each| *each != index);
        // Late wake-ups of the old task wake the new one in this place: spurious, and allowed.
        self.free.push(index);
    }

    /// Polls this task once, if it was woken. Whether it was.
    pub fn poll_one<T>(&mut self, handle: &Handle<T>) -> bool {
        self.adopt();
        let was_woken = {
            let mut ready = self.shared.ready.lock().unwrap();
            let before = ready.len();
            ready.retain(|each| *each != handle.index);
            ready.len() < before
        };
        if was_woken {
            self.poll(handle.index);
        }
        was_woken
    }

    /// Drops a task at the await where it stands; its answer if it had finished.
    pub fn cancel<T>(&mut self, handle: Handle<T>) -> Option<T> {
        let answer = handle.take();
        if answer.is_none() {
            self.end(handle.index);
        }
        answer
    }

    /// Polls until nobody is woken any more. Time stands still.
    #[track_caller]
    pub fn settle(&mut self) {
        let start = self.polls;
        while self.step() {
            assert!(self.polls - start < POLLS_MAX, "{POLLS_MAX} polls, and no rest: a livelock");
        }
    }

    pub fn is_idle(&self) -> bool {
        self.shared.ready.lock().unwrap().is_empty() && self.shared.spawned.lock().unwrap().is_empty()
    }

    /// Lets time pass, in steps from one alarm to the next.
    #[track_caller]
    pub fn advance(&mut self, by: Duration) {
        let until = self.clock.now() + by;
        self.settle();
        while let Some(alarm) = self.clock.next_alarm().filter(|alarm| *alarm <= until) {
            self.clock.advance(alarm.since(self.clock.now()));
            self.settle();
        }
        self.clock.advance(until.since(self.clock.now()));
        self.settle();
    }

    /// Moves the clock to the next alarm, if there is one.
    pub fn skip(&mut self) -> bool {
        let Some(alarm) = self.clock.next_alarm() else { return false };
        self.clock.advance(alarm.since(self.clock.now()));
        true
    }

    /// Goes on, letting time pass, until the answer is there.
    #[track_caller]
    pub fn wait<T>(&mut self, handle: Handle<T>) -> T {
        let give_up = self.clock.now() + PATIENCE;
        loop {
            while !handle.is_done() && self.step() {}
            if let Some(answer) = handle.take() {
                return answer;
            }
            assert!(self.skip(), "a hang: nobody is woken, and no alarm is set");
            assert!(self.clock.now() < give_up, "no answer within a day");
        }
    }

    /// Spawns and waits.
    #[track_caller]
    pub fn run<F: IntoFuture>(&mut self, future: F) -> F::Output
    where
        F::IntoFuture: 'static,
        F::Output: 'static,
    {
        let handle = self.spawn(future);
        self.wait(handle)
    }
}

/// A short name for a task whose answer nobody asks for.
pub fn forget<T>(_: Handle<T>) {}
