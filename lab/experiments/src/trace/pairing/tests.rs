//! What arrives, which completion answers what, and that memory is bounded.

use super::*;

fn io(op: Op, at_ns: u64, offset_bytes: u64, len_bytes: u64) -> TraceIo {
    TraceIo { at_ns, device: 0, op, fua: false, offset_bytes, len_bytes, latency_ns: None }
}

fn event(step: Step, io: TraceIo) -> Event {
    Event { step, io, preflush: false }
}

fn run(events: &[Event]) -> Vec<(u64, Op, u64, Option<u64>)> {
    let mut pairing = Pairing::default();
    events.iter().for_each(|event| pairing.event(event));
    let ios = std::iter::from_fn(|| pairing.pop(StreamState::Ended));
    ios.map(|io| (io.at_ns, io.op, io.offset_bytes, io.latency_ns)).collect()
}

use Op::{Flush, Read, Write};
use Step::{Complete, Issue, Queue};

#[test]
fn a_completion_answers_all_that_were_merged_and_of_those_split_the_last() {
    let merged = [
        event(Queue, io(Read, 1, 0, 512)),
        event(Queue, io(Read, 2, 512, 512)),
        event(Queue, io(Write, 3, 0, 512)),
        event(Issue, io(Read, 4, 0, 1024)),
        event(Complete, io(Read, 10, 0, 1024)),
    ];
    let told = [(1, Read, 0, Some(9)), (2, Read, 512, Some(8)), (3, Write, 0, None)];
    assert_eq!(run(&merged), told);
    let split = [
        event(Queue, io(Read, 1, 0, 4096)),
        event(Complete, io(Read, 5, 2048, 2048)),
        event(Complete, io(Read, 9, 0, 2048)),
    ];
    assert_eq!(run(&split), [(1, Read, 0, Some(8))]);
}

#[test]
fn without_any_q_an_io_arrives_with_d_and_a_q_takes_those_back() {
    let issues = [
        event(Issue, io(Read, 1, 0, 512)),
        event(Issue, io(Read, 2, 0, 512)),
        event(Complete, io(Read, 5, 0, 512)),
    ];
    assert_eq!(run(&issues), [(1, Read, 0, Some(4))], "the second is a requeued one");
    let begun_before = [
        event(Issue, io(Read, 1, 0, 512)),
        event(Complete, io(Read, 5, 0, 512)),
        event(Queue, io(Read, 6, 8192, 512)),
        event(Issue, io(Read, 7, 8192, 512)),
        event(Complete, io(Read, 8, 8192, 512)),
    ];
    assert_eq!(run(&begun_before), [(6, Read, 8192, Some(2))]);
}

#[test]
fn flushes_are_answered_in_their_order_and_one_before_a_write_with_that() {
    let events = [
        event(Queue, io(Flush, 1, 0, 0)),
        event(Queue, io(Flush, 2, 0, 0)),
        event(Complete, io(Flush, 5, 0, 0)),
        event(Complete, io(Flush, 9, 0, 0)),
        Event { step: Queue, io: io(Write, 10, 0, 512), preflush: true },
        event(Complete, io(Write, 15, 0, 512)),
    ];
    let told = [
        (1, Flush, 0, Some(4)),
        (2, Flush, 0, Some(7)),
        (10, Flush, 0, None),
        (10, Write, 0, Some(5)),
    ];
    assert_eq!(run(&events), told);
}

#[test]
fn what_is_never_completed_holds_back_a_bounded_number() {
    let mut pairing = Pairing::default();
    pairing.event(&event(Queue, io(Read, 0, 0, 512)));
    let mut told = 0;
    for number in 1..200_000 {
        pairing.event(&event(Queue, io(Write, number, number * 512, 512)));
        pairing.event(&event(Complete, io(Write, number + 1, number * 512, 512)));
        while let Some(io) = pairing.pop(StreamState::ToCome) {
            told += 1;
            assert_eq!(io.latency_ns.is_none(), io.op == Read);
        }
    }
    assert_eq!(told, 199_999 + 1);
    assert!(pairing.open.is_empty() && pairing.pending.front().is_none());
}
