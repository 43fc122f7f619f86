//! The exit statuses of `cached` and `synapsed`, in one table, and the failures that end in one.
//!
//! `docs/configuration.md` has the table, the manual pages are made of it, and `RestartPreventExitStatus=` of the
//! service units names the statuses after which another start would fail as well; a test compares all of them.

use std::fmt;
use std::process::ExitCode;

/// Why a program has ended other than in order, as its exit status states it: after `sysexits.h`, which service
/// managers know by name, and after memcached for its flags.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Exit {
    /// A value of one of memcached's flags, as memcached ends for most of them.
    FlagValue = 1,
    /// Flags that cannot work: `EX_USAGE`.
    Usage = 64,
    /// There is no such user: `EX_NOUSER`.
    NoUser = 67,
    /// A bug: `EX_SOFTWARE`.
    Defect = 70,
    /// Something else has what the start needs, or keeps it from this program: `EX_OSERR`.
    Refused = 71,
    /// Acknowledged data could not be stored: `EX_IOERR`.
    NotStored = 74,
    /// A failure of the system, a disk or the network that may pass: `EX_TEMPFAIL`.
    Trouble = 75,
    /// A mistake in the configuration: `EX_CONFIG`.
    Configuration = 78,
}

impl Exit {
    /// All of them, by number.
    pub const ALL: [Exit; 8] = [
        Exit::FlagValue,
        Exit::Usage,
        Exit::NoUser,
        Exit::Defect,
        Exit::Refused,
        Exit::NotStored,
        Exit::Trouble,
        Exit::Configuration,
    ];

    /// Returns the number with which the process ends.
    #[must_use]
    pub fn status(self) -> u8 {
        self as u8
    }

    /// Returns what it means, as the documents and the manual pages state it.
    #[must_use]
    pub fn meaning(self) -> &'static str {
        match self {
            Exit::FlagValue => {
                "the value of a flag, or a file of passwords that a flag names, cannot be used"
            }
            Exit::Usage => "the flags cannot work",
            Exit::NoUser => "there is no such user as -u names",
            Exit::Defect => "a defect has ended the process; all acknowledged data are stored",
            Exit::Refused => {
                "an address, a lock or memory that the start needs is in use or refused, a store or a journal is not \
                 there, or the store is damaged or refuses this program"
            }
            Exit::NotStored => "acknowledged data are not stored",
            Exit::Trouble => "the system, a disk or the network has failed in a way that may pass",
            Exit::Configuration => {
                "the configuration cannot work, a file that it names cannot be used, or the journal is damaged"
            }
        }
    }

    /// Returns whether another start may succeed although nobody has changed anything.
    #[must_use]
    pub fn may_pass(self) -> bool {
        match self {
            Exit::FlagValue | Exit::Usage | Exit::NoUser | Exit::Configuration => false,
            Exit::Defect | Exit::Refused | Exit::NotStored | Exit::Trouble => true,
        }
    }

    /// Returns a sentence with all statuses, for manual pages.
    #[must_use]
    pub fn summary() -> String {
        let others = Exit::ALL.map(|exit| format!("{}, {}", exit.status(), exit.meaning()));
        format!("Exit status: 0, all acknowledged data are stored; {}.", others.join("; "))
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit.status())
    }
}

/// Why a program ends: what it says last, in one line, and the exit status.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    exit: Exit,
    line: String,
}

impl Failure {
    /// Returns a failure that ends the process with this status after this line.
    pub fn new(exit: Exit, line: impl fmt::Display) -> Failure {
        Failure { exit, line: line.to_string() }
    }

    /// Returns this failure after an earlier one, `line`.
    #[must_use]
    pub fn after(self, line: &str) -> Failure {
        Failure { line: format!("{line}\n{}", self.line), ..self }
    }

    /// Returns the exit status.
    #[must_use]
    pub fn exit(&self) -> Exit {
        self.exit
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.line)
    }
}

impl std::error::Error for Failure {}

#[cfg(test)]
mod tests {
    use super::*;

    fn repository(path: &str) -> String {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../");
        std::fs::read_to_string(format!("{root}{path}")).expect(path)
    }

    #[test]
    fn the_document_has_the_table() {
        let row = |exit: Exit| {
            let restart = if exit.may_pass() { "may succeed" } else { "fails as well" };
            format!("| {} | {} | {restart} |", exit.status(), exit.meaning())
        };
        let document = repository("docs/configuration.md");
        let found = document.lines().skip_while(|line| !line.starts_with("| exit status |")).skip(3);
        let found: Vec<&str> = found.take_while(|line| line.starts_with('|')).collect();
        assert_eq!(found, Exit::ALL.map(row), "left: docs/configuration.md");
    }

    #[test]
    fn the_units_start_the_programs_again_where_that_may_help() {
        let never: Vec<String> = Exit::ALL
            .into_iter()
            .filter(|exit| !exit.may_pass())
            .map(|exit| exit.status().to_string())
            .collect();
        for unit in ["deploy/cached.service", "deploy/synapsed.service"] {
            let text = repository(unit);
            for line in [
                format!("RestartPreventExitStatus={}", never.join(" ")),
                "Restart=on-failure".into(),
                // Else five starts that meet the same trouble would be the last ones.
                "StartLimitIntervalSec=0".into(),
            ] {
                assert!(text.lines().any(|found| found == line), "{unit} lacks {line}");
            }
        }
    }
}
