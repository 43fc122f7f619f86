//! Manual pages and shell completions, which each program writes with `--generate-manual DIR [FILE]`:
//! they contain exactly the flags of `--help` and the keys of the shipped configuration file, and the
//! shells accept them.

use cached_tests::{outside, program};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const DEADLINE: Duration = Duration::from_secs(180);
const PROGRAMS: [&str; 3] = ["cached", "synapsed", "cachectl"];

fn output(command: &mut Command) -> String {
    let output = outside::run(command, DEADLINE);
    assert!(output.status.success(), "{command:?}:\n{}", outside::text(&output));
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// The programs with a configuration file.
const SERVERS: [&str; 2] = ["cached", "synapsed"];

/// Returns the path of a server's shipped configuration file.
fn shipped_file(server: &str) -> PathBuf {
    program::repository().join(format!("deploy/{server}.toml"))
}

/// Returns a directory with the files of all programs.
fn generated() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a temporary directory");
    for name in PROGRAMS {
        let mut command = Command::new(program::workspace_programs().join(name));
        command.arg("--generate-manual").arg(dir.path());
        let file = SERVERS.contains(&name).then(|| shipped_file(name));
        let text = output(command.args(file));
        assert_eq!(text, "");
    }
    dir
}

fn help(name: &str, subcommands: &[&str]) -> String {
    let mut command = Command::new(program::workspace_programs().join(name));
    output(command.args(subcommands).arg("--help"))
}

/// Returns the long flags at the beginning of a help text's lines, where the flags are listed.
fn flags_of_help(help: &str) -> BTreeSet<String> {
    let lists = help.lines().filter(|line| line.trim_start().starts_with('-') && !line.starts_with("   - "));
    let names = lists.filter_map(|line| line.trim_start().split("  ").next());
    names.flat_map(flags).collect()
}

/// Returns the long flags that a manual page lists.
fn flags_of_page(page: &str) -> BTreeSet<String> {
    let page = page.replace("\\-", "-").replace("\\fB", "").replace("\\fR", " ").replace("\\fI", "");
    let options = page.split(".SH ").find(|section| section.starts_with("OPTIONS")).unwrap_or_default();
    let mut lines = options.lines();
    let mut found = BTreeSet::new();
    while lines.any(|line| line == ".TP") {
        found.extend(lines.next().into_iter().flat_map(flags));
    }
    found
}

fn flags(text: &str) -> impl Iterator<Item = String> + '_ {
    let words = text.split([' ', ',', '=', '<', '[', ']']);
    words.filter(|word| word.starts_with("--") && word.len() > 2).map(str::to_owned)
}

/// Returns the subcommands that a help text lists.
fn subcommands(help: &str) -> Vec<&str> {
    let list = help.split("Commands:\n").nth(1).unwrap_or_default();
    let list = list.lines().take_while(|line| !line.is_empty());
    let names = list.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    names.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help").collect()
}

#[test]
fn pages_and_completions_have_the_flags_of_the_help() {
    let dir = generated();
    let read = |file: String| {
        fs::read_to_string(dir.path().join(&file)).unwrap_or_else(|err| panic!("{file}: {err}"))
    };
    let mut pages = 0;
    for name in PROGRAMS {
        let text = help(name, &[]);
        let wanted = flags_of_help(&text);
        assert!(wanted.contains("--help") && wanted.len() > 3, "{name}: {wanted:?}");
        assert_eq!(flags_of_page(&read(format!("man/{name}.1"))), wanted, "{name}: left manual, right help");
        pages += 1;
        for file in [format!("bash/{name}"), format!("zsh/_{name}"), format!("fish/{name}.fish")] {
            let completions = read(file.clone());
            for flag in &wanted {
                // fish lists flags without dashes.
                let written =
                    if file.ends_with(".fish") { format!("-l {}", &flag[2..]) } else { flag.clone() };
                assert!(completions.contains(&written), "{file} lacks {written}");
            }
        }
        for subcommand in subcommands(&text) {
            let own = help(name, &[subcommand]);
            let page = read(format!("man/{name}-{subcommand}.1"));
            assert_eq!(
                flags_of_page(&page),
                flags_of_help(&own),
                "{name} {subcommand}: left manual, right help"
            );
            assert!(read(format!("bash/{name}")).contains(&format!("{name},{subcommand})")), "{subcommand}");
            for part in subcommands(&own) {
                let page = read(format!("man/{name}-{subcommand}-{part}.1"));
                let wanted = flags_of_help(&help(name, &[subcommand, part]));
                assert_eq!(
                    flags_of_page(&page),
                    wanted,
                    "{name} {subcommand} {part}: left manual, right help"
                );
                pages += 1;
            }
            pages += 1;
        }
    }
    let written = fs::read_dir(dir.path().join("man")).expect("pages").count();
    assert_eq!(
        written,
        pages + SERVERS.len(),
        "each page belongs to a program, a subcommand in its help, or a configuration file"
    );
    assert!(pages > 10);
}

