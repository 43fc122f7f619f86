//! A request of the contract as a frame: [`Request::encode`] and [`Request::decode`], an arm for
//! each operation in both.
//!
//! A well-formed but invalid request is answered with [`Error::Invalid`], and the connection
//! continues.

use blocker::trace::TraceContext;
use blocker::*;
use bytes::Bytes;

use super::control::{decode_settings, encode_settings};
use super::fields::{
    KEEPS_LOSSES, Names, condition_bytes, condition_of, decode_runs, dirty_data_code, dirty_data_of,
    encode_runs, flush_durability_bytes, flush_durability_of, object, policy_code, policy_of, protect,
    put_call, put_change, put_object, put_scope, runs_payload_bytes, take_call, take_change, take_scope,
    write_code, write_of,
};
use super::frame::{Attached, Head, Writer, encode, has_names, invalid, kind};
use super::header::{Flags, HEADER_BYTES, Header, RequestId};
use super::hello::Features;
use super::op::{Op, cost_bytes};

/// A request to a server.
#[derive(Clone, Debug)]
pub enum Request {
    /// Reads a range.
    Read(ReadRequest),
    /// Changes an object.
    Change(ChangeRequest),
    /// Returns the size, the version and the stamp.
    Info(InfoRequest),
    /// Returns one page of a namespace.
    List(ListRequest),
    /// Makes everything acknowledged in a scope stored.
    Flush(FlushRequest),
    /// Takes over a scope with an epoch.
    Claim(ClaimRequest),
    /// Drops the clean copies of the scope.
    Invalidate(InvalidateRequest),
    /// [`Control::attach`].
    Attach(Namespace),
    /// [`Control::detach`].
    Detach(Namespace),
    /// [`Control::policy`].
    Policy(Namespace),
    /// [`Control::set_policy`].
    SetPolicy(Namespace, Policy),
    /// [`Control::quota`].
    Quota(Namespace),
    /// [`Control::set_quota`].
    SetQuota(Namespace, Option<u64>),
    /// Queries [`Control::metrics`], as pairs of name and number.
    Statistics,
    /// Queries a page of [`Control::namespaces`]: those after this one.
    Namespaces(Option<Namespace>),
    /// Queries a page of [`Control::metrics`]: those after this number of samples. Sent only with
    /// [`Features::METRICS`].
    Metrics(u64),
    /// Queries [`Control::losses`]: those after this object. Sent only with [`Features::LOSSES`].
    Losses(Option<ObjectId>),
    /// Queries [`Control::namespace_state`]. Sent only with [`Features::NAMESPACES`], like the next
    /// three.
    NamespaceState(Namespace),
    /// Queries [`Control::namespace_states`]: those after this one.
    NamespaceStates(Option<Namespace>),
    /// [`Control::change_namespace`].
    ChangeNamespace(Namespace, NamespaceSettings),
    /// [`Control::remove_namespace`].
    RemoveNamespace(Namespace, DirtyData),
}

/// The longest extension area that this side sends in a request.
const REQUEST_EXTENSION_BYTES_MAX: usize = 64;

impl Request {
    /// Returns the request's operation.
    #[must_use]
    pub fn op(&self) -> Op {
        match self {
            Self::Read(_) => Op::Read,
            Self::Change(r) => op_of(&r.change),
            Self::Info(_) => Op::Info,
            Self::List(_) => Op::List,
            Self::Flush(_) => Op::Flush,
            Self::Claim(_) => Op::Claim,
            Self::Invalidate(_) => Op::Invalidate,
            Self::Attach(_) => Op::Attach,
            Self::Detach(_) => Op::Detach,
            Self::Policy(_) => Op::Policy,
            Self::SetPolicy(..) => Op::SetPolicy,
            Self::Quota(_) => Op::Quota,
            Self::SetQuota(..) => Op::SetQuota,
            Self::Statistics => Op::Statistics,
            Self::Namespaces(_) => Op::Namespaces,
            Self::Metrics(_) => Op::Metrics,
            Self::Losses(_) => Op::Losses,
            Self::NamespaceState(_) => Op::NamespaceState,
            Self::NamespaceStates(_) => Op::NamespaceStates,
            Self::ChangeNamespace(..) => Op::ChangeNamespace,
            Self::RemoveNamespace(..) => Op::RemoveNamespace,
        }
    }

