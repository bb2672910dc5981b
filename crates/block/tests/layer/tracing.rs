//! Trace events of I/Os on `TestDrive`: their order, letters, stamps and data.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::{Knobs, TestDrive, pattern, run};
use millrace_block::baseline::Stack;
use millrace_block::blktrace::{EventCode, Record, Rwbs, category, device, minor};
use millrace_block::{
    Bio, Buffer, Channel, ChannelConfig, Disk, DiskConfig, DriverData, Features, Layout, Op,
    OpFlags, QueueLimits, Serving, ServingConfig, Status, TraceEntry, TraceEvent, TraceSink,
    TraceStamp, Tracer, Volume,
};
use millrace_machine::{Machine, Native};

struct Rig {
    tracer: Arc<Tracer<Native>>,
    channel: Channel<Native>,
    knobs: Arc<Knobs>,
}

/// A channel whose events are recorded.
fn rig(stack: Stack, stamp: TraceStamp, limits: QueueLimits) -> Rig {
    let config = DiskConfig { baseline: stack.into(), ..DiskConfig::default() };
    rig_of(TestDrive { limits, ..TestDrive::new(4096) }, stamp, config)
}

fn rig_of(drive: TestDrive, stamp: TraceStamp, config: DiskConfig<Native>) -> Rig {
    rig_with(drive, stamp, config, ServingConfig::default())
}

fn rig_with(
    drive: TestDrive,
    stamp: TraceStamp,
    config: DiskConfig<Native>,
    serving: ServingConfig,
) -> Rig {
    let (knobs, tracer) = (Arc::clone(&drive.knobs), Tracer::new(1 << 12));
    let config = DiskConfig { tracer: Some(Arc::clone(&tracer)), ..config };
    let disks = vec![Disk::new(Box::new(drive), config).expect("a drive")];
    let volume = Volume::with_serving("v", Layout::Linear, disks, serving);
    let volume = volume.expect("one disk");
    assert!(tracer.start(stamp) && volume.set_traced(true));
    Rig {
        channel: Channel::open(&volume, ChannelConfig::default()).expect("its queues are served"),
        tracer,
        knobs,
    }
}

impl Rig {
    fn events(&self) -> Vec<TraceEntry> {
        let mut events = Vec::new();
        assert_eq!(self.tracer.drain(|_, entries| events.extend(entries)).dropped, 0);
        events
    }

    fn submit(&mut self, sector: u64) {
        self.channel.submit(Bio::read(sector, Buffer::new(512))).expect("accepted");
    }
}

fn act(entry: &TraceEntry) -> EventCode {
    EventCode::from_code(entry.action & 0xffff).expect("an event")
}

/// The letters of the events, one after another.
fn letters(events: &[TraceEntry]) -> String {
    events.iter().map(|entry| act(entry).letters()).collect()
}

#[test]
fn unplug_says_how_many_and_whether_its_owner_was_about_to_wait() {
    let unplugs = |rig: &Rig| -> Vec<(EventCode, u64)> {
        let of_plug =
            |entry: &TraceEntry| matches!(act(entry), EventCode::Unplug | EventCode::UnplugTimer);
        let events = rig.events();
        events.iter().filter(|e| of_plug(e)).map(|e| (act(e), e.sector)).collect()
    };
    let mut rig = rig(Stack::Mq, TraceStamp::Batch, QueueLimits::default());
    (0..3).for_each(|n| rig.submit(n * 8));
    rig.channel.flush();
    assert_eq!(unplugs(&rig), [(EventCode::Unplug, 3)]);
    // At the end of a batch, too, and of a plug.
    rig.submit(80);
    rig.channel.poll(|_| ());
    assert_eq!(unplugs(&rig), [(EventCode::Unplug, 1)]);
    let most = ServingConfig::default().plug_high;
    (0..u64::from(most)).for_each(|n| rig.submit(n * 8));
    assert_eq!(unplugs(&rig), [(EventCode::Unplug, u64::from(most))]);
    (0..2).for_each(|n| rig.submit(800 + n * 8));
    rig.channel.wait(1, |_| ());
    assert_eq!(unplugs(&rig), [(EventCode::UnplugTimer, 2)]);
    // The next unplug is explicit too, and so is that of a wait for no completion.
    rig.submit(0);
    rig.channel.flush();
    assert_eq!(unplugs(&rig), [(EventCode::Unplug, 1)]);
    rig.submit(0);
    rig.channel.wait(0, |_| ());
    assert_eq!(unplugs(&rig), [(EventCode::Unplug, 1)]);
}

