//! The output of `-h`, `-i` and `-V`.

use super::Cli;
use cached_memcached::settings::MEMCACHED_VERSION;
use cached_process::Exit;
use clap::{Arg, Command, CommandFactory};

/// Returns the output of `-V`; clients and tools parse its second word.
pub fn version_text() -> String {
    format!("memcached {MEMCACHED_VERSION} (cached {})\n", env!("CARGO_PKG_VERSION"))
}

/// Returns the output of `-i`.
pub fn license_text() -> String {
    format!("{}\ncached is licensed under MIT or Apache-2.0, at your choice.\n", version_text())
}

/// Returns the output of `-h`.
pub fn help_text() -> String {
    let mut text = version_text();
    for arg in command().get_arguments().filter(|arg| !arg.is_hide_set()) {
        let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
        let mut paragraphs = help.split("\n\n");
        push_entry(&mut text, &names(arg), paragraphs.next().unwrap_or_default());
        for paragraph in paragraphs {
            let (name, rest) = paragraph.split_once(": ").unwrap_or(("", paragraph));
            match name.starts_with("- ") {
                true => push_entry(&mut text, &format!("   {name}:"), rest),
                false => push_entry(&mut text, "", paragraph),
            }
        }
    }
    text
}

/// Returns the names of a flag and of its value: `-p, --port=<num>`.
fn names(arg: &Arg) -> String {
    let value = match arg.get_value_names() {
        Some([name, ..]) if arg.get_action().takes_values() => format!("<{name}>"),
        _ => String::new(),
    };
    match (arg.get_short(), arg.get_long()) {
        (Some(short), None) => format!("-{short} {value}"),
        (short, long) => {
            let short = short.map_or("    ".into(), |short| format!("-{short}, "));
            let equals = if value.is_empty() { "" } else { "=" };
            format!("{short}--{}{equals}{value}", long.unwrap_or_default())
        }
    }
}

/// Appends names and, in a column next to them, a description.
fn push_entry(text: &mut String, names: &str, help: &str) {
    const COLUMN: usize = 26;
    const WIDTH: usize = 110;
    let mut line = format!("{names:<width$}", width = COLUMN - 1);
    for word in help.split_whitespace() {
        if line.len() + 1 + word.len() > WIDTH {
            text.push_str(&line);
            text.push('\n');
            line = " ".repeat(COLUMN - 1);
        }
        line.push(' ');
        line.push_str(word);
    }
    text.push_str(&line);
    text.push('\n');
}

/// Returns the command line, for manual pages and shell completions.
pub fn command() -> Command {
    Cli::command()
        .version(env!("CARGO_PKG_VERSION"))
        .about("A cache server that any memcached client uses, and a cache of objects in front of slow stores")
        .override_usage("cached [FLAGS]")
        .after_long_help(format!(
            "The flags are memcached's. With any flag and no -l the server listens on all interfaces, without any \
             flag on 127.0.0.1. SIGTERM and SIGINT end it in order: it answers the requests that it has received, \
             and stores dirty objects. SIGHUP reloads the configuration. SIGUSR2 starts the program at its path, \
             which takes over sockets, memory file and connections; if that fails, the running process continues.\n\n{}",
            Exit::summary()
        ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_parsable() {
        assert_eq!(version_text().split(' ').nth(1), Some("1.6.45"));
    }

    #[test]
    fn only_what_works_is_named() {
        let help = help_text().to_lowercase();
        for works in [
            "unix-socket",
            "shutdown",
            "--pidfile",
            "idle_timeout",
            "--daemon",
            "--disable-watch",
            "--enable-ssl",
            "memory-file",
        ] {
            assert!(help.contains(works), "{works}");
        }
        for missing in ["ext_path", "proxy", "drop_privileges"] {
            assert!(!help.contains(missing), "{missing}");
        }
    }

    #[test]
    fn every_flag_of_the_help_has_its_text_and_value() {
        let command = command();
        let find = |name: &str| {
            let found = command.get_arguments().find(|arg| arg.get_long() == Some(name));
            found.unwrap_or_else(|| panic!("{name}"))
        };
        let text = |name: &str| find(name).get_help().map(ToString::to_string).unwrap_or_default();
        assert_eq!(
            text("slab-growth-factor"),
            "growth factor of the size classes in reports (default: 1.25)"
        );
        assert_eq!(text("memory-limit"), "item memory in megabytes (default: 64)");
        assert!(text("listen").ends_with("and mtls: requires them"), "{}", text("listen"));
        assert_eq!(text("check-config"), "check flags and file, and start nothing");
        assert_eq!(find("port").get_value_names().map(|names| names[0].to_string()).as_deref(), Some("num"));
        assert!(!find("memory-file").is_hide_set() && find("debug-clock").is_hide_set());
        let shown = command.get_arguments().filter(|arg| !arg.is_hide_set());
        for arg in shown {
            let text = arg.get_help().map(ToString::to_string).unwrap_or_default();
            assert!(!text.is_empty(), "{arg} has no text");
        }
    }

    #[test]
    fn the_help_has_each_flag_in_a_line_with_its_text() {
        let help = help_text();
        for line in [
            "-p, --port=<num>          TCP port to listen on (default: 11211; 0: none, -1: any free one)",
            "-f, --slab-growth-factor=<num> growth factor of the size classes in reports (default: 1.25)",
            "-D <char>                 use this character as the delimiter between key prefixes and IDs in \"stats",
            "-d, --daemon              run as a daemon",
            "    --check-config        check flags and file, and start nothing",
            "   - idle_timeout:        seconds after which an idle TCP connection is closed (default: 0, never)",
        ] {
            assert!(help.lines().any(|found| found.starts_with(line)), "{line} is not in:\n{help}");
        }
        assert!(help.lines().all(|line| line.len() <= 110) && !help.contains("debug-clock"), "{help}");
    }
}
