//! A queue alone, on a channel to a drive that can hold requests: how many it takes and when it
//! stops.
#![allow(clippy::unwrap_used)] // Tests may.

use millrace_block::Stamp;
use millrace_drives::{Effect, FaultCache, FaultControl, FaultRule};
use millrace_runtime::{IoConfig, IoContext};

use super::super::tests::played::{Played, count, event, until, volume};
use super::*;
use crate::virtio::kind;

const SIZE: u16 = 64;
const LANE: u64 = 3;

/// A queue of a guest, with the channel that it takes requests into.
struct Bench {
    // Goes before the memory that its requests lie in.
    channel: Channel<Native>,
    _ctx: IoContext,
    played: Played,
    queue: Queue,
    control: FaultControl,
}

impl Bench {
    fn new(size: u16, depth: u32, change: impl FnOnce(&mut QueueParts)) -> Bench {
        let (played, (volume, control)) = (Played::new(), volume(FaultCache::Inner));
        let mut ctx = IoContext::new(IoConfig::default()).unwrap();
        let channel = ctx.channel(&volume, depth, Stamp::Batch).unwrap();
        let queue = played.queue(0, size, change);
        Bench { played, queue, control, channel, _ctx: ctx }
    }

    fn stick(&self) {
        self.control.add_rule(FaultRule::always(Effect::Stick));
    }

    fn release(&self) {
        self.control.clear_rules();
        self.control.release_stuck();
    }

    fn take(&mut self, most: u32) -> u32 {
        self.queue.take(most, LANE, &mut self.channel)
    }

    /// Heads and outcomes of `wanted` requests that end.
    fn ended(&mut self, wanted: usize) -> Vec<(u16, Status)> {
        let (channel, mut ended) = (&mut self.channel, Vec::new());
        until("requests end", || {
            channel.poll(|done| {
                assert_eq!(done.user_data >> 16, LANE);
                ended.push((done.user_data as u16, done.status));
            });
            ended.len() >= wanted
        });
        ended
    }

    fn complete(&mut self, wanted: usize) {
        for (head, status) in self.ended(wanted) {
            self.queue.complete(head, status);
        }
    }

    fn publish(&mut self) -> bool {
        self.queue.publish()
    }
}

#[test]
fn as_many_requests_are_taken_as_there_may_be_and_counted_once() {
    let mut bench = Bench::new(SIZE, 64, |_| {});
    assert_eq!((bench.queue.available(), bench.queue.has_news()), (0, false));
    bench.played.offer_reads(0, SIZE, 0, 10);
    assert!(bench.queue.has_news());
    assert_eq!((bench.queue.available(), bench.queue.has_news()), (10, false));
    assert_eq!((bench.take(4), bench.queue.in_flight(), bench.queue.base()), (4, 4, 4));
    assert_eq!((bench.queue.available(), bench.take(100)), (6, 6));
    assert_eq!((bench.queue.in_flight(), bench.queue.stats.requests), (10, 10));
    bench.complete(10);
    assert_eq!((bench.queue.in_flight(), bench.played.used(0)[1]), (0, 0), "not published");
    assert!(bench.publish());
    assert_eq!(bench.played.used(0)[1], 10);
    assert_eq!(bench.played.answer(0, 0).1, 513);
    assert!(!bench.publish(), "nothing is new");
    assert_eq!((bench.queue.stats.errors, bench.queue.stats.interrupts), (0, 0));
}

#[test]
fn requests_that_are_answered_at_once_do_not_end_a_batch() {
    let mut bench = Bench::new(SIZE, 64, |_| {});
    bench.played.offer_refused(0, SIZE, 0, 3);
    [10, 20].iter().for_each(|head| bench.played.request(0, *head, kind::GET_ID, 1));
    bench.played.offer(0, SIZE, 3, &[10, 20]);
    bench.queue.available();
    assert_eq!((bench.take(10), bench.queue.in_flight()), (5, 0));
    assert_eq!((bench.queue.stats.requests, bench.queue.stats.errors), (5, 3));
    assert!(bench.publish());
    assert_eq!(
        [0, 2, 3, 4].map(|at| bench.played.answer(0, at)),
        [(0, 1), (2, 1), (10, 21), (20, 21)]
    );
    assert_eq!((bench.played.status(0, 2), bench.played.status(0, 20)), (1, 0));
}

