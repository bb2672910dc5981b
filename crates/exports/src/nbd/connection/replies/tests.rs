//! Compares the pieces given to each send, and the counts of replies, with a plain queue of pieces.

use std::collections::VecDeque;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::nbd::memory::budget::{MemoryBudget, MemoryPart};
use crate::nbd::tests::{MIB, pool, waiter};

const KIB: usize = 1 << 10;

/// Creates outgoing replies without a socket.
fn outgoing() -> ReplyQueue {
    ReplyQueue::new(RawFd::MAX)
}

/// Returns address and length of each piece of the next send.
fn pieces(out: &mut ReplyQueue) -> Vec<(usize, usize)> {
    out.start();
    let rest = &out.sending.pieces[out.sending.sent..];
    assert_eq!(out.message.msg_iov.cast_const(), rest.as_ptr());
    rest[..out.message.msg_iovlen].iter().map(|one| (one.iov_base.addr(), one.iov_len)).collect()
}

fn push_long(out: &mut ReplyQueue, head: usize, len: usize) {
    out.push_with(|_| head, (std::ptr::null_mut(), len), None);
}

#[test]
fn touching_headers_are_one_piece_and_payload_another() {
    let mut out = outgoing();
    out.push(|_| 16);
    out.push(|_| 20);
    push_long(&mut out, 16, 512);
    out.push(|_| 32);
    push_long(&mut out, 0, 100);
    assert_eq!(out.unsent_bytes(), 16 + 20 + 16 + 512 + 32 + 100);
    let start = out.gathering.headers.as_ptr().addr();
    let expected = [(start, 52), (0, 512), (start + 52, 32), (0, 100)];
    assert_eq!(pieces(&mut out), expected);
    assert_eq!((out.sending.replies, out.gathering.replies), (5, 0));
}

#[test]
fn the_header_of_a_single_long_reply_goes_ahead() {
    let (_reactor, mut pool) = pool(&MemoryBudget::new(2 * MIB, 1), 0);
    for (len, pieces_sent) in [(32 * KIB - 17, 2), (32 * KIB - 16, 1), (MIB, 1), (2000, 2)] {
        let mut out = outgoing();
        push_long(&mut out, 16, len);
        assert_eq!(pieces(&mut out).len(), pieces_sent, "{len}");
        assert_eq!(out.sent(16, &mut pool).replies, 0);
        assert_eq!(pieces(&mut out), [(0, len)], "the rest of it");
        assert_eq!(out.sent(len, &mut pool).replies, 1);
    }
    let mut out = outgoing();
    push_long(&mut out, 16, MIB);
    push_long(&mut out, 16, MIB);
    assert_eq!(pieces(&mut out).len(), 4, "two replies go together");
}

#[test]
fn replies_gather_during_sends_and_count_when_out() {
    let (_reactor, mut pool) = pool(&MemoryBudget::new(2 * MIB, 1), 0);
    let mut out = outgoing();
    assert!(!out.has_gathered() && !out.has_rest());
    out.push(|_| 16);
    out.push(|_| 16);
    assert!(out.has_gathered() && !out.has_rest());
    assert_eq!(pieces(&mut out).len(), 1);
    assert!(out.busy && !out.has_gathered() && out.has_rest());
    out.push(|_| 20);
    assert_eq!(out.unsent_bytes(), 52);
    assert_eq!(out.sent(31, &mut pool).replies, 0, "a byte is left");
    assert!(!out.busy && out.has_rest());
    assert_eq!((out.unsent_bytes(), out.backlog_bytes, out.backlog_replies), (21, 31, 0));
    assert_eq!(pieces(&mut out).iter().map(|one| one.1).sum::<usize>(), 1);
    assert_eq!(out.sent(1, &mut pool).replies, 2);
    assert!(!out.has_rest() && out.has_gathered());
    assert_eq!((out.unsent_bytes(), out.backlog_bytes, out.backlog_replies), (20, 32, 2));
    pieces(&mut out);
    assert_eq!(out.sent(20, &mut pool).replies, 1);
    assert_eq!((out.unsent_bytes(), out.backlog_bytes, out.backlog_replies), (0, 52, 3));
}

