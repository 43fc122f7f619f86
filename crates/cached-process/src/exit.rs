//! The exit statuses of `cached` and `synapsed`, in one table, and failures with an exit status.
//!
//! `docs/configuration.md` contains the table, the manual pages are generated from it, and
//! `RestartPreventExitStatus=` of the service units lists the statuses after which another start
//! would fail too. A test compares all of them.

use std::fmt;
use std::process::ExitCode;

/// The reason why a program exits abnormally, as an exit status. The statuses follow `sysexits.h`,
/// which service managers know by name, and memcached for its flags.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Exit {
    /// An invalid value of one of memcached's flags; memcached uses this status for most of them.
    FlagValue = 1,
    /// Invalid flags: `EX_USAGE`.
    Usage = 64,
    /// The user does not exist: `EX_NOUSER`.
    NoUser = 67,
    /// A bug: `EX_SOFTWARE`.
    Defect = 70,
    /// Another program uses a resource that the start needs, or the system denies it: `EX_OSERR`.
    Refused = 71,
    /// Acknowledged data could not be stored: `EX_IOERR`.
    NotStored = 74,
    /// A failure of the system, a disk or the network that may be temporary: `EX_TEMPFAIL`.
    Trouble = 75,
    /// A mistake in the configuration: `EX_CONFIG`.
    Configuration = 78,
}

impl Exit {
    /// All statuses, in ascending order.
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

    /// Returns the exit status as a number.
    #[must_use]
    pub fn status(self) -> u8 {
        self as u8
    }

    /// Returns the status's meaning, in the words of the documents and the manual pages.
    #[must_use]
    pub fn meaning(self) -> &'static str {
        match self {
            Exit::FlagValue => {
                "the value of a flag, or a file of passwords that a flag names, cannot be used"
            }
            Exit::Usage => "the flags cannot work",
            Exit::NoUser => "the user that -u names does not exist",
            Exit::Defect => "a defect has ended the process; all acknowledged data are stored",
            Exit::Refused => {
                "an address, a lock or memory that the start needs is in use or refused, a store or a journal is \
                 missing, or the store is damaged or refuses this program"
            }
            Exit::NotStored => "acknowledged data are not stored",
            Exit::Trouble => "the system, a disk or the network has failed in a way that may pass",
            Exit::Configuration => {
                "the configuration cannot work, a file that it names cannot be used, or the journal is damaged"
            }
        }
    }

    /// Returns whether another start may succeed without any change.
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

/// The reason why a program exits: its last line of output, and the exit status.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    exit: Exit,
    line: String,
}

impl Failure {
    /// Returns a failure that exits with this status after printing this line.
    pub fn new(exit: Exit, line: impl fmt::Display) -> Failure {
        Failure { exit, line: line.to_string() }
    }

    /// Returns this failure, preceded by the line `line` of an earlier failure.
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
    use std::collections::BTreeSet;

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

    /// The page about failures has a row for each status with which a start can end.
    #[test]
    fn the_page_about_failures_says_where_the_units_retry() {
        let page = repository("docs/operations/mend.md");
        let rows = page.lines().filter_map(|line| line.strip_prefix("| start ends with "));
        let mut found = BTreeSet::new();
        for row in rows {
            let (statuses, rest) = row.split_once('|').expect("a row has cells");
            let retries = rest.contains("the units retry");
            let statuses = statuses.split(|c: char| !c.is_ascii_digit());
            for status in statuses.filter_map(|word| word.parse::<u8>().ok()) {
                let exit = Exit::ALL.into_iter().find(|exit| exit.status() == status);
                let exit = exit.unwrap_or_else(|| panic!("{status} is no exit status: {row}"));
                assert_eq!(
                    exit.may_pass(),
                    retries,
                    "left: the program, right: docs/operations/mend.md: {row}"
                );
                found.insert(status);
            }
        }
        // The other statuses end a running program.
        let all = Exit::ALL.map(Exit::status).into_iter();
        let at_start: BTreeSet<u8> = all.filter(|status| ![70, 74].contains(status)).collect();
        assert_eq!(found, at_start, "left: docs/operations/mend.md");
    }

    #[test]
    fn the_units_start_the_programs_again_where_that_may_help() {
        let never: Vec<String> = Exit::ALL
            .into_iter()
            .filter(|exit| !exit.may_pass())
            .map(|exit| exit.status().to_string())
            .collect();
        for unit in ["deploy/cached.service", "deploy/cached@.service", "deploy/synapsed.service"] {
            let text = repository(unit);
            for line in [
                format!("RestartPreventExitStatus={}", never.join(" ")),
                "Restart=on-failure".into(),
                // Without this, systemd would give up after five failed starts.
                "StartLimitIntervalSec=0".into(),
            ] {
                assert!(text.lines().any(|found| found == line), "{unit} lacks {line}");
            }
        }
    }
}
