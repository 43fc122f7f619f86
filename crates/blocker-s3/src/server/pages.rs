//! Listings whose answers are no longer than what was asked for.
//!
//! [`object_store::ObjectStore::list`] has the server send a thousand keys at a time, also where the caller needs one.

use std::sync::Arc;

use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::path::Path;
use object_store::{ObjectMeta, Result};

/// The most keys in one answer, which is what servers send at most.
const KEYS_MAX: usize = 1000;

/// What lists by pages, where the store can.
pub(crate) type Pages = Option<Arc<dyn PaginatedListStore>>;

/// Returns what is below `under`, in order, after the key `after`, at most `count`.
///
/// # Errors
/// Those of the store.
pub(crate) async fn listed(
    pages: &dyn PaginatedListStore,
    under: &Path,
    after: Option<&Path>,
    count: usize,
) -> Result<Vec<ObjectMeta>> {
    let prefix = format!("{under}/");
    let mut found = Vec::new();
    let mut token = None;
    loop {
        let options = PaginatedListOptions {
            offset: after.map(ToString::to_string),
            max_keys: Some((count - found.len()).min(KEYS_MAX)),
            page_token: token,
            ..PaginatedListOptions::default()
        };
        let page = pages.list_paginated(Some(&prefix), options).await?;
        found.extend(page.result.objects);
        // Some send more than they were asked for.
        found.truncate(count);
        token = page.page_token;
        if token.is_none() || found.len() == count {
            return Ok(found);
        }
    }
}
