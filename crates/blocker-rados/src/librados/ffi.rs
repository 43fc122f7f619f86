//! librados, loaded at run time, with only the functions used here, each with its C signature.
//!
//! Building needs no part of Ceph, and a machine without Ceph can run everything except this
//! backend. The signatures are those of `librados.h` since 14.2 (Nautilus). A library that lacks
//! one of the functions is refused when it is loaded, with the missing name.

use std::ffi::{c_char, c_int, c_void};

use blocker::{Error, Result};
use libloading::Library;

/// The library's file name, unchanged since 2010.
const LIBRARY: &str = "librados.so.2";

/// `rados_t`, `rados_ioctx_t`, …: all opaque pointers in C.
pub(crate) type Handle = *mut c_void;
/// `rados_callback_t`.
pub(crate) type Completed = unsafe extern "C" fn(completion: Handle, arg: *mut c_void);
/// `rados_watchcb2_t`.
pub(crate) type Notified = unsafe extern "C" fn(
    arg: *mut c_void,
    notify_id: u64,
    cookie: u64,
    notifier: u64,
    data: *mut c_void,
    len: usize,
);
/// `rados_watcherrcb_t`.
pub(crate) type WatchFailed = unsafe extern "C" fn(arg: *mut c_void, cookie: u64, error: c_int);

/// `LIBRADOS_CMPXATTR_OP_EQ`: the given value equals the stored one; a missing attribute counts as
/// empty.
pub(crate) const COMPARE_EQ: u8 = 1;
/// `LIBRADOS_CMPXATTR_OP_GT`: the given value is above the stored one, bytewise.
pub(crate) const COMPARE_GT: u8 = 3;
/// `LIBRADOS_CREATE_EXCLUSIVE`.
pub(crate) const CREATE_EXCLUSIVE: c_int = 1;
/// `LIBRADOS_OPERATION_ORDER_READS_WRITES`: a read waits for earlier writes.
pub(crate) const ORDER_READS_WRITES: c_int = 4;
/// `LIBRADOS_OPERATION_FULL_TRY`: a full cluster responds with ENOSPC instead of waiting for space.
pub(crate) const FULL_TRY: c_int = 64;

macro_rules! functions {
    ($($name:ident($($arg:ty),* $(,)?) $(-> $result:ty)?;)*) => {
        /// The functions of the loaded library.
        pub(crate) struct Api {
            $(pub(crate) $name: unsafe extern "C" fn($($arg),*) $(-> $result)?,)*
            /// Keeps the library loaded for the pointers above.
            _library: Library,
        }

        impl Api {
            /// Loads the library.
            ///
            /// # Errors
            /// Returns `Unsupported` if the library is missing or too old.
            pub(crate) fn load() -> Result<Self> {
                let missing = |error: libloading::Error| {
                    Error::Unsupported(
                        format!("{LIBRARY} cannot be loaded; install it (Debian: apt-get install librados2): {error}").into(),
                    )
                };
                // SAFETY: at load time, librados runs only the constructors of its statics.
                let library = unsafe { Library::new(LIBRARY) }.map_err(missing)?;
                Ok(Self {
                    $($name: {
                        // SAFETY: the type is the function's C signature (librados.h); the pointer
                        // is stored next to the library, and dropped together with it.
                        *unsafe { library.get::<unsafe extern "C" fn($($arg),*) $(-> $result)?>(
                            concat!("rados_", stringify!($name), "\0").as_bytes(),
                        ) }
                        .map_err(missing)?
                    },)*
                    _library: library,
                })
            }
        }
    };
}

