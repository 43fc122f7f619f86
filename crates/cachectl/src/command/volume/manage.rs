//! Commands to a server about its volumes, sent to its admin listener.

use std::time::Duration;

use serde_json::{Value, json};

use crate::admin::{Admin, encoded, line_of, list};
use crate::command::Call;
use crate::command::volume::name::{SnapshotName, Source, shown_size};
use crate::output::{Failure, Interrupt, Output, Progress};

/// A server's admin listener, and the destination of the result.
pub(super) struct Server<'a> {
    admin: Admin,
    output: &'a Output,
}

impl<'a> Server<'a> {
    pub(super) fn new(call: &Call<'a>) -> Result<Self, Failure> {
        Ok(Self { admin: call.admin()?, output: call.output })
    }

    /// Requests a change, waits for its completion, and writes the line `done`.
    pub(super) fn change(&self, path: &str, body: &Value, done: String) -> Result<(), Failure> {
        let answer = finished(&self.admin, self.admin.post(path, body)?)?;
        self.output.write(done, &answer)
    }

    /// Returns the description of one volume.
    fn volume(&self, name: &str) -> Result<Value, Failure> {
        let answer = self.admin.get(&format!("/volumes/show?name={}", encoded(name)))?;
        finished(&self.admin, answer)
    }

    pub(super) fn list(&self) -> Result<(), Failure> {
        let answer = finished(&self.admin, self.admin.get("/volumes")?)?;
        let damaged = list(&answer, "damaged").len() as u64;
        if damaged > 0 || !list(&answer, "volumes").is_empty() || self.output.is_json() {
            self.output.write(super::lines_of(&answer), &answer)?;
        }
        match damaged {
            0 => Ok(()),
            count => Err(Failure::problems(count, true)),
        }
    }

    pub(super) fn show(&self, name: &str) -> Result<(), Failure> {
        let answer = self.volume(name)?;
        self.output.write(super::volume(&answer), &answer)
    }

    pub(super) fn resize(&self, name: &str, size: u64, yes: bool) -> Result<(), Failure> {
        if !yes {
            let has = self.volume(name)?["size_bytes"].as_u64().unwrap_or(0);
            if size < has {
                let (has, lost) = (shown_size(has), shown_size(has - size));
                let why = format!("it has {has}, and the last {lost} would be lost; --yes confirms that");
                return Err(unchanged(name, &why));
            }
        }
        let body = json!({ "name": name, "size_bytes": size, "shrink": yes });
        self.change("/volumes/resize", &body, format!("{name} has {}", shown_size(size)))
    }

    pub(super) fn snapshot(&self, first: &SnapshotName, more: &[String]) -> Result<(), Failure> {
        let SnapshotName { volume, snapshot } = first;
        let volumes: Vec<&String> = std::iter::once(volume).chain(more).collect();
        let body = json!({ "volumes": volumes, "snapshot": snapshot });
        let made: Vec<String> = volumes.iter().map(|volume| format!("{volume}@{snapshot}")).collect();
        let text = if made.len() == 1 { "is created" } else { "are created at one instant" };
        self.change("/volumes/snapshot", &body, format!("{} {text}", made.join(", ")))
    }

    pub(super) fn delete_snapshot(&self, name: &SnapshotName, yes: bool) -> Result<(), Failure> {
        let SnapshotName { volume, snapshot } = name;
        let shown = format!("{volume}@{snapshot}");
        if !yes {
            return Err(unchanged(&shown, "data that only it contains would be lost; --yes confirms that"));
        }
        let body = json!({ "name": volume, "snapshot": snapshot });
        self.change("/volumes/delete-snapshot", &body, format!("{shown} is deleted"))
    }

    pub(super) fn rollback(&self, name: &SnapshotName, yes: bool) -> Result<(), Failure> {
        let SnapshotName { volume, snapshot } = name;
        if !yes {
            let why = format!("data written since {snapshot} would be lost; --yes confirms that");
            return Err(unchanged(volume, &why));
        }
        let body = json!({ "name": volume, "snapshot": snapshot });
        self.change("/volumes/rollback", &body, format!("{volume} is restored to {volume}@{snapshot}"))
    }

