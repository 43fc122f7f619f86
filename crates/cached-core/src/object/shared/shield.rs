//! Work that must run to its end although its caller may give up.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::Shared;
use crate::object::tasks::background_queue::Task;
use crate::sync::{Arc, Mutex, lock};

/// Returns a future of `work`; if that future is dropped, the background continues the work.
pub(crate) fn shielded<T: Send + 'static>(
    shared: &Arc<Shared>,
    work: impl Future<Output = T> + Send + 'static,
) -> Shield<T> {
    let answer = Arc::new(Mutex::new(None));
    let own = Arc::clone(&answer);
    let task: Task = Box::pin(async move {
        let result = work.await;
        *lock(&own) = Some(result);
    });
    Shield { task: Some(task), answer, shared: Arc::clone(shared) }
}

/// See [`shielded`].
pub(crate) struct Shield<T> {
    task: Option<Task>,
    answer: Arc<Mutex<Option<T>>>,
    shared: Arc<Shared>,
}

impl<T> Future for Shield<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let task = self.task.as_mut().expect("polled after completion");
        std::task::ready!(task.as_mut().poll(cx));
        self.task = None;
        let answer = lock(&self.answer).take();
        Poll::Ready(answer.expect("a task that is over has left its answer"))
    }
}

impl<T> Drop for Shield<T> {
    fn drop(&mut self) {
        if let Some(task) = self.task.take() {
            self.shared.background.add(task);
        }
    }
}
