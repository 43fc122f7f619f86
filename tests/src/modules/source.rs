//! Reads a crate's files: its module tree, and the paths that each module names.
//!
//! Tokens suffice: a path is a path in whatever item, expression or macro it stands, and to parse
//! the whole grammar of every file takes far longer.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// A path that a module names, with its line.
#[derive(Debug, Clone)]
pub struct Use {
    /// The segments as written. The first is `crate`, `super`, `self` or a name.
    pub segments: Vec<String>,
    /// The line number, from 1.
    pub line: usize,
}

/// A module of a crate.
#[derive(Debug, Default)]
pub struct Module {
    /// The module's file.
    pub file: PathBuf,
    /// Names that `use` items import, with their paths.
    pub aliases: BTreeMap<String, Vec<String>>,
    /// The named item.
    pub uses: Vec<Use>,
}

/// A crate's modules by path; the root's path is empty.
#[derive(Debug, Default)]
pub struct Crate {
    /// All modules that are compiled outside of tests.
    pub modules: BTreeMap<Vec<String>, Module>,
}

impl Crate {
    /// Reads the crate whose root is the file `root` (`lib.rs` or `main.rs`).
    ///
    /// # Errors
    /// The error names the file that cannot be read or parsed.
    pub fn read(root: &Path) -> Result<Crate, String> {
        let mut all = Crate::default();
        let directory = root.parent().unwrap_or(Path::new("")).to_path_buf();
        all.read_file(Vec::new(), root, &directory)?;
        Ok(all)
    }

    /// Returns the paths of the modules that have a directory of files.
    #[must_use]
    pub fn chapters(&self) -> BTreeSet<Vec<String>> {
        let file = |path: &[String]| self.modules.get(path).map(|module| &module.file);
        self.modules
            .keys()
            .filter_map(|path| path.split_last())
            .filter(|(_, parent)| !parent.is_empty())
            .filter(|(name, parent)| file(&[*parent, &[(*name).clone()]].concat()) != file(parent))
            .map(|(_, parent)| parent.to_vec())
            .collect()
    }

    /// Reads one file, whose modules without a body are in `directory`.
    fn read_file(&mut self, path: Vec<String>, file: &Path, directory: &Path) -> Result<(), String> {
        let text = fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
        let tokens = text.parse().map_err(|error| format!("{}: {error}", file.display()))?;
        self.read_module(path, file, directory, tokens)
    }

    fn read_module(
        &mut self,
        path: Vec<String>,
        file: &Path,
        directory: &Path,
        tokens: TokenStream,
    ) -> Result<(), String> {
        let mut scope = Scope::default();
        scope.module.file = file.to_path_buf();
        scope.tokens(tokens);
        self.modules.insert(path.clone(), scope.module);
        for (name, content) in scope.inner {
            let below: Vec<String> = path.iter().cloned().chain([name.clone()]).collect();
            match content {
                Some(tokens) => self.read_module(below, file, &directory.join(&name), tokens)?,
                None => {
                    let (flat, nested) =
                        (directory.join(format!("{name}.rs")), directory.join(&name).join("mod.rs"));
                    let file = if flat.exists() { flat } else { nested };
                    self.read_file(below, &file, &directory.join(&name))?;
                }
            }
        }
        Ok(())
    }
}

/// Collects the paths that one module names, and the modules in it.
#[derive(Default)]
struct Scope {
    module: Module,
    /// Names, with the tokens of those that have a body here.
    inner: Vec<(String, Option<TokenStream>)>,
}

