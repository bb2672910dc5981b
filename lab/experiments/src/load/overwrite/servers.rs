//! Searches servers' disks for data. Ranges of zeroes are known from block status; samples of the
//! other ranges are read.
//!
//! Benchmarks close the connection afterwards; a replay goes on with the same connection.

use std::ops::Range;
use std::path::Path;

use millrace_clients::nbd::Client as NbdClient;
use millrace_clients::vhost::{Client as VhostClient, Options, Wait};
use millrace_nbd::client::NbdUri;
use millrace_nbd::{Command, Request, TransmissionFlags};

use super::DiskContents;
use super::marks::{HEAD_BYTES, known};
use super::probe::first_data;
use crate::load::bench::BenchError;
use crate::load::client::{Client, ClientIo};
use crate::load::nbd::{Connection, failed};

const ASKED_MAX: u32 = 4096;
const READ_BYTES_MAX: u32 = 1 << 20;

pub(super) fn nbd(uri: &NbdUri) -> Result<DiskContents, BenchError> {
    nbd_contents(&mut Connection::new(uri)?)
}

pub(super) fn vhost(path: &Path) -> Result<DiskContents, BenchError> {
    let options =
        Options { depth: 1, data_bytes: READ_BYTES_MAX, wait: Wait::Events, ..Options::default() };
    let client = VhostClient::connect(path, options)?;
    let disk = client.disk();
    if disk.is_read_only() {
        return Ok(DiskContents::Empty);
    }
    let (size_bytes, most_bytes) = (disk.size_bytes(), disk.segment_bytes_max.min(READ_BYTES_MAX));
    let block_bytes = disk.block_bytes.max(512);
    let most_bytes = (most_bytes / block_bytes * block_bytes).max(block_bytes);
    let mut queue = client.into_queues().remove(0);
    let size_bytes = size_bytes / u64::from(block_bytes) * u64::from(block_bytes);
    guest_contents(&mut queue, size_bytes, most_bytes)
}

/// Searches an export for data. A read-only export counts as empty, because writes cannot destroy
/// its data.
pub(crate) fn nbd_contents(connection: &mut Connection) -> Result<DiskContents, BenchError> {
    let session = connection.client.session();
    if session.flags.contains(TransmissionFlags::READ_ONLY) {
        return Ok(DiskContents::Empty);
    }
    let block_bytes = u64::from(session.block_min).clamp(1, 65_536).next_power_of_two();
    let size_bytes = session.size_bytes / block_bytes * block_bytes;
    let most_bytes = u64::from(session.block_max.min(READ_BYTES_MAX));
    let most_bytes = (most_bytes / block_bytes).max(1) * block_bytes;
    let unknown = unknown(&mut connection.client, size_bytes, block_bytes)
        .map_err(|source| failed(&connection.uri, source))?;
    contents(connection, &unknown, (size_bytes, most_bytes))
}

/// Searches a whole disk for data, because a vhost-user-blk server cannot report zeroes.
pub(crate) fn guest_contents(
    queue: &mut impl Client,
    size_bytes: u64,
    most_bytes: u32,
) -> Result<DiskContents, BenchError> {
    let all = std::slice::from_ref(&(0..size_bytes)).to_vec();
    contents(queue, &all, (size_bytes, most_bytes.into()))
}

/// Searches the ranges `unknown` of a disk for data. If the disk begins with the signature of a
/// known format, such as a file system, the result names the format.
fn contents(
    client: &mut impl Client,
    unknown: &[Range<u64>],
    (size_bytes, most_bytes): (u64, u64),
) -> Result<DiskContents, BenchError> {
    let Some(found) = first_data(unknown, most_bytes, |range| read(client, range))? else {
        return Ok(DiskContents::Empty);
    };
    let (mut head, end) = (Vec::new(), HEAD_BYTES.min(size_bytes));
    while (head.len() as u64) < end {
        let start = head.len() as u64;
        head.append(&mut read(client, start..start.saturating_add(most_bytes).min(end))?);
    }
    Ok(DiskContents::Data(match known(&head) {
        Some(mark) => format!("holds {mark}"),
        None => format!("holds data at byte {found}"),
    }))
}

/// Returns, in order, the ranges of whole blocks that the server does not report as zeroes.
fn unknown(client: &mut NbdClient, size: u64, block: u64) -> std::io::Result<Vec<Range<u64>>> {
    let (mut at, mut list) = (0, Vec::<Range<u64>>::new());
    let mut add = |range: Range<u64>| {
        let start = range.start / block * block;
        let end = range.end.next_multiple_of(block).min(size);
        match list.last_mut().filter(|last| last.end >= start) {
            Some(last) => last.end = end,
            None => list.push(start..end),
        }
    };
    let asks = if client.session().allocation.is_some() { ASKED_MAX } else { 0 };
    for _ in 0..asks {
        let length = (size - at).min(u64::from(u32::MAX) / block * block);
        let command = Command::BlockStatus;
        let request = Request { cookie: 0, flags: 0, command, offset: at, length };
        let answer = client.call(&request, Vec::new())?;
        let begin = at;
        for extent in answer.extents {
            let end = at.saturating_add(extent.len).min(size);
            if !extent.zero && end > at {
                add(at..end);
            }
            at = end;
        }
        at = if at < size { at / block * block } else { size };
        if answer.errno.is_some() || at <= begin {
            break;
        }
        if at == size {
            return Ok(list);
        }
    }
    add(at..size);
    Ok(list)
}

fn read(client: &mut impl Client, range: Range<u64>) -> Result<Vec<u8>, BenchError> {
    let len_bytes = range.end - range.start;
    let mut io = ClientIo::new(len_bytes, vec![0; len_bytes as usize]);
    io.offset_bytes = range.start;
    client.submit(0, &mut io)?;
    client.start()?;
    let mut done = Vec::new();
    loop {
        client.reap(std::slice::from_mut(&mut io), &mut done)?;
        match done.pop() {
            Some((_, None)) => return Ok(io.memory),
            Some((_, Some(status))) => {
                let text = format!("the server's disk: a read at {} failed: {status}", range.start);
                return Err(BenchError::Workload(text));
            }
            None => client.wait()?,
        }
    }
}
