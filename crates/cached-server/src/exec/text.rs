//! Text and meta requests: the choice of the function.

use super::{Executor, Next, admin, arithmetic, debug, delete, dump, flush, get, meta, store};
use crate::config::settings::MEMCACHED_VERSION;
use crate::stats;
use crate::telemetry::heartbeat::Activity;
use cached_proto::reply;
use cached_proto::text::{self, Request};

/// Executes one text or meta request.
#[inline]
pub(crate) fn execute(executor: &mut Executor<'_>, request: &Request<'_>) -> Next {
    if let Request::Get(get) = request {
        return get::many(executor, &mut get.clone());
    }
    execute_other(executor, request)
}

/// Executes a request other than a retrieval; out of line to keep the path of retrievals short.
#[inline(never)]
fn execute_other(executor: &mut Executor<'_>, request: &Request<'_>) -> Next {
    executor.counters.heartbeat.set_activity(Activity::of(request));
    if executor.work.is_used_up() && is_costly(request) {
        return Next::Defer;
    }
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
        Request::FlushPrefix(command) => flush::prefix(executor, command),
        Request::Version => text::encode_version(&mut executor.out.bytes, MEMCACHED_VERSION),
        Request::Quit => return Next::Close,
        Request::Verbosity(command) => admin::verbosity(executor, command),
        Request::Stats(tokens) if tokens.is_prefix_of(1, "cachedump") => {
            return dump::class(executor, tokens);
        }
        Request::Stats(tokens) => {
            let Executor { shared, out, work, client, .. } = executor;
            stats::text(shared, *client, &mut out.bytes, work, tokens);
        }
        Request::Admin(command) => return admin::execute(executor, command),
    }
    Next::Continue
}

/// Returns whether the cost of a request does not follow from the bytes that it takes and returns.
fn is_costly(request: &Request<'_>) -> bool {
    matches!(request, Request::Stats(_) | Request::Admin(_) | Request::FlushPrefix(_))
}
