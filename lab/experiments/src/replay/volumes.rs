//! Replays I/O on volumes of this process, through one channel (`Channel`) to each volume.
//!
//! The engine calls this target from one thread, which submits and polls all channels. The target
//! owns the channels and the buffers of their bios. It runs on this machine or on a simulated one
//! (simulated.rs).

use std::sync::Arc;

use millrace_block::{Bio, Buffer, Channel, Completion, Op, OpFlags, Reject, Volume};
use millrace_machine::{Machine, Native};
use millrace_reactor::Config;
use millrace_runtime::{DriveWorkers, IoContext, Pinning};

use super::Settings;
use super::lane::{Done, Lane, Piece, PieceLimits, Target};
use super::payload::Pool;
use crate::load::bench::BenchError;
use crate::load::overwrite::DiskContents;
use crate::load::sleeper::Sleeper;

/// Longest read or write in one bio, in bytes, which bounds the memory of a bio.
const DATA_BYTES_MAX: u64 = 8 << 20;
/// Longest discard or write-zeroes in one bio, in sectors. The block layer splits bios to the
/// drive's limits.
const RANGE_SECTORS_MAX: u64 = 1 << 31;
const CHANNEL_DEPTH_MAX: u32 = 65_536;

pub(crate) struct Volumes<S: Sleeper> {
    // Declared before `sleeper` to be dropped first: `sleeper` may own the ring that the channels
    // use.
    channels: Vec<Channel<S::Machine>>,
    lanes: Vec<Lane>,
    pool: Pool<Buffer>,
    sleeper: S,
    workers: Vec<DriveWorkers>,
}

impl<S: Sleeper> Volumes<S> {
    pub(crate) fn new(seed: u64) -> Result<Self, BenchError> {
        Ok(Volumes {
            channels: Vec::new(),
            lanes: Vec::new(),
            pool: Pool::new(Buffer::new, seed),
            sleeper: S::new(0)?,
            workers: Vec::new(),
        })
    }

    /// Adds a volume, with a channel for `iodepth` I/Os in flight. `contents` is the data on the
    /// volume's drives that a replay could overwrite.
    pub(crate) fn add(
        &mut self,
        (name, volume): (&str, &Arc<Volume<S::Machine>>),
        contents: DiskContents,
        iodepth: u32,
    ) -> Result<(), BenchError> {
        let depth = iodepth.clamp(1, CHANNEL_DEPTH_MAX);
        self.channels.push(self.sleeper.open(volume, depth)?);
        self.lanes.push(Lane { contents, ..lane_of(name, volume) });
        Ok(())
    }

    fn bio(&mut self, piece: &Piece) -> Bio {
        let sector = piece.offset_bytes >> 9;
        let nr_sectors = (piece.len_bytes >> 9) as u32;
        let len = piece.len_bytes as usize;
        let bio = match piece.op {
            Op::Read => Bio::read(sector, self.pool.read(len)),
            Op::Write => Bio::write(sector, self.pool.write(len)),
            Op::Flush => Bio::flush(),
            Op::Discard => Bio::discard(sector, nr_sectors),
            Op::WriteZeroes => Bio::write_zeroes(sector, nr_sectors),
        };
        let flags = if piece.fua { OpFlags::FUA } else { OpFlags::NONE };
        bio.with_flags(flags).with_user_data(piece.slot.into())
    }
}

fn give_back(pool: &mut Pool<Buffer>, bio: Bio) {
    let op = bio.op();
    if let Some(buffer) = bio.into_buffer() {
        pool.give_back(buffer, op);
    }
}

impl<S: Sleeper> Target for Volumes<S> {
    fn lanes(&self) -> &[Lane] {
        &self.lanes
    }

    fn now_ns(&self) -> u64 {
        S::Machine::now()
    }

    fn submit(&mut self, piece: &Piece) -> Result<bool, BenchError> {
        let bio = self.bio(piece);
        let Err(rejected) = self.channels[piece.lane as usize].submit(bio) else {
            return Ok(true);
        };
        give_back(&mut self.pool, rejected.bio);
        match rejected.reason {
            Reject::Full => Ok(false),
            Reject::Invalid(status) => Err(BenchError::Workload(format!(
                "{}: refuses a {} of {} bytes at {}: {status}",
                self.lanes[piece.lane as usize].name,
                piece.op.name(),
                piece.len_bytes,
                piece.offset_bytes
            ))),
        }
    }

    fn start(&mut self) -> Result<(), BenchError> {
        self.channels.iter_mut().for_each(Channel::flush);
        Ok(())
    }

    fn poll(&mut self, done: &mut Vec<Done>) -> Result<(), BenchError> {
        let Volumes { channels, pool, .. } = self;
        for channel in channels.iter_mut().filter(|channel| channel.in_flight() > 0) {
            channel.poll(|Completion { user_data, status, bio, .. }| {
                let error = (!status.is_ok()).then(|| status.to_string());
                done.push(Done { slot: user_data as u32, error });
                give_back(pool, bio);
            });
        }
        Ok(())
    }

    fn wait(&mut self, until_ns: u64) -> Result<(), BenchError> {
        let Volumes { channels, sleeper, .. } = self;
        let wakes = channels.iter_mut().filter_map(Channel::sleep_until);
        let until_ns = wakes.fold(until_ns, u64::min);
        sleeper.sleep(until_ns, &|| channels.iter().any(Channel::has_work))?;
        channels.iter_mut().for_each(Channel::tick);
        Ok(())
    }
}

fn lane_of<M: Machine>(name: &str, volume: &Volume<M>) -> Lane {
    let limits = volume.limits();
    let block_bytes = u64::from(limits.logical_block_size);
    let ranges = |sectors: u32| match sectors {
        0 => 0,
        _ => (RANGE_SECTORS_MAX << 9) / block_bytes * block_bytes,
    };
    Lane {
        name: name.to_owned(),
        size_bytes: (volume.capacity() << 9) / block_bytes * block_bytes,
        block_bytes,
        takes: PieceLimits {
            data_bytes_max: DATA_BYTES_MAX,
            discard_bytes_max: ranges(limits.max_discard_sectors),
            zeroes_bytes_max: ranges(limits.max_write_zeroes_sectors),
            // For a drive without FUA, the block layer sends a write and a flush.
            flush: true,
            fua: true,
        },
        is_read_only: limits.features.read_only,
        contents: DiskContents::Empty,
    }
}

/// A volume of this process as the target of a replay.
pub struct ReplayVolume {
    /// Name of the volume in the report.
    pub name: String,
    /// Volume that executes the I/Os.
    pub volume: Arc<Volume<Native>>,
    /// Data on the drives that a replay could overwrite, as found before the volume was opened.
    pub contents: DiskContents,
}

pub(crate) fn native(
    volumes: &[ReplayVolume],
    settings: &Settings,
) -> Result<Volumes<IoContext>, BenchError> {
    let mut target = Volumes::new(settings.seed)?;
    for ReplayVolume { name, volume, contents } in volumes {
        target.add((name, volume), contents.clone(), settings.iodepth)?;
        let workers = DriveWorkers::start(volume.disks(), Config::default(), Pinning::Pinned)?;
        target.workers.push(workers);
    }
    Ok(target)
}
