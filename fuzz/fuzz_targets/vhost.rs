//! Fuzzes the memory that a guest shares with a vhost-user server. The first byte of an input
//! selects the features of the ring. The rest is the content of this memory, which begins with a
//! ring of eight descriptors.
//!
//! The fuzzer demands:
//! - There is no panic and no report of the address sanitizer.
//! - Every part of a descriptor chain lies in the guest's memory.
//! - `walk_plain`, the fast parser of simple requests, agrees with `walk`, the complete parser.
//! - The data of a request have the length that the request states.
//!
//! Seeds in `corpus/vhost` are rings of Linux guests, and invalid rings.

#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use millrace_exports::vhost::blk::{self, Action};
use millrace_exports::vhost::memory::{GuestMemory, Region};
use millrace_exports::vhost::ring::{
    DescriptorChain, RingAreas, RingFeatures, RingParts, SplitRing,
};
use millrace_exports::virtio::ID_BYTES;

const SIZE: u16 = 8;
const REGION_BYTES: u64 = 4096;
const USER: u64 = 1 << 40;
/// Offsets of the descriptor table, the available ring and the used ring.
const AREAS: [u64; 3] = [0, 128, 160];

thread_local! {
    static MEMORY: Arc<GuestMemory> = {
        let region = |guest| Arc::new(Region::anonymous(guest, USER + guest, REGION_BYTES).unwrap());
        Arc::new(GuestMemory::new(vec![region(0), region(REGION_BYTES)]).unwrap())
    };
}

fuzz_target!(|input: &[u8]| {
    let [flags, image @ ..] = input else { return };
    MEMORY.with(|memory| run(memory, *flags, image));
});

fn run(memory: &GuestMemory, flags: u8, image: &[u8]) {
    fill(memory, image);
    let areas = RingAreas::find(memory, SIZE, AREAS.map(|at| USER + at)).unwrap();
    let features = RingFeatures { event_idx: flags & 1 != 0, indirect: flags & 2 != 0 };
    // SAFETY: the memory is this thread's and lives longer.
    let mut ring = unsafe {
        let used = areas.used_idx(memory);
        SplitRing::new(RingParts { areas, size: SIZE, features, taken: 0, used })
    };
    let mut chain = DescriptorChain::default();
    let Ok(count) = ring.available() else { return };
    assert!(count <= SIZE);
    while let Ok(Some(head)) = ring.take() {
        let plain = ring.walk_plain(head, memory);
        let walked = ring.walk(head, memory, &mut chain);
        chain.parts.iter().for_each(|part| assert!(is_inside(memory, part.start, part.len_bytes)));
        if walked.is_err() {
            assert!(plain.is_none());
            return;
        }
        let pieces = chain.parts.clone();
        let request = blk::parse(&mut chain);
        let data = &chain.parts[request.data.0..request.data.1];
        let bytes: u64 = data.iter().map(|part| u64::from(part.len_bytes)).sum();
        match request.action {
            Action::Transfer(op, sector) => {
                assert!(bytes == request.data_bytes && bytes > 0 && bytes % 512 == 0);
                if let Some(plain) = plain
                    && let Some(short) = blk::parse_plain(&plain)
                {
                    assert_eq!(short, (op, sector));
                    assert_eq!(u64::from(plain.data.len_bytes), bytes);
                    assert_eq!(Some(plain.status), request.status);
                }
            }
            Action::Id => assert!(u64::from(blk::copy_in(data, &[7; ID_BYTES])) <= bytes),
            _ => assert_eq!(request.data_bytes, 0),
        }
        if let Some(status) = request.status {
            let last = pieces.last().unwrap();
            let end = last.start.wrapping_add(last.len_bytes as usize - 1);
            assert_eq!(status, end);
            // SAFETY: checked above to lie in the memory.
            unsafe { status.write_volatile(0) };
        }
        ring.put(head, 1);
    }
    let before = ring.published();
    ring.publish();
    let _ = ring.wants_interrupt(before);
    ring.suppress_kicks();
    let _ = ring.request_kick();
}

fn fill(memory: &GuestMemory, image: &[u8]) {
    let mut rest = image;
    for region in memory.regions() {
        let len = rest.len().min(REGION_BYTES as usize);
        let (now, later) = rest.split_at(len);
        // SAFETY: the region is that long, and nobody else uses it.
        unsafe {
            region.start().write_bytes(0, REGION_BYTES as usize);
            region.start().copy_from_nonoverlapping(now.as_ptr(), len);
        }
        rest = later;
    }
}

fn is_inside(memory: &GuestMemory, start: *mut u8, len_bytes: u32) -> bool {
    memory.regions().iter().any(|region| {
        let offset = start.addr().wrapping_sub(region.start().addr()) as u64;
        offset < REGION_BYTES && REGION_BYTES - offset >= u64::from(len_bytes)
    })
}
