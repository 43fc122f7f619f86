//! Striping: content larger than an object, as several objects.
//!
//! `NAME/00000000`, `NAME/00000001`, ... hold a stripe each, all but the last as large as an object may
//! be when it is put. The order of the names is the order of the content. Putting is not atomic: the old
//! stripes are removed first, the new ones then stored in order.

use blocker::executor::block_on;
use blocker::{DeleteRequest, Durability, Error, ListRequest, Name, ObjectId};

use super::Context;
use crate::exit::{About, Failure};

/// Returns the name of a stripe.
pub(super) fn stripe(context: &Context<'_>, name: &str, index: u64) -> Result<ObjectId, Failure> {
    context.object(&format!("{name}/{index:08}"))
}

/// Returns the stripes, in order, with their sizes.
pub(super) fn stripes(context: &Context<'_>, name: &str) -> Result<Vec<(ObjectId, u64)>, Failure> {
    let prefix = format!("{name}/");
    let is_stripe = |found: &Name| {
        let number = &found.as_bytes()[prefix.len()..];
        number.len() == 8 && number.iter().all(u8::is_ascii_digit)
    };
    let mut request = ListRequest::new(context.namespace.clone()).prefix(prefix.clone().into_bytes());
    let mut stripes = Vec::new();
    loop {
        let page = block_on(context.opened.backend.list(request.clone()))?;
        let found = page.entries.iter().filter(|entry| is_stripe(&entry.name));
        stripes.extend(
            found.map(|entry| {
                (ObjectId::new(context.namespace.clone(), entry.name.clone()), entry.size_bytes)
            }),
        );
        let Some(last) = page.entries.last().filter(|_| page.has_more) else { break };
        request = request.after(last.name.clone());
    }
    Ok(stripes)
}

/// Removes all stripes. Returns how many there were.
pub(super) fn remove(context: &Context<'_>, name: &str) -> Result<u64, Failure> {
    let stripes = stripes(context, name)?;
    for (object, _) in &stripes {
        let request = DeleteRequest::new(object.clone()).durability(Durability::Stored);
        match block_on(context.opened.backend.delete(request)) {
            Ok(_) | Err(Error::Missing) => {}
            Err(error) => return Err(error).about(object),
        }
    }
    Ok(stripes.len() as u64)
}
