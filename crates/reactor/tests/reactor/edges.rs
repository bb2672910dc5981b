//! Behaviour at the edges of a turn: a wake while it spins, a result of the pool just before it
//! sleeps, interest that must be registered again, cancels between two tries, partial transfers.
//!
//! Each test targets one mistake that the rest of the suite would let pass. Both back ends pass all
//! tests, as in conformance.rs.

use crate::both;
use crate::common::*;
use millrace_reactor::{FileRef, Op, Wait, now_ns};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

both!(
    timeouts_complete_in_the_order_of_their_deadlines,
    a_wake_that_comes_while_a_turn_spins_ends_that_turn,
    a_result_of_the_pool_never_leaves_a_turn_asleep,
    a_reader_that_is_done_leaves_the_writer_of_its_socket_to_be_reported,
    a_writer_is_reported_while_a_reader_of_its_socket_still_waits,
    a_second_reader_is_reported_after_the_first,
    a_descriptor_whose_number_comes_back_is_reported_again,
    a_cancel_between_two_tries_ends_the_operation,
    bytes_moved_before_a_cancel_are_reported,
    bytes_moved_before_a_hang_up_are_reported,
    flags_of_a_write_reach_the_system,
);

const S: u64 = 1_000_000_000;

/// Nanoseconds that a turn takes.
fn timed_turn(rig: &mut Rig, wait: Wait) -> u64 {
    let start_ns = now_ns();
    rig.reactor.turn(wait).unwrap();
    now_ns() - start_ns
}

fn a_wake_that_comes_while_a_turn_spins_ends_that_turn(rig: &mut Rig) {
    // Without the wake the turn would spin for 2 s and then sleep for the rest of 20 s.
    let mut rig = Rig::with_spin(rig.reactor.backend(), 2 * S);
    let wake = rig.reactor.wake_fd();
    let thread = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        write_eventfd(wake.as_raw_fd());
    });
    let took_ns = timed_turn(&mut rig, Wait::Until(now_ns() + 20 * S));
    thread.join().unwrap();
    assert_eq!(rig.reactor.counters().wakes, 1);
    assert!(took_ns < 10 * S, "{took_ns} ns");
}

fn a_result_of_the_pool_never_leaves_a_turn_asleep(rig: &mut Rig) {
    let (ours, _theirs) = UnixStream::pair().unwrap();
    let fd = ours.as_raw_fd();
    // Of these results, some come between the last look and the sleep, and most wake a sleeper.
    for round in 0..3_000 {
        rig.push(round, Op::Ioctl { fd, request: libc::FIONREAD, range: [0; 2] });
        let mut done = Vec::new();
        while done.is_empty() {
            let took_ns = timed_turn(rig, Wait::Until(now_ns() + 20 * S));
            assert!(took_ns < 10 * S, "round {round}: {took_ns} ns");
            rig.handle.take(rig.source, &mut done);
        }
        assert_eq!((done.len(), done[0].result), (1, 0));
    }
}

/// Sends until the socket takes no more; how many bytes that were.
fn fill(socket: &UnixStream) -> usize {
    socket.set_nonblocking(true).unwrap();
    let (mut socket, mut filled) = (socket, 0);
    while let Ok(sent) = socket.write(&[7; 4096]) {
        filled += sent;
    }
    filled
}

fn a_reader_that_is_done_leaves_the_writer_of_its_socket_to_be_reported(rig: &mut Rig) {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let (fd, filled) = (ours.as_raw_fd(), fill(&ours));
    let (mut input, output) = ([0u8; 4], [9u8; 4]);
    rig.push(1, Op::Recv { fd, buf: input.as_mut_ptr(), len: 4 });
    rig.push(2, Op::Send { fd, buf: output.as_ptr(), len: 4, flags: 0 });
    rig.settle();
    assert_eq!(rig.pending(), 2);
    theirs.write_all(b"ping").unwrap();
    assert_eq!(rig.result(1), 4);
    rig.settle();
    assert_eq!(rig.pending(), 1);
    theirs.read_exact(&mut vec![0; filled]).unwrap();
    assert_eq!(rig.result(2), 4);
    theirs.read_exact(&mut input).unwrap();
    assert_eq!(input, output);
}