    /// Returns the request's call options. Control requests have none.
    #[must_use]
    pub fn call(&self) -> Call {
        match self {
            Self::Read(r) => r.call,
            Self::Change(r) => r.call,
            Self::Info(r) => r.call,
            Self::List(r) => r.call,
            Self::Flush(r) => r.call,
            Self::Claim(r) => r.call,
            Self::Invalidate(r) => r.call,
            _ => Call::default(),
        }
    }

    /// Returns the namespaces that the request names: two for a copy.
    pub(crate) fn namespaces(&self) -> [Option<&Namespace>; 2] {
        let one = match self {
            Self::Change(r) => {
                let from = match &r.change {
                    Change::Copy { from, .. } => Some(&from.namespace),
                    _ => None,
                };
                return [from, Some(&r.object.namespace)];
            }
            Self::Read(r) => &r.object.namespace,
            Self::Info(r) => &r.object.namespace,
            Self::List(r) => &r.namespace,
            Self::Flush(r) => return [r.scope.namespace(), None],
            Self::Claim(r) => return [r.scope.namespace(), None],
            Self::Invalidate(r) => return [r.scope.namespace(), None],
            Self::Attach(namespace)
            | Self::Detach(namespace)
            | Self::Policy(namespace)
            | Self::SetPolicy(namespace, _)
            | Self::Quota(namespace)
            | Self::SetQuota(namespace, _)
            | Self::NamespaceState(namespace)
            | Self::ChangeNamespace(namespace, ..)
            | Self::RemoveNamespace(namespace, _) => namespace,
            // The position of a page does not use the namespace.
            Self::Statistics
            | Self::Namespaces(_)
            | Self::Metrics(_)
            | Self::Losses(_)
            | Self::NamespaceStates(_) => return [None, None],
        };
        [Some(one), None]
    }

    /// Puts the context of another span into the call options, if the request has any.
    pub fn set_trace(&mut self, trace: TraceContext) {
        if let Some(call) = self.call_mut() {
            call.trace = Some(trace);
        }
    }

    /// Returns the request's call options. Control requests have none.
    pub(crate) fn call_mut(&mut self) -> Option<&mut Call> {
        Some(match self {
            Self::Read(r) => &mut r.call,
            Self::Change(r) => &mut r.call,
            Self::Info(r) => &mut r.call,
            Self::List(r) => &mut r.call,
            Self::Flush(r) => &mut r.call,
            Self::Claim(r) => &mut r.call,
            Self::Invalidate(r) => &mut r.call,
            _ => return None,
        })
    }

    /// Returns the length of the request's payload, in bytes.
    #[must_use]
    pub fn payload_bytes(&self) -> usize {
        match self {
            Self::Change(r) => match &r.change {
                Change::WriteRuns { runs } => runs_payload_bytes(runs),
                change => usize::try_from(change.payload_bytes()).unwrap_or(usize::MAX),
            },
            Self::List(r) => r.prefix.len(),
            Self::ChangeNamespace(_, settings) => encode_settings(settings).len(),
            _ => 0,
        }
    }

    /// Returns an upper bound of the request's cost, in bytes.
    #[must_use]
    pub fn cost_bytes(&self, limits: &Capabilities) -> u64 {
        let mut header = Header::new(self.op(), RequestId::default());
        match self {
            Self::Read(r) => header.length = r.len_bytes,
            Self::List(r) => header.length = r.entries_max.into(),
            _ => {}
        }
        // The head has names and extensions of the maximum length.
        let head_bytes = HEADER_BYTES + 4 * 255 + REQUEST_EXTENSION_BYTES_MAX;
        cost_bytes(&header, head_bytes, self.payload_bytes(), limits)
    }

