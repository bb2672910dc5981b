//! The engine against a plain model: a target whose clock moves only when it is waited for.

use std::collections::BTreeMap;
use std::convert::Infallible;

use millrace_block::Op;
use millrace_random::SplitMix64;
use proptest::prelude::*;

use super::feed::Inline;
use super::lane::{Done, Lane, Piece, PieceLimits};
use super::*;
use crate::load::overwrite::DiskContents;
use crate::trace::TraceIo;

/// Trace in memory.
struct MemoryTrace {
    ios: std::vec::IntoIter<TraceIo>,
    devices: Vec<String>,
}

impl TraceSource for MemoryTrace {
    type Error = Infallible;

    fn next_io(&mut self) -> Result<Option<TraceIo>, Infallible> {
        Ok(self.ios.next())
    }

    fn devices(&self) -> &[String] {
        &self.devices
    }
}

fn listed(ios: Vec<TraceIo>) -> MemoryTrace {
    MemoryTrace { ios: ios.into_iter(), devices: vec!["8,0".into(), "8,16".into()] }
}

fn io(at_us: u64, op: Op, offset_bytes: u64, len_bytes: u64) -> TraceIo {
    TraceIo {
        at_ns: at_us * 1000,
        device: 0,
        op,
        fua: false,
        offset_bytes,
        len_bytes,
        latency_ns: None,
    }
}

/// Piece that was sent, with the times at which it was sent and ended.
#[derive(Debug, Clone, Copy)]
struct SentPiece {
    piece: Piece,
    sent_ns: u64,
    ended_ns: u64,
}

/// Target that ends each piece after its latency, in the order that follows from the latencies.
struct Model {
    lanes: Vec<Lane>,
    now_ns: u64,
    /// Largest number of pieces in flight.
    room: usize,
    latency_ns: std::ops::Range<u64>,
    random: SplitMix64,
    in_flight: Vec<(u64, Piece)>,
    /// Time at which the target breaks.
    breaks_ns: u64,
    seen: Vec<SentPiece>,
}

impl Model {
    fn new(lanes: usize, latency_ns: std::ops::Range<u64>) -> Model {
        Model {
            lanes: vec![lane(); lanes],
            now_ns: 5_000,
            room: usize::MAX,
            latency_ns,
            random: SplitMix64::new(7),
            in_flight: Vec::new(),
            breaks_ns: u64::MAX,
            seen: Vec::new(),
        }
    }
}

fn lane() -> Lane {
    let takes = PieceLimits {
        data_bytes_max: 64 << 10,
        discard_bytes_max: 1 << 20,
        zeroes_bytes_max: 1 << 20,
        flush: true,
        fua: true,
    };
    let name = "model".to_owned();
    let (size_bytes, block_bytes) = (1 << 20, 512);
    Lane {
        name,
        size_bytes,
        block_bytes,
        takes,
        is_read_only: false,
        contents: DiskContents::Empty,
    }
}

impl Target for Model {
    fn lanes(&self) -> &[Lane] {
        &self.lanes
    }

    fn now_ns(&self) -> u64 {
        self.now_ns
    }

    fn submit(&mut self, piece: &Piece) -> Result<bool, BenchError> {
        if self.in_flight.len() >= self.room {
            return Ok(false);
        }
        let span = self.latency_ns.end - self.latency_ns.start;
        let ends_ns = self.now_ns + self.latency_ns.start + self.random.below(span);
        self.in_flight.push((ends_ns, *piece));
        self.seen.push(SentPiece { piece: *piece, sent_ns: self.now_ns, ended_ns: ends_ns });
        Ok(true)
    }

    fn start(&mut self) -> Result<(), BenchError> {
        Ok(())
    }

    fn poll(&mut self, done: &mut Vec<Done>) -> Result<(), BenchError> {
        if self.now_ns >= self.breaks_ns {
            return Err(BenchError::Workload("it broke".into()));
        }
        let now_ns = self.now_ns;
        let ended = self.in_flight.extract_if(.., |(ends_ns, _)| *ends_ns <= now_ns);
        done.extend(ended.map(|(_, piece)| Done { slot: piece.slot, error: None }));
        Ok(())
    }

    fn wait(&mut self, until_ns: u64) -> Result<(), BenchError> {
        let first_ns = self.in_flight.iter().map(|(ends_ns, _)| *ends_ns).min();
        assert!(until_ns > self.now_ns || first_ns.is_some_and(|ns| ns <= self.now_ns), "spins");
        self.now_ns = first_ns.unwrap_or(u64::MAX).min(until_ns).max(self.now_ns);
        Ok(())
    }
}

