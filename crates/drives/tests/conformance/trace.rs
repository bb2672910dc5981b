//! The order of events of each bio: Q <= G <= I <= D <= C, each letter once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use millrace_block::baseline::Stack;
use millrace_block::blktrace::EventCode;
use millrace_block::{Bio, Buffer, Op, TraceEvent, TraceSink};

use crate::harness::{Dice, Kind, Plan, Rig, plans};

/// Keeps all events.
#[derive(Default)]
pub struct Sink(Mutex<Vec<TraceEvent>>);

impl TraceSink for Sink {
    fn trace(&self, event: &TraceEvent) {
        self.0.lock().unwrap().push(*event);
    }
}

impl Sink {
    /// Events of the bio with this `user_data`, in order.
    pub fn actions_of(&self, number: u64) -> Vec<EventCode> {
        let events = self.0.lock().unwrap();
        events.iter().filter(|e| e.user_data == number).map(|e| e.action).collect()
    }
}

const LETTERS: [EventCode; 5] = [
    EventCode::Queue,
    EventCode::GetRequest,
    EventCode::Insert,
    EventCode::Issue,
    EventCode::Complete,
];

/// Events by the part of a bio that they are about.
type Parts = HashMap<(u64, u16, u64, u32), Vec<TraceEvent>>;

fn parts_of(sink: &Sink) -> Parts {
    let mut parts = Parts::new();
    for event in sink.0.lock().unwrap().iter() {
        let key = (event.user_data, event.drive, event.sector, event.nr_sectors);
        parts.entry(key).or_default().push(*event);
    }
    parts
}

fn check(key: &(u64, u16, u64, u32), events: &[TraceEvent], stack: Stack) {
    let op = events[0].op;
    let text =
        || format!("{key:?} {op:?}: {:?}", events.iter().map(|e| e.action).collect::<Vec<_>>());
    let mut last = (0, 0);
    for letter in LETTERS {
        let merged =
            |e: &TraceEvent| matches!(e.action, EventCode::BackMerge | EventCode::FrontMerge);
        if letter == EventCode::Insert && stack == Stack::Sq && events.iter().any(merged) {
            // In the one queue a bio is inserted by itself or by a merge.
            continue;
        }
        let mut places = events.iter().enumerate().filter(|(_, event)| event.action == letter);
        let place = places.next().unwrap_or_else(|| panic!("no {letter:?}: {}", text()));
        assert!(places.next().is_none(), "{letter:?} twice: {}", text());
        assert!(place.0 >= last.0, "{letter:?} too early: {}", text());
        assert!(place.1.time_ns >= last.1, "{letter:?} earlier by the clock: {}", text());
        last = (place.0, place.1.time_ns);
    }
}

#[test]
fn every_part_of_every_bio_passes_q_g_i_d_c_once_and_in_order() {
    for plan in plans(&[Kind::Null, Kind::Ram, Kind::Model, Kind::File, Kind::FaultVolatile]) {
        let sink = Arc::new(Sink::default());
        let trace: Arc<dyn TraceSink> = sink.clone();
        let plan = Plan { trace: Some(trace), ..plan }.stripe(2, 8);
        let mut rig = Rig::new(&plan);
        let mut dice = Dice(99);
        for number in 0..200u64 {
            let sector = dice.roll(8000);
            let bio = match dice.roll(6) {
                0 => Bio::write(sector, Buffer::new(512 << dice.roll(8))),
                1 => Bio::discard(sector, 1 + dice.roll(64) as u32),
                2 => Bio::flush(),
                // Neighbours, to be merged.
                3 => Bio::read(number * 8 % 8000, Buffer::new(4096)),
                _ => Bio::read(sector, Buffer::new(512 << dice.roll(8))),
            };
            rig.submit(bio.with_user_data(number));
            if dice.roll(4) == 0 {
                rig.step(0);
            }
        }
        rig.drain();
        let parts = parts_of(&sink);
        assert!(parts.len() > 150);
        for (key, events) in &parts {
            // A flush that joined another is answered with it, without a dispatch of its own.
            if events[0].op != Op::Flush {
                check(key, events, plan.stack);
            }
        }
    }
}
