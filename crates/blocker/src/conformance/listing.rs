//! Listing: in order, complete, page by page, also during concurrent changes.

use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;

use super::context::{Check, Cx, Stop, ensure};
use crate::executor::block_on;
use crate::{BlockerExt, DeleteRequest, ListRequest, WriteRequest};

/// Lists all names, in pages of at most `entries_max`.
pub(super) fn list_all(cx: &Cx<'_>, prefix: &[u8], entries_max: u32) -> Check<Vec<Vec<u8>>> {
    let first =
        ListRequest::new(cx.namespace()).prefix(Bytes::copy_from_slice(prefix)).entries_max(entries_max);
    let mut request = first;
    let mut names: Vec<Vec<u8>> = Vec::new();
    loop {
        let page = cx.ok("list", |b| b.list(request.clone()))?;
        ensure!(page.entries.len() <= entries_max.max(1) as usize, "a page has too many entries");
        names.extend(page.entries.iter().map(|entry| entry.name.as_bytes().to_vec()));
        if !page.has_more {
            return Ok(names);
        }
        let last = page.entries.last();
        let last = last.ok_or_else(|| Stop::Fail("a page promises more but has no entry".into()))?;
        ensure!(request.after.as_ref() < Some(&last.name), "a page does not continue the previous one");
        request = request.after(last.name.clone());
    }
}

pub(super) fn an_unused_namespace_is_empty(cx: &Cx<'_>) -> Check {
    let page = cx.ok("list", |b| b.list(ListRequest::new(cx.namespace())))?;
    ensure!(page.entries.is_empty() && !page.has_more, "an unused namespace has objects");
    Ok(())
}

fn fill(cx: &Cx<'_>, count: u32) -> Check<Vec<Vec<u8>>> {
    let mut names: Vec<Vec<u8>> = (0..count)
        .map(|n| format!("{}{:03}", ["a", "b", "b/", "c\0"][n as usize % 4], (n * 37) % 500).into_bytes())
        .collect();
    for name in &names {
        cx.write(&cx.object(name), 0, b"x")?;
    }
    names.sort();
    names.dedup();
    Ok(names)
}

pub(super) fn a_listing_is_in_order_and_complete(cx: &Cx<'_>) -> Check {
    let names = fill(cx, 60)?;
    ensure!(list_all(cx, b"", 1000)? == names, "the listing differs from the names written, in order");
    Ok(())
}

pub(super) fn pages_join_without_gap_or_repeat(cx: &Cx<'_>) -> Check {
    let names = fill(cx, 25)?;
    for entries_max in [0, 1, 2, 7, 24, 25, 26] {
        let listed = list_all(cx, b"", entries_max)?;
        ensure!(listed == names, "pages of {entries_max} join to {} names of {}", listed.len(), names.len());
    }
    // The listing starts after a name that does not exist, and after the last name.
    let request = ListRequest::new(cx.namespace()).after(cx.object("b").name);
    let wanted: Vec<_> = names.iter().filter(|name| name.as_slice() > b"b".as_slice()).cloned().collect();
    let page = cx.names(&request)?;
    // A backend may return smaller pages.
    let is_right = !page.is_empty() && wanted.starts_with(&page);
    ensure!(is_right, "a page after an absent name is wrong");
    let request = ListRequest::new(cx.namespace()).after(cx.object(names.last().expect("some")).name);
    ensure!(cx.names(&request)?.is_empty(), "there is an entry after the last name");
    Ok(())
}

pub(super) fn a_prefix_selects(cx: &Cx<'_>) -> Check {
    let names = fill(cx, 40)?;
    for prefix in ["a", "b", "b/", "c\0", "b/1", "zzz", "\u{7f}"] {
        let wanted: Vec<_> =
            names.iter().filter(|name| name.starts_with(prefix.as_bytes())).cloned().collect();
        for entries_max in [3, 1000] {
            let listed = list_all(cx, prefix.as_bytes(), entries_max)?;
            ensure!(listed == wanted, "prefix {prefix:?} selects {} of {}", listed.len(), wanted.len());
        }
    }
    // A listing that starts before the prefix contains all names with the prefix; one that starts
    // after them contains none.
    let request = ListRequest::new(cx.namespace()).prefix("b");
    let all = cx.names(&request)?;
    ensure!(
        cx.names(&request.clone().after(cx.object("a").name))? == all,
        "a start before the prefix counts"
    );
    ensure!(
        cx.names(&request.after(cx.object("c").name))?.is_empty(),
        "a start behind the prefix is ignored"
    );
    Ok(())
}

pub(super) fn objects_that_stay_are_listed_once_under_change(cx: &Cx<'_>) -> Check {
    let stay: Vec<Vec<u8>> = (0..40).map(|n| format!("stay{n:02}").into_bytes()).collect();
    for name in &stay {
        cx.write(&cx.object(name), 0, b"x")?;
    }
    let (backend, stop) = (cx.backend(), AtomicBool::new(false));
    let passing = [cx.object("a-passing"), cx.object("stay05-passing"), cx.object("z-passing")];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for object in passing.iter().cycle() {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                // This case does not test the outcome of these changes.
                let _ = block_on(backend.write(WriteRequest::new(object.clone(), 0, b"y")));
                let _ = block_on(backend.delete(DeleteRequest::new(object.clone())));
            }
        });
        let listed = (0..5 * cx.options.effort).try_for_each(|_| {
            let mut listed = list_all(cx, b"", 3)?;
            ensure!(listed.is_sorted(), "a listing during changes is out of order");
            listed.retain(|name| !name.ends_with(b"-passing"));
            ensure!(listed == stay, "of {} objects that stay {} are listed", stay.len(), listed.len());
            Ok(())
        });
        stop.store(true, Ordering::Relaxed);
        listed
    })
}
