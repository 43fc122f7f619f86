//! Names: any 1 to 255 bytes, used without any change.

use super::context::{Check, Cx, ensure};
use super::listing::list_all;
use crate::{ListRequest, Name, Namespace, ObjectId};

fn odd_names() -> Vec<Vec<u8>> {
    let mut names: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).collect();
    let words: [&[u8]; 14] = [
        b"..",
        b"a/b",
        b"/x",
        b"//",
        b"a/../b",
        b"con",
        b"a\0b",
        b"\xff\xfe",
        b"%41",
        b"a~",
        b"a.obj",
        b".ns",
        b"tmp",
        b"-rf *",
    ];
    names.extend(words.map(<[u8]>::to_vec));
    names.extend([0, b'a', b'/', b'.', b'%', 0xff].map(|byte| vec![byte; 255]));
    names.push((1..=255).collect());
    names
}

pub(super) fn any_bytes_are_a_name(cx: &Cx<'_>) -> Check {
    let mut names = odd_names();
    for (index, name) in names.iter().enumerate() {
        cx.write(&cx.object(name), 0, &index.to_le_bytes())?;
    }
    for (index, name) in names.iter().enumerate() {
        cx.expect(&cx.object(name), &index.to_le_bytes())?;
    }
    names.sort();
    let listed = list_all(cx, b"", 100)?;
    ensure!(listed == names, "{} odd names are listed as {} others", names.len(), listed.len());
    for name in &names {
        cx.delete(&cx.object(name))?;
    }
    Ok(())
}

pub(super) fn names_are_never_folded(cx: &Cx<'_>) -> Check {
    let alike = ["a", "A", "a ", " a", "a\0", "a.", "\u{e4}", "a\u{308}", "aa", "a/", "a//"];
    for name in alike {
        cx.write(&cx.object(name), 0, name.as_bytes())?;
    }
    for name in alike {
        cx.expect(&cx.object(name), name.as_bytes())?;
    }
    // These names have the maximum length and differ only in their last byte.
    for last in [0, 1, 255] {
        let mut name = [b'n'; 255];
        name[254] = last;
        cx.write(&cx.object(name), 0, &[last])?;
    }
    let mut name = [b'n'; 255];
    name[254] = 1;
    cx.expect(&cx.object(name), &[1])?;
    cx.expect(&cx.object("a"), b"a")
}

pub(super) fn namespaces_are_apart(cx: &Cx<'_>) -> Check {
    let name = Name::new("same").expect("a proper name");
    let here = ObjectId::new(cx.namespace(), name.clone());
    let there = ObjectId::new(cx.other_namespace(), name);
    cx.write(&here, 0, b"here")?;
    cx.is_missing(&there)?;
    ensure!(cx.names(&ListRequest::new(cx.other_namespace()))?.is_empty(), "it is listed elsewhere");
    cx.write(&there, 0, b"there")?;
    cx.expect(&here, b"here")?;
    cx.delete(&here)?;
    cx.expect(&there, b"there")?;
    cx.delete(&there)?;

    // A namespace's name may also consist of any bytes, and have any length.
    for bytes in [vec![0], vec![b'/'], vec![b'.', b'.'], vec![0xff; 255]] {
        let mut unique = cx.namespace().as_bytes().to_vec();
        unique.extend_from_slice(&bytes);
        unique.truncate(255);
        let namespace = Namespace::new(unique).expect("1 to 255 bytes");
        let object = ObjectId::new(namespace.clone(), Name::new("x").expect("a proper name"));
        cx.write(&object, 0, &bytes)?;
        cx.expect(&object, &bytes)?;
        let listed = cx.names(&ListRequest::new(namespace))?;
        ensure!(listed == [b"x".to_vec()], "a namespace with an unusual name lists {} objects", listed.len());
        cx.delete(&object)?;
    }
    Ok(())
}