fn settings(speed: Option<f64>, iodepth: u32) -> Settings {
    Settings {
        speed,
        iodepth,
        runtime: None,
        limit: None,
        seed: 1,
        interrupt: Interrupt::default(),
        routes: Routes::default(),
        addresses: Addresses::default(),
    }
}

fn routed(model: &Model, addresses: Addresses, settings: &Settings) -> Settings {
    let by_device = vec![("8,16".to_owned(), model.lanes.len() - 1)];
    let routes = Routes { by_device, others: Some(0) };
    Settings { routes, addresses, ..settings.clone() }
}

fn run_on(
    model: &mut Model,
    ios: Vec<TraceIo>,
    addresses: Addresses,
    settings: &Settings,
) -> Report {
    let settings = routed(model, addresses, settings);
    let mut feed = Inline(Router::new(listed(ios), &model.lanes, &settings));
    Engine::new(model, &mut feed, &settings).run(&mut |_| ())
}

fn plain(model: &mut Model, ios: Vec<TraceIo>, settings: &Settings) -> Report {
    run_on(model, ios, Addresses::default(), settings)
}

#[test]
fn ios_are_sent_at_their_times_whatever_becomes_of_those_before() {
    let mut model = Model::new(1, 10_000_000..10_000_001);
    let ios: Vec<_> = (0..50).map(|at| io(at * 100, Op::Read, at * 512, 512)).collect();
    let report = plain(&mut model, ios, &settings(Some(1.0), 4096));
    let sent: Vec<u64> = model.seen.iter().map(|seen| seen.sent_ns - 5_000).collect();
    assert_eq!(sent, (0..50).map(|at| at * 100_000).collect::<Vec<_>>());
    let lateness = report.lateness.unwrap();
    assert_eq!((lateness.all.unwrap().max_ns, lateness.over[0]), (0, 0));
    assert_eq!(report.ops[0].from_due.unwrap().max_ns, 10_000_000);
    assert_eq!(report.seconds, 0.0149);
}

#[test]
fn speed_divides_the_times_of_the_trace() {
    for (speed, gap_ns) in [(10.0, 100_000), (0.5, 2_000_000)] {
        let mut model = Model::new(1, 1_000..1_001);
        let ios: Vec<_> = (0..5).map(|at| io(at * 1000, Op::Read, 0, 512)).collect();
        plain(&mut model, ios, &settings(Some(speed), 4096));
        let sent: Vec<u64> = model.seen.iter().map(|seen| seen.sent_ns - 5_000).collect();
        assert_eq!(sent, (0..5).map(|at| at * gap_ns).collect::<Vec<_>>());
    }
}

#[test]
fn what_finds_as_many_in_flight_as_may_be_is_late_and_counted() {
    let mut model = Model::new(1, 1_000_000..1_000_001);
    let ios: Vec<_> = (0..4).map(|at| io(0, Op::Read, at * 512, 512)).collect();
    let report = plain(&mut model, ios, &settings(Some(1.0), 2));
    let lateness = report.lateness.unwrap();
    assert_eq!(lateness.over[..2], [2, 0]);
    assert_eq!(lateness.all.unwrap().max_ns, 1_000_000);
    assert_eq!(report.waited, WaitCounts { for_room: 2, ..WaitCounts::default() });
    // Latencies are measured from the trace's time, and from the time of sending.
    let read = &report.ops[0];
    assert_eq!(read.from_due.unwrap().max_ns, 2_000_000);
    assert_eq!(read.from_submission.unwrap().max_ns, 1_000_000);
}

#[test]
fn as_fast_as_possible_there_are_as_many_in_flight_as_asked_for() {
    let mut model = Model::new(1, 1_000..1_001);
    let ios: Vec<_> = (0..100).map(|at| io(at * 1_000_000, Op::Read, at * 512, 512)).collect();
    let report = plain(&mut model, ios, &settings(None, 4));
    assert_eq!(report.seconds, 25e-6);
    assert_eq!((report.lateness, report.waited), (None, WaitCounts::default()));
}

