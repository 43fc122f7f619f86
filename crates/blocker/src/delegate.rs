//! Macros with which a layer forwards unchanged operations.

use std::fmt;
use std::sync::Arc;

use crate::blocker::Blocker;

/// Writes the methods of [`Blocker`](crate::Blocker) that a layer forwards, inside its `impl`.
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
/// A layer that changes what [`Blocker::control`](crate::Blocker::control) answers lists `control`
/// as well, returns itself there, and writes its `Control` with
/// [`delegate_control!`](crate::delegate_control).
#[macro_export]
macro_rules! delegate {
    (|$this:ident| $below:expr) => { $crate::delegate!(|$this| $below, except); };
    (|$this:ident| $below:expr, except $($own:ident)*) => {
        $($crate::__delegate_unless! { $own [
            capabilities read change info list flush claim invalidate subscribe control
        ] { compile_error! { concat!("`", stringify!($own), "` is no method of `Blocker`") } } })*
        $crate::__delegate_one! { [$($own)*] |$this| $below, Blocker
            capabilities() -> $crate::Capabilities
        }
        $crate::__delegate_one! { [$($own)*] |$this| $below, Blocker
            read(request: $crate::ReadRequest) -> $crate::Reply<$crate::ReadReply>
        }
        $crate::__delegate_one! { [$($own)*] |$this| $below, Blocker
            change(request: $crate::ChangeRequest) -> $crate::Reply<$crate::ChangeReply>
        }
        $crate::__delegate_one! { [$($own)*] |$this| $below, Blocker
            info(request: $crate::InfoRequest) -> $crate::Reply<$crate::Info>
        }
        $crate::__delegate_one! { [$($own)*] |$this| $below, Blocker
            list(request: $crate::ListRequest) -> $crate::Reply<$crate::ListReply>
        }
        $crate::__delegate_one! { [$($own)*] |$this| $below, Blocker
            flush(request: $crate::FlushRequest) -> $crate::Reply<$crate::FlushReply>
        }
        $crate::__delegate_one! { [$($own)*] |$this| $below, Blocker
            claim(request: $crate::ClaimRequest) -> $crate::Reply<$crate::ClaimReply>
        }
        $crate::__delegate_one! { [$($own)*] |$this| $below, Blocker
            invalidate(request: $crate::InvalidateRequest) -> $crate::Reply<$crate::InvalidateReply>
        }
        $crate::__delegate_one! { [$($own)*] |$this| $below, Blocker
            subscribe() -> $crate::Subscription
        }
        $crate::__delegate_one! { [$($own)*] |$this| $below, Blocker
            control() -> &dyn $crate::Control
        }
    };
}

