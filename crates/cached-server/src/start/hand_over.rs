//! The hand-over of the object service together with the items.

use cached_memcached::ObjectHandOver;
use cached_objects::ObjectsControl;
use std::io;
use std::os::fd::OwnedFd;

/// The object service, as the memcached listener hands it over to another process.
#[derive(Debug)]
pub struct HandOver(pub ObjectsControl);

impl ObjectHandOver for HandOver {
    fn sockets(&self) -> io::Result<Vec<(String, OwnedFd)>> {
        self.0.sockets()
    }

    fn release(&self) -> Result<(), String> {
        self.0.release()
    }

    fn hand_over(&self) {
        self.0.hand_over();
    }

    fn serve(&self) {
        self.0.serve();
    }
}