#[test]
fn operations_and_flags_have_the_kernels_letters() {
    let features = Features { volatile_cache: true, fua: true, ..Features::default() };
    let mut rig = rig(
        Stack::Mq,
        TraceStamp::Batch,
        QueueLimits {
            features,
            max_discard_sectors: 64,
            max_write_zeroes_sectors: 64,
            ..QueueLimits::default()
        },
    );
    let write = || Bio::write(8, pattern(1, 1));
    let both = OpFlags::FUA.with(OpFlags::PREFLUSH);
    for (bio, expected) in [
        (Bio::read(8, Buffer::new(512)), vec!["R"]),
        (write(), vec!["W"]),
        // A submitter that asks for durability waits for it.
        (write().with_flags(OpFlags::FUA), vec!["WFS"]),
        // The flush before is a request of its own, as in the kernel.
        (write().with_flags(both), vec!["FN", "WFS"]),
        (Bio::flush(), vec!["FN"]),
        (Bio::discard(8, 8), vec!["D"]),
        (Bio::write_zeroes(8, 8), vec!["W"]),
    ] {
        run(&mut rig.channel, bio);
        let events = rig.events();
        let issued = events.iter().filter(|entry| act(entry) == EventCode::Issue);
        let kinds: Vec<String> = issued
            .map(|entry| {
                let (action, bytes) = (entry.action, entry.bytes);
                Rwbs::of(&Record { action, bytes, ..Record::default() }).as_str().to_owned()
            })
            .collect();
        assert_eq!(kinds, expected);
    }
}

#[test]
fn event_stamps_are_single_and_batch_stamps_shared() {
    for stack in [Stack::Mq, Stack::Sq, Stack::Raw] {
        for stamp in [TraceStamp::Batch, TraceStamp::Event] {
            let mut rig = rig(stack, stamp, QueueLimits::default());
            (0..8).for_each(|n| rig.submit(n * 8));
            while rig.channel.in_flight() > 0 {
                rig.channel.poll(|_| ());
            }
            let events = rig.events();
            let mut queued = Vec::new();
            for n in 0..8 {
                let mut mine: Vec<_> = events
                    .iter()
                    .filter(|e| e.sector == n * 8 && e.bytes > 0)
                    .map(|e| (e.time_ns, act(e).letters()))
                    .collect();
                // Trace files are sorted by time.
                mine.sort_by_key(|(time_ns, _)| *time_ns);
                let order: String = mine.iter().map(|(_, letters)| *letters).collect();
                assert_eq!(order, "QGIDC", "{stack:?} {stamp:?}");
                queued.push(mine[0].0);
                let rises = mine[0].0 < mine[2].0 && mine[2].0 < mine[4].0;
                assert!(stamp == TraceStamp::Batch || rises, "{stack:?}: {mine:?}");
            }
            queued.dedup();
            let distinct = if stamp == TraceStamp::Batch { 1 } else { 8 };
            assert_eq!(queued.len(), distinct, "{stack:?} {stamp:?}");
        }
    }
}

#[test]
fn what_busy_driver_gives_back_was_inserted_and_is_issued_later() {
    for stamp in [TraceStamp::Batch, TraceStamp::Event] {
        let mut rig = rig(Stack::Mq, stamp, QueueLimits::default());
        rig.knobs.busy.store(1, Ordering::SeqCst);
        (0..2).for_each(|n| rig.submit(n * 8));
        while rig.channel.in_flight() > 0 {
            rig.channel.poll(|_| ());
        }
        let events: Vec<TraceEntry> = rig.events();
        for n in 0..2 {
            let mut mine: Vec<TraceEntry> =
                events.iter().copied().filter(|e| e.bytes > 0).collect();
            mine.retain(|entry| entry.sector == n * 8 && act(entry) != EventCode::DriverData);
            mine.sort_by_key(|entry| entry.time_ns);
            assert_eq!(letters(&mine), if n == 0 { "QGIRDC" } else { "QGIDC" }, "{stamp:?}");
        }
    }
}

