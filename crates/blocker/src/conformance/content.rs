//! Content: reads return what was written, and nothing else.

use bytes::Bytes;

use super::context::{Check, Cx, ensure, same_bytes};
use crate::{
    CompareAndWriteRequest, CopyRequest, DeleteRequest, DiscardRequest, Error, ListRequest, ReadRequest, Run,
    Segments, TruncateRequest, WriteFullRequest, WriteRequest, WriteRunsRequest, WriteZeroesRequest,
};

pub(super) fn an_absent_object_is_missing(cx: &Cx<'_>) -> Check {
    let object = cx.object("absent");
    cx.is_missing(&object)?;
    let is_missing = |error: &Error| *error == Error::Missing;
    cx.refused(DeleteRequest::new(object.clone()), is_missing)?;
    cx.refused(TruncateRequest::new(object.clone(), 1), is_missing)?;
    cx.refused(DiscardRequest::new(object.clone(), 0, 1), is_missing)?;
    cx.refused(CopyRequest::new(object.clone(), cx.object("target")), is_missing)?;
    if cx.caps.compare_bytes_max > 0 {
        cx.refused(CompareAndWriteRequest::new(object.clone(), 0, Segments::new(), b"x"), is_missing)?;
    }
    cx.is_missing(&object)?;
    cx.is_missing(&cx.object("target"))
}

pub(super) fn what_was_written_is_read(cx: &Cx<'_>) -> Check {
    for (index, len) in [1, 511, 512, 4095, 4096, 4097, 65_536, 100_001].into_iter().enumerate() {
        let (object, data) = (cx.object([index as u8 + 1]), cx.bytes(len));
        let reply = cx.write(&object, 0, &data)?;
        ensure!(reply.size_bytes == len as u64, "the reply to a write gives size {}", reply.size_bytes);
        let read = cx.read_reply(&object)?;
        same_bytes(&read.data.to_vec(), &data)?;
        ensure!(read.size_bytes == len as u64, "the reply to a read gives size {}", read.size_bytes);
        ensure!(read.version == reply.version, "read and write give different versions");
    }
    Ok(())
}

pub(super) fn a_read_stops_at_the_end(cx: &Cx<'_>) -> Check {
    let object = cx.object("short");
    cx.write(&object, 0, b"0123456789")?;
    for (offset, len_bytes, wanted) in
        [(0, 10, 0..10), (3, 100, 3..10), (9, 1, 9..10), (10, 5, 0..0), (4096, 4096, 0..0), (5, 0, 0..0)]
    {
        let read = cx.ok("read", |b| b.read(ReadRequest::new(object.clone(), offset, len_bytes)))?;
        same_bytes(&read.data.to_vec(), &b"0123456789"[wanted])?;
        ensure!(read.size_bytes == 10, "a read past the end gives size {}", read.size_bytes);
    }
    let far = ReadRequest::new(object, u64::MAX, 1);
    let read = cx.ok("read at the highest offset", |b| b.read(far.clone()))?;
    ensure!(read.data.is_empty(), "there are bytes at the highest offset");
    Ok(())
}

pub(super) fn holes_read_as_zeros(cx: &Cx<'_>) -> Check {
    let object = cx.object("holes");
    cx.write(&object, 10_000, b"end")?;
    cx.write(&object, 5_000, b"middle")?;
    let mut wanted = vec![0; 10_003];
    wanted[5_000..5_006].copy_from_slice(b"middle");
    wanted[10_000..].copy_from_slice(b"end");
    cx.expect(&object, &wanted)
}

pub(super) fn an_empty_write_creates_but_never_extends(cx: &Cx<'_>) -> Check {
    let object = cx.object("empty");
    let created = cx.write(&object, 0, b"")?;
    ensure!(created.size_bytes == 0, "an empty write made {} bytes", created.size_bytes);
    cx.expect(&object, b"")?;
    let again = cx.write(&object, 4096, b"")?;
    ensure!(again.version != created.version, "an empty write left the version as it was");
    ensure!(cx.info(&object)?.size_bytes == 0, "an empty write changed the size");
    cx.write(&object, 0, b"abc")?;
    cx.write(&object, 2, b"")?;
    cx.expect(&object, b"abc")
}

