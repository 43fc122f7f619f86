//! Taking a volume from an owner that has not given it up, where no layer refuses that one's changes.
//!
//! It may go on until it looks at the head. What it writes in place is then lost or not, as in a crash. But were it to write
//! a page of the map, it would name what it alone knows, and remove what the next owner has. So each page gets another
//! version, and its condition refuses the owner before: a page that it wrote before that is read by the next owner, and
//! what it removes after it has written a page is what no page names. Where that owner asks for a version, it looks at the
//! head after it, which is the next owner's before any page has another version.

use blocker::{Condition, Error as Store};

use crate::error::{Error, Result};
use crate::format::Head;
use crate::format::entry::Kind;
use crate::space::{Space, load_root};

/// How often a page is written that the owner before writes at the same time, or whose outcome is unknown.
const TRIES: u32 = 32;

/// Gives the pages that the volume writes in place other versions. The head is this owner's already, so that no page is
/// born any more. The pages are to be read after this.
pub(crate) async fn renew_pages(space: &Space, head: &Head) -> Result<()> {
    if space.is_stamped() {
        // The store refuses the owner before.
        return Ok(());
    }
    let parent_root = match head.parent {
        0 => Vec::new(),
        node => load_root(&space.pool, head.volume, node).await?,
    };
    for (page, at) in head.root.iter().enumerate() {
        if at.volume() == head.volume && parent_root.get(page) != Some(at) {
            // A map has at most 65 536 pages.
            renew(space, Kind::Page(at.birth(), page as u32)).await?;
        }
    }
    Ok(())
}

async fn renew(space: &Space, page: Kind) -> Result<()> {
    let damaged = |why: &str| Error::Damaged(format!("page {} of a map: {why}", space.object(page)));
    for _ in 0..TRIES {
        let (bytes, version) = match space.pool.get(space.object(page)).await {
            Ok(found) => found,
            Err(Store::Missing) => return Err(damaged("it is missing")),
            Err(Store::Corrupt(why)) => return Err(damaged(&why)),
            Err(error) => return Err(error.into()),
        };
        match space.put(page, bytes.to_vec(), Condition::Version(version)).await {
            Ok(_) => return Ok(()),
            Err(Store::ConditionFailed { .. } | Store::OutcomeUnknown(_) | Store::NotStored(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(Error::Io(Store::Retryable("the owner before writes the map at the same time".into())))
}