#[test]
fn driver_is_asked_at_issue_and_completion_for_its_data() {
    for stack in [Stack::Mq, Stack::Sq, Stack::Raw] {
        let mut rig = rig(stack, TraceStamp::Batch, QueueLimits::default());
        rig.knobs.talks.store(true, Ordering::SeqCst);
        rig.submit(40);
        while rig.channel.in_flight() > 0 {
            rig.channel.poll(|_| ());
        }
        let events = rig.events();
        let said = events.iter().filter(|entry| act(entry) == EventCode::DriverData);
        let said: Vec<_> = said.map(|entry| (entry.sector, entry.data.bytes())).collect();
        assert_eq!(said, [(40, &b"given 40"[..]), (40, &b"named"[..])], "{stack:?}");
    }
}

/// Letters of the events of the I/O at a sector, without those of plugs, each with the time since
/// the first.
fn story(events: &[TraceEntry], sector: u64) -> Vec<(&'static str, u64)> {
    let of_plug = |entry: &TraceEntry| {
        matches!(act(entry), EventCode::Plug | EventCode::Unplug | EventCode::UnplugTimer)
    };
    let mine: Vec<&TraceEntry> =
        events.iter().filter(|e| !of_plug(e) && e.sector == sector).collect();
    let first_ns = mine.iter().map(|entry| entry.time_ns).min().unwrap_or(0);
    let mut story: Vec<_> =
        mine.iter().map(|entry| (act(entry).letters(), entry.time_ns - first_ns)).collect();
    story.sort_by_key(|(_, at_ns)| *at_ns);
    story
}

#[test]
fn waiter_for_a_tag_sleeps_once_and_gets_its_request() {
    const HELD_NS: u64 = 300_000_000;
    let per_volume = ServingConfig { serving: Serving::PerVolume, ..ServingConfig::default() };
    for (stack, serving, get_waits) in [
        (Stack::Mq, ServingConfig::default(), false),
        (Stack::Sq, ServingConfig::default(), true),
        (Stack::Mq, per_volume, true),
    ] {
        let case = format!("{stack:?} {:?}", serving.serving);
        let mut drive = TestDrive::new(4096);
        drive.depth = 4;
        let mut rig = rig_with(
            drive,
            TraceStamp::Batch,
            DiskConfig { baseline: stack.into(), ..DiskConfig::default() },
            serving,
        );
        rig.knobs.held.store(true, Ordering::SeqCst);
        (0..6).for_each(|n| rig.submit(n * 16));
        // Looks for a tag again and again, and sleeps for it once.
        let until_ns = Native::now() + HELD_NS;
        while Native::now() < until_ns {
            rig.channel.poll(|_| ());
        }
        rig.knobs.held.store(false, Ordering::SeqCst);
        while rig.channel.in_flight() > 0 {
            rig.channel.poll(|_| ());
        }
        let events = rig.events();
        let sleeps: Vec<u64> =
            events.iter().filter(|e| act(e) == EventCode::Sleep).map(|e| e.sector).collect();
        assert_eq!(sleeps.first(), Some(&64), "{case} {}", letters(&events));
        if stack == Stack::Mq && serving.serving == Serving::Inline {
            assert_eq!(sleeps, [64], "{case}");
        }
        for sector in [0, 64, 80] {
            let story = story(&events, sector);
            let at = |letter: &str| {
                let found = story.iter().find(|(found, _)| *found == letter);
                found.unwrap_or_else(|| panic!("{case}: no {letter} in {story:?}")).1
            };
            let order = ["Q", "G", "I", "D", "C"].map(at);
            assert!(order.is_sorted(), "{case} {story:?}");
            let waited = sector >= 64;
            assert_eq!(at("G") > HELD_NS / 2, waited && get_waits, "{case} {story:?}");
            assert_eq!(at("D") > HELD_NS / 2, waited, "{case} {story:?}");
        }
    }
}

#[test]
fn a_request_that_times_out_is_complete_with_its_error() {
    let config = DiskConfig { timeout: Duration::from_millis(20), ..DiskConfig::default() };
    let mut rig = rig_of(TestDrive::new(4096), TraceStamp::Batch, config);
    rig.knobs.held.store(true, Ordering::SeqCst);
    let (status, _) = run(&mut rig.channel, Bio::read(8, Buffer::new(512)));
    assert_eq!(status, Status::TimedOut);
    let events = rig.events();
    let ends: Vec<i32> =
        events.iter().filter(|e| act(e) == EventCode::Complete).map(|e| e.error).collect();
    assert_eq!(ends, [-Status::TimedOut.errno()], "{}", letters(&events));
    rig.knobs.held.store(false, Ordering::SeqCst);
}