pub(super) fn unaligned_writes_touch_only_their_bytes(cx: &Cx<'_>) -> Check {
    let object = cx.object("unaligned");
    let mut wanted = cx.bytes(20_000).to_vec();
    cx.write(&object, 0, &wanted)?;
    for (offset, len) in [(1, 1), (511, 2), (4095, 2), (4000, 5000), (12_287, 1), (12_288, 4096), (19_999, 1)]
    {
        let data = cx.bytes(len);
        cx.write(&object, offset as u64, &data)?;
        wanted[offset..offset + len].copy_from_slice(&data);
        cx.expect(&object, &wanted)?;
    }
    for (offset, len) in [(4097, 4094), (1, 19_998), (8191, 2)] {
        let read = cx.ok("read", |b| b.read(ReadRequest::new(object.clone(), offset as u64, len as u64)))?;
        same_bytes(&read.data.to_vec(), &wanted[offset..offset + len])?;
    }
    Ok(())
}

pub(super) fn write_zeroes_is_a_write_of_zeros(cx: &Cx<'_>) -> Check {
    let object = cx.object("zeroes");
    let zero = |offset, len| WriteZeroesRequest::new(object.clone(), offset, len);
    cx.done(zero(100, 50))?;
    cx.expect(&object, &[0; 150])?;
    let mut wanted = cx.bytes(20_000).to_vec();
    cx.write(&object, 0, &wanted)?;
    for (offset, len) in [(10, 20), (4000, 9000), (8192, 4096), (19_990, 5000), (30_000, 1), (7, 0)] {
        let reply = cx.done(zero(offset as u64, len as u64))?;
        if len > 0 {
            wanted.resize(wanted.len().max(offset + len), 0);
        }
        wanted[offset..offset + len].fill(0);
        ensure!(reply.size_bytes == wanted.len() as u64, "write_zeroes gives size {}", reply.size_bytes);
        cx.expect(&object, &wanted)?;
    }
    Ok(())
}

pub(super) fn runs_are_written_and_what_lies_between_stays(cx: &Cx<'_>) -> Check {
    cx.skip_unless(cx.caps.runs_max > 3, "write_runs")?;
    let object = cx.object("runs");
    // These runs create the object, with a hole before them and one between them.
    let runs = vec![Run::data(10, b"one"), Run::data(5_000, b"two")];
    let reply = cx.done(WriteRunsRequest::new(object.clone(), runs))?;
    let mut wanted = vec![0; 5_003];
    wanted[10..13].copy_from_slice(b"one");
    wanted[5_000..].copy_from_slice(b"two");
    ensure!(reply.size_bytes == 5_003, "write_runs gives size {}", reply.size_bytes);
    ensure!(cx.info(&object)?.version == reply.version, "several runs have given more than one version");
    cx.expect(&object, &wanted)?;
    wanted = cx.bytes(20_000).to_vec();
    cx.write(&object, 0, &wanted)?;
    let of: &[&[(usize, usize, bool)]] = &[
        // The runs are within a bucket, across buckets, adjacent, beyond the end, zeros at the end,
        // and a single run.
        &[(1, 100, true), (600, 1, false), (1_024, 512, true)],
        &[(4_000, 200, true), (8_192, 4_096, false), (12_288, 4_096, true), (19_990, 10, false)],
        &[(0, 512, false), (512, 512, true), (1_024, 1, false), (30_000, 5_000, true)],
        &[(34_000, 2_000, false)],
        &[(3, 1, true), (36_100, 100, false)],
        &[(36_199, 1, true), (40_000, 4_096, true)],
    ];
    for ranges in of {
        let mut runs = Vec::new();
        for (offset, len, is_data) in ranges.iter().copied() {
            wanted.resize(wanted.len().max(offset + len), 0);
            let range = offset..offset + len;
            runs.push(if is_data {
                let data = cx.bytes(len);
                wanted[range].copy_from_slice(&data);
                Run::data(offset as u64, data)
            } else {
                wanted[range].fill(0);
                Run::zeroes(offset as u64, len as u64)
            });
        }
        let reply = cx.done(WriteRunsRequest::new(object.clone(), runs))?;
        ensure!(reply.size_bytes == wanted.len() as u64, "write_runs gives size {}", reply.size_bytes);
        cx.expect(&object, &wanted)?;
    }
    Ok(())
}

