//! Commands to a server about its volumes, sent to its admin listener.

use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};

use crate::admin::{Admin, encoded, line_of, list};
use crate::command::Call;
use crate::command::volume::name::{
    Setting, SnapshotName, Source, shown_size, size, snapshot_name, volume_name,
};
use crate::output::{Failure, Interrupt, Output, Progress};

#[derive(Args)]
pub(crate) struct Create {
    #[command(flatten)]
    name: Name,
    /// Its size: bytes, or 512M, 20G, 1T.
    #[arg(value_parser = size)]
    size: u64,
    /// Settings: is_read_only=true, write=back (through, around), quota_bytes_max=40G,
    /// object_bytes=4M, and those of `volume set`.
    #[arg(value_name = "KEY=VALUE")]
    settings: Vec<Setting>,
}

#[derive(Args)]
pub(crate) struct Name {
    /// The name of the volume.
    #[arg(value_name = "VOLUME", value_parser = volume_name)]
    pub(super) name: String,
}

#[derive(Args)]
pub(crate) struct Clone {
    /// The snapshot, or the volume as it is now.
    #[arg(value_name = "VOLUME[@SNAPSHOT]")]
    source: Source,
    /// The name of the new volume.
    #[arg(value_name = "NAME", value_parser = volume_name)]
    name: String,
}

#[derive(Args)]
pub(crate) struct Resize {
    #[command(flatten)]
    name: Name,
    /// The new size: bytes, or 512M, 20G, 1T.
    #[arg(value_parser = size)]
    size: u64,
    /// Yes, make it smaller: what lies beyond the new end is lost.
    #[arg(long)]
    yes: bool,
}

#[derive(Args)]
pub(crate) struct Set {
    #[command(flatten)]
    name: Name,
    /// Settings: is_read_only=true, write=back (through, around, none), quota_bytes_max=40G (none);
    /// store_requests_per_second_max=500, store_bytes_per_second_max=50M, store_burst_ms=1000
    /// (none).
    #[arg(value_name = "KEY=VALUE", required = true)]
    settings: Vec<Setting>,
}

#[derive(Args)]
pub(crate) struct Snapshot {
    /// The snapshot to make.
    #[arg(value_name = "VOLUME@SNAPSHOT")]
    snapshot: SnapshotName,
    /// Further volumes that get the snapshot at the same instant.
    #[arg(value_name = "VOLUME", value_parser = volume_name)]
    more: Vec<String>,
}

#[derive(Args)]
pub(crate) struct DeleteSnapshot {
    /// The snapshot to delete.
    #[arg(value_name = "VOLUME@SNAPSHOT")]
    snapshot: SnapshotName,
    /// Yes, delete it.
    #[arg(long)]
    yes: bool,
}

#[derive(Args)]
pub(crate) struct Rollback {
    /// The snapshot that the volume becomes again.
    #[arg(value_name = "VOLUME@SNAPSHOT")]
    snapshot: SnapshotName,
    /// Yes, drop the data written since.
    #[arg(long)]
    yes: bool,
}

#[derive(Args)]
pub(crate) struct Delete {
    #[command(flatten)]
    name: Name,
    /// Yes, delete it with its snapshots.
    #[arg(long)]
    yes: bool,
    /// Delete it even if its map is damaged, by listing its objects. No other host may have it.
    #[arg(long)]
    damaged: bool,
}

#[derive(Args)]
pub(crate) struct HandOver {
    #[command(flatten)]
    name: Name,
    /// The owner that is to have it: `owner` in [volumes] of its configuration, or the name of its
    /// host.
    #[arg(value_name = "OWNER")]
    to: String,
}

#[derive(Args)]
pub(crate) struct TakeOver {
    #[command(flatten)]
    name: Name,
    /// Yes, its owner is gone.
    #[arg(long)]
    yes: bool,
}

#[derive(Args)]
pub(crate) struct Check {
    /// Remove what operations that were cut short have left.
    #[arg(long)]
    repair: bool,
}

#[derive(Args)]
pub(crate) struct Diff {
    /// The volume as it is now, or a snapshot of it.
    #[arg(value_name = "VOLUME[@SNAPSHOT]")]
    to: Source,
    /// The snapshot to compare with; without it, everything that was ever written is listed.
    #[arg(long, value_name = "SNAPSHOT", value_parser = snapshot_name)]
    from: Option<String>,
}