#[test]
fn driver_data_are_empty_only_without_bytes_and_must_fit() {
    assert!(DriverData::default().is_empty());
    assert!(DriverData::new(b"").is_empty());
    assert!(!DriverData::new(b"a").is_empty());
    let long = [7; DriverData::BYTES + 1];
    assert_eq!(DriverData::new(&long).bytes(), &long[1..]);
}

/// Keeps all events.
#[derive(Default)]
struct Listener(Mutex<Vec<TraceEvent>>);

impl TraceSink for Listener {
    fn trace(&self, event: &TraceEvent) {
        self.0.lock().expect("no test panics here").push(*event);
    }
}

impl Listener {
    fn take(&self) -> Vec<TraceEvent> {
        std::mem::take(&mut *self.0.lock().expect("no test panics here"))
    }
}

/// Two drives in chunks of 8 sectors, both recorded and with a sink.
struct Pair {
    rig: Rig,
    listener: Arc<Listener>,
}

fn pair(stack: Stack, stamp: TraceStamp, serving: Serving) -> Pair {
    let (tracer, listener) = (Tracer::new(1 << 12), Arc::<Listener>::default());
    let mut knobs = None;
    let mut disk = |number| {
        let drive = TestDrive::new(4096);
        knobs.get_or_insert_with(|| Arc::clone(&drive.knobs));
        let config = DiskConfig {
            baseline: stack.into(),
            trace: Some(Arc::clone(&listener) as Arc<dyn TraceSink>),
            tracer: Some(Arc::clone(&tracer)),
            device: device(259, number),
            ..DiskConfig::default()
        };
        Disk::new(Box::new(drive), config).expect("a drive")
    };
    let (layout, disks) = (Layout::Stripe { chunk_sectors: 8 }, vec![disk(4), disk(5)]);
    let volume = Volume::with_serving("v", layout, disks, ServingConfig::of(serving));
    let volume = volume.expect("two drives");
    assert!(tracer.start(stamp) && volume.set_traced(true));
    let channel = Channel::open(&volume, ChannelConfig::default()).expect("its queues are served");
    Pair { rig: Rig { tracer, channel, knobs: knobs.expect("two drives") }, listener }
}

impl Pair {
    /// Events that the sink gets and entries that are recorded for these bios, submitted as one
    /// batch.
    fn run(&mut self, bios: Vec<Bio>) -> (Vec<TraceEvent>, Vec<TraceEntry>) {
        bios.into_iter().for_each(|bio| self.rig.channel.submit(bio).expect("accepted"));
        while self.rig.channel.in_flight() > 0 {
            self.rig.channel.wait(1, |_| ());
        }
        let mut entries = self.rig.events();
        // Trace files are sorted by time.
        entries.sort_by_key(|entry| entry.time_ns);
        (self.listener.take(), entries)
    }
}

/// Whom a pair's bios go through.
const WAYS: [(Stack, TraceStamp, Serving); 7] = [
    (Stack::Mq, TraceStamp::Batch, Serving::Inline),
    (Stack::Mq, TraceStamp::Event, Serving::Inline),
    (Stack::Mq, TraceStamp::Batch, Serving::PerVolume),
    (Stack::Sq, TraceStamp::Batch, Serving::Inline),
    (Stack::Sq, TraceStamp::Event, Serving::Inline),
    (Stack::Raw, TraceStamp::Batch, Serving::Inline),
    (Stack::Raw, TraceStamp::Event, Serving::Inline),
];

fn told_letters<'a>(events: impl IntoIterator<Item = &'a TraceEvent>) -> String {
    events.into_iter().map(|event| event.action.letters()).collect()
}

