//! What a layer of the tests does not care about, it hands on.

/// `forward!(inner: read info ...)`: these operations, in an `impl Blocker`, as the field `inner` does them.
macro_rules! forward {
    ($inner:ident: $($operation:ident)*) => {$(
        $crate::support::world::forward::forward_one!($operation $inner);
    )*};
}

macro_rules! forward_one {
    (capabilities $inner:ident) => {
        fn capabilities(&self) -> blocker::Capabilities { self.$inner.capabilities() }
    };
    (subscribe $inner:ident) => {
        fn subscribe(&self) -> blocker::Subscription { self.$inner.subscribe() }
    };
    (read $inner:ident) => { forward_one!(read $inner, ReadRequest, ReadReply); };
    (write $inner:ident) => { forward_one!(write $inner, WriteRequest, ChangeReply); };
    (write_zeroes $inner:ident) => { forward_one!(write_zeroes $inner, WriteZeroesRequest, ChangeReply); };
    (discard $inner:ident) => { forward_one!(discard $inner, DiscardRequest, ChangeReply); };
    (compare_and_write $inner:ident) => {
        forward_one!(compare_and_write $inner, CompareAndWriteRequest, ChangeReply);
    };
    (write_full $inner:ident) => { forward_one!(write_full $inner, WriteFullRequest, ChangeReply); };
    (truncate $inner:ident) => { forward_one!(truncate $inner, TruncateRequest, ChangeReply); };
    (delete $inner:ident) => { forward_one!(delete $inner, DeleteRequest, DeleteReply); };
    (copy $inner:ident) => { forward_one!(copy $inner, CopyRequest, ChangeReply); };
    (info $inner:ident) => { forward_one!(info $inner, InfoRequest, Info); };
    (list $inner:ident) => { forward_one!(list $inner, ListRequest, ListReply); };
    (flush $inner:ident) => { forward_one!(flush $inner, FlushRequest, FlushReply); };
    (claim $inner:ident) => { forward_one!(claim $inner, ClaimRequest, ClaimReply); };
    (invalidate $inner:ident) => { forward_one!(invalidate $inner, InvalidateRequest, InvalidateReply); };
    ($operation:ident $inner:ident, $request:ident, $reply:ident) => {
        fn $operation(&self, request: blocker::$request) -> blocker::Reply<blocker::$reply> {
            self.$inner.$operation(request)
        }
    };
}

pub(crate) use {forward, forward_one};
