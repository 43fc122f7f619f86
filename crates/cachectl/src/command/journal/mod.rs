//! `journal`: what an operator does with a journal that no process has open. Like `fsck`, it opens no
//! backend but the one that `export` fills.

mod export;
mod inspect;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use cached_journal::disk::RealDisk;
use cached_journal::{Corruption, DiskError, OpenError, tools};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::exit::Failure;
use crate::output::Output;

#[derive(Args)]
pub(crate) struct Journal {
    #[command(subcommand)]
    command: JournalCommand,
}

#[derive(Subcommand)]
enum JournalCommand {
    /// Make an empty journal, which a start does not do by itself unless create = true.
    ///
    /// The directory is made with its parents if it is missing, and must be empty otherwise. What root makes belongs to
    /// the directory's owner.
    Init(Directory),
    /// Show what a journal consists of, and what the next start would replay.
    ///
    /// Reads the heads of all records, changes nothing. The verdict is the last line: whether the next start
    /// takes the journal, or why it refuses it.
    Inspect(Directory),
    /// Read a whole journal, payloads included, and list everything that is damaged.
    ///
    /// One line for each place, with file and byte. Changes nothing.
    Verify(Directory),
    /// Save what is readable, also of a damaged journal, as objects of an empty store.
    ///
    /// Applies the records to the store in their order: of each object it then has what the journal has, and
    /// zeros between. A line for each object lists the ranges that come from the journal, so that they can be
    /// merged into the object of the cache's own store. Changes nothing in the journal.
    Export(export::Export),
    /// Remove a journal with all its records: acknowledged changes that are not stored are lost.
    ///
    /// An empty journal is left, which the next start uses. Export first what may still be needed. Journals that a start
    /// has kept aside, as overtaken-1, stay.
    Discard(Discard),
}

#[derive(Args)]
struct Directory {
    /// The journal's directory. No process may have it open.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

#[derive(Args)]
struct Discard {
    #[command(flatten)]
    directory: Directory,
    /// Yes, discard the records.
    #[arg(long)]
    yes: bool,
}

/// Whether all is in order, or why that could not be found out.
type Verdict = Result<bool, Failure>;

impl Journal {
    /// Exit codes: 0 in order, 1 damaged, 2 it could not be read.
    pub(crate) fn run(&self, output: &Output) -> ExitCode {
        let verdict = match &self.command {
            JournalCommand::Init(Directory { directory }) => init(directory, output),
            JournalCommand::Inspect(Directory { directory }) => inspect::run(directory, output),
            JournalCommand::Verify(Directory { directory }) => verify(directory, output),
            JournalCommand::Export(export) => export.run(output),
            JournalCommand::Discard(discard) => discard.run(output),
        };
        match verdict {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::from(1),
            Err(failure) => {
                output.failure(&failure);
                failure.code_or(2)
            }
        }
    }
}

fn init(directory: &Path, output: &Output) -> Verdict {
    let shown = directory.display();
    std::fs::create_dir_all(directory).map_err(Failure::io(shown.to_string()))?;
    let disk = RealDisk::open(directory, false).map_err(Failure::io(shown.to_string()))?;
    tools::init(&disk).map_err(|error| match error {
        OpenError::Disk(DiskError { error, .. }) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            Failure::Usage(format!("{shown} has a journal already"))
        }
        error => failure(directory, error),
    })?;
    output.write(format!("{shown} is an empty journal by now"), &json!({}))?;
    Ok(true)
}

/// Opens a directory that has to hold a journal, to read it.
fn open(directory: &Path) -> Result<RealDisk, Failure> {
    check_is_journal(directory)?;
    Ok(RealDisk::read_only(directory))
}

/// Checks that a directory holds a journal: nothing is made or removed in any other.
fn check_is_journal(directory: &Path) -> Result<(), Failure> {
    let shown = directory.display();
    if !directory.is_dir() {
        return Err(Failure::Usage(format!("{shown} is no directory")));
    }
    // Segments without a superblock are what is left of a journal.
    let is_own = |name: &str| ["journal", "discarded"].contains(&name) || name.starts_with("segment-");
    let entries = std::fs::read_dir(directory).map_err(Failure::io(shown.to_string()))?;
    let mut has_journal = false;
    for entry in entries {
        let name = entry.map_err(Failure::io(shown.to_string()))?.file_name();
        has_journal |= is_own(&name.to_string_lossy());
    }
    if !has_journal {
        let text = format!(
            "{shown} holds no journal: name the directory under [objects.journal] of the configuration"
        );
        return Err(Failure::Usage(text));
    }
    Ok(())
}

/// Returns why a tool could not read a journal, as a line that names the directory.
fn failure(directory: &Path, error: OpenError) -> Failure {
    let shown = directory.display();
    Failure::Unread(match error {
        OpenError::Locked => format!("{shown} is in use: a process has the journal open; stop it first"),
        OpenError::Corrupt(corruption) => format!("{shown}: {corruption}"),
        OpenError::Disk(error) => format!("{shown} could not be read: {error}"),
        error => format!("{shown}: {error}"),
    })
}

/// Writes a place that is damaged.
fn write_damage(output: &Output, corruption: &Corruption) -> Result<(), Failure> {
    output.write(format!("damage: {corruption}"), &damage_value(corruption))
}

fn damage_value(Corruption { file, offset, reason }: &Corruption) -> Value {
    json!({ "file": file, "offset": offset, "reason": reason })
}

fn verify(directory: &Path, output: &Output) -> Verdict {
    let damaged = tools::verify(&open(directory)?).map_err(|error| failure(directory, error))?;
    for corruption in &damaged {
        write_damage(output, corruption)?;
    }
    let text = match damaged.len() {
        0 => "every batch and payload is as it was written".to_owned(),
        1 => "1 place is damaged; export saves what is readable".to_owned(),
        count => format!("{count} places are damaged; export saves what is readable"),
    };
    output.write(text, &json!({ "damaged": damaged.len() }))?;
    Ok(damaged.is_empty())
}

impl Discard {
    fn run(&self, output: &Output) -> Verdict {
        let directory = &self.directory.directory;
        let disk = open(directory)?;
        let shown = directory.display();
        if !self.yes {
            let lost = match tools::inspect(&disk) {
                Ok(tools::Inspection { records: Some(0), cut_off: None, .. }) => {
                    "it has no record to replay".to_owned()
                }
                Ok(tools::Inspection { records: Some(records), payload_bytes, .. }) => {
                    format!("{records} records, {} bytes, would be lost", payload_bytes.unwrap_or(0))
                }
                Ok(_) | Err(OpenError::Corrupt(_)) => {
                    "it is damaged, and what it still has would be lost".to_owned()
                }
                Err(error) => return Err(failure(directory, error)),
            };
            let text = format!("{shown} is kept: {lost}; --yes discards it (export saves it first)");
            return Err(Failure::Usage(text));
        }
        // Buffered: the tools work on any file system.
        let disk = RealDisk::open(directory, false).map_err(Failure::io(shown.to_string()))?;
        tools::discard(&disk).map_err(|error| failure(directory, error))?;
        output.write(format!("{shown} is an empty journal by now"), &json!({}))?;
        Ok(true)
    }
}