/// Writes the methods of [`Control`](crate::Control) that a layer forwards, inside its `impl`.
///
/// As [`delegate!`](crate::delegate); the place is a control plane.
///
/// ```
/// use std::sync::Arc;
/// use blocker::{Blocker, Control, Reply, metrics_above};
/// use cached_metrics::Families;
///
/// struct Layer {
///     below: Arc<dyn Blocker>,
/// }
///
/// impl Blocker for Layer {
///     blocker::delegate!(|this| this.below, except control);
///
///     fn control(&self) -> &dyn Control {
///         self
///     }
/// }
///
/// impl Control for Layer {
///     blocker::delegate_control!(|this| *this.below.control(), except metrics);
///
///     fn metrics(&self) -> Reply<Families> {
///         let mut own = Families::new();
///         own.gauge("layers", "Layers.", 1);
///         metrics_above(own, self.below.control())
///     }
/// }
/// ```
#[macro_export]
macro_rules! delegate_control {
    (|$this:ident| $below:expr) => { $crate::delegate_control!(|$this| $below, except); };
    (|$this:ident| $below:expr, except $($own:ident)*) => {
        $($crate::__delegate_unless! { $own [
            attach detach release policy set_policy quota set_quota metrics losses namespaces namespace_state
            namespace_states change_namespace set_volume remove_namespace
        ] { compile_error! { concat!("`", stringify!($own), "` is no method of `Control`") } } })*
        $crate::__delegate_one! { [$($own)*] |$this| $below, Control
            attach(namespace: $crate::Namespace) -> $crate::Reply<$crate::Attachment>
        }
        $crate::__delegate_one! { [$($own)*] |$this| $below, Control
            detach(namespace: $crate::Namespace) -> $crate::Reply<()>
        }
        $crate::__delegate_one! { [$($own)*] |$this| $below, Control
            release(namespace: $crate::Namespace) -> $crate::Reply<()>
        }
        $crate::__delegate_one! { [$($own)*] |$this| $below, Control
            policy(namespace: $crate::Namespace) -> $crate::Reply<$crate::Policy>
        }
        $crate::__delegate_one! { [$($own)*] |$this| $below, Control
            set_policy(namespace: $crate::Namespace, policy: $crate::Policy) -> $crate::Reply<()>
        }
        $crate::__delegate_one! { [$($own)*] |$this| $below, Control
            quota(namespace: $crate::Namespace) -> $crate::Reply<$crate::Quota>
        }
        $crate::__delegate_one! { [$($own)*] |$this| $below, Control
            set_quota(namespace: $crate::Namespace, bytes_max: Option<u64>) -> $crate::Reply<()>
        }
        $crate::__delegate_one! { [$($own)*] |$this| $below, Control
            metrics() -> $crate::Reply<$crate::metrics::Families>
        }
        $crate::__delegate_one! { [$($own)*] |$this| $below, Control
            losses(after: Option<$crate::ObjectId>) -> $crate::Reply<$crate::LossPage>
        }
        $crate::__delegate_one! { [$($own)*] |$this| $below, Control
            namespaces() -> $crate::Reply<Vec<$crate::Namespace>>
        }
        $crate::__delegate_one! { [$($own)*] |$this| $below, Control
            namespace_state(namespace: $crate::Namespace) -> $crate::Reply<$crate::NamespaceState>
        }
        $crate::__delegate_one! { [$($own)*] |$this| $below, Control
            namespace_states(after: Option<$crate::Namespace>) -> $crate::Reply<$crate::NamespacePage>
        }
        $crate::__delegate_one! { [$($own)*] |$this| $below, Control
            change_namespace(
                namespace: $crate::Namespace,
                settings: $crate::NamespaceSettings
            ) -> $crate::Reply<()>
        }
        $crate::__delegate_one! { [$($own)*] |$this| $below, Control
            set_volume(
                namespace: $crate::Namespace,
                attachment: u64,
                settings: Option<$crate::NamespaceSettings>
            ) -> $crate::Reply<()>
        }
        $crate::__delegate_one! { [$($own)*] |$this| $below, Control
            remove_namespace(
                namespace: $crate::Namespace,
                dirty_data: $crate::DirtyData
            ) -> $crate::Reply<$crate::RemovedNamespace>
        }
    };
}

/// Writes one forwarding method, unless its name is in the list.
#[doc(hidden)]
#[macro_export]
macro_rules! __delegate_one {
    ([$($own:ident)*] |$this:ident| $below:expr, $trait:ident
        $method:ident($($argument:ident: $type:ty),*) -> $reply:ty) => {
        $crate::__delegate_unless! { $method [$($own)*] {
            #[inline]
            fn $method(&self, $($argument: $type),*) -> $reply {
                let $this = self;
                $crate::$trait::$method(&$below, $($argument),*)
            }
        } }
    };
}

/// Writes the body, unless the name is in the list.
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
    (attach [attach $($rest:ident)*] $body:tt) => {};
    (detach [detach $($rest:ident)*] $body:tt) => {};
    (release [release $($rest:ident)*] $body:tt) => {};
    (policy [policy $($rest:ident)*] $body:tt) => {};
    (set_policy [set_policy $($rest:ident)*] $body:tt) => {};
    (quota [quota $($rest:ident)*] $body:tt) => {};
    (set_quota [set_quota $($rest:ident)*] $body:tt) => {};
    (metrics [metrics $($rest:ident)*] $body:tt) => {};
    (losses [losses $($rest:ident)*] $body:tt) => {};
    (namespaces [namespaces $($rest:ident)*] $body:tt) => {};
    (namespace_state [namespace_state $($rest:ident)*] $body:tt) => {};
    (namespace_states [namespace_states $($rest:ident)*] $body:tt) => {};
    (change_namespace [change_namespace $($rest:ident)*] $body:tt) => {};
    (set_volume [set_volume $($rest:ident)*] $body:tt) => {};
    (remove_namespace [remove_namespace $($rest:ident)*] $body:tt) => {};
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