    /// Adapts the request to a server's limits and features, by asking for a smaller page of a
    /// listing.
    ///
    /// # Errors
    /// Returns [`Error::TooLarge`] if the request exceeds a limit, and [`Error::Unsupported`] if
    /// the server does not know the operation.
    pub fn fit(&mut self, limits: &Capabilities, features: Features) -> Result<(), Error> {
        let over = |bytes: usize, limit_bytes: u64| match bytes as u64 > limit_bytes {
            true => Err(Error::TooLarge { limit_bytes }),
            false => Ok(()),
        };
        let needs = |feature: u64| match features.has(feature) {
            true => Ok(()),
            false => Err(Error::Unsupported("the server does not have this operation".into())),
        };
        match self {
            Self::Metrics(_) => needs(Features::METRICS),
            Self::Losses(_) => needs(Features::LOSSES),
            Self::NamespaceState(_)
            | Self::NamespaceStates(_)
            | Self::ChangeNamespace(..)
            | Self::RemoveNamespace(..) => needs(Features::NAMESPACES),
            Self::List(r) => {
                r.entries_max = r.entries_max.clamp(1, limits.list_entries_max.max(1));
                Ok(())
            }
            Self::Change(ChangeRequest {
                change: Change::CompareAndWrite { expected, data, .. }, ..
            }) => {
                over(data.len_bytes(), limits.request_bytes_max)?;
                // A server without compare-and-write responds this way itself.
                match limits.compare_bytes_max {
                    0 => Ok(()),
                    limit_bytes => over(expected.len_bytes(), limit_bytes),
                }
            }
            Self::Change(ChangeRequest { change: Change::WriteRuns { runs }, .. }) => {
                if runs.len() > limits.runs_max as usize {
                    let (count, most) = (runs.len(), limits.runs_max);
                    let text = format!("the change has {count} runs; the server now accepts at most {most}");
                    return Err(match most {
                        0 => Error::Unsupported(text.into()),
                        _ => Error::Invalid(text.into()),
                    });
                }
                let bytes: u64 = runs.iter().map(Run::payload_bytes).sum();
                over(usize::try_from(bytes).unwrap_or(usize::MAX), limits.request_bytes_max)
            }
            request => over(request.payload_bytes(), limits.request_bytes_max),
        }
    }