#[test]
fn request_that_channel_has_no_room_for_waits_and_is_next() {
    let mut bench = Bench::new(SIZE, 2, |_| {});
    bench.stick();
    bench.played.offer_reads(0, SIZE, 0, 6);
    assert_eq!(bench.queue.available(), 6);
    // The third is taken off the ring, and held.
    assert_eq!((bench.take(10), bench.queue.in_flight()), (3, 3));
    assert_eq!((bench.queue.available(), bench.take(10)), (4, 0));
    assert!(!bench.queue.request_kick(), "completions wake it");
    bench.release();
    bench.complete(2);
    assert!(bench.publish());
    // The request that was held, a fourth, and a fifth that is held again.
    assert_eq!((bench.take(10), bench.queue.in_flight()), (2, 3));
    bench.complete(2);
    assert_eq!((bench.queue.available(), bench.take(1)), (2, 1));
    bench.complete(2);
    assert_eq!((bench.take(1), bench.queue.available(), bench.queue.in_flight()), (0, 0, 0));
    bench.publish();
    let mut heads: Vec<u32> = (0..6).map(|at| bench.played.answer(0, at).0).collect();
    heads.sort_unstable();
    assert_eq!((heads.as_slice(), bench.queue.stats.requests), (&[0, 3, 6, 9, 12, 15][..], 6));
}

#[test]
fn leftovers_of_an_earlier_process_come_first_and_in_rate() {
    let mut bench = Bench::new(SIZE, 64, |parts| {
        parts.again = vec![9, 0, 6];
        (parts.ring.taken, parts.enabled) = (3, false);
    });
    bench.played.offer_reads(0, SIZE, 0, 4);
    // That counts for a queue that is not enabled, too.
    assert_eq!((bench.queue.available(), bench.queue.request_kick()), (3, true));
    assert_eq!((bench.take(1), bench.queue.in_flight()), (1, 1));
    assert_eq!((bench.take(10), bench.queue.in_flight(), bench.take(10)), (2, 3, 0));
    bench.complete(3);
    assert_eq!((bench.queue.available(), bench.queue.request_kick()), (0, false));
    bench.queue.enabled = true;
    assert_eq!((bench.queue.available(), bench.take(10), bench.queue.stats.requests), (1, 1, 4));
    bench.complete(1);
}

#[test]
fn disabled_broken_or_stopped_queue_is_silent() {
    let (nobody, _) = std::sync::mpsc::channel();
    let changes: [&dyn Fn(&mut Queue); 3] =
        [&|queue| queue.enabled = false, &|queue| queue.break_down("broken"), &|queue| {
            queue.stopping = Some(nobody.clone())
        }];
    for (index, change) in changes.into_iter().enumerate() {
        let mut bench = Bench::new(SIZE, 64, |_| {});
        assert!(!bench.queue.request_kick());
        bench.queue.suppress_kicks();
        assert_eq!(bench.played.used(0)[0], 1, "no kicks are wanted");
        bench.played.offer_reads(0, SIZE, 0, 2);
        assert!(bench.queue.has_news() && bench.queue.request_kick());
        assert_eq!((bench.played.used(0)[0], bench.queue.available()), (0, 2));
        change(&mut bench.queue);
        assert!(!bench.queue.has_news() && !bench.queue.request_kick(), "change {index}");
        bench.queue.suppress_kicks();
        assert_eq!((bench.played.used(0)[0], bench.queue.available(), bench.take(9)), (0, 0, 0));
    }
}

#[test]
fn stopped_queue_is_drained_with_nothing_in_flight() {
    let (nobody, _) = std::sync::mpsc::channel();
    let mut bench = Bench::new(SIZE, 64, |parts| parts.again = vec![0]);
    bench.played.offer_reads(0, SIZE, 0, 1);
    bench.stick();
    assert!(!bench.queue.is_drained());
    bench.queue.stopping = Some(nobody.clone());
    assert!(!bench.queue.is_drained(), "one is to do again");
    assert_eq!(bench.take(1), 1);
    assert!(!bench.queue.is_drained(), "one is in flight");
    bench.release();
    bench.complete(1);
    assert!(bench.queue.is_drained());
    bench.queue.stopping = None;
    assert!(!bench.queue.is_drained());
}

#[test]
fn piece_lists_keep_memory_unless_longer_than_guests_know() {
    for (pieces, kept) in [(PARTS_KEPT, true), (PARTS_KEPT + 1, false)] {
        let mut bench = Bench::new(256, 64, |_| {});
        bench.played.request(0, 0, kind::IN, pieces as u16);
        bench.played.offer(0, 256, 0, &[0]);
        bench.queue.available();
        assert_eq!(bench.take(1), 1);
        assert_eq!(bench.queue.requests.slots[0].state, BUSY | if kept { 0 } else { LONG });
        bench.complete(1);
        assert_eq!(bench.queue.requests.parts[0].capacity() >= pieces, kept, "{pieces} pieces");
        assert_eq!(bench.queue.in_flight(), 0);
        bench.publish();
        assert_eq!(bench.played.answer(0, 0), (0, 512 * pieces as u32 + 1));
    }
}

