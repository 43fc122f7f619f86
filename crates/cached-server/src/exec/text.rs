//! Which function answers which text or meta request.

use super::{Executor, Next, admin, arithmetic, debug, delete, flush, get, meta, store};
use crate::settings::MEMCACHED_VERSION;
use crate::stats;
use crate::worker::Doing;
use cached_proto::reply;
use cached_proto::text::{self, Request};

/// Carries out one text or meta request.
#[inline]
pub(crate) fn execute(executor: &mut Executor<'_>, request: &Request<'_>) -> Next {
    if let Request::Get(get) = request {
        return get::many(executor, &mut get.clone());
    }
    execute_other(executor, request)
}

/// All but retrievals, out of line to keep their path short.
#[inline(never)]
fn execute_other(executor: &mut Executor<'_>, request: &Request<'_>) -> Next {
    executor.counters.pulse.go_on(Doing::of(request));
    match request {
        Request::Get(get) => return get::many(executor, &mut get.clone()),
        Request::Store(command) => store::text(executor, command),
        Request::MetaGet(command) => meta::get(executor, command),
        Request::MetaSet(command) => store::meta(executor, command),
        Request::Delete(command) => delete::text(executor, command),
        Request::MetaDelete(command) => delete::meta(executor, command),
        Request::Arithmetic(command) => arithmetic::text(executor, command),
        Request::MetaArithmetic(command) => arithmetic::meta(executor, command),
        Request::Touch(command) => get::touch(executor, command),
        Request::MetaNoop => executor.reply(reply::META_NOOP),
        Request::MetaDebug(command) => debug::meta(executor, command),
        Request::FlushAll(command) => flush::text(executor, command),
        Request::Version => text::encode_version(&mut executor.out.bytes, MEMCACHED_VERSION),
        Request::Quit => return Next::Close,
        Request::Verbosity(command) => admin::verbosity(executor, command),
        Request::Stats(tokens) => {
            stats::text(executor.shared, executor.client, &mut executor.out.bytes, tokens);
        }
        Request::Admin(command) => return admin::execute(executor, command),
    }
    Next::Go
}