    /// Appends the head to `out`, and returns the payload to send after it. The time until the
    /// deadline is counted from `now`. If `has_crc`, a CRC protects the payload.
    ///
    /// # Panics
    /// Panics if the payload has 4 GiB or more. The caller must check its length against
    /// `request_bytes_max`.
    pub fn encode(&self, id: RequestId, now: Timestamp, has_crc: bool, out: &mut Vec<u8>) -> Segments {
        let mut header = Header::new(self.op(), id);
        let mut names: [&[u8]; 4] = [&[]; 4];
        let mut extension = Writer::default();
        let mut payload = Segments::new();
        let call = self.call();
        put_call(&mut header, &call, now);
        if let Some(trace) = call.trace {
            extension.put(kind::TRACE, &trace.to_bytes());
        }
        match self {
            Self::Read(r) => {
                put_object(&mut names, &r.object);
                (header.offset, header.length) = (r.offset, r.len_bytes);
                (header.condition, header.version) = condition_bytes(r.condition);
            }
            Self::Change(r) => {
                put_change(&mut header, &mut names, &r.object, &r.terms);
                match &r.change {
                    Change::Write { offset, data } => {
                        header.offset = *offset;
                        payload = data.clone();
                    }
                    Change::WriteZeroes { offset, len_bytes } | Change::Discard { offset, len_bytes } => {
                        (header.offset, header.length) = (*offset, *len_bytes);
                    }
                    Change::WriteRuns { runs } => {
                        header.length = runs.len() as u64;
                        payload = encode_runs(runs);
                    }
                    Change::CompareAndWrite { offset, expected, data } => {
                        (header.offset, header.length) = (*offset, expected.len_bytes() as u64);
                        payload = expected.iter().chain(data).cloned().collect();
                    }
                    Change::WriteFull { data } => payload = data.clone(),
                    Change::Truncate { size_bytes } => header.length = *size_bytes,
                    Change::Delete => {}
                    Change::Copy { from, from_condition } => {
                        // The request's object is the source, and the target comes after it.
                        put_object(&mut names, from);
                        (names[2], names[3]) = (r.object.namespace.as_bytes(), r.object.name.as_bytes());
                        if *from_condition != Condition::None {
                            let (condition, version) = condition_bytes(*from_condition);
                            let mut value = [condition; 9];
                            value[1..].copy_from_slice(&version.to_le_bytes());
                            extension.put(kind::FROM_CONDITION, &value);
                        }
                    }
                }
            }
            Self::Info(r) => put_object(&mut names, &r.object),
            Self::List(r) => {
                names[0] = r.namespace.as_bytes();
                names[1] = r.after.as_ref().map_or(&[], |after| after.as_bytes());
                header.length = r.entries_max.into();
                payload = r.prefix.clone().into();
            }
            Self::Flush(r) => {
                put_scope(&mut header, &mut names, &r.scope);
                (header.durability, header.replicas) = flush_durability_bytes(r.durability);
            }
            Self::Claim(r) => {
                put_scope(&mut header, &mut names, &r.scope);
                header.epoch = r.epoch.0;
                (header.offset, header.length) = (r.writer.0 as u64, (r.writer.0 >> 64) as u64);
            }
            Self::Invalidate(r) => {
                put_scope(&mut header, &mut names, &r.scope);
                if !r.accepts_losses {
                    header.hints |= KEEPS_LOSSES;
                }
            }
            Self::Attach(namespace)
            | Self::Detach(namespace)
            | Self::Policy(namespace)
            | Self::NamespaceState(namespace)
            | Self::Quota(namespace) => names[0] = namespace.as_bytes(),
            Self::ChangeNamespace(namespace, settings) => {
                names[0] = namespace.as_bytes();
                header.flags.put(Flags::LIMIT, settings.write.is_some());
                header.length = settings.write.map_or(0, write_code);
                payload = encode_settings(settings).into();
            }
            Self::RemoveNamespace(namespace, dirty_data) => {
                names[0] = namespace.as_bytes();
                header.length = dirty_data_code(*dirty_data);
            }
            Self::SetPolicy(namespace, policy) => {
                names[0] = namespace.as_bytes();
                header.length = policy_code(policy);
            }
            Self::SetQuota(namespace, bytes_max) => {
                names[0] = namespace.as_bytes();
                header.flags.put(Flags::LIMIT, bytes_max.is_some());
                header.length = bytes_max.unwrap_or(0);
            }
            Self::Namespaces(after) | Self::NamespaceStates(after) => {
                names[0] = after.as_ref().map_or(&[], |after| after.as_bytes());
            }
            Self::Metrics(after) => header.offset = *after,
            Self::Losses(after) => {
                if let Some(after) = after {
                    put_object(&mut names, after);
                }
            }
            Self::Statistics => {}
        }
        let payload_crc = protect(&mut header, &payload, has_crc);
        let payload_bytes = u32::try_from(payload.len_bytes()).expect("a payload below 4 GiB");
        let attached = Attached { names, extension: extension.bytes(), payload_bytes, payload_crc };
        encode(out, &header, &attached);
        payload
    }