#[test]
fn every_step_of_a_bio_is_told_and_recorded_in_order() {
    for way in WAYS {
        let (stack, stamp, serving) = way;
        let mut pair = pair(stack, stamp, serving);
        // The fourth chunk, of 8 sectors each, is the second drive's second.
        let write = Bio::write(26, pattern(4, 1)).with_user_data(7).with_tenant(3);
        let (told, recorded) = pair.run(vec![write]);
        // The one list of all drives is not a plug.
        let steps = if serving == Serving::PerVolume { "QAGPIDC" } else { "QAGPUIDC" };
        assert_eq!(told_letters(&told), steps, "{way:?}");
        assert!(told.is_sorted_by_key(|event| event.time_ns), "{way:?}");
        for event in &told {
            let TraceEvent { action, time_ns, .. } = *event;
            let (flags, op) = (OpFlags::NONE, Op::Write);
            let (drive, sector, nr_sectors, user_data, tenant) = (1, 10, 4, 7, 3);
            let expected = TraceEvent {
                action,
                time_ns,
                drive,
                op,
                flags,
                sector,
                nr_sectors,
                user_data,
                tenant,
            };
            assert_eq!(*event, expected, "{way:?}");
        }
        // There a request is got for it only when it comes to the queue.
        let steps = if stack == Stack::Sq { "AQPUTGIDC" } else { "AQGPUTIDC" };
        assert_eq!(letters(&recorded), steps, "{way:?}");
        for entry in &recorded {
            let act = act(entry);
            let of_plug = matches!(act, EventCode::Plug | EventCode::UnplugTimer);
            let categories = if of_plug { 0 } else { category::WRITE };
            let expected = TraceEntry {
                time_ns: entry.time_ns,
                sector: if of_plug { u64::from(act == EventCode::UnplugTimer) } else { 10 },
                bytes: if of_plug { 0 } else { 2048 },
                from: if act == EventCode::Remap { 26 } else { 0 },
                action: act.with(categories),
                tenant: 3,
                device: device(259, 5),
                ..TraceEntry::default()
            };
            assert_eq!(*entry, expected, "{way:?}");
        }
    }
}

#[test]
fn parts_of_a_split_bio_are_remapped_from_where_they_begin() {
    for way in WAYS {
        let (stack, stamp, serving) = way;
        let mut pair = pair(stack, stamp, serving);
        let (told, recorded) = pair.run(vec![Bio::read(4, Buffer::new(20 * 512))]);
        let mut remaps: Vec<_> = recorded
            .iter()
            .filter(|entry| act(entry) == EventCode::Remap)
            .map(|entry| (minor(entry.device), entry.sector, entry.from, entry.bytes / 512))
            .collect();
        remaps.sort_unstable();
        let expected = match serving {
            // Linux splits at each chunk.
            Serving::PerVolume => vec![(4, 4, 4, 4), (4, 8, 16, 8), (5, 0, 8, 8)],
            _ => vec![(4, 4, 4, 12), (5, 0, 8, 8)],
        };
        assert_eq!(remaps, expected, "{way:?}");
        let count = |letter| told_letters(&told).chars().filter(|found| *found == letter).count();
        assert_eq!("XQAGDC".chars().map(count).collect::<Vec<_>>(), vec![expected.len(); 6]);
        let splits = letters(&recorded).chars().filter(|letter| *letter == 'X').count();
        assert_eq!(splits, expected.len(), "{way:?}");
        // A flush is split into one for each drive, of no place.
        let (told, recorded) = pair.run(vec![Bio::flush()]);
        let told = told_letters(&told);
        assert_eq!((told.matches('X').count(), told.matches('C').count()), (2, 2), "{way:?}");
        assert!(recorded.iter().all(|entry| act(entry) != EventCode::Remap), "{way:?}");
        for (device_minor, moment) in
            [(4, EventCode::Queue), (4, EventCode::Complete), (5, EventCode::Queue)]
        {
            let of_drive = |e: &&TraceEntry| minor(e.device) == device_minor && act(e) == moment;
            assert_eq!(recorded.iter().filter(of_drive).count(), 1, "{way:?} {moment:?}");
        }
    }
}