#[test]
fn io_longer_than_target_takes_is_sent_in_pieces_and_ends_once() {
    let mut model = Model::new(1, 1_000..9_000);
    let ios = vec![io(0, Op::Write, 1024, 200 << 10), io(1, Op::Read, 1024, 512)];
    let report = plain(&mut model, ios, &settings(Some(1.0), 16));
    let pieces: Vec<_> =
        model.seen.iter().map(|seen| (seen.piece.offset_bytes, seen.piece.len_bytes)).collect();
    let kib = 1 << 10;
    let cut = [(0, 64), (64, 64), (128, 64), (192, 8)].map(|(at, len)| (kib + at * kib, len * kib));
    assert_eq!(pieces[..4], cut);
    assert_eq!((report.counts.ios, report.adapted.cut, report.waited.for_overlap), (2, 1, 1));
}

#[test]
fn memory_in_flight_is_bounded_and_a_large_io_still_ends() {
    let mut model = Model::new(1, 1_000..2_000);
    model.lanes[0].size_bytes = 1 << 40;
    model.lanes[0].takes.data_bytes_max = 8 << 20;
    let ios = vec![io(0, Op::Write, 0, 100 << 20), io(0, Op::Write, 1 << 30, 100 << 20)];
    let report = plain(&mut model, ios, &settings(None, 32));
    assert_eq!((report.counts.ios, report.ops[0].bytes), (2, 200 << 20));
    let mut at_once = 0;
    for seen in &model.seen {
        let same =
            |other: &&SentPiece| other.sent_ns <= seen.sent_ns && other.ended_ns > seen.sent_ns;
        let bytes: u64 = model.seen.iter().filter(same).map(|seen| seen.piece.len_bytes).sum();
        at_once = at_once.max(bytes);
    }
    assert_eq!(at_once, engine::IN_FLIGHT_BYTES_MAX);
}

#[test]
fn durable_write_is_followed_by_flush_where_target_has_no_such() {
    let mut model = Model::new(1, 1_000..1_001);
    model.lanes[0].takes.fua = false;
    let ios = vec![TraceIo { fua: true, ..io(0, Op::Write, 0, 512) }];
    let report = plain(&mut model, ios.clone(), &settings(None, 1));
    let ops: Vec<_> = model.seen.iter().map(|seen| (seen.piece.op, seen.sent_ns)).collect();
    assert_eq!(ops, [(Op::Write, 5_000), (Op::Flush, 6_000)]);
    assert_eq!((report.counts.ios, report.ops[0].fua, report.adapted.fua_by_flush), (1, 1, 1));
    assert_eq!(report.ops[0].from_submission.unwrap().max_ns, 2_000);
    let mut model = Model::new(1, 1_000..1_001);
    (model.lanes[0].takes.fua, model.lanes[0].takes.flush) = (false, false);
    let report = plain(&mut model, ios, &settings(None, 1));
    assert_eq!((report.counts.ios, report.adapted.fua_lost), (1, 1));
}

#[test]
fn flush_waits_for_earlier_writes_and_holds_nothing_up() {
    let mut model = Model::new(1, 1_000_000..1_000_001);
    let ios = vec![
        io(0, Op::Write, 0, 512),
        io(1, Op::Flush, 0, 0),
        io(2, Op::Write, 1024, 512),
        io(3, Op::Read, 4096, 512),
    ];
    let report = plain(&mut model, ios, &settings(Some(1.0), 16));
    let sent: Vec<_> =
        model.seen.iter().map(|seen| (seen.piece.op, seen.sent_ns - 5_000)).collect();
    let expected = [(Op::Write, 0), (Op::Write, 2_000), (Op::Read, 3_000), (Op::Flush, 1_000_000)];
    assert_eq!(sent, expected);
    assert_eq!(report.waited, WaitCounts { for_writes: 1, ..WaitCounts::default() });
}

