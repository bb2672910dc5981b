//! The floor under a vhost-user-blk device: the driver's side of a ring, fed in one process.
//!
//! Usage: `vhost_ring_floor [DEPTH ...]`. Driver and device take turns on one CPU, so no cache line
//! crosses: the driver submits all it may, a device that does nothing completes all, the driver
//! takes them. Prints nanoseconds for one I/O of both together, by depth and kind of descriptors;
//! the stand-in device copies entries from ring to ring, so nearly all of it is the driver's.
#![allow(unsafe_code, clippy::print_stdout)]

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};
use std::time::Instant;

use millrace_clients::vhost::{
    Descriptors, DriverRing, PAGE_BYTES, Request, RingLayout, RingOptions, Wait,
};

const BATCHES_OF_ALL: u64 = 20_000_000;

/// A device that completes whatever it is shown, in order.
struct Device {
    start: NonNull<u8>,
    layout: RingLayout,
    mask: u16,
    next: u16,
}

impl Device {
    fn word(&self, offset: usize) -> &AtomicU16 {
        // SAFETY: inside the ring's memory, which outlives this; words are aligned.
        unsafe { AtomicU16::from_ptr(self.start.as_ptr().add(offset).cast()) }
    }

    fn serve(&mut self) {
        // Acquire and release: the driver's index shows entries, ours shows completions.
        let shown = self.word(self.layout.available + 2).load(Ordering::Acquire);
        while self.next != shown {
            let index = usize::from(self.next & self.mask);
            // Relaxed: ordered by the indices.
            let head = self.word(self.layout.available + 4 + 2 * index).load(Ordering::Relaxed);
            let used = self.layout.used + 4 + 8 * index;
            // SAFETY: as in `word`.
            let id = unsafe { AtomicU32::from_ptr(self.start.as_ptr().add(used).cast()) };
            id.store(head.into(), Ordering::Relaxed);
            self.next = self.next.wrapping_add(1);
        }
        self.word(self.layout.used + 2).store(shown, Ordering::Release);
    }
}

fn run(depth: u16, descriptors: Descriptors) -> Result<f64, Box<dyn std::error::Error>> {
    let size = if descriptors == Descriptors::Chained { 3 * depth } else { depth };
    let size = size.next_power_of_two().max(256);
    let wait = Wait::Poll;
    let options = RingOptions { size, depth, data_bytes: 4096, descriptors, event_idx: true, wait };
    let layout = RingLayout::new(&options)?;
    let mut memory = vec![0u8; layout.end + PAGE_BYTES];
    let skip = memory.as_ptr().align_offset(PAGE_BYTES);
    let start = NonNull::from(&mut memory[skip]);
    // SAFETY: as large as the layout, aligned to a page, used by these two only and until the end.
    let mut ring = unsafe { DriverRing::new(start, 1 << 30, options) }?;
    let mut device = Device { start, layout, mask: size - 1, next: 0 };
    let (mut ready, mut sum): (Vec<u16>, u64) = ((0..depth).collect(), 0);
    let rounds = BATCHES_OF_ALL / u64::from(depth);
    let begin = Instant::now();
    for round in 0..rounds {
        for (slot, place) in ready.drain(..).zip(0..) {
            let sector = (round * 8191 + place) & 0x1f_ffff;
            ring.submit(slot, Request::read(sector, 4096));
        }
        let _ = ring.publish();
        device.serve();
        ring.reap(|slot, status| {
            sum += u64::from(status.0);
            ready.push(slot);
        })?;
    }
    let ns = begin.elapsed().as_nanos() as f64 / (rounds * u64::from(depth)) as f64;
    assert_eq!((sum, ready.len()), (0, depth.into()), "all came back");
    drop(memory);
    Ok(ns)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let given: Vec<u16> =
        std::env::args().skip(1).map(|text| text.parse()).collect::<Result<_, _>>()?;
    let depths = if given.is_empty() { vec![1, 32, 128] } else { given };
    for depth in depths {
        let (chained, indirect) =
            (run(depth, Descriptors::Chained)?, run(depth, Descriptors::Indirect)?);
        println!("depth {depth}: chained {chained:.2} ns, indirect {indirect:.2} ns");
    }
    Ok(())
}
