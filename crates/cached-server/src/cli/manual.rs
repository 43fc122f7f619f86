//! The command line as manual pages and shell completions describe it: the flags of [`Cli`] with the texts of
//! `-h`. Flags that `-h` does not name (refused ones, those for tests) are hidden.

use super::{Cli, help};
use cached_process::Exit;
use clap::builder::StyledStr;
use clap::{Arg, Command, CommandFactory};

/// Returns the command line with a text for each flag that `-h` names.
pub fn command() -> Command {
    let entries = entries();
    let described = |arg: Arg| match entries.iter().find(|entry| entry.names(&arg)) {
        None => arg.hide(true),
        Some(entry) => {
            let arg = match entry.value {
                Some(value) => arg.value_name(value),
                // memcached ignores the value as well.
                None if arg.get_id() == "verbose_long" => arg.value_name("ignored"),
                None => arg,
            };
            // One paragraph for each line that stands for itself; a shell shows the first sentence.
            arg.help(StyledStr::from(entry.text[0].clone())).long_help(entry.text.join("\n\n"))
        }
    };
    Cli::command()
        .version(env!("CARGO_PKG_VERSION"))
        .about("A cache server that any memcached client uses, and a cache of objects in front of slow stores")
        .override_usage("cached [FLAGS]")
        .after_long_help(format!(
            "The flags are memcached's. With any flag and no -l the server listens on all interfaces, without any \
             flag on 127.0.0.1. SIGTERM and SIGINT end it in order: requests that were received are answered, dirty \
             objects are stored. SIGHUP reads the configuration again. SIGUSR2 starts the program at its path, which \
             takes over sockets, memory file and connections; if that fails, the running process goes on.\n\n{}",
            Exit::summary()
        ))
        .mut_args(described)
}

/// A flag in the text of `-h`.
struct Entry {
    /// `-p`, `--port`.
    flags: Vec<String>,
    /// `num`, of `--port=<num>`.
    value: Option<&'static str>,
    /// Its paragraphs; at least one.
    text: Vec<String>,
}

impl Entry {
    fn names(&self, arg: &Arg) -> bool {
        let short = arg.get_short().map(|short| format!("-{short}"));
        let long = arg.get_long().map(|long| format!("--{long}"));
        self.flags.iter().any(|flag| Some(flag) == short.as_ref() || Some(flag) == long.as_ref())
    }
}

/// Reads the text of `-h`.
fn entries() -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    for line in help::FLAGS.lines() {
        let trimmed = line.trim_start();
        let flag = line.starts_with('-') || line.starts_with("    --");
        let Some(last) = entries.last_mut() else {
            entries.extend(flag.then(|| entry(trimmed)));
            continue;
        };
        let repeated = line.starts_with("-vv");
        if flag && !repeated {
            entries.push(entry(trimmed));
        } else if repeated || trimmed.starts_with("- ") || line.starts_with("   Other") {
            last.text.push(words(trimmed));
        } else if let Some(text) = last.text.last_mut() {
            text.push(' ');
            text.push_str(trimmed);
        }
    }
    entries
}

/// Reads the first line of a flag: names and value, two spaces or the end of the value, text.
fn entry(line: &'static str) -> Entry {
    let end = match (line.find("  "), line.find("> ")) {
        (Some(spaces), Some(value)) => spaces.min(value + 1),
        (Some(end), None) => end,
        (None, Some(value)) => value + 1,
        (None, None) => line.len(),
    };
    let (names, text) = line.split_at(end);
    let value = names.split_once('<').map(|(_, value)| value.trim_end_matches('>'));
    let names = names.split_once('<').map_or(names, |(names, _)| names);
    let flags = names.split(", ").map(|flag| flag.trim_end_matches(['=', ' ']).to_owned()).collect();
    Entry { flags, value, text: vec![words(text)] }
}

/// Returns a text with single spaces between its words.
fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!(text("listen").ends_with("with client certificates"), "{}", text("listen"));
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
    fn every_entry_of_the_help_belongs_to_a_flag() {
        let command = command();
        for entry in entries() {
            let found = command.get_arguments().any(|arg| entry.names(arg) && !arg.is_hide_set());
            assert!(found, "{:?}", entry.flags);
        }
    }
}
