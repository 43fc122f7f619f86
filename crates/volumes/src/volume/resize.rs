//! Changing the size, and how the volume is treated.

use super::{Inner, Piece};
use crate::error::{Error, Result};
use crate::format::entry::Entry;
use crate::format::pages_of;
use crate::settings::Settings;

impl Inner {
    /// Stores how the volume is treated once it is opened again.
    pub(crate) async fn set(&self, settings: Settings) -> Result<()> {
        let object_bytes = Some(self.object_bytes);
        if settings.object_bytes.is_some() && settings.object_bytes != object_bytes {
            let why = format!("object_bytes is {}, and stays as long as the volume does", self.object_bytes);
            return Err(Error::Invalid(why));
        }
        let mut recorder = self.recorder().await?;
        let mut head = recorder.head.clone();
        head.settings = Settings { object_bytes, ..settings };
        self.commit(&mut recorder, head).await
    }

    /// Moves the end of the volume. What is gained reads as zeros, also where it was cut off before. Returns whether it was
    /// done: a larger volume stays as it is unless it `may_shrink`.
    pub(crate) async fn resize(&self, size_bytes: u64, may_shrink: bool) -> Result<bool> {
        self.check_writable()?;
        self.ensure_births().await?;
        let mut recorder = self.recorder().await?;
        let turn = self.turn.write().await;
        let old_bytes = {
            let state = self.state.lock();
            // It may have been closed since.
            state.check()?;
            state.size_bytes
        };
        if size_bytes < old_bytes && !may_shrink {
            return Ok(false);
        }
        let pages = pages_of(size_bytes, self.object_bytes);
        if size_bytes < old_bytes {
            self.cut(size_bytes, old_bytes).await?;
            // Entries before the head: a head with the new size has no entry beyond it.
            self.record(&mut recorder).await?;
        }
        let mut head = recorder.head.clone();
        head.size_bytes = size_bytes;
        let gone = head.root.split_off(pages.min(head.root.len()));
        head.root.resize(pages, Entry::HOLE);
        self.commit(&mut recorder, head).await?;
        {
            let mut state = self.state.lock();
            state.size_bytes = size_bytes;
            state.live.pages.resize(pages, None);
            state.recorded.pages.resize(pages, None);
            let first = recorder.head.root.len();
            let own = gone.iter().enumerate().filter(|(at, page)| {
                let is_shared = recorder.parent_root.get(first + at) == Some(page);
                page.volume() == self.space.volume && !is_shared
            });
            state.drops.extend(
                own.map(|(at, page)| crate::format::entry::Kind::Page(page.birth(), (first + at) as u32)),
            );
            // A page of that place is born again under another name.
            state.birth += 1;
        }
        recorder.page_versions.retain(|page, _| (*page as usize) < pages);
        drop(turn);
        self.record(&mut recorder).await?;
        drop(recorder);
        self.remove_drops(usize::MAX).await;
        Ok(true)
    }

    /// Removes what lies between both ends, and zeroes the rest of the object at the new end. The caller has
    /// the turn alone.
    async fn cut(&self, size_bytes: u64, old_bytes: u64) -> Result<()> {
        let within = size_bytes % self.object_bytes;
        let first_gone = size_bytes.div_ceil(self.object_bytes);
        {
            let mut state = self.state.lock();
            let gone: Vec<u32> = state.live.objects().map(|(index, _)| index).collect();
            for index in gone.into_iter().filter(|index| u64::from(*index) >= first_gone) {
                state.set_hole(index);
            }
        }
        if within == 0 {
            return Ok(());
        }
        // A volume has less than 2^32 objects.
        let index = (size_bytes / self.object_bytes) as u32;
        let length = (old_bytes - size_bytes).min(self.object_bytes - within);
        let piece = Piece { index, within, length, at: 0 };
        let (entry, own) = {
            let state = self.state.lock();
            (state.live.get(index), state.own_birth(index))
        };
        if entry.is_hole() {
            return Ok(());
        }
        let birth = match own {
            Some(birth) => birth,
            None => self.bear_copy(index).await?,
        };
        self.discard_own(&piece, birth).await
    }
}