    /// Reads the request of a head and its payload. Its deadline is counted from `now`.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] if the request is malformed: the caller must reply with that
    /// error.
    pub fn decode(
        head: &Head<'_>,
        payload: Segments,
        names: &mut Names,
        now: Timestamp,
    ) -> Result<Self, Error> {
        let header = &head.header;
        let mut call = take_call(header, now);
        // An invalid context counts as none: a trace never affects execution.
        call.trace = head.extensions.get_array(kind::TRACE).and_then(TraceContext::from_bytes);
        if !payload.is_empty()
            && !matches!(
                header.op,
                Op::Write
                    | Op::WriteFull
                    | Op::WriteRuns
                    | Op::CompareAndWrite
                    | Op::List
                    | Op::ChangeNamespace
            )
        {
            return Err(invalid("this operation has no payload"));
        }
        if !head.to_namespace.is_empty() && header.op != Op::Copy {
            return Err(invalid("only a copy has a target"));
        }
        let request = match header.op {
            Op::Read => {
                let mut r = ReadRequest::new(object(head, names)?, header.offset, header.length).call(call);
                r.condition = condition_of(header.condition, header.version)?;
                Self::Read(r)
            }
            Op::Write
            | Op::WriteZeroes
            | Op::WriteRuns
            | Op::Discard
            | Op::CompareAndWrite
            | Op::WriteFull
            | Op::Truncate
            | Op::Delete
            | Op::Copy => Self::Change(decode_change(head, payload, names)?.call(call)),
            Op::Info => Self::Info(InfoRequest::new(object(head, names)?).call(call)),
            Op::List => {
                let mut r = ListRequest::new(names.namespace(head.namespace)?).prefix(payload.to_bytes());
                if !head.name.is_empty() {
                    r = r.after(Name::copy_from(head.name)?);
                }
                r.entries_max = u32::try_from(header.length).unwrap_or(u32::MAX);
                Self::List(r.call(call))
            }
            Op::Flush => {
                let durability = flush_durability_of(header.durability, header.replicas);
                let durability = durability.ok_or_else(|| invalid("no such durability"))?;
                Self::Flush(FlushRequest::new(take_scope(head, names)?).durability(durability).call(call))
            }
            Op::Claim => {
                let writer = WriterId(u128::from(header.length) << 64 | u128::from(header.offset));
                if header.epoch > 0 && writer == WriterId(0) {
                    return Err(invalid("a claim of an epoch needs the identity of its writer"));
                }
                let scope = take_scope(head, names)?;
                Self::Claim(ClaimRequest::new(scope, Epoch(header.epoch), writer).call(call))
            }
            Op::Invalidate => {
                let accepts_losses = header.hints & KEEPS_LOSSES == 0;
                let r = InvalidateRequest::new(take_scope(head, names)?).accepts_losses(accepts_losses);
                Self::Invalidate(r.call(call))
            }
            Op::Attach => Self::Attach(names.namespace(head.namespace)?),
            Op::Detach => Self::Detach(names.namespace(head.namespace)?),
            Op::Policy => Self::Policy(names.namespace(head.namespace)?),
            Op::SetPolicy => Self::SetPolicy(names.namespace(head.namespace)?, policy_of(header.length)?),
            Op::Quota => Self::Quota(names.namespace(head.namespace)?),
            Op::SetQuota => {
                let bytes_max = header.flags.has(Flags::LIMIT).then_some(header.length);
                Self::SetQuota(names.namespace(head.namespace)?, bytes_max)
            }
            Op::Metrics if has_names(head) => return Err(invalid("this operation takes no names")),
            Op::Metrics => Self::Metrics(header.offset),
            Op::Losses if !has_names(head) => Self::Losses(None),
            Op::Losses => Self::Losses(Some(object(head, names)?)),
            Op::Statistics if has_names(head) => return Err(invalid("this operation takes no names")),
            Op::Statistics => Self::Statistics,
            Op::Namespaces if head.namespace.is_empty() => Self::Namespaces(None),
            Op::Namespaces => Self::Namespaces(Some(names.namespace(head.namespace)?)),
            Op::NamespaceState => Self::NamespaceState(names.namespace(head.namespace)?),
            Op::NamespaceStates if head.namespace.is_empty() => Self::NamespaceStates(None),
            Op::NamespaceStates => Self::NamespaceStates(Some(names.namespace(head.namespace)?)),
            Op::ChangeNamespace => {
                let mut settings = decode_settings(payload.to_bytes())?;
                settings.write =
                    header.flags.has(Flags::LIMIT).then(|| write_of(header.length)).transpose()?;
                Self::ChangeNamespace(names.namespace(head.namespace)?, settings)
            }
            Op::RemoveNamespace => {
                Self::RemoveNamespace(names.namespace(head.namespace)?, dirty_data_of(header.length)?)
            }
            Op::Hello | Op::Prove | Op::Ping | Op::Cancel | Op::Goodbye | Op::Event | Op::Credit => {
                return Err(invalid("not a request"));
            }
        };
        Ok(request)
    }
}