fn a_writer_is_reported_while_a_reader_of_its_socket_still_waits(rig: &mut Rig) {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let (fd, filled) = (ours.as_raw_fd(), fill(&ours));
    let (mut input, output) = ([0u8; 4], [9u8; 4]);
    rig.push(1, Op::Recv { fd, buf: input.as_mut_ptr(), len: 4 });
    rig.settle();
    rig.push(2, Op::Send { fd, buf: output.as_ptr(), len: 4, flags: 0 });
    rig.settle();
    theirs.read_exact(&mut vec![0; filled]).unwrap();
    assert_eq!(rig.result(2), 4);
    rig.settle();
    assert_eq!(rig.pending(), 1);
    theirs.write_all(b"ping").unwrap();
    assert_eq!(rig.result(1), 4);
}

fn a_second_reader_is_reported_after_the_first(rig: &mut Rig) {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let (fd, mut bytes) = (ours.as_raw_fd(), [[0u8; 1]; 2]);
    for (user_data, byte) in (0..).zip(&mut bytes) {
        rig.push(user_data, Op::Recv { fd, buf: byte.as_mut_ptr(), len: 1 });
    }
    rig.settle();
    theirs.write_all(b"a").unwrap();
    // On the ring, either of the two may complete first.
    let first = rig.next();
    assert_eq!((first.len(), first[0].result), (1, 1));
    rig.settle();
    theirs.write_all(b"b").unwrap();
    assert_eq!(rig.result(1 - first[0].user_data), 1);
    bytes.sort_unstable();
    assert_eq!(bytes, [*b"a", *b"b"]);
}

fn a_descriptor_whose_number_comes_back_is_reported_again(rig: &mut Rig) {
    let (ours, _theirs) = UnixStream::pair().unwrap();
    let (next, mut its_peer) = UnixStream::pair().unwrap();
    let (fd, mut byte) = (ours.as_raw_fd(), [0u8; 1]);
    let recv = Op::Recv { fd, buf: byte.as_mut_ptr(), len: 1 };
    rig.push(1, recv);
    rig.settle();
    let source = rig.source;
    rig.push(2, Op::Cancel { source, user_data: 1 });
    assert_eq!(rig.results(1, 2), (-libc::ECANCELED, 0));
    // The number refers to another socket now, which no poll has watched so far.
    replace(fd, next.as_raw_fd());
    rig.push(1, recv);
    rig.settle();
    assert_eq!(rig.pending(), 1);
    its_peer.write_all(b"x").unwrap();
    assert_eq!(rig.result(1), 1);
}

fn a_cancel_between_two_tries_ends_the_operation(rig: &mut Rig) {
    let (event, source, mut value) = (nonblocking_eventfd(), rig.source, 0u64);
    let file = FileRef::Raw(event.as_raw_fd());
    let buf = (&raw mut value).cast();
    // The kernel refuses it at once, and it is to be tried again.
    rig.push(1, Op::Read { file, buf, len: 8, offset: 0, buffer: None });
    rig.reactor.turn(Wait::No).unwrap();
    assert_eq!(rig.pending(), 1);
    rig.push(2, Op::Cancel { source, user_data: 1 });
    let (read, cancel) = rig.results(1, 2);
    assert_eq!(read, -libc::ECANCELED);
    // The cancel finds the operation or not, depending on where it was.
    assert!(cancel == 0 || cancel == -libc::ENOENT, "{cancel}");
    write_eventfd(event.as_raw_fd());
    rig.settle();
    assert_eq!((rig.pending(), value), (0, 0));
}

