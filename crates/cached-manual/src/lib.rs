//! Generates a program's manual pages and shell completions from its [`clap::Command`], and the page
//! of its configuration file from the comments of the shipped file.
//!
//! A program calls [`written_on_request`] first. With the arguments `--generate-manual DIR [FILE]`,
//! and with no others, it writes its pages and completions and exits. The option is not shown in any
//! help, because packages are its only users:
//!
//! ```text
//! DIR/man/NAME.1, DIR/man/NAME-SUBCOMMAND.1   manual pages
//! DIR/man/FILE.5                              the page of a configuration file
//! DIR/bash/NAME, DIR/zsh/_NAME, DIR/fish/NAME.fish
//! ```

mod configuration;

use clap::Command;
use clap_complete::Shell;
use std::ffi::OsString;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::{fs, io};

/// The option that generates pages and completions.
pub const OPTION: &str = "--generate-manual";

/// The exit status if a file could not be written (`EX_IOERR`).
const NOT_WRITTEN: u8 = 74;

/// If the arguments of this process are [`OPTION`], a directory, and possibly a configuration file,
/// writes pages and completions and returns the exit status. Returns `None` if the program has to
/// run as usual.
pub fn written_on_request(command: impl FnOnce() -> Command) -> Option<ExitCode> {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let (directory, file) = match arguments.as_slice() {
        [option, directory] if option == OPTION => (Path::new(directory), None),
        [option, directory, file] if option == OPTION => (Path::new(directory), Some(Path::new(file))),
        _ => return None,
    };
    // The file is read before anything is written.
    let text = file.map(|path| fs::read_to_string(path).map_err(|error| (path, error))).transpose();
    let written = text.and_then(|text| {
        let command = command();
        let page = file.zip(text).map(|(path, text)| configuration_page(&command, path, &text));
        let all = write(command, directory).and_then(|()| {
            page.map_or(Ok(()), |(name, page)| fs::write(directory.join("man").join(name), page))
        });
        all.map_err(|error| (directory, error))
    });
    match written {
        Ok(()) => Some(ExitCode::SUCCESS),
        Err((path, error)) => {
            // If nobody can read this, the exit status still reports the failure.
            let _ = writeln!(io::stderr(), "{OPTION} {}: {error}", path.display());
            Some(ExitCode::from(NOT_WRITTEN))
        }
    }
}

/// Returns the name and the text of the page of a program's configuration file.
fn configuration_page(command: &Command, path: &Path, text: &str) -> (String, String) {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let version = command.get_version().unwrap_or_default();
    (format!("{name}.5"), configuration::page(command.get_name(), version, &name, text))
}

/// Writes the manual pages and completions of a program into subdirectories of a directory, which
/// are created if missing. Existing files are replaced.
///
/// # Errors
/// Fails if a directory or a file cannot be written. Earlier files have been written by then.
pub fn write(mut command: Command, directory: &Path) -> io::Result<()> {
    let name = command.get_name().to_owned();
    // Pages about `help` and its subcommands would repeat the others. In completions, `help`
    // belongs to its command.
    let without_help = command.clone().disable_help_subcommand(true);
    let folder = |part: &str| {
        let path = directory.join(part);
        fs::create_dir_all(&path).map(|()| path)
    };
    for (shell, part) in [(Shell::Bash, "bash"), (Shell::Zsh, "zsh"), (Shell::Fish, "fish")] {
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut command, &name, &mut text);
        // Each shell looks for its completions under one of these names.
        let file = match shell {
            Shell::Zsh => format!("_{name}"),
            Shell::Fish => format!("{name}.fish"),
            _ => name.clone(),
        };
        fs::write(folder(part)?.join(file), text)?;
    }
    clap_mangen::generate_to(without_help, folder("man")?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Arg, Command};

    fn example() -> Command {
        let put = Command::new("put").about("Stores").arg(Arg::new("name").help("The object"));
        Command::new("example").version("1.2").arg(Arg::new("json").long("json")).subcommand(put)
    }

    #[test]
    fn every_page_and_completion_is_written() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        write(example(), dir.path()).expect("a directory that can be written");
        for file in
            ["man/example.1", "man/example-put.1", "bash/example", "zsh/_example", "fish/example.fish"]
        {
            let text = fs::read_to_string(dir.path().join(file)).expect(file);
            assert!(text.contains("put"), "{file}:\n{text}");
        }
        assert!(!dir.path().join("man/example-help.1").exists());
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_an_error() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        assert!(write(example(), file.path()).is_err());
    }
}
