//! The record of a scope: its claim, and what claims of narrower scopes have announced.
//!
//! ```text
//! magic [u8; 4] │ crc u32 │ nonce u64 │ claim │ narrower u64 │ domains u64 │ objects u64 │ length u8 │ namespace
//! ```
//!
//! A claim as in a head (`head.rs`); the namespace's own name, empty in the record of everything.

use blocker::{Error, Namespace, OrderDomain, Result};
use bytes::{BufMut, Bytes, BytesMut};
use object_store::path::Path;

use crate::format::head::{Claim, open, put_claim, seal};
use crate::object::Core;
use crate::server::requests::{Got, Put};

pub(crate) const MAGIC: &[u8; 4] = b"cs3r";
/// No record is larger.
const RECORD_BYTES_MAX: u64 = 1024;
/// How often a record is tried that others change at the same time.
const TRIES: u32 = 100;

/// A record as it is stored.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Record {
    /// The claim of the scope itself; epoch 0 if there was none.
    pub(crate) claim: Claim,
    /// The highest epochs announced by narrower claims: of anything, of domains, of objects.
    pub(crate) narrower: u64,
    pub(crate) domains: u64,
    pub(crate) objects: u64,
    pub(crate) namespace: Bytes,
}

impl Record {
    pub(crate) fn encode(&self) -> Bytes {
        let mut to = BytesMut::with_capacity(128);
        to.put_slice(MAGIC);
        to.put_u32_le(0);
        // No two bodies are alike, so that no ETag comes back.
        to.put_u64_le(rand::random());
        put_claim(&mut to, self.claim);
        to.put_u64_le(self.narrower);
        to.put_u64_le(self.domains);
        to.put_u64_le(self.objects);
        to.put_u8(self.namespace.len() as u8);
        to.put_slice(&self.namespace);
        seal(to)
    }

    /// Returns the record that these bytes are; `None` if this program does not write them.
    pub(crate) fn decode(bytes: &Bytes) -> Option<Self> {
        let mut from = open(MAGIC, bytes)?;
        from.u64()?;
        let claim = from.claim()?;
        let (narrower, domains, objects) = (from.u64()?, from.u64()?, from.u64()?);
        let len = from.u8()?.into();
        let namespace = from.bytes(len)?;
        from.is_empty().then_some(Self { claim, narrower, domains, objects, namespace })
    }
}

/// What [`Core::update_record`] is to do with what it finds.
pub(crate) enum Update {
    /// Nothing.
    Leave,
    /// To put this in its place.
    Put(Record),
}

/// Where the record of a scope lies.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place<'a> {
    All,
    Namespace(&'a Namespace),
    Domain(&'a Namespace, OrderDomain),
}

impl Core {
    fn record_path(&self, place: Place<'_>) -> Path {
        match place {
            Place::All => self.layout.record_of_all(),
            Place::Namespace(namespace) => self.layout.record(namespace),
            Place::Domain(namespace, domain) => self.layout.domain(namespace, domain),
        }
    }

    /// Returns the record of a scope; an empty one if there is none.
    ///
    /// # Errors
    /// Those of reads, but `Missing`.
    pub(crate) async fn record(&self, place: Place<'_>) -> Result<Record> {
        self.record_at(&self.record_path(place)).await.map(|(record, _)| record)
    }

    /// Returns the record at a path, and its ETag; an empty one if there is none.
    ///
    /// # Errors
    /// As [`Self::record`].
    pub(crate) async fn record_at(&self, path: &Path) -> Result<(Record, Option<String>)> {
        match self.requests.get(path, None, RECORD_BYTES_MAX).await? {
            Got::Missing => Ok((Record::default(), None)),
            Got::Found(bytes, Some(etag)) => {
                let record = Record::decode(&bytes).ok_or_else(|| {
                    Error::Corrupt(format!("{path} is no record as this program writes it").into())
                })?;
                Ok((record, Some(etag)))
            }
            Got::Found(_, None) | Got::Same => Err(Error::Corrupt("the server names no ETag".into())),
        }
    }

    /// Changes the record of a scope. What `update` returns for the record that was found is put in its
    /// place, if it is still there; otherwise `update` is asked again. An `update` that is repeated must find
    /// its own work done. Whether a put was made that may have changed something.
    ///
    /// # Errors
    /// Those of `update`; `Retryable`, `Denied`.
    pub(crate) async fn update_record(
        &self,
        place: Place<'_>,
        mut update: impl FnMut(&Record) -> Result<Update>,
    ) -> Result<bool> {
        let path = self.record_path(place);
        let mut is_put = false;
        let mut failed = 0;
        for attempt in 0..TRIES {
            let (found, etag) = self.record_at(&path).await?;
            let Update::Put(mut next) = update(&found)? else { return Ok(is_put) };
            if let Place::Namespace(namespace) | Place::Domain(namespace, _) = place {
                next.namespace = Bytes::copy_from_slice(namespace.as_bytes());
            }
            let put = match &etag {
                Some(etag) => self.requests.replace(&path, &next.encode(), etag).await,
                None => self.requests.create(&path, &next.encode()).await,
            };
            match put {
                Put::Done(_) => return Ok(true),
                Put::Lost => {}
                Put::Refused(error) => return Err(error),
                Put::Unknown(error) if failed >= 3 => {
                    return Err(Error::OutcomeUnknown(error.to_string().into()));
                }
                Put::Unknown(_) => {
                    is_put = true;
                    failed += 1;
                }
            }
            if attempt > 1 {
                self.requests.delay((attempt / 4).min(3)).await;
            }
        }
        Err(Error::Retryable("the scope is claimed by others all the time".into()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let claim = Claim { epoch: 3, writer: 4, is_held: true };
        let namespace = Bytes::from(vec![7; 255]);
        let record = Record { claim, narrower: 1, domains: 2, objects: 3, namespace };
        assert!(record.encode().len() as u64 <= RECORD_BYTES_MAX);
        assert_ne!(record.encode(), record.encode(), "no two bodies are alike");
        for record in [record, Record::default()] {
            assert_eq!(Record::decode(&record.encode()), Some(record));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_record_or_none(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = Record::decode(&Bytes::from(bytes.clone()));
            let mut body = BytesMut::from(&MAGIC[..]);
            body.put_u32_le(0);
            body.put_slice(&bytes);
            let _ = Record::decode(&seal(body));
        }
    }
}
