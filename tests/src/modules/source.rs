//! Reads a crate's files: its module tree, and the paths that each module names.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

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
        let parsed = syn::parse_file(&text).map_err(|error| format!("{}: {error}", file.display()))?;
        self.read_items(path, file, directory, &parsed.items)
    }

    fn read_items(
        &mut self,
        path: Vec<String>,
        file: &Path,
        directory: &Path,
        items: &[syn::Item],
    ) -> Result<(), String> {
        let mut scope = Scope { module: Module { file: file.to_path_buf(), ..Module::default() } };
        let mut inner = Vec::new();
        for item in items {
            match item {
                syn::Item::Mod(module) => {
                    if !is_for_tests(&module.attrs) {
                        inner.push(module);
                    }
                }
                item => scope.visit_item(item),
            }
        }
        self.modules.insert(path.clone(), scope.module);
        for module in inner {
            let name = module.ident.to_string();
            let below: Vec<String> = path.iter().cloned().chain([name.clone()]).collect();
            match &module.content {
                Some((_, items)) => self.read_items(below, file, &directory.join(&name), items)?,
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

/// Collects the paths that one module names.
struct Scope {
    module: Module,
}

impl Scope {
    fn name(&mut self, segments: Vec<String>, line: usize) {
        self.module.uses.push(Use { segments, line });
    }

    fn use_tree(&mut self, before: &[String], tree: &syn::UseTree) {
        let with = |name: &syn::Ident| before.iter().cloned().chain([name.to_string()]).collect::<Vec<_>>();
        match tree {
            syn::UseTree::Path(path) => self.use_tree(&with(&path.ident), &path.tree),
            syn::UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.use_tree(before, tree));
            }
            syn::UseTree::Name(name) if name.ident == "self" => {
                self.alias(before.last().cloned().unwrap_or_default(), before.to_vec(), name.span());
            }
            syn::UseTree::Name(name) => self.alias(name.ident.to_string(), with(&name.ident), name.span()),
            syn::UseTree::Rename(rename) => {
                let path = if rename.ident == "self" { before.to_vec() } else { with(&rename.ident) };
                self.alias(rename.rename.to_string(), path, rename.span());
            }
            syn::UseTree::Glob(glob) => self.name(before.to_vec(), glob.span().start().line),
        }
    }

    fn alias(&mut self, name: String, path: Vec<String>, span: proc_macro2::Span) {
        self.name(path.clone(), span.start().line);
        self.module.aliases.insert(name, path);
    }

    /// Collects the paths in the tokens of a macro that begin with `crate`, `super` or `self`.
    fn tokens(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut at = 0;
        while at < tokens.len() {
            if let TokenTree::Group(group) = &tokens[at] {
                self.tokens(group.stream());
            }
            let mut segments = Vec::new();
            let line = tokens[at].span().start().line;
            while let Some(TokenTree::Ident(ident)) = tokens.get(at) {
                segments.push(ident.to_string());
                let is_colon = |tree: Option<&TokenTree>| matches!(tree, Some(TokenTree::Punct(p)) if p.as_char() == ':');
                if !(is_colon(tokens.get(at + 1)) && is_colon(tokens.get(at + 2))) {
                    break;
                }
                at += 3;
            }
            if segments.len() > 1 {
                self.name(segments, line);
            }
            at += 1;
        }
    }
}

impl<'ast> Visit<'ast> for Scope {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if !is_for_tests(attributes_of(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.use_tree(&[], &item.tree);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !is_for_tests(&item.attrs) {
            visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() {
            let segments = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
            self.name(segments, path.span().start().line);
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, item: &'ast syn::Macro) {
        self.tokens(item.tokens.clone());
        visit::visit_macro(self, item);
    }
}

fn attributes_of(item: &syn::Item) -> &[syn::Attribute] {
    match item {
        syn::Item::Const(item) => &item.attrs,
        syn::Item::Enum(item) => &item.attrs,
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        syn::Item::Macro(item) => &item.attrs,
        syn::Item::Mod(item) => &item.attrs,
        syn::Item::Static(item) => &item.attrs,
        syn::Item::Struct(item) => &item.attrs,
        syn::Item::Trait(item) => &item.attrs,
        syn::Item::Type(item) => &item.attrs,
        syn::Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// Returns whether the item is compiled for tests only: `#[cfg(test)]`, or `test` among the
/// conditions of an `all`.
fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes
        .iter()
        .filter(|attribute| attribute.path().is_ident("cfg"))
        .any(|attribute| attribute.parse_args::<syn::Meta>().is_ok_and(|condition| requires_test(&condition)))
}

fn requires_test(condition: &syn::Meta) -> bool {
    match condition {
        syn::Meta::Path(path) => path.is_ident("test"),
        syn::Meta::List(list) if list.path.is_ident("all") => {
            let parts = list.parse_args_with(Punctuated::<syn::Meta, syn::Token![,]>::parse_terminated);
            parts.is_ok_and(|parts| parts.iter().any(requires_test))
        }
        _ => false,
    }
}