    pub(super) fn delete(&self, name: &str, yes: bool, damaged: bool) -> Result<(), Failure> {
        if !yes && damaged {
            return Err(unchanged(name, "all its data would be lost; --yes confirms that"));
        }
        if !yes {
            let of = self.volume(name)?;
            let size = shown_size(of["size_bytes"].as_u64().unwrap_or(0));
            let snapshots = match list(&of, "snapshots").len() {
                0 => String::new(),
                1 => " and its snapshot".to_owned(),
                count => format!(" and its {count} snapshots"),
            };
            let why = format!("its {size}{snapshots} would be lost; --yes confirms that");
            return Err(unchanged(name, &why));
        }
        // A server that is older than this option refuses the key.
        let body = if damaged { json!({ "name": name, "damaged": true }) } else { json!({ "name": name }) };
        self.change("/volumes/delete", &body, format!("{name} is deleted"))
    }

    pub(super) fn take_over(&self, name: &str, yes: bool) -> Result<(), Failure> {
        if !yes {
            let owner = match self.volume(name)?["owner"].as_str() {
                Some(owner) => format!("its owner is {}; --yes confirms that it is gone", line_of(owner)),
                None => "it has no owner; the next server that opens it attaches it".to_owned(),
            };
            return Err(unchanged(name, &owner));
        }
        let done = format!("{name} is detached from its owner");
        self.change("/volumes/take-over", &json!({ "name": name }), done)
    }

    pub(super) fn check(&self, repair: bool) -> Result<(), Failure> {
        let answer = self.admin.post("/volumes/check", &json!({ "repair": repair }))?;
        let answer = finished(&self.admin, answer)?;
        self.output.write(super::report(&answer), &answer)?;
        match super::problems(&answer) {
            (0, false) => Ok(()),
            (count, is_loss) => Err(Failure::problems(count, is_loss)),
        }
    }

    /// Lists a difference, page by page.
    pub(super) fn diff(&self, to: &Source, from: Option<&str>) -> Result<(), Failure> {
        let [from, snapshot] = [from, to.snapshot.as_deref()].map(|name| encoded(name.unwrap_or_default()));
        let base = format!("/volumes/diff?name={}&from={from}&to={snapshot}", encoded(&to.volume));
        let mut offset = 0;
        loop {
            let answer = self.admin.get(&format!("{base}&offset={offset}"))?;
            let answer = finished(&self.admin, answer)?;
            let found = list(&answer, "extents");
            if !found.is_empty() || self.output.is_json() {
                self.output.write(super::extents(found), &answer)?;
            }
            let end = |of: &Value| of["offset"].as_u64()?.checked_add(of["bytes"].as_u64()?);
            match found.last().and_then(end) {
                Some(end) if answer["more"] == true && end > offset => offset = end,
                _ => return Ok(()),
            }
        }
    }

    pub(super) fn job(&self, number: u64) -> Result<(), Failure> {
        let answer = followed(&self.admin, number)?;
        self.output.write(format!("job {number} is done"), &answer)
    }
}

/// Returns the failure of a command that would lose data and was not confirmed.
fn unchanged(name: &str, why: &str) -> Failure {
    Failure::usage(format!("{name} is unchanged: {why}"))
}

/// The wait between two polls of a job.
const STEP: Duration = Duration::from_millis(300);

/// Returns `answer` or, if it names a job, the result of the job.
///
/// # Errors
/// Returns an error if the job fails, or a signal ends the wait, in which case the job continues.
fn finished(admin: &Admin, answer: Value) -> Result<Value, Failure> {
    match answer["job"].as_u64() {
        Some(job) => followed(admin, job),
        None => Ok(answer),
    }
}

/// Waits for a job. Returns its result.
///
/// # Errors
/// Returns the errors of [`finished`], or an error if there is no such job.
fn followed(admin: &Admin, job: u64) -> Result<Value, Failure> {
    let interrupt = Interrupt::watch()?;
    let mut progress = Progress::of_steps();
    loop {
        let mut answer = admin.get(&format!("/volumes/job?id={job}"))?;
        match answer["state"].as_str() {
            Some("done") => return Ok(answer["result"].take()),
            Some("failed") => {
                let text = line_of(answer["error"].as_str().unwrap_or("the job failed"));
                let status = answer["status"].as_u64().and_then(|status| u16::try_from(status).ok());
                return Err(Failure::refused(admin.url(), status.unwrap_or(500), text));
            }
            Some("running") => {
                let [done, total] = ["done", "total"].map(|key| answer[key].as_u64().unwrap_or(0));
                progress.reach(done, total);
            }
            _ => {
                let text = format!("job {job} has a state that this program does not know");
                return Err(Failure::admin(admin.url(), None, text));
            }
        }
        interrupt.sleep(STEP).map_err(|failure| {
            failure.leaves(format!("the server continues: `cachectl volume job {job}` waits for it again"))
        })?;
    }
}
