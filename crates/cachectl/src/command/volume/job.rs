//! What a server goes on with after it has answered: followed until it is done.

use std::time::Duration;

use serde_json::Value;

use crate::admin::{Admin, line_of};
use crate::exit::Failure;
use crate::interrupt::Interrupt;
use crate::progress::Progress;

/// How long to wait between two questions.
const STEP: Duration = Duration::from_millis(300);

/// Returns what `answer` is, or, if it names a job, what the job's result is.
///
/// # Errors
/// The job fails, or a signal ends the wait: the job goes on.
pub(super) fn finished(admin: &Admin, answer: Value) -> Result<Value, Failure> {
    match answer["job"].as_u64() {
        Some(job) => followed(admin, job),
        None => Ok(answer),
    }
}

/// Waits for a job. Returns its result.
///
/// # Errors
/// As for [`finished`]; there is no such job.
pub(super) fn followed(admin: &Admin, job: u64) -> Result<Value, Failure> {
    let interrupt = Interrupt::watch()?;
    let mut progress = Progress::of_steps();
    loop {
        let mut answer = admin.get(&format!("/volumes/job?id={job}"))?;
        match answer["state"].as_str() {
            Some("done") => return Ok(answer["result"].take()),
            Some("failed") => {
                let text = line_of(answer["error"].as_str().unwrap_or("the job failed"));
                let status = answer["status"].as_u64().and_then(|status| u16::try_from(status).ok());
                return Err(Failure::Refused {
                    what: admin.url().to_owned(),
                    status: status.unwrap_or(500),
                    text,
                });
            }
            Some("running") => {
                let [done, total] = ["done", "total"].map(|key| answer[key].as_u64().unwrap_or(0));
                progress.reach(done, total);
            }
            _ => {
                let text = format!("job {job} has no state that is known here");
                return Err(Failure::Admin { what: admin.url().to_owned(), status: None, text });
            }
        }
        interrupt.sleep(STEP).map_err(|failure| {
            failure.leaves(format!("the server goes on: `cachectl volume job {job}` waits for it again"))
        })?;
    }
}