#[test]
fn buffers_go_back_with_their_batch_and_what_a_send_has_stays() {
    let budget = MemoryBudget::new(8 * MIB, 1);
    let (_reactor, mut pool) = pool(&budget, 0);
    let mut out = outgoing();
    let push = |out: &mut ReplyQueue, pool: &mut BufferPool, len| {
        let buffer = pool.take(waiter(0, 0, len), MemoryPart::Window).unwrap();
        let place = (buffer.start(), len);
        out.push_with(|_| 16, place, Some(buffer));
    };
    push(&mut out, &mut pool, 4 * KIB);
    push(&mut out, &mut pool, 8 * KIB);
    pieces(&mut out);
    push(&mut out, &mut pool, 16 * KIB);
    out.push(|_| 16);
    let freed = out.discard(&mut pool);
    assert_eq!((freed.replies, freed.bytes, pool.in_use()), (2, 16 * KIB, 2));
    assert!(out.busy && out.has_rest() && !out.has_gathered());
    let freed = out.sent(2 * 16 + 12 * KIB, &mut pool);
    assert_eq!((freed.replies, freed.bytes, pool.in_use()), (2, 12 * KIB, 0));
    // After a send that ended early, `discard` also drops the rest of its batch.
    push(&mut out, &mut pool, 4 * KIB);
    pieces(&mut out);
    out.sent(1, &mut pool);
    push(&mut out, &mut pool, 8 * KIB);
    let freed = out.discard(&mut pool);
    assert_eq!((freed.replies, freed.bytes, pool.in_use()), (2, 12 * KIB, 0));
    assert_eq!(out.unsent_bytes(), 0);
    assert_eq!(Arc::strong_count(&budget), 2);
}

#[test]
fn a_batch_has_room_for_all_replies_of_a_connection() {
    let mut out = outgoing();
    for _ in 0..BATCH_REPLIES {
        push_long(&mut out, REPLY_BYTES_MAX, 1);
    }
    let batch = &out.gathering;
    assert_eq!((batch.pieces.len(), batch.replies), (512, 256));
    assert_eq!(batch.used_bytes, batch.headers.len());
    assert!(batch.pieces.capacity() >= 2 * BATCH_REPLIES);
}

proptest! {
    #[test]
    fn sends_of_any_length_give_every_byte_once_and_in_order(
        steps in proptest::collection::vec((0usize..4, 1usize..60_000), 1..80),
    ) {
        let (_reactor, mut pool) = pool(&MemoryBudget::new(2 * MIB, 1), 0);
        let mut out = outgoing();
        // The model: lengths of replies not freed yet, bytes queued so far, bytes sent so far.
        let (mut left, mut total, mut moved) = (VecDeque::new(), 0, 0);
        for (step, number) in steps {
            if step < 3 && usize::from(out.has_gathered()) * left.len() < 100 {
                let (head, len) = (16 + 4 * step, if step == 0 { 0 } else { number });
                match len {
                    0 => out.push(|_| head),
                    _ => push_long(&mut out, head, len),
                }
                left.push_back(head + len);
                total += head + len;
                continue;
            }
            if !out.has_gathered() && !out.has_rest() {
                continue;
            }
            let offered: usize = pieces(&mut out).iter().map(|one| one.1).sum();
            prop_assert!(offered > 0 && offered <= total - moved);
            let bytes = 1 + number % offered;
            let freed = out.sent(bytes, &mut pool);
            moved += bytes;
            prop_assert_eq!(out.unsent_bytes(), total - moved);
            // Replies are freed batch by batch, the oldest first, and never before they are sent.
            let freed: usize = left.drain(..freed.replies as usize).sum();
            prop_assert!(total - left.iter().sum::<usize>() <= moved);
            prop_assert!(freed == 0 || !out.has_rest());
        }
    }
}
