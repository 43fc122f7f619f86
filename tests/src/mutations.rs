//! Small wrong changes to the product's code, each of which some test must notice.
//!
//! The list lies in `tests/mutations/*.toml`, a file for each part of the product; `src/bin/mutations.rs`
//! applies one change at a time to a copy of the tree and runs the tests that should fail. A change is found
//! by its text, not by a line number, and its text must occur exactly once: `tests/mutations.rs` checks that
//! of the whole list, so that the list follows the code.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

/// One wrong change.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mutation {
    /// A short name, unique in the list.
    pub name: String,
    /// What the change breaks, in words.
    pub breaks: String,
    /// The file, from the repository's root.
    pub file: PathBuf,
    /// The text to replace. It occurs exactly once in the file.
    pub find: String,
    /// The text that takes its place.
    pub replace: String,
    /// Arguments of `cargo test`, one line for each command, tried in order until one fails.
    pub tests: Vec<String>,
    /// Why the change alters nothing that a caller could see; absent where it does alter something.
    #[serde(default)]
    pub equivalent: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    mutation: Vec<Mutation>,
}

impl Mutation {
    /// Returns `text` with the change made.
    ///
    /// # Errors
    /// If the text to replace is not there exactly once, or is replaced by itself.
    pub fn apply(&self, text: &str) -> Result<String, String> {
        let found = text.matches(&self.find).count();
        if found != 1 {
            return Err(format!("{}: its text occurs {found} times in {}", self.name, self.file.display()));
        }
        if self.find == self.replace {
            return Err(format!("{}: it replaces its text by the same text", self.name));
        }
        Ok(text.replacen(&self.find, &self.replace, 1))
    }
}

/// Returns the whole list, in the order of file names.
///
/// # Errors
/// If a file cannot be read or parsed, or two mutations share a name.
pub fn read_all(repository: &Path) -> Result<Vec<Mutation>, String> {
    let folder = repository.join("tests/mutations");
    let entries = fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut files: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    files.sort();
    let mut all: Vec<Mutation> = Vec::new();
    for path in files {
        let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let list: List = toml::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))?;
        all.extend(list.mutation);
    }
    let mut names: Vec<_> = all.iter().map(|mutation| &mutation.name).collect();
    names.sort();
    if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(format!("two mutations are called {}", pair[0]));
    }
    Ok(all)
}

/// Returns the repository's root.
#[must_use]
pub fn repository() -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.parent().expect("tests/ lies in the repository").to_owned()
}
