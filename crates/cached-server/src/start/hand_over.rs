//! The hand-over of the object service and of the ring's steward together with the items.

use crate::ring::RingControl;
use cached_memcached::ObjectHandOver;
use cached_objects::ObjectsControl;
use std::io;
use std::os::fd::OwnedFd;

/// The object service and the steward of a ring, as far as there are any, as the memcached listener
/// hands them over to another process.
#[derive(Debug)]
pub struct HandOver {
    /// The object service.
    pub objects: Option<ObjectsControl>,
    /// The steward, which ends moves of slots before the other process reads the map.
    pub ring: Option<RingControl>,
}

impl ObjectHandOver for HandOver {
    fn sockets(&self) -> io::Result<Vec<(String, OwnedFd)>> {
        self.objects.as_ref().map_or_else(|| Ok(Vec::new()), ObjectsControl::sockets)
    }

    fn release(&self) -> Result<(), String> {
        self.objects.as_ref().map_or(Ok(()), ObjectsControl::release)?;
        self.ring.as_ref().map_or(Ok(()), RingControl::hold)
    }

    fn hand_over(&self) {
        self.objects.iter().for_each(ObjectsControl::hand_over);
    }

    fn serve(&self) {
        self.ring.iter().for_each(RingControl::resume);
        self.objects.iter().for_each(ObjectsControl::serve);
    }
}
