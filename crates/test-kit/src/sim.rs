//! A single-threaded scheduler on a manual clock. It polls only tasks that were woken, in the order
//! of the wake-ups or in one drawn from a seed.

use std::cell::RefCell;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use blocker::{Clock, ManualClock};

use crate::rng::Rng;

/// The maximum number of polls without becoming idle. More of them are a livelock.
const POLLS_MAX: u64 = 200_000;
/// The maximum duration of a task. A task that takes longer is considered hanging.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(24 * 3600);

type Task = Pin<Box<dyn Future<Output = ()>>>;
type SendTask = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The scheduler, see the module.
pub struct Sim {
    tasks: Vec<Option<Task>>,
    free: Vec<usize>,
    shared: Arc<Shared>,
    rng: Option<Rng>,
    /// The clock of the simulation, which only the test advances.
    pub clock: ManualClock,
    /// The number of polls so far.
    pub polls: u64,
}

#[derive(Default)]
struct Shared {
    /// Tasks woken but not polled since, in the order of the wake-ups.
    ready: Mutex<Vec<usize>>,
    spawned: Mutex<Vec<SendTask>>,
}

/// Starts tasks from within other tasks.
#[derive(Clone)]
pub struct Spawner(Arc<Shared>);

impl Spawner {
    /// Starts a task.
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

/// Gives access to a task's result after the task has ended.
pub struct Handle<T> {
    index: usize,
    answer: Rc<RefCell<Option<T>>>,
}

impl<T> Handle<T> {
    /// Returns whether the task has ended and its result has not been taken.
    pub fn is_done(&self) -> bool {
        self.answer.borrow().is_some()
    }

    /// Takes the result if the task has ended.
    pub fn take(&self) -> Option<T> {
        self.answer.borrow_mut().take()
    }

    /// Takes the result of a task that must have ended.
    #[track_caller]
    pub fn get(self) -> T {
        self.take().expect("no answer yet")
    }
}

impl Sim {
    /// Creates a simulation. With a seed, the order of polls is drawn from the seed; otherwise it
    /// is the order of the wake-ups.
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

    /// Returns a spawner for starting tasks from within tasks.
    pub fn spawner(&self) -> Spawner {
        Spawner(Arc::clone(&self.shared))
    }

    /// Starts a task. It is first polled by a later step.
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

    fn place_spawned(&mut self) {
        let spawned = std::mem::take(&mut *self.shared.spawned.lock().unwrap());
        for task in spawned {
            self.place(task);
        }
    }

    /// Polls one task that was woken; returns whether there was one.
    pub fn step(&mut self) -> bool {
        self.place_spawned();
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
        // The task has ended before this wake-up.
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
        // Late wake-ups of the old task wake the new task at this index. They are spurious, which
        // is allowed.
        self.free.push(index);
    }

    /// Polls this task once, if it was woken; returns whether it was.
    pub fn poll_one<T>(&mut self, handle: &Handle<T>) -> bool {
        self.place_spawned();
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

    /// Drops a task at its current await; returns its result if the task had ended.
    pub fn cancel<T>(&mut self, handle: Handle<T>) -> Option<T> {
        let answer = handle.take();
        if answer.is_none() {
            self.end(handle.index);
        }
        answer
    }

    /// Polls until no task is woken, without advancing time.
    #[track_caller]
    pub fn run_until_idle(&mut self) {
        let start = self.polls;
        while self.step() {
            assert!(self.polls - start < POLLS_MAX, "{POLLS_MAX} polls without coming to rest: a livelock");
        }
    }

    /// Returns whether no task is woken.
    pub fn is_idle(&self) -> bool {
        self.shared.ready.lock().unwrap().is_empty() && self.shared.spawned.lock().unwrap().is_empty()
    }

    /// Advances time, from one timer to the next.
    #[track_caller]
    pub fn advance(&mut self, by: Duration) {
        let until = self.clock.now() + by;
        self.run_until_idle();
        while let Some(timer) = self.clock.next_timer().filter(|timer| *timer <= until) {
            self.clock.advance(timer.since(self.clock.now()));
            self.run_until_idle();
        }
        self.clock.advance(until.since(self.clock.now()));
        self.run_until_idle();
    }

    /// Moves the clock to the next timer; returns whether there is one.
    pub fn skip(&mut self) -> bool {
        let Some(timer) = self.clock.next_timer() else { return false };
        self.clock.advance(timer.since(self.clock.now()));
        true
    }

    /// Polls, and advances time, until the task has ended; returns its result.
    #[track_caller]
    pub fn wait<T>(&mut self, handle: Handle<T>) -> T {
        let give_up = self.clock.now() + ANSWER_TIMEOUT;
        loop {
            while !handle.is_done() && self.step() {}
            if let Some(answer) = handle.take() {
                return answer;
            }
            assert!(self.skip(), "a hang: no task is woken, and no timer is set");
            assert!(self.clock.now() < give_up, "no answer within a day");
        }
    }

    /// Starts a task, and waits for its result.
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

/// Ignores a task's result.
pub fn forget<T>(_: Handle<T>) {}