#[derive(Args)]
pub(crate) struct Job {
    /// The number of the job, as a command that was interrupted names it.
    #[arg(value_name = "NUMBER")]
    number: u64,
}

/// A server's admin listener, and the destination of the result.
pub(super) struct Server<'a> {
    admin: Admin,
    output: &'a Output,
}

impl<'a> Server<'a> {
    pub(super) fn new(call: &Call<'a>) -> Result<Self, Failure> {
        Ok(Self { admin: call.admin()?, output: call.output })
    }

    /// Requests a change, and waits for its completion.
    fn change(&self, path: &str, body: &Value) -> Result<Value, Failure> {
        finished(&self.admin, self.admin.post(path, body)?)
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
            self.output.write(super::volumes(&answer), &answer)?;
        }
        match damaged {
            0 => Ok(()),
            count => Err(Failure::problems(count, true)),
        }
    }

    pub(super) fn show(&self, Name { name }: &Name) -> Result<(), Failure> {
        let answer = self.volume(name)?;
        self.output.write(super::volume(&answer), &answer)
    }

    pub(super) fn create(&self, create: &Create) -> Result<(), Failure> {
        let Create { name: Name { name }, size, settings } = create;
        let body = json!({ "name": name, "size_bytes": size, "settings": Setting::values(settings) });
        let answer = self.change("/volumes/create", &body)?;
        self.output.write(format!("{name} is a volume of {}", shown_size(*size)), &answer)
    }

    pub(super) fn clone_volume(&self, Clone { source, name }: &Clone) -> Result<(), Failure> {
        let body = json!({ "source": source.volume, "snapshot": source.snapshot, "name": name });
        let answer = self.change("/volumes/clone", &body)?;
        self.output.write(format!("{name} is a clone of {}", source.shown()), &answer)
    }

    pub(super) fn resize(&self, Resize { name: Name { name }, size, yes }: &Resize) -> Result<(), Failure> {
        if !yes {
            let has = self.volume(name)?["size_bytes"].as_u64().unwrap_or(0);
            if *size < has {
                let (has, lost) = (shown_size(has), shown_size(has - size));
                return Err(kept(
                    name,
                    &format!("it has {has}, and the last {lost} would be lost; --yes cuts it"),
                ));
            }
        }
        let body = json!({ "name": name, "size_bytes": size, "shrink": yes });
        let answer = self.change("/volumes/resize", &body)?;
        self.output.write(format!("{name} has {}", shown_size(*size)), &answer)
    }

    pub(super) fn set(&self, Set { name: Name { name }, settings }: &Set) -> Result<(), Failure> {
        let body = json!({ "name": name, "settings": Setting::values(settings) });
        let answer = self.change("/volumes/set", &body)?;
        self.output.write(format!("{name} is set"), &answer)
    }

    pub(super) fn snapshot(&self, Snapshot { snapshot, more }: &Snapshot) -> Result<(), Failure> {
        let SnapshotName { volume, snapshot } = snapshot;
        let volumes: Vec<&String> = std::iter::once(volume).chain(more).collect();
        let body = json!({ "volumes": volumes, "snapshot": snapshot });
        let answer = self.change("/volumes/snapshot", &body)?;
        let made: Vec<String> = volumes.iter().map(|volume| format!("{volume}@{snapshot}")).collect();
        let text = if made.len() == 1 { "is made" } else { "are made, of one instant" };
        self.output.write(format!("{} {text}", made.join(", ")), &answer)
    }

    pub(super) fn delete_snapshot(&self, delete: &DeleteSnapshot) -> Result<(), Failure> {
        let SnapshotName { volume, snapshot } = &delete.snapshot;
        if !delete.yes {
            let shown = format!("{volume}@{snapshot}");
            return Err(kept(&shown, "what it alone has would be lost; --yes deletes it"));
        }
        let body = json!({ "name": volume, "snapshot": snapshot });
        let answer = self.change("/volumes/delete-snapshot", &body)?;
        self.output.write(format!("{volume}@{snapshot} is deleted"), &answer)
    }

    pub(super) fn rollback(&self, Rollback { snapshot, yes }: &Rollback) -> Result<(), Failure> {
        let SnapshotName { volume, snapshot } = snapshot;
        if !yes {
            let why = format!("what was written since {snapshot} would be lost; --yes rolls it back");
            return Err(kept(volume, &why));
        }
        let body = json!({ "name": volume, "snapshot": snapshot });
        let answer = self.change("/volumes/rollback", &body)?;
        self.output.write(format!("{volume} is what it was: {volume}@{snapshot}"), &answer)
    }

    pub(super) fn flatten(&self, Name { name }: &Name) -> Result<(), Failure> {
        let answer = self.change("/volumes/flatten", &json!({ "name": name }))?;
        self.output.write(format!("{name} depends on no other volume"), &answer)
    }

    pub(super) fn delete(
        &self,
        Delete { name: Name { name }, yes, damaged }: &Delete,
    ) -> Result<(), Failure> {
        if !yes && *damaged {
            return Err(kept(name, "all that it has would be lost; --yes deletes it"));
        }
        if !yes {
            let of = self.volume(name)?;
            let size = shown_size(of["size_bytes"].as_u64().unwrap_or(0));
            let snapshots = match list(&of, "snapshots").len() {
                0 => String::new(),
                1 => " and its snapshot".to_owned(),
                count => format!(" and its {count} snapshots"),
            };
            return Err(kept(name, &format!("its {size}{snapshots} would be lost; --yes deletes it")));
        }
        // A server from before this option existed refuses the key.
        let body = if *damaged { json!({ "name": name, "damaged": true }) } else { json!({ "name": name }) };
        let answer = self.change("/volumes/delete", &body)?;
        self.output.write(format!("{name} is deleted"), &answer)
    }

    pub(super) fn detach(&self, Name { name }: &Name) -> Result<(), Failure> {
        let answer = self.change("/volumes/detach", &json!({ "name": name }))?;
        self.output.write(format!("{name} is stored and given up: another host may take it"), &answer)
    }

    pub(super) fn hand_over(&self, HandOver { name: Name { name }, to }: &HandOver) -> Result<(), Failure> {
        let answer = self.change("/volumes/hand-over", &json!({ "name": name, "to": to }))?;
        self.output.write(format!("{name} is stored and handed over to {}", line_of(to)), &answer)
    }

    pub(super) fn take_over(&self, TakeOver { name: Name { name }, yes }: &TakeOver) -> Result<(), Failure> {
        if !yes {
            let owner = match self.volume(name)?["owner"].as_str() {
                Some(owner) => format!("{} has it; if that is gone, --yes takes it over", line_of(owner)),
                None => "it has no owner; the next server that opens it takes it".to_owned(),
            };
            return Err(kept(name, &owner));
        }
        let answer = self.change("/volumes/take-over", &json!({ "name": name }))?;
        self.output.write(format!("{name} is taken over, and has no owner"), &answer)
    }

    pub(super) fn check(&self, Check { repair }: &Check) -> Result<(), Failure> {
        let answer = self.change("/volumes/check", &json!({ "repair": repair }))?;
        self.output.write(super::report(&answer), &answer)?;
        match super::problems(&answer) {
            (0, false) => Ok(()),
            (count, is_loss) => Err(Failure::problems(count, is_loss)),
        }
    }

    /// Lists a difference, page by page.
    pub(super) fn diff(&self, Diff { to, from }: &Diff) -> Result<(), Failure> {
        let [from, snapshot] = [from, &to.snapshot].map(|name| encoded(name.as_deref().unwrap_or_default()));
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

    pub(super) fn job(&self, Job { number }: &Job) -> Result<(), Failure> {
        let answer = followed(&self.admin, *number)?;
        self.output.write(format!("job {number} is done"), &answer)
    }
}

/// Returns the failure of a command that would lose data and was not confirmed.
fn kept(name: &str, why: &str) -> Failure {
    Failure::usage(format!("{name} is kept as it is: {why}"))
}

/// The wait between two polls of a job.
const STEP: Duration = Duration::from_millis(300);

/// Returns `answer` or, if it names a job, the result of the job.
///
/// # Errors
/// The job fails, or a signal ends the wait, in which case the job continues.
fn finished(admin: &Admin, answer: Value) -> Result<Value, Failure> {
    match answer["job"].as_u64() {
        Some(job) => followed(admin, job),
        None => Ok(answer),
    }
}

/// Waits for a job. Returns its result.
///
/// # Errors
/// As for [`finished`], or if there is no such job.
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
                let text = format!("job {job} has no state that is known here");
                return Err(Failure::admin(admin.url(), None, text));
            }
        }
        interrupt.sleep(STEP).map_err(|failure| {
            failure.leaves(format!("the server goes on: `cachectl volume job {job}` waits for it again"))
        })?;
    }
}
