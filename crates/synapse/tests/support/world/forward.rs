//! What a layer of the tests does not care about, it hands on.

/// `forward!(inner: read info ...)`: these operations, in an `impl Blocker`, as the field `inner` does them.
macro_rules! forward {
    ($inner:tt: $($operation:ident)*) => {$(
        $crate::support::world::forward::forward_one!($operation $inner);
    )*};
}

macro_rules! forward_one {
    (capabilities $inner:tt) => {
        fn capabilities(&self) -> blocker::Capabilities { self.$inner.capabilities() }
    };
    (subscribe $inner:tt) => {
        fn subscribe(&self) -> blocker::Subscription { self.$inner.subscribe() }
    };
    (read $inner:tt) => { forward_one!(read $inner, ReadRequest, ReadReply); };
    (write $inner:tt) => { forward_one!(write $inner, WriteRequest, ChangeReply); };
    (write_zeroes $inner:tt) => { forward_one!(write_zeroes $inner, WriteZeroesRequest, ChangeReply); };
    (discard $inner:tt) => { forward_one!(discard $inner, DiscardRequest, ChangeReply); };
    (compare_and_write $inner:tt) => {
        forward_one!(compare_and_write $inner, CompareAndWriteRequest, ChangeReply);
    };
    (write_full $inner:tt) => { forward_one!(write_full $inner, WriteFullRequest, ChangeReply); };
    (truncate $inner:tt) => { forward_one!(truncate $inner, TruncateRequest, ChangeReply); };
    (delete $inner:tt) => { forward_one!(delete $inner, DeleteRequest, DeleteReply); };
    (copy $inner:tt) => { forward_one!(copy $inner, CopyRequest, ChangeReply); };
    (info $inner:tt) => { forward_one!(info $inner, InfoRequest, Info); };
    (list $inner:tt) => { forward_one!(list $inner, ListRequest, ListReply); };
    (flush $inner:tt) => { forward_one!(flush $inner, FlushRequest, FlushReply); };
    (claim $inner:tt) => { forward_one!(claim $inner, ClaimRequest, ClaimReply); };
    (invalidate $inner:tt) => { forward_one!(invalidate $inner, InvalidateRequest, InvalidateReply); };
    ($operation:ident $inner:tt, $request:ident, $reply:ident) => {
        fn $operation(&self, request: blocker::$request) -> blocker::Reply<blocker::$reply> {
            self.$inner.$operation(request)
        }
    };
}

pub(crate) use {forward, forward_one};