fn op_of(change: &Change) -> Op {
    match change {
        Change::Write { .. } => Op::Write,
        Change::WriteZeroes { .. } => Op::WriteZeroes,
        Change::WriteRuns { .. } => Op::WriteRuns,
        Change::Discard { .. } => Op::Discard,
        Change::CompareAndWrite { .. } => Op::CompareAndWrite,
        Change::WriteFull { .. } => Op::WriteFull,
        Change::Truncate { .. } => Op::Truncate,
        Change::Delete => Op::Delete,
        Change::Copy { .. } => Op::Copy,
    }
}

fn decode_change(head: &Head<'_>, payload: Segments, names: &mut Names) -> Result<ChangeRequest, Error> {
    let header = &head.header;
    let (offset, len_bytes) = (header.offset, header.length);
    let change = match header.op {
        Op::Write => Change::Write { offset, data: payload },
        Op::WriteZeroes => Change::WriteZeroes { offset, len_bytes },
        Op::WriteRuns => Change::WriteRuns { runs: decode_runs(header.length, &payload)? },
        Op::Discard => Change::Discard { offset, len_bytes },
        Op::CompareAndWrite => {
            let all = payload.len_bytes();
            let expected = usize::try_from(header.length).ok().filter(|expected| *expected <= all);
            let expected = expected.ok_or_else(|| invalid("the expected bytes exceed the payload"))?;
            let (expected, data) = (payload.slice(0..expected), payload.slice(expected..all));
            Change::CompareAndWrite { offset, expected, data }
        }
        Op::WriteFull => Change::WriteFull { data: payload },
        Op::Truncate => Change::Truncate { size_bytes: header.length },
        Op::Delete => Change::Delete,
        Op::Copy => {
            let to = ObjectId::new(names.namespace(head.to_namespace)?, names.name(head.to_name)?);
            let (from, from_condition) = (object(head, names)?, from_condition_of(head)?);
            let change = Change::Copy { from, from_condition };
            return Ok(change.request(to).terms(take_change(header)?));
        }
        _ => return Err(invalid("not a change")),
    };
    Ok(change.request(object(head, names)?).terms(take_change(header)?))
}

fn from_condition_of(head: &Head<'_>) -> Result<Condition, Error> {
    let Some(value) = head.extensions.get(kind::FROM_CONDITION) else { return Ok(Condition::None) };
    let wrong = || invalid("the condition on a source must have 9 bytes");
    let (condition, version) = value.split_first().ok_or_else(wrong)?;
    let version = version.try_into().map(u64::from_le_bytes).map_err(|_| wrong())?;
    condition_of(*condition, version)
}

/// Returns whether no name can begin with `prefix`. If so, the listing is empty, and no server
/// needs to be asked.
#[must_use]
pub fn is_unmatchable_prefix(prefix: &Bytes) -> bool {
    prefix.len() > NAME_BYTES_MAX
}
