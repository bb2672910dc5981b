//! After warm-up an I/O allocates nothing, on any stack, whole or split, plain or vectored.
//!
//! The allocator of this test binary counts the calls of the thread that measures; the layer serves
//! inline, so all of an I/O happens on the thread that submits it. Bios and their memory go round:
//! the completion gives a bio back, and it is moved and submitted again. The test drive
//! of `support` lists segments in a vector to check them, so its `queue_rq` is not counted; the
//! walk over the segments that any driver makes is.

use std::sync::Arc;

use crate::alone;
use crate::support::TestDrive;
use millrace_allocations::{Counting, uncounted};
use millrace_block::baseline::Stack;
use millrace_block::{
    Bio, Buffer, Channel, ChannelConfig, CompletionBatch, Disk, DiskConfig, Dispatch, Driver,
    DriverQueue, Error, Expired, HwQueues, Layout, OpFlags, QueueLimits, Request, Sector, Tag,
    TagScope, Volume,
};
use millrace_machine::{Native, Topology};

const STACKS: [Stack; 3] = [Stack::Mq, Stack::Sq, Stack::Raw];
const IOS: u64 = 2_000;
/// Sectors of a test drive: 8 MiB.
const SECTORS: Sector = 1 << 14;

#[global_allocator]
static ALLOCATOR: Counting = Counting::of_caller();

/// The test drive, whose checks are not counted, but a driver's walk over the segments is.
struct Drive(TestDrive);

impl Driver<Native> for Drive {
    fn capacity(&self) -> Sector {
        self.0.capacity()
    }
    fn limits(&self) -> QueueLimits {
        self.0.limits()
    }
    fn hw_queues(&self, topology: &Topology) -> HwQueues {
        self.0.hw_queues(topology)
    }
    fn open_queue(&self, index: u16, depth: u32) -> Result<Box<dyn DriverQueue<Native>>, Error> {
        let inner = self.0.open_queue(index, depth)?;
        Ok(Box::new(Queue { inner, limits: self.0.limits, polls: 0 }))
    }
}

struct Queue {
    inner: Box<dyn DriverQueue<Native>>,
    limits: QueueLimits,
    polls: u64,
}

impl DriverQueue<Native> for Queue {
    fn queue_rq(&mut self, rq: &Request<Native>) -> Dispatch {
        if rq.op().has_data() {
            let bytes: u32 = rq.segments_within(&self.limits).map(|s| s.len_bytes).sum();
            assert_eq!(bytes, rq.len_bytes());
        }
        uncounted(|| self.inner.queue_rq(rq))
    }
    fn commit_rqs(&mut self) {
        self.inner.commit_rqs();
    }
    /// Completes at every second poll only: a drive that always completes at once makes nothing
    /// wait.
    fn poll(&mut self, batch: &mut CompletionBatch) {
        self.polls += 1;
        if self.polls.is_multiple_of(2) {
            self.inner.poll(batch);
        }
    }
    fn timeout(&mut self, tag: Tag) -> Expired {
        self.inner.timeout(tag)
    }
}

/// A channel to one drive, or to a stripe of 4 KiB chunks over several.
fn channel(drives: usize, stack: Stack, set: impl Fn(&mut TestDrive)) -> Channel<Native> {
    let disk = |_| {
        let mut drive = TestDrive::new(SECTORS);
        set(&mut drive);
        let config = DiskConfig { baseline: stack.into(), ..DiskConfig::default() };
        Disk::new(Box::new(Drive(drive)), config).expect("a valid drive")
    };
    let disks: Vec<Arc<_>> = (0..drives).map(disk).collect();
    let layout = match drives {
        1 => Layout::Linear,
        _ => Layout::Stripe { chunk_sectors: 8 },
    };
    let volume = Volume::new("v", layout, disks).expect("a valid volume");
    Channel::open(&volume, ChannelConfig::default()).expect("its queues are served")
}

/// Keeps all of `bios` in flight until `ios` have completed. Bios go to the volume's first
/// `SECTORS` sectors in ascending order, `gap` sectors apart; without a gap, neighbours of one kind
/// merge.
fn turn(channel: &mut Channel<Native>, bios: &mut Vec<Bio>, ios: u64, gap: u64) {
    let (mut submitted, mut done) = (0, 0);
    while done < ios {
        while submitted < ios
            && let Some(mut bio) = bios.pop()
        {
            bio.set_sector(submitted * (u64::from(bio.nr_sectors()) + gap) % SECTORS);
            channel.submit(bio).expect("room");
            submitted += 1;
        }
        done += channel.wait(1, |completion| {
            assert!(completion.status.is_ok());
            bios.push(completion.bio);
        }) as u64;
    }
}

