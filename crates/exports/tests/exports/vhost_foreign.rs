//! A client that others wrote: the crate virtio-driver writes, flushes, reads and verifies.
//!
//! Its rings, requests and messages have nothing in common with ours but the specifications.

use std::os::fd::AsRawFd;
use std::time::Instant;

use crate::vhost_support::{BACKENDS, Export, LONG, volume};
use millrace_exports::vhost::Threads;
use virtio_driver::{
    VhostUser, VirtioBlkFeatureFlags, VirtioBlkQueue, VirtioBlkTransport, VirtioFeatureFlags,
};
use vm_memory::mmap::MmapRegion;
use vm_memory::{FileOffset, VolatileMemory};

const BLOCK: usize = 4096;
const DEPTH: usize = 32;
const ROUNDS: u64 = 40;

/// A queue, its number and its kick, and where its buffers are.
struct Lane<'a> {
    queue: VirtioBlkQueue<'a, usize>,
    number: usize,
    buffers: usize,
}

impl Lane<'_> {
    /// Waits for `count` answers, which must be successes.
    fn finish(&mut self, transport: &VirtioBlkTransport, count: usize) {
        transport.get_submission_notifier(self.number).notify().unwrap();
        let (deadline, mut done) = (Instant::now() + LONG, 0);
        while done < count {
            assert!(Instant::now() < deadline, "queue {}: {done} of {count}", self.number);
            for completion in self.queue.completions() {
                assert_eq!(completion.ret, 0);
                done += 1;
            }
            std::thread::yield_now();
        }
    }
}

/// First word of a block of a round.
fn word(round: u64, queue: usize, slot: usize) -> u64 {
    (round << 32 | (queue as u64) << 16 | slot as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
}

#[test]
fn driver_of_others_verifies_writes_over_two_queues() {
    for (backend, threads) in BACKENDS.into_iter().flat_map(|b| [(b, 1), (b, 2)]) {
        let export = Export::of(backend, &[volume("ram:size=16m")], |export| {
            (export.queues, export.threads) = (2, Threads::Count(threads));
        });
        let bits = VirtioFeatureFlags::VERSION_1.bits()
            | VirtioFeatureFlags::RING_EVENT_IDX.bits()
            | VirtioBlkFeatureFlags::MQ.bits()
            | VirtioBlkFeatureFlags::FLUSH.bits();
        let socket = export.socket(0);
        let mut transport: Box<VirtioBlkTransport> =
            Box::new(VhostUser::new(socket.to_str().unwrap(), bits).unwrap());
        let file = rustix::fs::memfd_create("buffers", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let file = std::fs::File::from(file);
        file.set_len((2 * DEPTH * BLOCK) as u64).unwrap();
        let (fd, len) = (file.as_raw_fd(), 2 * DEPTH * BLOCK);
        let from = FileOffset::new(file.try_clone().unwrap(), 0);
        let map: MmapRegion = MmapRegion::from_file(from, len).unwrap();
        let queues = VirtioBlkQueue::<usize>::setup_queues(&mut *transport, 2, 128).unwrap();
        transport.map_mem_region(map.as_ptr().addr(), len, fd, 0).unwrap();
        let lane = |(number, queue)| Lane { queue, number, buffers: number * DEPTH * BLOCK };
        let mut lanes: Vec<_> = queues.into_iter().enumerate().map(lane).collect();
        let capacity = transport.get_config().unwrap().capacity.to_native();
        assert_eq!(capacity, 32768);
        for round in 0..ROUNDS {
            for lane in &mut lanes {
                for slot in 0..DEPTH {
                    let at = lane.buffers + slot * BLOCK;
                    let words = map.get_array_ref::<u64>(at, BLOCK / 8).unwrap();
                    words.copy_from(&[word(round, lane.number, slot); BLOCK / 8]);
                    let start = map.as_ptr().wrapping_add(at);
                    // SAFETY: inside the mapping, which outlives the queues' requests.
                    unsafe { lane.queue.write_raw(at as u64, start, BLOCK, slot) }.unwrap();
                }
                lane.finish(&*transport, DEPTH);
                lane.queue.flush(0).unwrap();
                lane.finish(&*transport, 1);
            }
            // Each queue reads the data that the other wrote.
            for lane in &mut lanes {
                let other = 1 - lane.number;
                for slot in 0..DEPTH {
                    let at = lane.buffers + slot * BLOCK;
                    let start = map.as_ptr().wrapping_add(at);
                    let from = ((other * DEPTH + slot) * BLOCK) as u64;
                    // SAFETY: as above.
                    unsafe { lane.queue.read_raw(from, start, BLOCK, slot) }.unwrap();
                }
                lane.finish(&*transport, DEPTH);
                for slot in 0..DEPTH {
                    let mut words = [0u64; BLOCK / 8];
                    let at = lane.buffers + slot * BLOCK;
                    map.get_array_ref::<u64>(at, BLOCK / 8).unwrap().copy_to(&mut words);
                    assert_eq!(words, [word(round, other, slot); BLOCK / 8]);
                }
            }
        }
        assert_eq!(export.said(), Vec::<String>::new());
        drop((lanes, transport));
        export.stop();
    }
}
