//! What the catalog has of a volume: its number.

use super::reader::{Reader, sealed};
use crate::format::entry::{VOLUME_MAX, VolumeId};

const MAGIC: &[u8; 8] = b"cvolname";
const VERSION: u32 = 1;

/// A volume's number under its name, or the number of the volume to be made next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CatalogEntry {
    pub(crate) volume: VolumeId,
}

impl CatalogEntry {
    pub(crate) fn encode(self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&self.volume.0.to_le_bytes());
        sealed(bytes)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, String> {
        let mut reader = Reader::open(bytes, MAGIC, VERSION)?;
        let volume = VolumeId(reader.u32()?);
        reader.end()?;
        if volume.0 == 0 || volume.0 > VOLUME_MAX {
            return Err("it has an impossible number of a volume".into());
        }
        Ok(Self { volume })
    }
}