/// Warms up, runs `IOS` I/Os, and fails if any of them called the allocator. Returns the drives'
/// counts.
fn assert_no_call(
    case: &str,
    mut channel: Channel<Native>,
    mut bios: Vec<Bio>,
    gap: u64,
) -> Counts {
    turn(&mut channel, &mut bios, 2_000, gap);
    let (calls, first) = ALLOCATOR.calls_in(|| turn(&mut channel, &mut bios, IOS, gap));
    assert!(calls == 0, "{case}: {calls} allocator calls in {IOS} I/Os; the first:\n{first}");
    let mut counts = Counts::default();
    for disk in channel.volume().disks() {
        let stats = disk.stats();
        counts.parts += stats.ios();
        counts.merges += stats.ops.iter().map(|op| op.merges).sum::<u64>();
        counts.tag_waits += stats.tag_waits();
    }
    counts
}

/// Counts of a case's drives, which show that the case took the intended path.
#[derive(Debug, Default)]
struct Counts {
    parts: u64,
    merges: u64,
    tag_waits: u64,
}

/// `count` bios, eight reads and eight writes in turn, of buffers made by `buffers`.
fn bios(count: usize, buffers: impl Fn() -> Vec<Buffer>) -> Vec<Bio> {
    let bio = |n| match n / 8 % 2 {
        0 => Bio::readv(0, buffers()),
        _ => Bio::writev(0, buffers()),
    };
    (0..count).map(bio).collect()
}

fn short() -> Vec<Buffer> {
    vec![Buffer::new(4096)]
}

fn long() -> Vec<Buffer> {
    vec![Buffer::new(64 << 10)]
}

/// 64 KiB in pieces that no chunk is a multiple of.
fn long_in_pieces() -> Vec<Buffer> {
    [512, 6144, 8192, 2560, 48_128].map(Buffer::new).into()
}

#[inline(never)]
fn allocated() -> Box<u64> {
    std::hint::black_box(Box::new(7))
}

#[test]
fn allocator_calls_are_counted_and_traced_to_their_function() {
    let _alone = alone();
    let (calls, first) = ALLOCATOR.calls_in(|| drop(allocated()));
    assert_eq!(calls, 2);
    assert!(first.contains("allocation::allocated"), "{first}");
    assert_eq!(ALLOCATOR.calls_in(|| uncounted(|| drop(allocated()))).0, 0);
}

#[test]
fn io_on_a_single_drive_allocates_nothing() {
    let _alone = alone();
    for stack in STACKS {
        let channel = channel(1, stack, |_| ());
        let counts = assert_no_call(&format!("{stack:?}"), channel, bios(32, short), 0);
        assert_eq!(counts.merges > 0, stack != Stack::Raw, "{stack:?} {counts:?}");
    }
}

#[test]
fn io_that_waits_for_tags_allocates_nothing() {
    let _alone = alone();
    for stack in STACKS {
        for tags in [TagScope::PerQueue, TagScope::PerDrive] {
            let channel = channel(1, stack, |drive| (drive.depth, drive.tags) = (4, tags));
            let case = format!("{stack:?} {tags:?}");
            let counts = assert_no_call(&case, channel, bios(200, short), 8);
            assert!(counts.tag_waits > 0, "{case} {counts:?}");
        }
    }
}

#[test]
fn io_split_over_a_stripe_allocates_nothing() {
    let _alone = alone();
    for stack in STACKS {
        // 4 parts a bio: 200 bios want more parts than a channel has, and some wait for them.
        for in_flight in [1, 32, 200] {
            let channel = channel(4, stack, |_| ());
            let case = format!("{stack:?} {in_flight}");
            let counts = assert_no_call(&case, channel, bios(in_flight, long), 0);
            assert!(counts.parts >= 4 * IOS, "{case} {counts:?}");
        }
    }
}

#[test]
fn io_split_by_the_limits_of_drives_allocates_nothing() {
    let _alone = alone();
    for stack in STACKS {
        let channel = channel(4, stack, |drive| {
            drive.limits.max_sectors = 24;
            drive.limits.max_segments = 3;
            drive.limits.max_segment_size = 2048;
            drive.limits.seg_boundary_mask = 4095;
        });
        let counts = assert_no_call(&format!("{stack:?}"), channel, bios(32, long_in_pieces), 0);
        assert!(counts.parts >= 8 * IOS, "{stack:?} {counts:?}");
    }
}

#[test]
fn vectored_io_allocates_nothing() {
    let _alone = alone();
    for stack in STACKS {
        for drives in [1, 4] {
            let channel = channel(drives, stack, |_| ());
            let bios = bios(32, long_in_pieces);
            assert!(bios.iter().all(|bio| bio.nr_segments() == 5));
            assert_no_call(&format!("{stack:?} {drives}"), channel, bios, 0);
        }
    }
}

#[test]
fn flushes_discards_and_durable_writes_allocate_nothing() {
    let _alone = alone();
    for stack in STACKS {
        for drives in [1, 4] {
            let flags = OpFlags::FUA.with(OpFlags::PREFLUSH);
            let bio = |n| match n % 4 {
                0 => Bio::flush(),
                1 => Bio::discard(0, 128),
                2 => Bio::write_zeroes(0, 128),
                _ => Bio::write(0, Buffer::new(64 << 10)).with_flags(flags),
            };
            let bios: Vec<Bio> = (0..32).map(bio).collect();
            let channel = channel(drives, stack, |_| ());
            assert_no_call(&format!("{stack:?} {drives}"), channel, bios, 0);
        }
    }
}