pub(super) fn discard_zeroes_and_keeps_the_size(cx: &Cx<'_>) -> Check {
    let object = cx.object("discard");
    let mut wanted = cx.bytes(20_000).to_vec();
    cx.write(&object, 0, &wanted)?;
    for (offset, len) in [(0_usize, 1), (4000, 9000), (12_288, 4096), (19_990, 5000), (30_000, 1), (5, 0)] {
        let reply = cx.done(DiscardRequest::new(object.clone(), offset as u64, len as u64))?;
        let size = wanted.len();
        wanted[offset.min(size)..(offset + len).min(size)].fill(0);
        ensure!(reply.size_bytes == size as u64, "discard changed the size to {}", reply.size_bytes);
        cx.expect(&object, &wanted)?;
    }
    cx.done(DiscardRequest::new(object.clone(), 0, u64::MAX))?;
    cx.expect(&object, &vec![0; 20_000])
}

pub(super) fn truncate_moves_the_end(cx: &Cx<'_>) -> Check {
    let object = cx.object("truncate");
    let mut wanted = cx.bytes(10_000).to_vec();
    cx.write(&object, 0, &wanted)?;
    for size in [10_001, 5_000, 4096, 4095, 8192, 1, 0, 300] {
        let reply = cx.done(TruncateRequest::new(object.clone(), size as u64))?;
        ensure!(reply.size_bytes == size as u64, "truncate to {size} gives {}", reply.size_bytes);
        wanted.resize(size, 0);
        cx.expect(&object, &wanted)?;
    }
    Ok(())
}

pub(super) fn what_was_cut_off_never_comes_back(cx: &Cx<'_>) -> Check {
    let object = cx.object("ghosts");
    cx.write(&object, 0, &[7; 10_000])?;
    cx.done(TruncateRequest::new(object.clone(), 100))?;
    cx.write(&object, 9_000, b"x")?;
    let mut wanted = vec![0; 9_001];
    wanted[..100].fill(7);
    wanted[9_000] = b'x';
    cx.expect(&object, &wanted)?;
    cx.delete(&object)?;
    cx.write(&object, 5_000, b"y")?;
    let mut wanted = vec![0; 5_001];
    wanted[5_000] = b'y';
    cx.expect(&object, &wanted)
}

pub(super) fn write_full_replaces_everything(cx: &Cx<'_>) -> Check {
    let object = cx.object("full");
    for len in [5_000, 20_000, 3, 0, 4096] {
        let data = cx.bytes(len);
        let reply = cx.done(WriteFullRequest::new(object.clone(), data.clone()))?;
        ensure!(reply.size_bytes == len as u64, "write_full gives size {}", reply.size_bytes);
        cx.expect(&object, &data)?;
    }
    Ok(())
}

pub(super) fn delete_leaves_nothing(cx: &Cx<'_>) -> Check {
    let object = cx.object("gone");
    cx.write(&object, 0, b"something")?;
    cx.delete(&object)?;
    cx.is_missing(&object)?;
    let is_missing = |error: &Error| *error == Error::Missing;
    cx.refused(DeleteRequest::new(object.clone()), is_missing)?;
    ensure!(cx.names(&ListRequest::new(cx.namespace()))?.is_empty(), "a deleted object is listed");
    cx.write(&object, 0, b"")?;
    cx.expect(&object, b"")
}