impl Scope {
    fn tokens(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut rest = &tokens[..];
        loop {
            rest = match rest {
                [] => return,
                [hash, TokenTree::Group(attribute), rest @ ..] if is_punct(hash, '#') => {
                    if is_for_tests(attribute.stream()) { after_item(rest) } else { rest }
                }
                [TokenTree::Ident(keyword), TokenTree::Ident(name), after, rest @ ..] if keyword == "mod" => {
                    let content = match after {
                        TokenTree::Group(body) => Some(body.stream()),
                        _ => None,
                    };
                    self.inner.push((name.to_string(), content));
                    rest
                }
                // The use of lifetimes by an opaque type names no path.
                [TokenTree::Ident(keyword), after, ..] if keyword == "use" && !is_punct(after, '<') => {
                    let end = rest.iter().position(|tree| is_punct(tree, ';')).unwrap_or(rest.len());
                    self.use_tree(&[], &rest[1..end]);
                    &rest[end..]
                }
                [first @ TokenTree::Ident(_), ..] => {
                    let (segments, rest) = path(rest);
                    if segments.len() > 1 {
                        self.name(segments, first);
                    }
                    rest
                }
                [TokenTree::Group(group), rest @ ..] => {
                    self.tokens(group.stream());
                    rest
                }
                [_, rest @ ..] => rest,
            };
        }
    }

    /// Collects the paths of what stands between `use` and the semicolon, or of a part of it below
    /// the path `before`.
    fn use_tree(&mut self, before: &[String], tokens: &[TokenTree]) {
        for tree in tokens.split(|tree| is_punct(tree, ',')) {
            let (segments, rest) = path(tree);
            let Some(first) = tree.first() else { continue };
            let mut path = [before, &segments].concat();
            if let [TokenTree::Group(group)] = rest {
                self.use_tree(&path, &group.stream().into_iter().collect::<Vec<_>>());
                continue;
            }
            // `a::{self}` is the path `a`.
            if !before.is_empty() {
                path.pop_if(|last| last == "self");
            }
            let name = match rest {
                [] => path.last().cloned(),
                [_as, TokenTree::Ident(name)] => Some(name.to_string()),
                // A glob.
                _ => None,
            };
            self.module.aliases.extend(name.map(|name| (name, path.clone())));
            self.name(path, first);
        }
    }

    fn name(&mut self, segments: Vec<String>, first: &TokenTree) {
        self.module.uses.push(Use { segments, line: first.span().start().line });
    }
}

/// Splits off the longest path of identifiers at the start.
fn path(mut tokens: &[TokenTree]) -> (Vec<String>, &[TokenTree]) {
    let mut segments = Vec::new();
    while let [TokenTree::Ident(ident), rest @ ..] = tokens {
        segments.push(ident.to_string());
        match rest {
            [first, second, rest @ ..] if is_punct(first, ':') && is_punct(second, ':') => tokens = rest,
            _ => return (segments, rest),
        }
    }
    (segments, tokens)
}

/// Returns what follows the item, statement or field that begins here.
fn after_item(tokens: &[TokenTree]) -> &[TokenTree] {
    let is_field = tokens.windows(2).find_map(|pair| match pair {
        [TokenTree::Ident(ident), _] if ident == "pub" => None,
        [TokenTree::Ident(_), next] => Some(is_punct(next, ':')),
        _ => None,
    });
    let is_end = |tree: &TokenTree| match tree {
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
        _ => is_punct(tree, ';') || is_field == Some(true) && is_punct(tree, ','),
    };
    let end = tokens.iter().position(is_end);
    end.map_or(&[], |end| &tokens[end + 1..])
}

fn is_punct(tree: &TokenTree, char: char) -> bool {
    matches!(tree, TokenTree::Punct(punct) if punct.as_char() == char)
}

/// Returns whether an attribute is `cfg` with a condition that holds for tests only: `test`, or
/// `test` among the conditions of an `all`.
fn is_for_tests(attribute: TokenStream) -> bool {
    let tokens: Vec<TokenTree> = attribute.into_iter().collect();
    match &tokens[..] {
        [TokenTree::Ident(name), TokenTree::Group(condition)] => {
            name == "cfg" && requires_test(condition.stream())
        }
        _ => false,
    }
}

fn requires_test(condition: TokenStream) -> bool {
    let tokens: Vec<TokenTree> = condition.into_iter().collect();
    tokens.split(|tree| is_punct(tree, ',')).any(|part| match part {
        [TokenTree::Ident(name)] => name == "test",
        [TokenTree::Ident(name), TokenTree::Group(parts)] => name == "all" && requires_test(parts.stream()),
        _ => false,
    })
}