/// Returns the text that a manual page shows, without its markup.
fn plain(page: &str) -> String {
    let text = page.replace("\\fB", "").replace("\\fR", "").replace("\\&", "").replace("\\*(Aq", "'");
    text.replace("\\-", "-").replace("\\\\", "\\")
}

#[test]
fn the_page_of_a_configuration_file_has_its_keys_and_words() {
    let dir = generated();
    for server in SERVERS {
        let page = fs::read_to_string(dir.path().join(format!("man/{server}.toml.5"))).expect("a page");
        let page = plain(&page);
        let lines: BTreeSet<&str> = page.lines().collect();
        let text = fs::read_to_string(shipped_file(server)).expect("the file");
        let mut keys = 0;
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with("# ---")) {
            let table = line.trim_start_matches('#').starts_with('[');
            let comment = line == "#" || line.starts_with("# ");
            let wanted = if table {
                format!(".SS {line}")
            } else if comment {
                line[1..].trim_start().to_owned()
            } else {
                line.to_owned()
            };
            keys += usize::from(!table && !comment);
            assert!(wanted.is_empty() || lines.contains(&wanted[..]), "{server}.toml.5 lacks {wanted:?}");
        }
        assert!(keys > 60, "{server}: {keys} keys");
    }
}

#[test]
#[ignore = "long: packages, for which other shells are installed"]
fn shells_accept_the_completions() {
    let dir = generated();
    for (shell, flag, file) in
        [("bash", "-n", "bash/NAME"), ("zsh", "-n", "zsh/_NAME"), ("fish", "-n", "fish/NAME.fish")]
    {
        let Some(path) = outside::find_program(shell) else {
            outside::skip("shells_accept_the_completions", &format!("{shell} is not installed"));
            continue;
        };
        for name in PROGRAMS {
            output(Command::new(&path).arg(flag).arg(dir.path().join(file.replace("NAME", name))));
        }
    }
}

/// The test completes a command as a bash user who types `cachectl --sec` and the Tab key.
#[test]
fn bash_completes_a_flag() {
    let dir = generated();
    let Some(bash) = outside::find_program("bash") else {
        return outside::skip("bash_completes_a_flag", "bash is not installed");
    };
    let script = "source \"$1\"; COMP_WORDS=(cachectl --sec); COMP_CWORD=1; _cachectl cachectl --sec cachectl; \
                  echo \"${COMPREPLY[@]}\"";
    let file: &Path = &dir.path().join("bash/cachectl");
    let answer = output(Command::new(bash).args(["-c", script, "bash"]).arg(file));
    assert_eq!(answer, "--secret-file\n");
}

#[test]
fn further_arguments_are_refused() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    for name in PROGRAMS {
        let mut command = Command::new(program::workspace_programs().join(name));
        command.arg("--generate-manual").arg(dir.path()).arg("-t").arg("1");
        assert!(!outside::run(&mut command, DEADLINE).status.success(), "{name}");
        // The configuration file does not exist.
        let mut command = Command::new(program::workspace_programs().join(name));
        command.arg("--generate-manual").arg(dir.path()).arg("-t");
        assert_eq!(outside::run(&mut command, DEADLINE).status.code(), Some(74), "{name}");
    }
    assert_eq!(fs::read_dir(dir.path()).expect("the directory").count(), 0);
}
