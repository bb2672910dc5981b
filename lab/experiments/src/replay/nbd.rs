//! NBD servers as the target of a replay, with one connection for each export.
//!
//! The export's size, block sizes and transmission flags become limits on requests. Operations that
//! the server does not offer are refused.

use millrace_nbd::TransmissionFlags;
use millrace_nbd::client::{ClientSession, NbdUri};

use super::Settings;
use super::lane::{Lane, PieceLimits};
use super::servers::Servers;
use crate::load::bench::BenchError;
use crate::load::nbd::Connection;
use crate::load::overwrite::{DiskContents, nbd_contents};

/// Longest read or write in one request, in bytes. Bounds the memory of a request.
const DATA_BYTES_MAX: u64 = 8 << 20;
const RANGE_BYTES_MAX: u64 = 1 << 30;

pub(crate) fn connect(
    uris: &[(String, NbdUri)],
    settings: &Settings,
) -> Result<Servers<Connection>, BenchError> {
    let mut servers = Vec::new();
    for (name, uri) in uris {
        let mut connection = Connection::new(uri)?;
        let mut lane = lane_of(name, connection.client.session());
        // Search the export for data only if the replay must not overwrite data.
        if !settings.addresses.overwrite {
            lane.contents = nbd_contents(&mut connection)?;
        }
        servers.push((connection, lane));
    }
    Ok(Servers::new(servers, u32::MAX, settings.seed))
}

fn lane_of(name: &str, session: &ClientSession) -> Lane {
    let has = |flag: TransmissionFlags| session.flags.bits() & flag.bits() == flag.bits();
    let block_bytes = u64::from(session.block_min).clamp(1, 65_536).next_power_of_two();
    let whole = |bytes: u64| (bytes / block_bytes).max(1) * block_bytes;
    let range = |flag| if has(flag) { whole(RANGE_BYTES_MAX) } else { 0 };
    Lane {
        name: name.to_owned(),
        size_bytes: session.size_bytes / block_bytes * block_bytes,
        block_bytes,
        takes: PieceLimits {
            data_bytes_max: whole(DATA_BYTES_MAX.min(session.block_max.into())),
            discard_bytes_max: range(TransmissionFlags::TRIM),
            zeroes_bytes_max: range(TransmissionFlags::WRITE_ZEROES),
            flush: has(TransmissionFlags::FLUSH),
            fua: has(TransmissionFlags::FUA),
        },
        is_read_only: has(TransmissionFlags::READ_ONLY),
        contents: DiskContents::Empty,
    }
}
