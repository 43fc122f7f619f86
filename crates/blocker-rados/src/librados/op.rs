//! Compound operations: steps that RADOS applies to one object in one atomic step, or not at all.
//!
//! Every argument is copied into the operation as the step is added (librados does so), but for the places
//! that a read writes to: those live in [`crate::librados::aio::Landing`].

use std::ffi::{CStr, c_char};
use std::sync::Arc;

use crate::librados::ffi::{Api, CREATE_EXCLUSIVE, Handle};

/// Steps of a change, in the order in which they are applied. The first that fails undoes all.
pub(crate) struct WriteOp {
    api: Arc<Api>,
    raw: Handle,
    payload_bytes: usize,
}

// SAFETY: librados binds an operation to no thread; only one has this one at a time.
unsafe impl Send for WriteOp {}

fn pointer(bytes: &[u8]) -> *const c_char {
    bytes.as_ptr().cast()
}

impl WriteOp {
    pub(crate) fn new(api: &Arc<Api>) -> Self {
        // SAFETY: no arguments.
        let raw = unsafe { (api.create_write_op)() };
        assert!(!raw.is_null(), "librados has no memory left");
        Self { api: Arc::clone(api), raw, payload_bytes: 0 }
    }

    /// Fails with ECANCELED unless `value` compares so with the attribute's; with ENOENT without an object.
    pub(crate) fn compare(self, name: &CStr, comparison: u8, value: &[u8]) -> Self {
        // SAFETY: the operation is ours; name and value live during the call and are copied.
        unsafe {
            (self.api.write_op_cmpxattr)(self.raw, name.as_ptr(), comparison, pointer(value), value.len());
        }
        self
    }

    /// Fails with ERANGE or EOVERFLOW unless the object has this version.
    pub(crate) fn assert_version(self, version: u64) -> Self {
        // SAFETY: the operation is ours.
        unsafe { (self.api.write_op_assert_version)(self.raw, version) };
        self
    }

    /// Fails with `MISMATCH` less the offset of the first other byte.
    pub(crate) fn compare_bytes(mut self, offset: u64, expected: &[u8]) -> Self {
        // SAFETY: the operation is ours; the bytes live during the call and are copied. The step's own
        // result is not asked for: it is the operation's.
        unsafe {
            (self.api.write_op_cmpext)(
                self.raw,
                pointer(expected),
                expected.len(),
                offset,
                std::ptr::null_mut(),
            );
        }
        self.payload_bytes += expected.len();
        self
    }

    /// Fails with EEXIST if there is an object.
    pub(crate) fn create(self) -> Self {
        // SAFETY: the operation is ours; a category is not used since Jewel.
        unsafe { (self.api.write_op_create)(self.raw, CREATE_EXCLUSIVE, std::ptr::null()) };
        self
    }

    pub(crate) fn set(self, name: &CStr, value: &[u8]) -> Self {
        // SAFETY: the operation is ours; name and value live during the call and are copied.
        unsafe { (self.api.write_op_setxattr)(self.raw, name.as_ptr(), pointer(value), value.len()) };
        self
    }

    pub(crate) fn unset(self, name: &CStr) -> Self {
        // SAFETY: the operation is ours; the name lives during the call and is copied.
        unsafe { (self.api.write_op_rmxattr)(self.raw, name.as_ptr()) };
        self
    }

    pub(crate) fn write(mut self, offset: u64, data: &[u8]) -> Self {
        // SAFETY: the operation is ours; the bytes live during the call and are copied.
        unsafe { (self.api.write_op_write)(self.raw, pointer(data), data.len(), offset) };
        self.payload_bytes += data.len();
        self
    }

    pub(crate) fn write_full(mut self, data: &[u8]) -> Self {
        // SAFETY: the operation is ours; the bytes live during the call and are copied.
        unsafe { (self.api.write_op_write_full)(self.raw, pointer(data), data.len()) };
        self.payload_bytes += data.len();
        self
    }

    /// Zeroes a range. Beware: one that reaches the object's end cuts it off there.
    pub(crate) fn zero(self, offset: u64, len_bytes: u64) -> Self {
        // SAFETY: the operation is ours.
        unsafe { (self.api.write_op_zero)(self.raw, offset, len_bytes) };
        self
    }

    pub(crate) fn truncate(self, size_bytes: u64) -> Self {
        // SAFETY: the operation is ours.
        unsafe { (self.api.write_op_truncate)(self.raw, size_bytes) };
        self
    }

    pub(crate) fn remove(self) -> Self {
        // SAFETY: the operation is ours.
        unsafe { (self.api.write_op_remove)(self.raw) };
        self
    }

    pub(crate) fn payload_bytes(&self) -> usize {
        self.payload_bytes
    }

    pub(crate) fn raw(&self) -> Handle {
        self.raw
    }
}

impl Drop for WriteOp {
    fn drop(&mut self) {
        // SAFETY: created by `new`, released once. librados has taken the steps over when it was begun.
        unsafe { (self.api.release_write_op)(self.raw) };
    }
}

/// What a read asks for, in one atomic step.
#[derive(Default)]
pub(crate) struct ReadOp {
    /// Fails with ERANGE or EOVERFLOW unless the object has this version.
    pub(crate) version: Option<u64>,
    /// Fails with ECANCELED unless the value is above the attribute's.
    pub(crate) above: Option<(&'static CStr, &'static [u8])>,
    /// The size.
    pub(crate) stat: bool,
    /// Offset and length of a range; a length of 0 reads nothing.
    pub(crate) range: (u64, usize),
    /// All attributes.
    pub(crate) attributes: bool,
    /// Waits for changes that came before it.
    pub(crate) ordered: bool,
}
