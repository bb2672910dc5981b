//! vhost-user-blk servers as a target: a virtqueue of each lane, all on the engine's thread.
//!
//! Plays the guest, as bench does. A request has a slot with memory of the ring's, so the number of
//! them and their lengths are bounded: what is longer is cut. virtio has no writes that are durable
//! by themselves; the engine sends a flush behind them, as a guest's kernel does. Owns the queues;
//! called by the engine.

use std::path::PathBuf;
use std::time::Duration;

use millrace_block::Op;
use millrace_clients::vhost::{
    Client, ClientError, DiskConfig, Kind, Options, Queue, Request, Wait, range,
};
use millrace_exports::virtio::{RANGE_BYTES, RANGE_UNMAP};
use millrace_machine::{Machine, Native};

use super::lane::{Done, Lane, Piece, PieceLimits, Target};
use super::payload::Payload;
use super::route::Addresses;
use crate::load::bench::BenchError;
use crate::load::overwrite::{DiskContents, guest_contents};

/// Requests of a queue at most.
pub const VHOST_IODEPTH_MAX: u32 = 256;
/// Memory of a queue's slots together.
const SLOTS_BYTES: u32 = 32 << 20;
/// Bytes of a slot at least and at most.
const SLOT_BYTES: [u32; 2] = [128 << 10, 1 << 20];
/// Entries of a ring at least: as many as guests have.
const RING: u16 = 256;

/// What a queue's slots are used for.
struct Slots {
    free: Vec<u16>,
    /// The engine's number, by the queue's.
    taken_for: Vec<u32>,
}

/// Queues of servers.
pub(crate) struct Guests {
    queues: Vec<Queue>,
    slots: Vec<Slots>,
    lanes: Vec<Lane>,
    payload: Payload,
    /// Bytes that are written.
    bytes: Vec<u8>,
}

impl Guests {
    /// Connects to each.
    ///
    /// # Errors
    /// If a server cannot be reached, lacks something or breaks the rules.
    pub(crate) fn connect(
        paths: &[(String, PathBuf)],
        addresses: &Addresses,
        (iodepth, seed): (u32, u64),
    ) -> Result<Guests, BenchError> {
        let depth = iodepth.clamp(1, VHOST_IODEPTH_MAX) as u16;
        let data_bytes =
            (SLOTS_BYTES / u32::from(depth)).clamp(SLOT_BYTES[0], SLOT_BYTES[1]) & !4095;
        let ring = depth.next_power_of_two().max(RING);
        let mut payload = Payload::new(seed);
        let mut bytes = vec![0; data_bytes as usize];
        payload.fill(&mut bytes);
        let (queues, slots, lanes) = (Vec::new(), Vec::new(), Vec::new());
        let mut guests = Guests { queues, slots, lanes, payload, bytes };
        for (name, path) in paths {
            let options =
                Options { ring, depth, data_bytes, wait: Wait::Events, ..Options::default() };
            let client = Client::connect(path, options)?;
            let mut lane = lane_of(name, client.disk(), data_bytes);
            let mut queue = client.into_queues().remove(0);
            if !(lane.is_read_only || addresses.overwrite) {
                let most = lane.takes.data_bytes_max as u32;
                lane.contents = guest_contents(&mut queue, lane.size_bytes, most)?;
            }
            guests.queues.push(queue);
            guests.lanes.push(lane);
            let taken_for = vec![0; depth.into()];
            guests.slots.push(Slots { free: (0..depth).collect(), taken_for });
        }
        Ok(guests)
    }
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

impl Target for Guests {
    fn lanes(&self) -> &[Lane] {
        &self.lanes
    }

    fn now_ns(&self) -> u64 {
        Native::now()
    }

    fn submit(&mut self, piece: &Piece) -> Result<bool, BenchError> {
        let Guests { queues, slots, payload, bytes, .. } = self;
        let lane = piece.lane as usize;
        let (queue, slots) = (&mut queues[lane], &mut slots[lane]);
        let Some(slot) = slots.free.pop() else { return Ok(false) };
        slots.taken_for[usize::from(slot)] = piece.slot;
        let (sector, len) = (piece.offset_bytes >> 9, piece.len_bytes as u32);
        let over = |queue: &mut Queue, kind, flags| {
            queue.write_data(slot, &range(sector, len >> 9, flags));
            Request { kind, sector: 0, bytes: RANGE_BYTES as u32 }
        };
        let request = match piece.op {
            Op::Read => Request::read(sector, len),
            Op::Write => {
                let bytes = &mut bytes[..len as usize];
                payload.refresh(bytes);
                queue.write_data(slot, bytes);
                Request::write(sector, len)
            }
            Op::Flush => Request::flush(),
            Op::Discard => over(queue, Kind::Discard, 0),
            Op::WriteZeroes => over(queue, Kind::WriteZeroes, RANGE_UNMAP),
        };
        queue.submit(slot, request);
        Ok(true)
    }

    fn start(&mut self) -> Result<(), BenchError> {
        self.queues.iter_mut().for_each(Queue::kick);
        Ok(())
    }

    fn poll(&mut self, done: &mut Vec<Done>) -> Result<(), BenchError> {
        for (queue, slots) in self.queues.iter_mut().zip(&mut self.slots) {
            queue.reap(|slot, status| {
                slots.free.push(slot);
                let error = (!status.is_ok()).then(|| format!("{status} from the server"));
                done.push(Done { slot: slots.taken_for[usize::from(slot)], error });
            })?;
        }
        Ok(())
    }

    fn wait(&mut self, until_ns: u64) -> Result<(), BenchError> {
        let most = Duration::from_nanos(until_ns.saturating_sub(Native::now()));
        Queue::wait_any(&mut self.queues, most).map_err(|error: ClientError| error.into())
    }
}
