//! Memory writes that a later process may find half done.
//!
//! If a process is killed, a shared mapping contains everything that each of its threads had
//! written, up to some instruction, in program order. So if the order of two writes determines what
//! a restart finds, only the compiler must be kept from swapping them: [`fence`]. Tests call a hook
//! after each write, and rebuild the store from the memory at that moment.

use std::sync::atomic::{Ordering, compiler_fence};

/// Prevents the compiler from moving writes across this point. It generates no instruction, and
/// values read before it need not be read again.
#[inline(always)]
pub(crate) fn fence() {
    compiler_fence(Ordering::Release);
}

/// Marks the end of a write.
#[cfg(any(not(test), shuttle))]
#[inline(always)]
pub(crate) fn done() {}

/// Copies bytes that do not overlap.
///
/// # Safety
/// The same as for [`std::ptr::copy_nonoverlapping`].
#[cfg(any(not(test), shuttle))]
#[inline(always)]
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: as the caller promises.
    unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) };
}

#[cfg(all(test, not(shuttle)))]
pub(crate) use observed::{copy, done, observe};

#[cfg(all(test, not(shuttle)))]
mod observed {
    use std::cell::RefCell;

    type Hook = Box<dyn FnMut()>;

    thread_local! {
        static HOOK: RefCell<Option<Hook>> = const { RefCell::new(None) };
    }

    /// Calls `hook` after each write of this thread during `body`, except for those of the hook
    /// itself.
    pub(crate) fn observe<T>(hook: impl FnMut() + 'static, body: impl FnOnce() -> T) -> T {
        HOOK.with(|slot| *slot.borrow_mut() = Some(Box::new(hook)));
        let result = body();
        HOOK.with(|slot| *slot.borrow_mut() = None);
        result
    }

    pub(crate) fn done() {
        // The hook is removed during the call, so that the hook itself may write.
        let Some(mut hook) = HOOK.with(|slot| slot.borrow_mut().take()) else { return };
        hook();
        HOOK.with(|slot| *slot.borrow_mut() = Some(hook));
    }

    /// Copies in two halves.
    ///
    /// # Safety
    /// The same as for [`std::ptr::copy_nonoverlapping`].
    pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
        let half = bytes / 2;
        // SAFETY: as the caller promises; the halves are parts of the ranges.
        unsafe {
            std::ptr::copy_nonoverlapping(from, to, half);
            done();
            std::ptr::copy_nonoverlapping(from.add(half), to.add(half), bytes - half);
        }
        done();
    }
}