#[test]
fn what_cannot_be_decided_is_an_error_that_names_the_choices() {
    let cases: [(Lane, TraceIo, &[&str]); 3] = [
        (
            lane(),
            io(0, Op::Write, 1 << 20, 512),
            &["I/O 1 of the trace, a write of 512 bytes at 1048576", "--fit scale", "wrap", "skip"],
        ),
        (
            Lane { contents: DiskContents::Data("holds data".to_owned()), ..lane() },
            io(0, Op::Discard, 0, 512),
            &["holds data, and I/O 1 of the trace, a discard, would overwrite", "--overwrite"],
        ),
        (Lane { is_read_only: true, ..lane() }, io(0, Op::Write, 0, 512), &["is read-only"]),
    ];
    for (lane, io, words) in cases {
        let mut model = Model::new(1, 1..2);
        model.lanes = vec![lane];
        let report = plain(&mut model, vec![io], &settings(None, 1));
        let Some(StopReason::Undecided(text)) = report.stopped else { panic!("{report:?}") };
        words.iter().for_each(|word| assert!(text.contains(word), "{text}"));
        assert_eq!(model.seen.len(), 0);
    }
    let mut model = Model::new(1, 1..2);
    let routes = Routes { by_device: vec![("8,16".into(), 0)], others: None };
    let settings = Settings { routes, ..settings(None, 1) };
    let router = Router::new(listed(vec![io(0, Op::Read, 0, 512)]), &model.lanes, &settings);
    let report = Engine::new(&mut model, &mut Inline(router), &settings).run(&mut |_| ());
    let Some(StopReason::Undecided(text)) = report.stopped else { panic!("{report:?}") };
    assert!(text.contains("add --map 8,0=TARGET") && text.contains("8,0 8,16"), "{text}");
}

#[test]
fn io_behind_a_reported_extent_is_an_error_at_the_end() {
    let mut model = Model::new(1, 1..2);
    let at =
        |extent| Addresses { fit: Some(Fit::Scale), extents_bytes: vec![extent], overwrite: false };
    let ios = vec![io(0, Op::Read, 0, 512), io(1, Op::Read, 8 << 20, 4096)];
    let report = run_on(&mut model, ios.clone(), at(4 << 20), &settings(None, 1));
    let Some(StopReason::Undecided(text)) = report.stopped else { panic!("{report:?}") };
    assert!(text.contains("--trace-size 4194304: I/O 2") && text.contains("8392704"), "{text}");
    let report = run_on(&mut Model::new(1, 1..2), ios, at(8_392_704), &settings(None, 1));
    assert_eq!((report.stopped, report.counts.ios), (None, 2));
}

#[test]
fn a_target_that_breaks_ends_the_replay_with_what_was_done() {
    let mut model = Model::new(1, 1_000..1_001);
    model.breaks_ns = 20_500_000;
    let ios: Vec<_> = (0..100).map(|at| io(at * 1000, Op::Read, at * 512, 512)).collect();
    let report = plain(&mut model, ios, &settings(Some(1.0), 4));
    assert_eq!(report.stopped, Some(StopReason::Target("it broke".into())));
    assert_eq!((report.counts.ios, report.counts.errors), (21, 0));
    // I/Os in flight when the target breaks count as unanswered: the target may have done them.
    let mut slow = Model::new(1, 5_000_000..5_000_001);
    slow.breaks_ns = 20_500_000;
    let ios: Vec<_> = (0..100).map(|at| io(at * 1000, Op::Read, at * 512, 512)).collect();
    let counts = plain(&mut slow, ios, &settings(Some(1.0), 4)).counts;
    assert_eq!(counts.unanswered, 4, "{counts:?}");
    assert_eq!(counts.ios + counts.unsent + counts.unanswered, counts.traced_ios, "{counts:?}");
}

#[test]
fn taken_work_is_done_at_the_limit_and_dropped_in_time() {
    let ios: Vec<_> = (0..100).map(|at| io(at * 1000, Op::Read, at * 512, 512)).collect();
    let mut model = Model::new(1, 1_000..1_001);
    let limited = Settings { limit: Some(10), ..settings(Some(1.0), 4) };
    let report = plain(&mut model, ios.clone(), &limited);
    assert_eq!((report.counts.ios, report.counts.traced_ios, report.counts.unsent), (10, 10, 0));
    assert_eq!(report.stopped, Some(StopReason::Limit));
    let runtime = Some(Duration::from_micros(20_500));
    let timed = Settings { runtime, ..settings(Some(1.0), 4) };
    let mut model = Model::new(1, 5_000_000..5_000_001);
    let report = plain(&mut model, ios.clone(), &timed);
    assert_eq!(report.stopped, Some(StopReason::Runtime));
    assert_eq!(report.counts.ios + report.counts.unsent, report.counts.traced_ios);
    assert!((16..=17).contains(&report.counts.ios), "{report:?}");
    let interrupted = settings(None, 4);
    interrupted.interrupt.set();
    let report = plain(&mut Model::new(1, 1..2), ios, &interrupted);
    assert_eq!((report.counts.ios, report.stopped), (0, Some(StopReason::Interrupted)));
}