functions! {
    create2(*mut Handle, *const c_char, *const c_char, u64) -> c_int;
    conf_read_file(Handle, *const c_char) -> c_int;
    conf_set(Handle, *const c_char, *const c_char) -> c_int;
    connect(Handle) -> c_int;
    shutdown(Handle);
    pool_lookup(Handle, *const c_char) -> i64;
    pool_reverse_lookup(Handle, i64, *mut c_char, usize) -> c_int;
    wait_for_latest_osdmap(Handle) -> c_int;
    ioctx_create2(Handle, i64, *mut Handle) -> c_int;
    ioctx_set_namespace(Handle, *const c_char);
    ioctx_destroy(Handle);

    aio_create_completion2(*mut c_void, Completed, *mut Handle) -> c_int;
    aio_get_return_value(Handle) -> c_int;
    aio_get_version(Handle) -> u64;
    aio_release(Handle);

    create_write_op() -> Handle;
    release_write_op(Handle);
    write_op_assert_version(Handle, u64);
    write_op_cmpext(Handle, *const c_char, usize, u64, *mut c_int);
    write_op_cmpxattr(Handle, *const c_char, u8, *const c_char, usize);
    write_op_setxattr(Handle, *const c_char, *const c_char, usize);
    write_op_rmxattr(Handle, *const c_char);
    write_op_create(Handle, c_int, *const c_char);
    write_op_write(Handle, *const c_char, usize, u64);
    write_op_write_full(Handle, *const c_char, usize);
    write_op_zero(Handle, u64, u64);
    write_op_truncate(Handle, u64);
    write_op_remove(Handle);
    aio_write_op_operate(Handle, Handle, Handle, *const c_char, *const i64, c_int) -> c_int;

    create_read_op() -> Handle;
    release_read_op(Handle);
    read_op_assert_version(Handle, u64);
    read_op_cmpxattr(Handle, *const c_char, u8, *const c_char, usize);
    read_op_stat(Handle, *mut u64, *mut i64, *mut c_int);
    read_op_read(Handle, u64, usize, *mut c_char, *mut usize, *mut c_int);
    read_op_getxattrs(Handle, *mut Handle, *mut c_int);
    aio_read_op_operate(Handle, Handle, Handle, *const c_char, c_int) -> c_int;
    getxattrs_next(Handle, *mut *const c_char, *mut *const c_char, *mut usize) -> c_int;
    getxattrs_end(Handle);

    nobjects_list_open(Handle, *mut Handle) -> c_int;
    nobjects_list_next2(
        Handle, *mut *const c_char, *mut *const c_char, *mut *const c_char,
        *mut usize, *mut usize, *mut usize,
    ) -> c_int;
    nobjects_list_close(Handle);

    watch3(Handle, *const c_char, *mut u64, Notified, WatchFailed, u32, *mut c_void) -> c_int;
    unwatch2(Handle, u64) -> c_int;
    watch_flush(Handle) -> c_int;
    notify_ack(Handle, *const c_char, u64, u64, *const c_char, c_int) -> c_int;
    aio_notify(Handle, *const c_char, Handle, *const c_char, c_int, u64, *mut *mut c_char, *mut usize) -> c_int;
}

/// The relevant error numbers, negative as in librados.
pub(crate) mod errno {
    pub(crate) const PERM: i32 = -1;
    pub(crate) const NOENT: i32 = -2;
    pub(crate) const IO: i32 = -5;
    pub(crate) const ACCES: i32 = -13;
    pub(crate) const EXIST: i32 = -17;
    pub(crate) const INVAL: i32 = -22;
    pub(crate) const FBIG: i32 = -27;
    pub(crate) const NOSPC: i32 = -28;
    pub(crate) const RANGE: i32 = -34;
    pub(crate) const NAMETOOLONG: i32 = -36;
    pub(crate) const OVERFLOW: i32 = -75;
    pub(crate) const MSGSIZE: i32 = -90;
    pub(crate) const OPNOTSUPP: i32 = -95;
    pub(crate) const SHUTDOWN: i32 = -108;
    pub(crate) const TIMEDOUT: i32 = -110;
    pub(crate) const DQUOT: i32 = -122;
    pub(crate) const CANCELED: i32 = -125;
    /// `cmpext` answers `MISMATCH` minus the offset of the first differing byte.
    pub(crate) const MISMATCH: i32 = -4095;
}