pub(super) fn copy_replaces_the_target_and_keeps_the_source(cx: &Cx<'_>) -> Check {
    let (from, to) = (cx.object("from"), cx.object("to"));
    let data = cx.bytes(9_000);
    cx.write(&from, 0, &data)?;
    cx.write(&to, 0, &[9; 20_000])?;
    let before = cx.info(&from)?;
    let reply = cx.done(CopyRequest::new(from.clone(), to.clone()))?;
    ensure!(reply.size_bytes == 9_000, "a copy gives size {}", reply.size_bytes);
    cx.expect(&to, &data)?;
    cx.expect(&from, &data)?;
    ensure!(cx.info(&from)?.version == before.version, "a copy changed its source");
    // The copy and its source are independent from now on.
    cx.write(&to, 0, b"other")?;
    cx.expect(&from, &data)?;
    cx.write(&from, 100, b"other")?;
    ensure!(cx.read(&to)?[100..105] == data[100..105], "a write to the source changed its copy");
    // This copy goes into another namespace.
    let far = crate::name::ObjectId::new(cx.other_namespace(), from.name.clone());
    cx.done(CopyRequest::new(to.clone(), far.clone()))?;
    let wanted = cx.read(&to)?;
    cx.expect(&far, &wanted)
}

pub(super) fn copy_onto_itself_changes_no_byte(cx: &Cx<'_>) -> Check {
    let object = cx.object("self");
    let data = cx.bytes(5_000);
    let before = cx.write(&object, 0, &data)?;
    let reply = cx.done(CopyRequest::new(object.clone(), object.clone()))?;
    ensure!(reply.version != before.version, "a copy onto itself left the version as it was");
    cx.expect(&object, &data)
}

pub(super) fn compare_and_write_writes_only_if_equal(cx: &Cx<'_>) -> Check {
    cx.skip_unless(cx.caps.compare_bytes_max > 0, "compare_and_write")?;
    let object = cx.object("compare");
    cx.write(&object, 100, b"abcdef")?;
    let request = |offset, expected: &'static [u8], data: &'static [u8]| {
        CompareAndWriteRequest::new(object.clone(), offset, expected, data)
    };
    cx.done(request(102, b"cd", b"XYZW!"))?;
    let mut wanted = vec![0; 107];
    wanted[100..].copy_from_slice(b"abXYZW!");
    cx.expect(&object, &wanted)?;
    for (offset, expected, at) in
        [(100, &b"abX?"[..], 103), (99, b"1", 99), (105, b"W!.", 107), (107, b"\0", 107), (500, b"\0", 500)]
    {
        let differs = Error::Mismatch { offset: at };
        cx.refused(request(offset, expected, b"NO"), |error| *error == differs)?;
    }
    cx.expect(&object, &wanted)
}

pub(super) fn payloads_of_many_segments_are_one_run(cx: &Cx<'_>) -> Check {
    let object = cx.object("segments");
    let data = cx.bytes(30_000);
    let mut payload: Segments =
        [0..1, 1..4096, 4096..4097, 4097..30_000].into_iter().map(|range| data.slice(range).into()).collect();
    Segments::zeros(70_000).iter().for_each(|zeros| payload.push(zeros.clone()));
    payload.push(Bytes::from_static(b"end").into());
    let mut wanted = data.to_vec();
    wanted.resize(100_000, 0);
    wanted.extend_from_slice(b"end");
    cx.done(WriteRequest::new(object.clone(), 0, payload.clone()))?;
    cx.expect(&object, &wanted)?;
    cx.done(WriteFullRequest::new(object.clone(), payload.slice(5..50)))?;
    cx.expect(&object, &wanted[5..50])
}

pub(super) fn info_is_exact(cx: &Cx<'_>) -> Check {
    let object = cx.object("info");
    for size in [1_u64, 4097, 0, 12_345] {
        cx.done(WriteFullRequest::new(object.clone(), Segments::zeros(size as usize)))?;
        let info = cx.info(&object)?;
        ensure!(info.size_bytes == size, "info reports {} bytes, there are {size}", info.size_bytes);
        let read = cx.ok("read", |b| b.read(ReadRequest::new(object.clone(), 0, 1)))?;
        ensure!(info.version == read.version, "info and read give different versions");
        let page = cx.ok("list", |b| b.list(ListRequest::new(cx.namespace())))?;
        ensure!(page.entries.len() == 1, "{} objects are listed", page.entries.len());
        ensure!(
            page.entries[0].size_bytes == size,
            "the listing reports {} bytes",
            page.entries[0].size_bytes
        );
        ensure!(page.entries[0].version == info.version, "info and list give different versions");
    }
    Ok(())
}