#[test]
fn memory_stays_exactly_as_long_as_its_requests_in_flight() {
    let mut bench = Bench::new(SIZE, 64, |_| {});
    bench.stick();
    let mut times = Vec::new();
    assert!(bench.queue.memory.old.is_empty());
    for round in 0..4u16 {
        // Reads in two pieces, whose lists are kept from one time to the next.
        let heads = [8 * round, 8 * round + 4];
        heads.iter().for_each(|head| bench.played.request(0, *head, kind::IN, 2));
        bench.played.offer(0, SIZE, 2 * round, &heads);
        bench.queue.available();
        assert_eq!(bench.take(2), 2);
        times.push(Arc::downgrade(&bench.queue.memory.now));
        let memory = bench.played.memory();
        let areas = Played::areas(&memory, 0, SIZE);
        bench.queue.change_memory(Arc::clone(&memory), Some(areas));
        assert!(
            !bench.queue.memory.old.is_empty() && Arc::ptr_eq(&bench.queue.memory.now, &memory)
        );
    }
    assert!(times.iter().all(|time| time.upgrade().is_some()));
    bench.release();
    let mut ended = bench.ended(8);
    ended.sort_by_key(|(head, _)| *head);
    // The second time ends first, then the others.
    for time in [1usize, 0, 3, 2] {
        for half in 0..2 {
            assert!(times[time].upgrade().is_some(), "time {time}");
            let (head, status) = ended[2 * time + half];
            bench.queue.complete(head, status);
            assert!(bench.queue.requests.parts[usize::from(head)].capacity() >= 2);
        }
        assert!(times[time].upgrade().is_none(), "time {time} has ended");
    }
    assert!(bench.queue.memory.old.is_empty());
    // With nothing in flight nothing is kept at all.
    let (old, memory) = (Arc::downgrade(&bench.queue.memory.now), bench.played.memory());
    let areas = Played::areas(&memory, 0, SIZE);
    bench.queue.change_memory(memory, Some(areas));
    assert!(bench.queue.memory.old.is_empty() && old.upgrade().is_none());
    bench.publish();
    assert_eq!((bench.played.used(0)[1], bench.queue.in_flight()), (8, 0));
}

#[test]
fn a_lost_ring_shows_nothing_of_what_ends_in_it() {
    let mut bench = Bench::new(SIZE, 64, |_| {});
    bench.played.offer_reads(0, SIZE, 0, 2);
    bench.queue.available();
    assert_eq!(bench.take(2), 2);
    let mut ended = bench.ended(2).into_iter();
    let (head, status) = ended.next().unwrap();
    bench.queue.complete(head, status);
    bench.queue.lose("cut off");
    let (head, status) = ended.next().unwrap();
    bench.queue.complete(head, status);
    assert!(!bench.publish());
    assert_eq!((bench.played.used(0)[1], bench.queue.in_flight()), (0, 0));
    assert_eq!(bench.queue.broken.as_deref(), Some("cut off"));
}

#[test]
fn interrupts_and_failures_are_signalled_and_counted() {
    let fds = || {
        let fd = event();
        (fd.try_clone().unwrap(), fd)
    };
    let ((call, ours), (error, told)) = (fds(), fds());
    let mut bench = Bench::new(SIZE, 64, |parts| {
        (parts.notifiers.call, parts.notifiers.error) = (Some(call), Some(Arc::new(error)));
    });
    for round in 0..3u16 {
        bench.control.clear_rules();
        if round == 2 {
            bench.control.add_rule(FaultRule::always(Effect::Fail(Status::IoError)));
        }
        bench.played.offer_reads(0, SIZE, round, 1);
        bench.queue.available();
        assert_eq!(bench.take(1), 1);
        bench.complete(1);
        assert!(bench.publish() && !bench.publish());
        let counted = u64::from(round) + 1;
        assert_eq!((count(&ours), bench.queue.stats.interrupts), (1, counted));
        assert_eq!(bench.queue.stats.errors, counted / 3);
    }
    assert_eq!([bench.played.answer(0, 1), bench.played.answer(0, 2)], [(3, 513), (6, 1)]);
    bench.queue.interrupt();
    assert_eq!((count(&ours), bench.queue.stats.interrupts), (1, 3), "that is none of an answer");
    assert_eq!(count(&told), 0);
    bench.played.offer(0, SIZE, 3, &[SIZE]);
    assert_eq!((bench.queue.available(), bench.take(1), count(&told)), (1, 0, 1));
}