#[test]
fn merge_is_of_bio_that_came_and_what_follows_of_request() {
    for way in WAYS {
        let (stack, stamp, serving) = way;
        if stack == Stack::Raw {
            continue;
        }
        let mut pair = pair(stack, stamp, serving);
        for (sectors, merge, letter) in
            [([2, 4], EventCode::BackMerge, 'M'), ([4, 2], EventCode::FrontMerge, 'F')]
        {
            let bios = sectors.map(|sector| Bio::read(sector, Buffer::new(1024)));
            let numbered = bios.into_iter().zip([1, 2]).map(|(bio, n)| bio.with_user_data(n));
            let (told, recorded) = pair.run(numbered.collect());
            let of = |number| told.iter().filter(move |event| event.user_data == number);
            // A merged bio shares the events of its request from then on.
            let steps = told_letters(of(2));
            assert_eq!(steps.matches(letter).count(), 1, "{way:?} {steps}");
            assert!(!told_letters(of(1)).contains(letter), "{way:?}");
            for number in [1, 2] {
                assert!(told_letters(of(number)).ends_with("DC"), "{way:?}");
            }
            let place = |entry: &TraceEntry| (entry.sector, entry.bytes);
            let places = |wanted: EventCode| -> Vec<_> {
                recorded.iter().filter(|entry| act(entry) == wanted).map(place).collect()
            };
            assert_eq!(places(merge), [(sectors[1], 1024)], "{way:?}");
            let whole = [(2, 2048)];
            assert_eq!(
                (places(EventCode::Issue), places(EventCode::Complete)),
                (whole.into(), whole.into())
            );
            assert_eq!(places(EventCode::Queue), sectors.map(|sector| (sector, 1024)), "{way:?}");
            assert_eq!(places(EventCode::GetRequest), [(sectors[0], 1024)], "{way:?}");
        }
    }
}

#[test]
fn a_bounce_comes_just_before_the_issue() {
    for way in WAYS {
        let (stack, stamp, serving) = way;
        let mut pair = pair(stack, stamp, serving);
        pair.rig.knobs.bounces.store(true, Ordering::SeqCst);
        let (told, recorded) = pair.run(vec![Bio::read(0, Buffer::new(512))]);
        assert!(told_letters(&told).ends_with("IBDC"), "{way:?}");
        assert_eq!(letters(&recorded).matches('B').count(), 1, "{way:?}");
        let of = |wanted| recorded.iter().find(|entry| act(entry) == wanted).expect("it is there");
        let bounce = of(EventCode::Bounce);
        assert_eq!((bounce.sector, bounce.bytes), (0, 512), "{way:?}");
        assert!(bounce.time_ns <= of(EventCode::Issue).time_ns, "{way:?}");
    }
}

#[test]
fn bios_plugged_before_a_recording_are_recorded_alike() {
    for stamp in [TraceStamp::Batch, TraceStamp::Event] {
        let mut rig = rig(Stack::Mq, stamp, QueueLimits::default());
        rig.tracer.stop();
        assert!(rig.channel.volume().set_traced(false));
        run(&mut rig.channel, Bio::read(0, Buffer::new(512)));
        rig.events();
        [40, 41].into_iter().for_each(|sector| rig.submit(sector));
        assert!(rig.tracer.start(stamp) && rig.channel.volume().set_traced(true));
        assert_eq!(rig.channel.wait(2, |_| ()), 2);
        let mut events = rig.events();
        let merge = events.iter().find(|entry| act(entry) == EventCode::BackMerge);
        assert_eq!(merge.map(|entry| (entry.sector, entry.bytes)), Some((41, 512)));
        events.sort_by_key(|entry| entry.time_ns);
        let mut kinds: Vec<char> = letters(&events).chars().collect();
        kinds.sort_unstable();
        assert_eq!(kinds.into_iter().collect::<String>(), "CDGIMPQQTU", "{stamp:?}");
    }
}

/// Waits of 65 us and more do not fit into the word that holds the times of I and D together.
#[test]
fn what_was_inserted_long_before_its_issue_has_its_own_time() {
    let drive = TestDrive { depth: 4, ..TestDrive::new(4096) };
    let mut rig = rig_of(drive, TraceStamp::Batch, DiskConfig::default());
    rig.knobs.slow_ns.store(100_000, Ordering::SeqCst);
    (0..8).for_each(|n| rig.submit(n * 16));
    while rig.channel.in_flight() > 0 {
        rig.channel.poll(|_| ());
    }
    let events = rig.events();
    let times = |wanted: EventCode| -> Vec<u64> {
        let mut found: Vec<_> = events.iter().filter(|entry| act(entry) == wanted).collect();
        found.sort_by_key(|entry| entry.sector);
        found.iter().map(|entry| entry.time_ns).collect()
    };
    let (inserted, issued) = (times(EventCode::Insert), times(EventCode::Issue));
    assert_eq!((inserted.len(), issued.len()), (8, 8));
    assert!(inserted.iter().all(|time_ns| *time_ns == inserted[0]), "{inserted:?}");
    assert!(issued[7] - inserted[7] > u64::from(u16::MAX), "{inserted:?} {issued:?}");
}
