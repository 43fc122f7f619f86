//! Copying one object onto another.

use blocker::{Condition, CopyRequest, Error, Result, Version};

use crate::object::Core;
use crate::object::bounds::Progress;
use crate::object::change::Act;

impl Core {
    /// Copies through this client. What is written is the source as it was at one moment.
    pub(crate) async fn copy(&self, request: &CopyRequest, progress: &Progress) -> Result<(Version, u64)> {
        let limit_bytes = self.object_bytes_max;
        let mut change = request.change;
        let act = if request.from == request.to {
            let (_, _, version) = self.read_range(&request.from, 0, 0, request.from_condition).await?;
            if request.from_condition != Condition::None && change.condition == Condition::None {
                change.condition = Condition::Version(version);
            }
            Act::Touch
        } else {
            let (data, size_bytes, _) =
                self.read_range(&request.from, 0, limit_bytes, request.from_condition).await?;
            if size_bytes > limit_bytes {
                return Err(Error::TooLarge { limit_bytes });
            }
            Act::Full { data: data.into() }
        };
        self.change(&request.to, &act, &change, progress).await
    }
}
