//! Layers that measure, trace or forward the operations of the blocker below.

mod measured;
mod traced;

use std::fmt;
use std::sync::Arc;

use crate::Blocker;

pub use measured::{Measured, Measurements, OperationStats};
pub use traced::{Traced, note_error};

/// Generates the forwarding methods of a layer, inside its `impl` of [`Blocker`](crate::Blocker).
///
/// The first argument names the layer and gives the blocker below it as a place; `except` lists the
/// methods that the layer writes itself. A name that is not a method of the trait does not compile.
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use blocker::{Blocker, ReadReply, ReadRequest, Reply};
///
/// /// Counts reads.
/// struct CountReads<B> {
///     below: Arc<B>,
///     reads: AtomicU64,
/// }
///
/// impl<B: Blocker> Blocker for CountReads<B> {
///     blocker::delegate!(|this| *this.below, except read);
///
///     fn read(&self, request: ReadRequest) -> Reply<ReadReply> {
///         self.reads.fetch_add(1, Ordering::Relaxed);
///         self.below.read(request)
///     }
/// }
/// ```
///
/// A layer with its own control plane lists `control` as well, and implements
/// [`Control`](crate::Control).
#[macro_export]
macro_rules! delegate {
    (|$this:ident| $below:expr) => { $crate::delegate!(|$this| $below, except); };
    (|$this:ident| $below:expr, except $($own:ident)*) => {
        $($crate::__delegate_unless! { $own [
            capabilities read change info list flush claim invalidate subscribe control
        ] { compile_error! { concat!("`", stringify!($own), "` is not a method of `Blocker`") } } })*
        $crate::__delegate_methods! { [$($own)*] |$this| $below,
            capabilities() -> $crate::Capabilities;
            read(request: $crate::ReadRequest) -> $crate::Reply<$crate::ReadReply>;
            change(request: $crate::ChangeRequest) -> $crate::Reply<$crate::ChangeReply>;
            info(request: $crate::InfoRequest) -> $crate::Reply<$crate::Info>;
            list(request: $crate::ListRequest) -> $crate::Reply<$crate::ListReply>;
            flush(request: $crate::FlushRequest) -> $crate::Reply<$crate::FlushReply>;
            claim(request: $crate::ClaimRequest) -> $crate::Reply<$crate::ClaimReply>;
            invalidate(request: $crate::InvalidateRequest) -> $crate::Reply<$crate::InvalidateReply>;
            subscribe() -> $crate::Subscription;
            control() -> &dyn $crate::Control;
        }
    };
}

/// Generates forwarding methods, except those whose names are in the list.
#[doc(hidden)]
#[macro_export]
macro_rules! __delegate_methods {
    ([$($own:ident)*] |$this:ident| $below:expr, $method:ident($($argument:ident: $type:ty)?) -> $reply:ty;
        $($rest:tt)*) => {
        $crate::__delegate_unless! { $method [$($own)*] {
            #[inline]
            fn $method(&self, $($argument: $type)?) -> $reply {
                let $this = self;
                $crate::Blocker::$method(&$below, $($argument)?)
            }
        } }
        $crate::__delegate_methods! { [$($own)*] |$this| $below, $($rest)* }
    };
    ([$($own:ident)*] |$this:ident| $below:expr,) => {};
}

/// Generates the method, unless its name is in the list.
#[doc(hidden)]
#[macro_export]
macro_rules! __delegate_unless {
    (capabilities [capabilities $($rest:ident)*] $body:tt) => {};
    (read [read $($rest:ident)*] $body:tt) => {};
    (change [change $($rest:ident)*] $body:tt) => {};
    (info [info $($rest:ident)*] $body:tt) => {};
    (list [list $($rest:ident)*] $body:tt) => {};
    (flush [flush $($rest:ident)*] $body:tt) => {};
    (claim [claim $($rest:ident)*] $body:tt) => {};
    (invalidate [invalidate $($rest:ident)*] $body:tt) => {};
    (subscribe [subscribe $($rest:ident)*] $body:tt) => {};
    (control [control $($rest:ident)*] $body:tt) => {};
    ($name:ident [] { $($body:tt)* }) => { $($body)* };
    ($name:ident [$other:ident $($rest:ident)*] $body:tt) => {
        $crate::__delegate_unless! { $name [$($rest)*] $body }
    };
}

/// A layer that forwards each call to the blocker below. A ready reply stays ready, unboxed.
#[derive(Clone)]
pub struct PassThrough<B: Blocker + ?Sized = dyn Blocker> {
    inner: Arc<B>,
}

impl<B: Blocker + ?Sized> PassThrough<B> {
    /// Returns a layer over `inner`.
    #[must_use]
    pub fn new(inner: Arc<B>) -> Self {
        Self { inner }
    }
}

impl<B: Blocker + ?Sized> fmt::Debug for PassThrough<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PassThrough").finish_non_exhaustive()
    }
}

impl<B: Blocker + ?Sized> Blocker for PassThrough<B> {
    crate::delegate!(|this| *this.inner);
}