/// Generates I/Os of a trace, near each other so that many overlap, some outside the target.
fn trace() -> impl Strategy<Value = Vec<TraceIo>> {
    let op = prop::sample::select(vec![
        Op::Read,
        Op::Read,
        Op::Write,
        Op::Write,
        Op::Flush,
        Op::Discard,
        Op::WriteZeroes,
    ]);
    let one = (0..3_000u64, op, 0..2_200u64, 0..600u64, any::<bool>(), 0..2u32);
    prop::collection::vec(one, 1..120).prop_map(|ios| {
        let mut at_us = 0;
        let io = |(gap, op, offset, len, fua, device): (u64, Op, u64, u64, bool, u32)| {
            at_us += gap / 20;
            let len = if op == Op::Flush { 0 } else { len * 300 };
            let fua = fua && op == Op::Write;
            TraceIo { fua, device, ..io(at_us, op, offset * 512, len) }
        };
        ios.into_iter().map(io).collect()
    })
}

/// Returns how often each block must be sent, by (lane, op, offset), and how many I/Os are skipped.
fn expected(
    ios: &[TraceIo],
    model: &Model,
    addresses: &Addresses,
) -> (BTreeMap<(u32, u8, u64), u64>, u64) {
    let settings = routed(model, addresses.clone(), &settings(None, 1));
    let mut router = Router::new(listed(ios.to_vec()), &model.lanes, &settings);
    let (mut bytes, mut skipped) = (BTreeMap::new(), 0);
    while let Some(item) = router.next().unwrap() {
        match item {
            route::Item::Skipped(_) => skipped += 1,
            route::Item::Io(io) => add(&mut bytes, (io.lane, io.op, io.offset_bytes, io.len_bytes)),
        }
    }
    (bytes, skipped)
}

/// Counts each block of an I/O, or the flush.
fn add(bytes: &mut BTreeMap<(u32, u8, u64), u64>, (lane, op, offset, len): (u32, Op, u64, u64)) {
    match op {
        Op::Flush => *bytes.entry((lane, op as u8, 0)).or_default() += 1,
        _ => (offset..offset + len)
            .step_by(512)
            .for_each(|block| *bytes.entry((lane, op as u8, block)).or_default() += 1),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn io_is_sent_once_or_skipped_and_keeps_dependencies(
        ios in trace(),
        speed in prop::sample::select(vec![None, Some(1.0), Some(100.0)]),
        fit in prop::sample::select(vec![Fit::Wrap, Fit::Skip, Fit::Scale]),
        (iodepth, room, lanes) in (1..20u32, 1..12usize, 1..3usize),
    ) {
        let mut model = Model::new(lanes, 1_000..3_000_000);
        model.room = room;
        let addresses =
            Addresses { fit: Some(fit), extents_bytes: vec![2 << 20; lanes], overwrite: false };
        let report =
            run_on(&mut model, ios.clone(), addresses.clone(), &settings(speed, iodepth));
        let (wanted, skipped) = expected(&ios, &model, &addresses);
        let mut sent = BTreeMap::new();
        for SentPiece { piece, .. } in &model.seen {
            add(&mut sent, (piece.lane, piece.op, piece.offset_bytes, piece.len_bytes));
        }
        prop_assert_eq!(sent, wanted);
        let Skipped { outside, too_long, empty, unsupported } = &report.skipped;
        let unsupported: u64 = unsupported.iter().map(|(_, ios)| ios).sum();
        prop_assert_eq!(outside + too_long + empty + unsupported, skipped);
        prop_assert_eq!(report.counts.ios + skipped, ios.len() as u64);
        prop_assert_eq!((report.counts.traced_ios, report.counts.unsent), (ios.len() as u64, 0));
        // Two I/Os that conflict are never in flight at the same time.
        for (at, one) in model.seen.iter().enumerate() {
            for other in &model.seen[at + 1..] {
                let meet = one.piece.lane == other.piece.lane
                    && one.piece.offset_bytes < other.piece.offset_bytes + other.piece.len_bytes
                    && other.piece.offset_bytes < one.piece.offset_bytes + one.piece.len_bytes
                    && (one.piece.op.is_write() || other.piece.op.is_write());
                prop_assert!(!meet || one.ended_ns <= other.sent_ns, "{one:?} {other:?}");
            }
        }
    }
}
