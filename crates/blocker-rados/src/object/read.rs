//! Reading: one RADOS operation gives bytes, size and version, all of one moment. A ghost has no bytes, so
//! what has any is there; of what has none the operation is made once more, with a comparison that a ghost's
//! head fails, so that it is as if there were nothing.

use std::sync::Arc;

use blocker::admission::check_condition;
use blocker::{Condition, Error, Info, InfoRequest, ObjectId, ReadReply, ReadRequest, Result, Version};
use bytes::Bytes;

use crate::attr::{BELOW_GHOSTS, HEAD};
use crate::librados::ffi::errno;
use crate::librados::op::ReadOp;
use crate::object::Core;
use crate::object::change::{Act, Begun, clip};

/// How often a read is tried again that asks for a version which comes and goes.
const TRIES: u32 = 20;

impl Core {
    pub(crate) async fn read(self: &Arc<Self>, request: ReadRequest) -> Result<ReadReply> {
        let limit_bytes = self.config.object_bytes_max;
        if request.len_bytes > limit_bytes {
            return Err(Error::TooLarge { limit_bytes });
        }
        let (data, size_bytes, version) = self
            .read_range(&request.object, request.offset, request.len_bytes as usize, request.condition)
            .await?;
        Ok(ReadReply::new(Bytes::from(data).into(), size_bytes, version))
    }

    /// Bytes of a range, the size, and the version.
    async fn read_range(
        self: &Arc<Self>,
        object: &ObjectId,
        offset: u64,
        len: usize,
        condition: Condition,
    ) -> Result<(Vec<u8>, u64, Version)> {
        let space = self.space(&object.namespace)?;
        let name = self.layout.object(&object.name);
        let wanted = match condition {
            Condition::Version(version) => Some(self.rados_version(&space, version)),
            _ => None,
        };
        let mut may_be_ghost = false;
        for _ in 0..TRIES {
            self.settle(&space, object).await?;
            // A version of another pool is one that no object has.
            let version = wanted.map(|version| version.unwrap_or(u64::MAX));
            let op = ReadOp {
                version,
                above: may_be_ghost.then_some((HEAD, &BELOW_GHOSTS)),
                stat: true,
                range: clip(offset, len),
                ..ReadOp::default()
            };
            let (outcome, found) = self.read_object(&space, &name, op).await;
            match outcome.code {
                0.. if found.size_bytes == 0 && !may_be_ghost => may_be_ghost = true,
                0.. => {
                    let version = self.version(&space, outcome.version);
                    check_condition(Some(version), condition)?;
                    let mut data = found.data;
                    if data.len() < data.capacity() / 2 {
                        data.shrink_to_fit();
                    }
                    return Ok((data, found.size_bytes, version));
                }
                errno::CANCELED => return Err(Error::Missing),
                errno::RANGE | errno::OVERFLOW => {
                    let view = self.look(&space, &object.name, false).await?;
                    let version = view.is_there().then(|| self.version(&space, view.version));
                    check_condition(version, condition)?;
                }
                code => return Err(self.failed_read(&space, code)),
            }
        }
        Err(Error::Retryable("the object is changed by others all the time".into()))
    }

    pub(crate) async fn info(self: &Arc<Self>, request: InfoRequest) -> Result<Info> {
        let object = &request.object;
        let space = self.space(&object.namespace)?;
        self.settle(&space, object).await?;
        let view = self.look(&space, &object.name, false).await?;
        let size_bytes = view.head.size_bytes().ok_or(Error::Missing)?;
        Ok(Info::new(size_bytes, self.version(&space, view.version), view.stamp))
    }

    /// Copies through this client: librados's C interface has no copy within the store. What is written is
    /// the source as it was at one moment.
    pub(crate) async fn copy(
        self: &Arc<Self>,
        request: &blocker::CopyRequest,
        begun: &Begun,
    ) -> Result<(Version, u64)> {
        let limit_bytes = self.config.object_bytes_max;
        let mut change = request.change;
        let act = if request.from == request.to {
            let (_, _, version) = self.read_range(&request.from, 0, 0, request.from_condition).await?;
            if request.from_condition != Condition::None && change.condition == Condition::None {
                change.condition = Condition::Version(version);
            }
            Act::Touch
        } else {
            let (data, size_bytes, _) =
                self.read_range(&request.from, 0, limit_bytes as usize, request.from_condition).await?;
            if size_bytes > limit_bytes {
                return Err(Error::TooLarge { limit_bytes });
            }
            Act::Full { data: data.into() }
        };
        self.change(&request.to, &act, &change, begun).await
    }
}