/// Starts a receive of at least eight bytes, of which four have come.
fn half_received(rig: &mut Rig, body: impl FnOnce(&mut Rig, UnixStream) -> i32) {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let mut buf = [0u8; 8];
    let mut iov = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: 8 };
    let mut msg = header(std::slice::from_mut(&mut iov));
    let fd = ours.as_raw_fd();
    rig.push(1, Op::RecvMsg { fd, msg: &raw mut msg, flags: libc::MSG_WAITALL });
    theirs.write_all(b"half").unwrap();
    rig.settle();
    assert_eq!(rig.pending(), 1);
    assert_eq!(body(rig, theirs), 4);
    assert_eq!(&buf, b"half\0\0\0\0");
}

fn bytes_moved_before_a_cancel_are_reported(rig: &mut Rig) {
    half_received(rig, |rig, _theirs| {
        let source = rig.source;
        rig.push(2, Op::Cancel { source, user_data: 1 });
        rig.results(1, 2).0
    });
}

fn bytes_moved_before_a_hang_up_are_reported(rig: &mut Rig) {
    half_received(rig, |rig, theirs| {
        drop(theirs);
        rig.result(1)
    });
}

fn timeouts_complete_in_the_order_of_their_deadlines(rig: &mut Rig) {
    let now = now_ns();
    for (user_data, delay_ms) in [(3, 30), (1, 10), (2, 20)] {
        rig.push(user_data, Op::Timeout { deadline_ns: now + delay_ms * 1_000_000 });
    }
    let mut order = Vec::new();
    while order.len() < 3 {
        order.extend(rig.next().iter().map(|done| done.user_data));
    }
    assert_eq!(order, [1, 2, 3]);
}

fn flags_of_a_write_reach_the_system(rig: &mut Rig) {
    // A test cannot see the effect of RWF_DSYNC, but it can see that of RWF_APPEND.
    let file = tempfile::tempfile().unwrap();
    file.set_len(100).unwrap();
    let (file_ref, data) = (FileRef::Raw(file.as_raw_fd()), [1u8; 10]);
    let write = Op::Write {
        file: file_ref,
        buf: data.as_ptr(),
        len: 10,
        offset: 0,
        buffer: None,
        rw_flags: libc::RWF_APPEND,
    };
    rig.push(1, write);
    assert_eq!(rig.result(1), 10);
    assert_eq!(file.metadata().unwrap().len(), 110);
    let iov = libc::iovec { iov_base: data.as_ptr().cast_mut().cast(), iov_len: 10 };
    let (iov, rw_flags) = (&raw const iov, libc::RWF_APPEND);
    rig.push(2, Op::WriteV { file: file_ref, iov, count: 1, offset: 0, buffer: None, rw_flags });
    assert_eq!(rig.result(2), 10);
    assert_eq!(file.metadata().unwrap().len(), 120);
}

#[test]
fn few_file_reads_go_at_once_and_socket_reads_wait() {
    run_on_uring(|rig| {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; 512]).unwrap();
        let mut buffers = [[0_u8; 512]; 24];
        let addresses = buffers.each_mut().map(|buffer| buffer.as_mut_ptr());
        rig.settle();
        let calls = |rig: &Rig| rig.reactor.counters().system_calls;
        let before = calls(rig);
        for (number, buf) in (0..).zip(&addresses[..7]) {
            rig.push(number, Op::Recv { fd: ours.as_raw_fd(), buf: *buf, len: 512 });
        }
        assert_eq!(calls(rig), before, "they wait for the turn");
        for (number, buf) in (7..).zip(&addresses[7..]) {
            let file = FileRef::Raw(file.as_raw_fd());
            rig.push(number, Op::Read { file, buf: *buf, len: 512, offset: 0, buffer: None });
        }
        // Of 8 to 15 outstanding one is kept back, of 16 to 24 two or three.
        let made = calls(rig) - before;
        assert!((8..=12).contains(&made), "{made} calls for 17 reads");
        let mut done = 0;
        while done < 17 {
            done += rig.next().len();
        }
        ours.shutdown(std::net::Shutdown::Both).unwrap();
        while done < 24 {
            done += rig.next().len();
        }
    });
}
