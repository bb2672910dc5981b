//! Frontends that send any message, in any order, in pieces, with any descriptors, or hang up.
//!
//! A plain model decides for each message if it must be accepted or must end the connection. A
//! message that ends a connection harms neither the export nor the next frontend.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use crate::vhost_support::guest::{Guest, QUEUE_BYTES, addresses, event};
use crate::vhost_support::wire::{NEED_REPLY, VERSION, Wire, code, pair, words};
use crate::vhost_support::{Export, faulty, until, volume};
use millrace_drives::FaultCache;
use millrace_reactor::Backend;
use proptest::prelude::*;

const SPEC: &str = "ram:size=16m";
const QUEUES: u32 = 4;
const PROTOCOL_FEATURES: u64 = 1 << 30;
/// Protocol features: configuration space, reset.
const CONFIG: u64 = 1 << 9;
const RESET: u64 = 1 << 13;

/// Messages of a frontend.
#[derive(Debug, Clone)]
enum Message {
    Owner,
    ResetOwner,
    ResetDevice,
    Features(u64),
    Protocol(u64),
    /// A memory table, with the rings in it or without.
    Memory(bool),
    Num(u32, u32),
    Addr(u32, u64),
    Base(u32),
    GetBase(u32),
    /// An eventfd; else a file.
    Kick(u32, bool),
    Call(u32, bool),
    NoCall(u32),
    NoKick(u32),
    Enable(u32, u32),
    GetConfig,
    Unknown(u32),
    /// A payload that is this many bytes too long or too short.
    Size(u32, usize),
}

fn message() -> impl Strategy<Value = Message> {
    let queue = || prop_oneof![8 => 0..QUEUES, 1 => Just(QUEUES), 1 => Just(255u32)];
    let size = prop_oneof![6 => Just(64u32), 1 => Just(1024), 1 => Just(0), 1 => Just(3),
        1 => Just(2048), 1 => Just(65536 + 64)];
    let yes = || prop_oneof![9 => Just(true), 1 => Just(false)];
    prop_oneof![
        2 => Just(Message::Owner),
        1 => Just(Message::ResetOwner),
        1 => Just(Message::ResetDevice),
        3 => prop_oneof![Just(0u64), Just(PROTOCOL_FEATURES), Just(1 << 32), Just(1 << 33)]
            .prop_map(Message::Features),
        3 => prop_oneof![Just(0u64), Just(CONFIG), Just(CONFIG | RESET)]
            .prop_map(Message::Protocol),
        5 => yes().prop_map(Message::Memory),
        6 => (queue(), size).prop_map(|(q, n)| Message::Num(q, n)),
        6 => (queue(), prop_oneof![9 => Just(0u64), 1 => Just(8), 1 => Just(1 << 50)])
            .prop_map(|(q, at)| Message::Addr(q, at)),
        2 => queue().prop_map(Message::Base),
        2 => queue().prop_map(Message::GetBase),
        6 => (queue(), yes()).prop_map(|(q, good)| Message::Kick(q, good)),
        3 => (queue(), yes()).prop_map(|(q, good)| Message::Call(q, good)),
        1 => queue().prop_map(Message::NoCall),
        1 => queue().prop_map(Message::NoKick),
        3 => (queue(), prop_oneof![4 => Just(0u32), 4 => Just(1), 1 => Just(2)])
            .prop_map(|(q, on)| Message::Enable(q, on)),
        2 => Just(Message::GetConfig),
        1 => prop_oneof![Just(0u32), Just(60), Just(100), Just(u32::MAX)]
            .prop_map(Message::Unknown),
        1 => (1u32..40, 1usize..40).prop_map(|(code, size)| Message::Size(code, size)),
    ]
}

#[derive(Default, Clone, Copy)]
struct Ring {
    size: u32,
    /// `Some(true)` if the ring's addresses lie within the memory.
    addresses: Option<bool>,
    served: bool,
}

/// The device's state after the messages so far, as the protocol defines it.
#[derive(Default)]
struct Model {
    owned: bool,
    features: u64,
    protocol: u64,
    memory: bool,
    rings: [Ring; QUEUES as usize],
}

