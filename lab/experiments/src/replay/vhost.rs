//! vhost-user-blk servers as the target of a replay, with one virtqueue for each server.
//!
//! The process acts as the guest, as in `bench`. The memory shared with the server has a slot for
//! each request in flight, which limits the number and the length of requests; longer I/Os are
//! split. virtio has no FUA writes, so the engine sends a flush after a durable write, as a guest's
//! kernel does.

use std::path::PathBuf;

use millrace_clients::vhost::{Client, DiskConfig, Options, Queue, Wait};

use super::Settings;
use super::lane::{Lane, PieceLimits};
use super::servers::Servers;
use crate::load::bench::BenchError;
use crate::load::overwrite::{DiskContents, guest_contents};

/// Largest number of requests in flight in a virtqueue.
pub const VHOST_IODEPTH_MAX: u32 = 256;
const SLOTS_BYTES: u32 = 32 << 20;
/// Smallest and largest size, in bytes, of the buffer for one request's data.
const SLOT_BYTES: [u32; 2] = [128 << 10, 1 << 20];
/// Minimum number of entries of a ring: 256, the usual number in guests.
const RING: u16 = 256;

pub(crate) fn connect(
    paths: &[(String, PathBuf)],
    settings: &Settings,
) -> Result<Servers<Queue>, BenchError> {
    let depth = settings.iodepth.clamp(1, VHOST_IODEPTH_MAX) as u16;
    let data_bytes = (SLOTS_BYTES / u32::from(depth)).clamp(SLOT_BYTES[0], SLOT_BYTES[1]) & !4095;
    let ring = depth.next_power_of_two().max(RING);
    let mut servers = Vec::new();
    for (name, path) in paths {
        let options = Options { ring, depth, data_bytes, wait: Wait::Events, ..Options::default() };
        let client = Client::connect(path, options)?;
        let mut lane = lane_of(name, client.disk(), data_bytes);
        let mut queue = client.into_queues().remove(0);
        if !(lane.is_read_only || settings.addresses.overwrite) {
            let most = lane.takes.data_bytes_max as u32;
            lane.contents = guest_contents(&mut queue, lane.size_bytes, most)?;
        }
        servers.push((queue, lane));
    }
    Ok(Servers::new(servers, depth.into(), settings.seed))
}

fn lane_of(name: &str, disk: &DiskConfig, data_bytes: u32) -> Lane {
    let block_bytes = u64::from(disk.block_bytes).clamp(512, 65_536).next_power_of_two();
    let whole = |bytes: u64| bytes / block_bytes * block_bytes;
    Lane {
        name: name.to_owned(),
        size_bytes: whole(disk.size_bytes()),
        block_bytes,
        takes: PieceLimits {
            data_bytes_max: whole(data_bytes.min(disk.segment_bytes_max).into()).max(block_bytes),
            discard_bytes_max: whole(u64::from(disk.discard_sectors_max) << 9),
            zeroes_bytes_max: whole(u64::from(disk.write_zeroes_sectors_max) << 9),
            flush: disk.has_flush(),
            fua: false,
        },
        is_read_only: disk.is_read_only(),
        contents: DiskContents::Empty,
    }
}
