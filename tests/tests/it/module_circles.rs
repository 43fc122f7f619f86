//! No crate of the product has a cycle among its chapters (`cached_tests::modules` defines chapters
//! and uses).

use std::fs;
use std::path::Path;

use cached_tests::modules::{Crate, circles};
use cached_tests::program::repository;

#[test]
fn no_crate_has_a_circle_among_its_chapters() {
    let mut found = Vec::new();
    let mut crates = 0;
    for entry in fs::read_dir(repository().join("crates")).unwrap() {
        let source = entry.unwrap().path().join("src");
        for root in ["lib.rs", "main.rs"].map(|name| source.join(name)) {
            if root.exists() {
                crates += 1;
                let all = Crate::read(&root).unwrap();
                found.extend(circles(&all).iter().map(|circle| format!("{}: {circle}", root.display())));
            }
        }
    }
    assert!(crates >= 9, "only {crates} crates were found");
    assert!(found.is_empty(), "{} circles\n{}", found.len(), found.join("\n"));
}

/// Writes a crate with these files, and returns its cycles as pairs of names; the first name of a
/// pair uses the second.
fn circles_of(files: &[(&str, &str)]) -> Vec<Vec<(String, String)>> {
    let directory = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = directory.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let root: &Path = &directory.path().join("lib.rs");
    let all = Crate::read(root).unwrap();
    circles(&all)
        .into_iter()
        .map(|circle| circle.uses.into_iter().map(|(from, to, _)| (from, to)).collect())
        .collect()
}

#[test]
fn a_circle_is_found_through_re_exports_and_files_below() {
    let found = circles_of(&[
        ("lib.rs", "mod a; mod b; mod c; pub use b::inner::Thing;"),
        ("a.rs", "use crate::Thing; pub struct First(Thing);"),
        ("b/mod.rs", "pub mod inner;"),
        ("b/inner.rs", "pub struct Thing; fn f() { super::super::c::g(); }"),
        ("c.rs", "pub fn g() { let _: Option<crate::a::First> = None; }"),
    ]);
    let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
    assert_eq!(found, [[pair("a", "b"), pair("b", "c"), pair("c", "a")]]);
}

#[test]
fn uses_in_macros_count() {
    let found = circles_of(&[
        ("lib.rs", "mod a; mod b;"),
        ("a.rs", "pub fn f() { println!(\"{}\", crate::b::N); }"),
        ("b.rs", "mod below; pub const N: u32 = 1; macro_rules! m { () => { $crate::a::f() }; }"),
        ("b/below.rs", ""),
    ]);
    assert_eq!(found.len(), 1, "{found:?}");
}

#[test]
fn parents_tests_and_other_crates_do_not_count() {
    let found = circles_of(&[
        ("lib.rs", "mod a; mod b; pub struct Top;"),
        ("a.rs", "mod below; use super::Top; use std::fmt; #[cfg(test)] use crate::b::B; pub struct A(Top);"),
        ("a/below.rs", "use super::A; fn f(_: &A) {}"),
        ("b.rs", "use crate::a::A; pub struct B(A); #[cfg(test)] mod tests { use crate::a; }"),
    ]);
    assert_eq!(found, Vec::<Vec<(String, String)>>::new());
}

#[test]
fn files_of_one_chapter_may_use_each_other_but_no_chapter_that_uses_them() {
    let files = |c: &'static str| {
        [
            ("lib.rs", "mod all;"),
            ("all/mod.rs", "mod a; mod b; mod c;"),
            ("all/a.rs", "use super::b::B; pub struct A(B);"),
            ("all/b.rs", "use super::a::A; use super::c::C; pub struct B(A, C);"),
            ("all/c/mod.rs", c),
            ("all/c/below.rs", "pub struct Below;"),
        ]
    };
    assert_eq!(circles_of(&files("mod below; pub struct C;")), Vec::<Vec<(String, String)>>::new());
    let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
    assert_eq!(
        circles_of(&files("mod below; use super::a::A; pub struct C(A);")),
        [[pair("a", "b"), pair("b", "a"), pair("b", "c"), pair("c", "a")]]
    );
}