impl Model {
    /// Must the device accept the message?
    fn takes(&mut self, message: &Message) -> bool {
        match *message {
            Message::Owner => {
                if std::mem::replace(&mut self.owned, true) {
                    // A new session begins with nothing of the last one.
                    (self.rings, self.memory) = Default::default();
                }
                true
            }
            Message::ResetOwner => {
                self.rings.iter_mut().for_each(|ring| ring.served = false);
                true
            }
            Message::ResetDevice if self.protocol & RESET == 0 => false,
            Message::ResetDevice => {
                self.rings = Default::default();
                true
            }
            Message::Features(bits) => {
                self.features = bits;
                bits != 1 << 33
            }
            Message::Protocol(bits) => {
                self.protocol = bits;
                true
            }
            Message::Memory(whole) => {
                self.memory = whole;
                true
            }
            Message::GetConfig => self.protocol & CONFIG != 0,
            Message::Unknown(_) | Message::Size(..) => false,
            Message::Num(q, _)
            | Message::Addr(q, _)
            | Message::Base(q)
            | Message::GetBase(q)
            | Message::Kick(q, _)
            | Message::Call(q, _)
            | Message::NoCall(q)
            | Message::NoKick(q)
            | Message::Enable(q, _) => q < QUEUES && self.ring_takes(message, q as usize),
        }
    }

    fn ring_takes(&mut self, message: &Message, q: usize) -> bool {
        let (memory, features) = (self.memory, self.features);
        let ring = &mut self.rings[q];
        match *message {
            Message::Num(_, size) => {
                ring.size = size;
                matches!(size, 64 | 1024) && !ring.served
            }
            Message::Addr(_, at) => {
                ring.addresses = Some(at == 0);
                at != 8
            }
            Message::GetBase(_) => {
                ring.served = false;
                true
            }
            Message::Kick(_, good) => {
                let complete = ring.size > 0 && ring.addresses == Some(true) && memory;
                let taken = good && (ring.served || complete);
                ring.served |= taken;
                taken
            }
            Message::Call(_, good) => good,
            Message::NoKick(_) => false,
            Message::Enable(_, on) => on < 2 && features & PROTOCOL_FEATURES != 0,
            _ => true,
        }
    }
}

/// Sends a message; false if the other side has gone already.
fn say(guest: &Guest, message: &Message) -> bool {
    let (eventfd, file) = (event(), File::open("/dev/null").unwrap());
    let number = |q: u32| words(&[q.into()]);
    let none: &[BorrowedFd<'_>] = &[];
    let put = |code, payload: Vec<u8>, fds| guest.wire.send(code, VERSION, &payload, fds);
    let fd = |good: bool| if good { [eventfd.as_fd()] } else { [file.as_fd()] };
    match *message {
        Message::Owner => put(code::SET_OWNER, vec![], none),
        Message::ResetOwner => put(code::RESET_OWNER, vec![], none),
        Message::ResetDevice => put(code::RESET_DEVICE, vec![], none),
        Message::Features(bits) => put(code::SET_FEATURES, words(&[bits]), none),
        Message::Protocol(bits) => put(code::SET_PROTOCOL_FEATURES, words(&[bits]), none),
        Message::Memory(whole) => {
            let from = if whole { 0 } else { guest.data };
            let region = guest.memory.region(from, guest.memory.len - from);
            let payload = [pair(1, 0), words(&region)].concat();
            put(code::SET_MEM_TABLE, payload, &[guest.memory.file.as_fd()])
        }
        Message::Num(q, size) => put(code::SET_VRING_NUM, pair(q, size), none),
        Message::Addr(q, at) => {
            let at = at.wrapping_add(u64::from(q % QUEUES) * QUEUE_BYTES);
            put(code::SET_VRING_ADDR, addresses(q, at), none)
        }
        Message::Base(q) => put(code::SET_VRING_BASE, pair(q, 0), none),
        Message::GetBase(q) => put(code::GET_VRING_BASE, pair(q, 0), none),
        Message::Kick(q, good) => put(code::SET_VRING_KICK, number(q), &fd(good)),
        Message::Call(q, good) => put(code::SET_VRING_CALL, number(q), &fd(good)),
        Message::NoCall(q) => put(code::SET_VRING_CALL, number(q | 0x100), none),
        Message::NoKick(q) => put(code::SET_VRING_KICK, number(q | 0x100), none),
        Message::Enable(q, on) => put(code::SET_VRING_ENABLE, pair(q, on), none),
        Message::GetConfig => {
            let asked = [[0u32, 60, 0].map(u32::to_ne_bytes).concat(), vec![0; 60]].concat();
            put(code::GET_CONFIG, asked, none)
        }
        Message::Unknown(code) => put(code, vec![], none),
        Message::Size(code, size) => {
            // No message has a payload of a size that is no multiple of four.
            put(code, vec![0; 4 * size - 1], none)
        }
    }
}

/// Does the device still answer?
fn answers(wire: &Wire) -> bool {
    if !wire.send(code::GET_FEATURES, VERSION, &[], &[]) {
        return false;
    }
    loop {
        match wire.answer() {
            Some((code::GET_FEATURES, ..)) => return true,
            Some(_) => {}
            None => return false,
        }
    }
}

#[test]
fn messages_in_any_order_match_a_plain_model() {
    let export = Export::of(Backend::Auto, &[volume(SPEC)], |_| {});
    let config = ProptestConfig { cases: 150, failure_persistence: None, ..Default::default() };
    let mut runner = proptest::test_runner::TestRunner::new(config);
    let said = prop::collection::vec(message(), 1..40);
    let result = runner.run(&said, |messages| {
        let guest = Guest::connect(&export.socket(0), QUEUES as usize);
        let mut model = Model::default();
        for (index, message) in messages.iter().enumerate() {
            let taken = model.takes(message);
            say(&guest, message);
            prop_assert_eq!(answers(&guest.wire), taken, "message {}: {:?}", index, message);
            if !taken {
                break;
            }
        }
        Ok(())
    });
    result.unwrap();
    export.works();
    export.stop();
}

/// All messages of a connection until its ring is served.
fn handshake(guest: &Guest, kick: &OwnedFd) -> Vec<(u32, Vec<u8>, Vec<OwnedFd>)> {
    let copy = |fd: &OwnedFd| vec![fd.try_clone().unwrap()];
    let memory = guest.memory.region(0, guest.memory.len);
    let table = [pair(1, 0), words(&memory)].concat();
    let file = OwnedFd::from(guest.memory.file.try_clone().unwrap());
    vec![
        (code::GET_FEATURES, vec![], vec![]),
        (code::GET_PROTOCOL_FEATURES, vec![], vec![]),
        (code::SET_PROTOCOL_FEATURES, words(&[1 << 3 | 1 << 9]), vec![]),
        (code::SET_OWNER, vec![], vec![]),
        (code::SET_FEATURES, words(&[1 << 32 | PROTOCOL_FEATURES]), vec![]),
        (code::SET_MEM_TABLE, table, vec![file]),
        (code::SET_VRING_NUM, pair(0, 64), vec![]),
        (code::SET_VRING_BASE, pair(0, 0), vec![]),
        (code::SET_VRING_ADDR, addresses(0, 0), vec![]),
        (code::SET_VRING_CALL, words(&[0]), copy(&event())),
        (code::SET_VRING_ERR, words(&[0]), copy(&event())),
        (code::SET_VRING_KICK, words(&[0]), copy(kick)),
        (code::SET_VRING_ENABLE, pair(0, 1), vec![]),
        (code::GET_VRING_BASE, pair(0, 0), vec![]),
    ]
}

#[test]
fn frontend_may_hang_up_at_any_point_of_a_message() {
    let export = Export::one(Backend::Auto, SPEC);
    let kick = event();
    let steps = handshake(&Guest::connect(&export.socket(0), 1), &kick).len();
    for step in 0..steps {
        for cut in [0, 1, 4, 11, 12, 13, 19] {
            let guest = Guest::connect(&export.socket(0), 1);
            for (index, (code, payload, fds)) in handshake(&guest, &kick).into_iter().enumerate() {
                let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
                let header = [code, VERSION, payload.len() as u32].map(u32::to_ne_bytes).concat();
                let bytes = [header, payload].concat();
                if index < step {
                    assert!(guest.wire.put(&bytes, &fds));
                } else {
                    let cut = cut.min(bytes.len());
                    assert!(cut == 0 || guest.wire.put(&bytes[..cut], &fds));
                    break;
                }
            }
        }
    }
    until("no ring is left", || export.stats().queues == 0);
    export.works();
    export.stop();
}

#[test]
fn bytes_that_are_no_messages_end_connection_and_nothing_else() {
    let export = Export::one(Backend::Auto, SPEC);
    let headers: [[u32; 3]; 7] = [
        [0, 0, 0],
        [1, 0, 0],
        [1, 2, 0],
        [1, VERSION | 4, 0],
        [1, VERSION, u32::MAX],
        [5, VERSION, 4096],
        [u32::MAX; 3],
    ];
    for header in headers {
        let wire = Wire::connect(&export.socket(0));
        wire.put(&header.map(u32::to_ne_bytes).concat(), &[]);
        wire.put(&[0; 64], &[]);
        // A frontend that promises more bytes than it sends blocks only itself.
        wire.stream.shutdown(std::net::Shutdown::Write).unwrap();
        wire.until_closed();
    }
    // Descriptors where none belong, and more than there may be.
    let fd = event();
    for (code, count) in [(code::GET_FEATURES, 1), (code::SET_OWNER, 3), (code::SET_VRING_CALL, 2)]
    {
        let wire = Wire::connect(&export.socket(0));
        wire.send(code, VERSION, &[], &vec![fd.as_fd(); count]);
        wire.stream.shutdown(std::net::Shutdown::Write).unwrap();
        wire.until_closed();
    }
    export.works();
    export.stop();
}

#[test]
fn what_is_refused_is_answered_and_said_in_a_clear_line() {
    let cases: [(u32, Vec<u8>, &str); 7] = [
        (
            code::SET_VRING_NUM,
            pair(0, 0),
            "queue 0: size 0 refused; it must be a power of two up to 1024",
        ),
        (
            code::SET_VRING_NUM,
            pair(0, 3),
            "queue 0: size 3 refused; it must be a power of two up to 1024",
        ),
        (
            code::SET_VRING_NUM,
            pair(1, 2048),
            "queue 1: size 2048 refused; it must be a power of two",
        ),
        (code::SET_VRING_NUM, pair(4, 64), "queue 4; there are 4 (queues = in the export)"),
        (code::SET_VRING_BASE, pair(u32::MAX, 0), "queue 4294967295; there are 4"),
        (code::SET_FEATURES, words(&[1 << 40]), "offered 0x10000000000, which it"),
        (code::SET_VRING_ENABLE, pair(7, 1), "queue 7; there are 4"),
    ];
    for (code, payload, text) in cases {
        let export = Export::one(Backend::Auto, SPEC);
        let mut guest = Guest::connect(&export.socket(0), 1);
        guest.negotiate(|offered| offered);
        assert!(!guest.wire.order(code, &payload, &[]));
        export.until_said(text);
        guest.wire.until_closed();
        export.works_after(guest);
    }
}

#[test]
fn guest_offered_fewer_features_is_named_once() {
    type Change = fn(&mut millrace_exports::vhost::VhostExport);
    let cases: [(Change, &str); 2] = [
        (
            |export| export.read_only = true,
            "offered DISCARD and WRITE_ZEROES, which it does not offer now: it is read-only now; \
             undo that, or restart the guest",
        ),
        (
            |export| export.event_idx = false,
            "offered EVENT_IDX, which it does not offer now: event-idx = false; undo that, or \
             restart the guest",
        ),
    ];
    for (change, text) in cases {
        let export = Export::one(Backend::Auto, SPEC);
        let mut guest = export.guest();
        guest.write(0, 0, &[1; 512]);
        export.stop();
        let next = Export::of(Backend::Auto, &[volume(SPEC)], change);
        for _ in 0..5 {
            // QEMU reconnects like this every second.
            guest.wire = Wire::connect(&next.socket(0));
            let features = guest.features;
            guest.negotiate(|_| features);
            guest.wire.until_closed();
        }
        next.until_said(text);
        next.until_said("disconnecting the frontend");
        assert_eq!(next.said().len(), 2, "{:?}", next.said());
        next.stop();
    }
}

#[test]
fn frontend_leaving_over_fewer_queues_is_reported_once() {
    let export = Export::one(Backend::Auto, SPEC);
    for _ in 0..3 {
        let wire = Wire::connect(&export.socket(0));
        wire.ask_number(code::GET_FEATURES);
        let protocol = wire.ask_number(code::GET_PROTOCOL_FEATURES);
        wire.send(code::SET_PROTOCOL_FEATURES, VERSION, &words(&[protocol]), &[]);
        assert_eq!(wire.ask_number(code::GET_QUEUE_NUM), 4);
    }
    export.until_said(
        "the frontend disconnected when it was told that there are 4 queues: if its guest",
    );
    export.works();
    assert_eq!(export.said().len(), 1, "{:?}", export.said());
    export.stop();
}

#[test]
fn only_eventfds_are_taken_for_notifications() {
    let dir = tempfile::tempdir().unwrap();
    let named = File::create(dir.path().join("x[eventfd]")).unwrap();
    let (pipe, _end) = std::io::pipe().unwrap();
    let (socket, _other) = UnixStream::pair().unwrap();
    let memory = Guest::over(Wire::over(socket.try_clone().unwrap()), 1).memory.file;
    let wrong: [OwnedFd; 5] =
        [named.into(), pipe.into(), socket.into(), memory.into(), File::open("/").unwrap().into()];
    for fd in &wrong {
        for code in [code::SET_VRING_CALL, code::SET_VRING_KICK, code::SET_VRING_ERR] {
            let export = Export::one(Backend::Auto, SPEC);
            let mut guest = export.guest();
            guest.write(0, 0, &[1; 512]);
            assert!(!guest.wire.order(code, &words(&[0]), &[fd.as_fd()]));
            export.until_said("a notification descriptor is not an eventfd");
            export.works_after(guest);
        }
    }
}

#[test]
fn stalled_frontends_do_not_keep_an_export_from_stopping() {
    let export = Export::of(Backend::Auto, &[volume(SPEC), volume(SPEC)], |_| {});
    // Half a header.
    let half = Wire::connect(&export.socket(0));
    half.put(&[1, 0, 0, 0, 1], &[]);
    // Sends requests until the device takes no more of them.
    let deaf = Wire::connect(&export.socket(1));
    deaf.stream.set_nonblocking(true).unwrap();
    let question = [code::GET_FEATURES, VERSION | NEED_REPLY, 0].map(u32::to_ne_bytes).concat();
    let mut full = 0;
    until("the device takes no more questions", || {
        let sent = (&deaf.stream).write(&question).is_ok_and(|sent| sent > 0);
        full = if sent { 0 } else { full + 1 };
        full > 20
    });
    export.stop();
}

#[test]
fn new_frontend_gets_the_cache_and_a_returning_one_its_setting() {
    let (volume, control) = faulty(SPEC, FaultCache::Volatile);
    let export = Export::of(Backend::Auto, &[volume], |_| {});
    let switch = |guest: &Guest| {
        let asked = [[32u32, 1, 0].map(u32::to_ne_bytes).concat(), vec![0]].concat();
        guest.wire.ask(code::GET_CONFIG, &asked).unwrap()[12]
    };
    let set = |guest: &Guest, on: u8| {
        let payload = [[32u32, 1, 0].map(u32::to_ne_bytes).concat(), vec![on]].concat();
        guest.wire.must(code::SET_CONFIG, &payload, &[]);
    };
    let hello = || {
        let guest = Guest::connect(&export.socket(0), 1);
        guest.wire.ask_number(code::GET_FEATURES);
        let protocol = guest.wire.ask_number(code::GET_PROTOCOL_FEATURES);
        guest.wire.send(code::SET_PROTOCOL_FEATURES, VERSION, &words(&[protocol]), &[]);
        guest.wire.send(code::SET_OWNER, VERSION, &[], &[]);
        guest
    };
    for _ in 0..2 {
        // Messages come in QEMU's order: a new frontend asks for the configuration before it knows
        // its guest's features.
        let mut guest = hello();
        assert_eq!(switch(&guest), 1);
        guest.set_up(&[64], |offered| offered);
        guest.write(0, 0, &[1; 65536]);
        assert!(control.power_cut(1) > 0, "of 128 sectors in a cache some are lost");
        set(&guest, 0);
        drop(guest);
        // A frontend that comes back sends its guest's features first, and asks for the notice of
        // changes.
        let mut guest = hello();
        guest.set_up(&[64], |offered| offered);
        assert_eq!(switch(&guest), 0);
        guest.write(0, 0, &[2; 65536]);
        assert_eq!(control.power_cut(2), 0, "nothing was lost");
        assert_eq!(switch(&guest), 0);
        guest.reset();
        assert_eq!(switch(&guest), 0);
        drop(guest);
        // A frontend that hands over requests in flight also finds the switch off.
        let guest = hello();
        let inflight = guest.new_inflight(1);
        assert!(guest.set_inflight(&inflight));
        assert_eq!(switch(&guest), 0);
    }
    export.works();
    export.stop();
}
